/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications to systemd: readiness, stopping, and keep-alives for its watchdog. Does nothing
 * where there is no service manager. */
#ifndef SEMEL_CLI_PROCESS_NOTIFY_H
#define SEMEL_CLI_PROCESS_NOTIFY_H

#include <stdint.h>

/* Sends a state such as "READY=1"; it may have several lines. */
void semel_notify(const char *state);
/* Half the time after which the watchdog expects a keep-alive; 0: it expects none. */
int64_t semel_notify_watchdog_ms(void);

#endif
