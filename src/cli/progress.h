/* SPDX-License-Identifier: Apache-2.0 */
/* A count that grows in place on a terminal; nothing at all when stderr is something else. */
#ifndef SEMEL_CLI_PROGRESS_H
#define SEMEL_CLI_PROGRESS_H

#include <stdint.h>

/* Cheap to call often: draws ten times a second at most. what: "events read". */
void semel_progress_show(const char *what, uint64_t count);
/* With a known end: also how far it is, in percent. */
void semel_progress_show_of(const char *what, uint64_t count, uint64_t total);
/* Wipes the line, so that what follows starts clean. */
void semel_progress_end(void);

#endif
