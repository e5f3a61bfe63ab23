/* SPDX-License-Identifier: Apache-2.0 */
/* Signals of long-running commands: the first SIGTERM or SIGINT requests a stop and starts the
 * grace period, the second one ends the process at once. SIGHUP does nothing unless a command
 * watches it. A SIGTERM while a command is starting (a broker may take seconds to answer) ends it
 * at once, with 0; one while it is closing only limits that to the grace period. */
#ifndef SEMEL_CLI_PROCESS_SIGNALS_H
#define SEMEL_CLI_PROCESS_SIGNALS_H

#include "cli/arguments/options.h"

#include <stdint.h>

/* Call this when a long-running command starts. */
void semel_signals_expect(void);
/* stop(target) is called in the signal handler. Call semel_signals_forget before target is freed.
 * If the process is still running when the grace period is over, it exits with 75. */
void semel_signals_watch(void (*stop)(void *target), void *target, int64_t grace_ms);
void semel_signals_forget(void);
/* SIGHUP writes to this non-blocking eventfd from now on, until semel_signals_forget. */
void semel_signals_watch_hangup(int event);

/* An option of every long-running command. */
#define SEMEL_OPTION_GRACE                                                                         \
	{                                                                                          \
		.name = "grace", .kind = SEMEL_OPTION_DURATION, .argument = "DURATION",            \
		.min = 1000, .max = 3600000, .default_value = "10s",                               \
		.help = "time to finish events in flight after SIGTERM; afterwards exit 75",       \
	}

#endif
