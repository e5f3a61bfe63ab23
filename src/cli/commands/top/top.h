/* SPDX-License-Identifier: Apache-2.0 */
/* `semel top`: how a sight looks in a terminal, and the terminal itself. */
#ifndef SEMEL_CLI_COMMANDS_TOP_TOP_H
#define SEMEL_CLI_COMMANDS_TOP_TOP_H

#include "base/buffer.h"

#include <stdbool.h>

struct semel_top_size {
	int columns, rows;
};

/* Lines of text, a newline behind each; pure. before: the sight before it, for what has changed
 * since, or NULL. False: this is no sight. */
bool semel_top_draw(const char *before, const char *sight, struct semel_buffer *text);

/* The terminal is ours from enter to leave: another screen, no cursor, keys at once. False: stdout
 * is no terminal. */
bool semel_top_enter(void);
void semel_top_leave(void);
struct semel_top_size semel_top_size(void);
/* As many lines as fit, each cut to the width. */
void semel_top_show(const char *lines, struct semel_top_size size);
/* A key to end with was pressed. Does not wait. */
bool semel_top_is_left(void);

#endif
