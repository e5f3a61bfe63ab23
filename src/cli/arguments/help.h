/* SPDX-License-Identifier: Apache-2.0 */
/* --help and the manual pages, written from the tables of commands and options. */
#ifndef SEMEL_CLI_ARGUMENTS_HELP_H
#define SEMEL_CLI_ARGUMENTS_HELP_H

#include "base/buffer.h"
#include "cli/arguments/command.h"

/* The answer to --help. command NULL: the program. */
void semel_help_text(const struct semel_command *command, struct semel_buffer *buffer);
/* A manual page in roff. command NULL: semel(1). */
void semel_manual_page(const struct semel_command *command, struct semel_buffer *buffer);
/* The file of that page: "semel-dlq.1". */
void semel_manual_name(const struct semel_command *command, char *name_out, size_t size);

/* Also for the other writers (commands/help.c). */

/* "--payload JSON|@FILE|-", with the short form if there is one. */
void semel_help_option_form(const struct semel_option *option, struct semel_buffer *buffer);
/* The help and what else is in the row: default, required, repeatable. Choices follow on lines of
 * their own, which the caller writes. */
void semel_help_option_text(const struct semel_option *option, struct semel_buffer *buffer);
/* Is any of the options a duration, so that their forms should be explained? */
bool semel_help_has_duration(const struct semel_option *options);
/* "semel publish [options]": without the program's name before it. */
void semel_help_synopsis(const struct semel_command *command, struct semel_buffer *buffer);

/* The exit codes, one phrase each; the list ends with a row whose meaning is NULL. */
struct semel_exit_row {
	int code;
	const char *meaning;
};
extern const struct semel_exit_row semel_exit_rows[];

/* The environment variables that the program reads; the list ends with a row of zeroes. */
struct semel_variable_row {
	const char *name, *meaning;
};
extern const struct semel_variable_row semel_variable_rows[];

/* A first session in five commands, and the forms of a duration. */
extern const struct semel_example semel_first_steps[];
extern const char semel_duration_forms[];

#endif
