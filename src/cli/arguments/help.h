/* SPDX-License-Identifier: Apache-2.0 */
/* --help and the manual pages, written from the tables of commands and options. */
#ifndef SEMEL_CLI_ARGUMENTS_HELP_H
#define SEMEL_CLI_ARGUMENTS_HELP_H

#include "base/buffer.h"
#include "cli/arguments/command.h"

/* The text that --help prints. command NULL: the help of the program. */
void semel_help_text(const struct semel_command *command, struct semel_buffer *buffer);
/* A manual page in roff. command NULL: the page semel(1). */
void semel_manual_page(const struct semel_command *command, struct semel_buffer *buffer);
/* The file name of that page: "semel-dlq.1". */
void semel_manual_name(const struct semel_command *command, char *name_out, size_t size);

/* The functions below also serve the other writers (commands/help.c). */

/* "--payload JSON|@FILE|-", with the short form if there is one. */
void semel_help_option_form(const struct semel_option *option, struct semel_buffer *buffer);
/* The help of the option, with its default and whether it is required or repeatable. The caller
 * writes the choices, on lines of their own. */
void semel_help_option_text(const struct semel_option *option, struct semel_buffer *buffer);
/* Is any option a duration? If so, the forms of a duration are explained. */
bool semel_help_has_duration(const struct semel_option *options);
/* "semel publish [options]": the usage line of the command. */
void semel_help_synopsis(const struct semel_command *command, struct semel_buffer *buffer);

/* The exit codes, by a status that has it (semel_status_exit_code), one phrase each; the list ends
 * with a row whose meaning is NULL. */
struct semel_exit_row {
	semel_status status;
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
