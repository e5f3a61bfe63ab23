/* SPDX-License-Identifier: Apache-2.0 */
/* `semel top`: the dashboard as lines of text, and the terminal that shows them. */
#ifndef SEMEL_CLI_COMMANDS_TOP_TOP_H
#define SEMEL_CLI_COMMANDS_TOP_TOP_H

#include "base/buffer.h"

#include <stdbool.h>

struct semel_top_size {
	int columns, rows;
};

/* Lines of text, each with its newline; pure. before: the previous dashboard, from which the change
 * is computed, or NULL. False: this is not a dashboard. */
bool semel_top_draw(const char *before, const char *dashboard, struct semel_buffer *text);

/* From enter to leave the terminal shows the alternate screen without a cursor, and keys are read
 * without a newline. False: stdout is not a terminal. */
bool semel_top_enter(void);
void semel_top_leave(void);
struct semel_top_size semel_top_size(void);
/* Shows as many lines as fit, each cut to the width. */
void semel_top_show(const char *lines, struct semel_top_size size);
/* Was q pressed? Does not wait. */
bool semel_top_is_left(void);

#endif
