/* SPDX-License-Identifier: Apache-2.0 */
/* How far long work is: one line, drawn over itself, on a terminal; nothing at all when stderr is
 * something else. */
#ifndef SEMEL_CLI_PROCESS_PROGRESS_H
#define SEMEL_CLI_PROCESS_PROGRESS_H

#include "observe/metrics.h"

#include <stdint.h>

/* Cheap to call often: draws ten times a second at most. what: "events read". */
void semel_progress_show(const char *what, uint64_t count);
/* With a known end: also a bar, and how far it is in percent. */
void semel_progress_show_of(const char *what, uint64_t count, uint64_t total);
/* For work that tells nobody: shows by itself how a counter grows. second: a label of it, or NULL.
 */
void semel_progress_follow(const char *what, enum semel_metric metric, const char *second);
/* Wipes the line, so that what follows starts clean. */
void semel_progress_end(void);

#endif
