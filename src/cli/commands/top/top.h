/* SPDX-License-Identifier: Apache-2.0 */
/* `semel top`: the dashboard as lines of text. */
#ifndef SEMEL_CLI_COMMANDS_TOP_TOP_H
#define SEMEL_CLI_COMMANDS_TOP_TOP_H

#include "base/buffer.h"

#include <stdbool.h>

/* Draws the dashboard as lines of text, each with its newline; pure. before: the previous
 * dashboard, from which changes are computed, or NULL. False: it is not a dashboard. */
bool semel_top_draw(const char *before, const char *dashboard, struct semel_buffer *text);

#endif
