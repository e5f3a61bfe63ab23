/* SPDX-License-Identifier: Apache-2.0 */
/* Telling systemd how we are: readiness, stopping, and signs of life for its watchdog. Does nothing
 * where nobody listens. */
#ifndef SEMEL_CLI_PROCESS_NOTIFY_H
#define SEMEL_CLI_PROCESS_NOTIFY_H

#include <stdint.h>

/* "READY=1"; several lines may be told at once. */
void semel_notify(const char *state);
/* How often the watchdog wants a sign of life, halved to be on the safe side; 0: never. */
int64_t semel_notify_watchdog_ms(void);

#endif
