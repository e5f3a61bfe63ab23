/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages in roff, from the tables. */
#include "cli/arguments/help.h"

#include <ctype.h>
#include <semel/version.h>
#include <stdio.h>
#include <string.h>

#define TABLES_DATE "2026-11-19" /* when the commands last changed for their users */

/* roff writes characters beyond ASCII by number. Returns the number of bytes read. */
static size_t wide_letter(struct semel_buffer *buffer, const char *string)
{
	unsigned char lead = (unsigned char)*string;
	size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
	unsigned number = lead & (0x7fU >> length);
	for (size_t i = 1; i < length && string[i]; i++)
		number = number << 6 | ((unsigned char)string[i] & 0x3fU);
	semel_buffer_printf(buffer, "\\[u%04X]", number);
	return length;
}

/* Escapes hyphens, which roff would change, and a character at the start of a line that would make
 * it a request. */
static void text(struct semel_buffer *buffer, const char *string)
{
	bool fresh = true; /* at the beginning of a line */
	for (size_t length = 1; *string; string += length) {
		length = 1;
		if (fresh && (*string == '.' || *string == '\''))
			semel_buffer_string(buffer, "\\&");
		fresh = *string == '\n';
		if ((unsigned char)*string >= 0x80)
			length = wide_letter(buffer, string);
		else if (*string == '\\')
			semel_buffer_string(buffer, "\\e");
		else if (*string == '-')
			semel_buffer_string(buffer, "\\-");
		else
			semel_buffer_append(buffer, string, 1);
	}
}

/* A new paragraph, unless a heading has just started one. */
static void paragraph_break(struct semel_buffer *buffer)
{
	size_t start = buffer->length > 0 ? buffer->length - 1 : 0;
	while (start > 0 && buffer->data[start - 1] != '\n')
		start--;
	if (buffer->length == 0 || strncmp(buffer->data + start, ".S", 2) != 0)
		semel_buffer_string(buffer, ".PP\n");
}

static void heading(struct semel_buffer *buffer, const char *request, const char *title)
{
	semel_buffer_printf(buffer, "%s \"", request);
	for (; *title; title++) {
		char letter =
			strcmp(request, ".SH") == 0 ? (char)toupper((unsigned char)*title) : *title;
		semel_buffer_append(buffer, &letter, 1);
	}
	semel_buffer_string(buffer, "\"\n");
}

/* A list within the option's paragraph. */
static void choices(struct semel_buffer *buffer, const struct semel_choice *choice)
{
	semel_buffer_string(buffer, ".RS\n");
	for (; choice->name; choice++) {
		semel_buffer_string(buffer, ".TP\n.B ");
		text(buffer, choice->name);
		semel_buffer_string(buffer, "\n");
		text(buffer, choice->meaning);
		semel_buffer_string(buffer, ".\n");
	}
	semel_buffer_string(buffer, ".RE\n");
}

static void options(struct semel_buffer *buffer, const struct semel_option *option,
		    const char *request, const char *default_title)
{
	const char *group = NULL;
	for (bool first = true; option && option->name; option++, first = false) {
		const char *own = option->group ? option->group : default_title;
		if (first || strcmp(own, group) != 0)
			heading(buffer, request, own);
		group = own;
		struct semel_buffer form = { 0 }, help = { 0 };
		semel_help_option_form(option, &form);
		semel_help_option_text(option, &help);
		semel_buffer_string(buffer, ".TP\n.B ");
		text(buffer, form.data);
		semel_buffer_string(buffer, "\n");
		text(buffer, help.data);
		semel_buffer_string(buffer, ".\n");
		if (option->kind == SEMEL_OPTION_CHOICE)
			choices(buffer, option->choices);
		semel_buffer_free(&form);
		semel_buffer_free(&help);
	}
}

static void paragraphs(struct semel_buffer *buffer, const char *details)
{
	while (details && *details) {
		const char *end = strstr(details, "\n\n");
		struct semel_buffer paragraph = { 0 };
		semel_buffer_append(&paragraph, details,
				    end ? (size_t)(end - details) : strlen(details));
		paragraph_break(buffer);
		text(buffer, paragraph.data);
		semel_buffer_string(buffer, "\n");
		semel_buffer_free(&paragraph);
		details = end ? end + 2 : NULL;
	}
}

static void examples(struct semel_buffer *buffer, const struct semel_example *example,
		     const char *request, const char *name)
{
	if (example && example->line)
		heading(buffer, request, name);
	for (; example && example->line; example++) {
		paragraph_break(buffer);
		text(buffer, example->why);
		semel_buffer_string(buffer, ":\n.PP\n.in +4n\n.nf\n");
		text(buffer, example->line);
		semel_buffer_string(buffer, "\n.fi\n.in\n");
	}
}

