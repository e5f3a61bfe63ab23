/* SPDX-License-Identifier: Apache-2.0 */
/* The progress of long work: one line on a terminal, redrawn in place; nothing when stderr is not a
 * terminal. */
#ifndef SEMEL_CLI_PROCESS_PROGRESS_H
#define SEMEL_CLI_PROCESS_PROGRESS_H

#include "observe/metrics.h"

#include <stdint.h>

/* Cheap to call often: draws ten times a second at most. what: "events read". */
void semel_progress_show(const char *what, uint64_t count);
/* The same with a known total: also draws a bar and the percentage. */
void semel_progress_show_of(const char *what, uint64_t count, uint64_t total);
/* For work without callbacks: shows the growth of a counter. second: a label of it, or NULL. */
void semel_progress_follow(const char *what, enum semel_metric metric, const char *second);
/* Clears the line. */
void semel_progress_end(void);

#endif