static void title(struct semel_buffer *buffer, const char *name, const char *summary)
{
	semel_buffer_printf(buffer, ".TH \"%s\" \"1\" \"" TABLES_DATE "\" \"semel %s\" \"Semel\"\n",
			    name, SEMEL_VERSION);
	semel_buffer_string(buffer, ".SH \"NAME\"\n");
	text(buffer, name);
	semel_buffer_string(buffer, " \\- ");
	text(buffer, summary);
	semel_buffer_string(buffer, "\n");
}

static void synopsis(struct semel_buffer *buffer, const struct semel_command *command)
{
	struct semel_buffer line = { 0 };
	semel_help_synopsis(command, &line);
	paragraph_break(buffer);
	semel_buffer_string(buffer, ".B ");
	text(buffer, line.data);
	semel_buffer_string(buffer, "\n");
	semel_buffer_free(&line);
}

static void exit_codes(struct semel_buffer *buffer)
{
	heading(buffer, ".SH", "Exit status");
	for (const struct semel_exit_row *row = semel_exit_rows; row->meaning; row++)
		semel_buffer_printf(buffer, ".TP\n.B %d\n%s\n", semel_status_exit_code(row->status),
				    row->meaning);
}

static void subcommand(struct semel_buffer *buffer, const struct semel_command *command)
{
	heading(buffer, ".SH", command->name);
	synopsis(buffer, command);
	paragraph_break(buffer);
	text(buffer, command->summary);
	semel_buffer_string(buffer, ".\n");
	paragraphs(buffer, command->details);
	options(buffer, command->options, ".SS", "Options");
	examples(buffer, command->examples, ".SS", "Examples");
}

static void command_page(struct semel_buffer *buffer, const struct semel_command *command)
{
	char name[128];
	snprintf(name, sizeof name, "semel-%s", command->name);
	title(buffer, name, command->summary);
	heading(buffer, ".SH", "Synopsis");
	synopsis(buffer, command);
	if (command->details) {
		heading(buffer, ".SH", "Description");
		paragraphs(buffer, command->details);
	}
	for (size_t i = 0; command->subcommands && command->subcommands[i]; i++)
		subcommand(buffer, command->subcommands[i]);
	options(buffer, command->options, ".SH", "Options");
	options(buffer, semel_global_options, ".SH", "Global options");
	if (semel_help_has_duration(command->options)) {
		heading(buffer, ".SH", "Durations");
		paragraphs(buffer, semel_duration_forms);
	}
	examples(buffer, command->examples, ".SH", "Examples");
	exit_codes(buffer);
	semel_buffer_string(buffer, ".SH \"SEE ALSO\"\n.BR semel (1)\n");
}

static void program_page(struct semel_buffer *buffer)
{
	title(buffer, "semel",
	      "effectively-once event delivery between a database and a message broker");
	heading(buffer, ".SH", "Synopsis");
	semel_buffer_string(buffer, ".B semel\n");
	text(buffer, "[--config FILE] [--store URL] [--broker URL] COMMAND [options]");
	semel_buffer_string(buffer, "\n");
	heading(buffer, ".SH", "Commands");
	for (size_t i = 0; semel_commands[i]; i++) {
		if (!semel_commands[i]->group)
			continue;
		semel_buffer_printf(buffer, ".TP\n.BR semel\\-%s (1)\n", semel_commands[i]->name);
		text(buffer, semel_commands[i]->summary);
		semel_buffer_string(buffer, ".\n");
	}
	options(buffer, semel_global_options, ".SH", "Options");
	heading(buffer, ".SH", "Environment");
	for (const struct semel_variable_row *row = semel_variable_rows; row->name; row++)
		semel_buffer_printf(buffer, ".TP\n.B %s\n%s\n", row->name, row->meaning);
	exit_codes(buffer);
	heading(buffer, ".SH", "Durations");
	paragraphs(buffer, semel_duration_forms);
	examples(buffer, semel_first_steps, ".SH", "First steps");
}

void semel_manual_page(const struct semel_command *command, struct semel_buffer *buffer)
{
	if (command)
		command_page(buffer, command);
	else
		program_page(buffer);
}

void semel_manual_name(const struct semel_command *command, char *name_out, size_t size)
{
	snprintf(name_out, size, command ? "semel-%s.1" : "semel.1", command ? command->name : "");
}
