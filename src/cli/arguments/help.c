/* SPDX-License-Identifier: Apache-2.0 */
/* --help, written from the tables, in lines of 80 columns where the words allow it. */
#include "cli/arguments/help.h"

#include <semel/version.h>
#include <string.h>

#define WIDTH         80
#define OPTION_WIDTH  26 /* where the help of an option begins */
#define NAME_WIDTH    15 /* of commands in the program's help */
#define CHOICE_INDENT 2  /* of choices, below the help of their option */

/* The numbers are those of the statuses (base/error.c). */
const struct semel_exit_row semel_exit_rows[] = {
	{ SEMEL_OK, "success" },
	{ SEMEL_PROBLEM_FOUND,
	  "a check found a problem (verify, doctor, drill, topology check and others)" },
	{ SEMEL_USAGE, "usage error: invalid option, value or command" },
	{ SEMEL_INVALID, "invalid data: an event, id or scope that is invalid or not found" },
	{ SEMEL_OUTAGE, "store or broker unreachable" },
	{ SEMEL_INTERNAL, "internal error" },
	{ SEMEL_NOT_FINISHED, "temporary failure or not finished: try again" },
	{ SEMEL_CONFIG, "invalid configuration" },
	{ 0 },
};

const struct semel_variable_row semel_variable_rows[] = {
	{ "SEMEL_STORE", "URL of the store" },
	{ "SEMEL_STORE_FILE",
	  "file with the URL of the store, to keep a password out of the environment" },
	{ "SEMEL_BROKER", "URL of the broker" },
	{ "SEMEL_BROKER_FILE", "file with the URL of the broker" },
	{ "SEMEL_CONFIG", "config file" },
	{ "SEMEL_LOG", "log format: text or json (default text on a terminal, else json)" },
	{ "SEMEL_LOG_LEVEL", "debug, info, warn or error (default info)" },
	{ "SEMEL_FAILPOINT", "failpoint to trigger (run: semel failpoints)" },
	{ 0 },
};

const struct semel_example semel_first_steps[] = {
	{ "semel init", "create the tables in semel.db, in the current folder" },
	{ "semel publish --type order.created.v1 --aggregate order:ord-1 --payload '{\"total\": "
	  "5}'",
	  "write an event" },
	{ "semel relay --drain", "send it to the broker, semel-broker.db" },
	{ "semel consume --scope inspect --topic order.events --print --drain", "receive it" },
	{ "semel verify", "check that nothing is missing" },
	{ 0 },
};

const char semel_duration_forms[] =
	"A DURATION is a number with a unit: 500ms, 30s, 5m, 24h or 14d. Without a unit it is in "
	"seconds.";

static void pad(struct semel_buffer *buffer, size_t count)
{
	semel_buffer_printf(buffer, "%*s", (int)count, "");
}

/* Breaks the text at spaces into lines of 80 columns; every line but the first is indented. column:
 * where the first line starts. */
static void wrap(const char *text, size_t column, size_t indent, struct semel_buffer *buffer)
{
	bool fresh = true; /* at the beginning of a line */
	while (*text) {
		size_t length = strcspn(text, " \n");
		if (!fresh && column + 1 + length > WIDTH) {
			semel_buffer_string(buffer, "\n");
			pad(buffer, indent);
			column = indent;
			fresh = true;
		}
		if (!fresh) {
			semel_buffer_string(buffer, " ");
			column++;
		}
		semel_buffer_append(buffer, text, length);
		column += length;
		fresh = false;
		text += length;
		text += strspn(text, " \n");
	}
	semel_buffer_string(buffer, "\n");
}

void semel_help_option_form(const struct semel_option *option, struct semel_buffer *buffer)
{
	if (option->letter)
		semel_buffer_printf(buffer, "-%c, ", option->letter);
	semel_buffer_printf(buffer, "--%s", option->name);
	if (option->kind != SEMEL_OPTION_FLAG)
		semel_buffer_printf(buffer, " %s", option->argument);
}

void semel_help_option_text(const struct semel_option *option, struct semel_buffer *buffer)
{
	bool repeats = option->kind == SEMEL_OPTION_MULTI;
	semel_buffer_string(buffer, option->help);
	if (option->required)
		semel_buffer_printf(buffer, " (required%s)", repeats ? ", may be repeated" : "");
	else if (repeats)
		semel_buffer_string(buffer, " (may be repeated)");
	if (option->default_value)
		semel_buffer_printf(buffer, " (default %s)", option->default_value);
}

bool semel_help_has_duration(const struct semel_option *options)
{
	for (; options && options->name; options++)
		if (options->kind == SEMEL_OPTION_DURATION)
			return true;
	return false;
}

void semel_help_synopsis(const struct semel_command *command, struct semel_buffer *buffer)
{
	char title[128];
	semel_command_title(command, title, sizeof title);
	semel_buffer_printf(buffer, "semel %s", title);
	if (command->subcommands)
		semel_buffer_string(buffer, " COMMAND");
	for (const struct semel_option *option = command->options; option && option->name; option++)
		if (option->required)
			semel_buffer_printf(buffer, " --%s %s", option->name, option->argument);
	semel_buffer_string(buffer, " [options]");
	if (command->positionals)
		semel_buffer_printf(buffer, " %s", command->positionals);
}

static int widest_choice(const struct semel_choice *choices)
{
	size_t widest = 0;
	for (; choices->name; choices++)
		if (strlen(choices->name) > widest)
			widest = strlen(choices->name);
	return (int)widest;
}

/* Writes one choice per line, below the help of the option. */
static void write_choices(const struct semel_choice *choices, struct semel_buffer *buffer)
{
	int width = widest_choice(choices);
	size_t column = OPTION_WIDTH + CHOICE_INDENT + (size_t)width + 2;
	for (; choices->name; choices++) {
		pad(buffer, OPTION_WIDTH + CHOICE_INDENT);
		semel_buffer_printf(buffer, "%-*s  ", width, choices->name);
		wrap(choices->meaning, column, column, buffer);
	}
}

static void write_option(const struct semel_option *option, struct semel_buffer *buffer)
{
	struct semel_buffer form = { 0 }, text = { 0 };
	semel_help_option_form(option, &form);
	semel_help_option_text(option, &text);
	semel_buffer_printf(buffer, "  %s", form.data);
	size_t column = form.length + 2;
	if (column + 2 > OPTION_WIDTH) {
		semel_buffer_string(buffer, "\n");
		column = 0;
	}
	pad(buffer, OPTION_WIDTH - column);
	wrap(text.data, OPTION_WIDTH, OPTION_WIDTH, buffer);
	if (option->kind == SEMEL_OPTION_CHOICE)
		write_choices(option->choices, buffer);
	semel_buffer_free(&form);
	semel_buffer_free(&text);
}

static void write_options(const struct semel_option *option, const char *heading,
			  struct semel_buffer *buffer)
{
	const char *group = NULL;
	for (bool first = true; option && option->name; option++, first = false) {
		const char *own = option->group ? option->group : heading;
		if (first || strcmp(own, group) != 0)
			semel_buffer_printf(buffer, "\n%s:\n", own);
		group = own;
		write_option(option, buffer);
	}
}

static void write_paragraphs(const char *text, struct semel_buffer *buffer)
{
	while (text && *text) {
		const char *end = strstr(text, "\n\n");
		size_t length = end ? (size_t)(end - text) : strlen(text);
		struct semel_buffer paragraph = { 0 };
		semel_buffer_append(&paragraph, text, length);
		semel_buffer_string(buffer, "\n");
		wrap(paragraph.data, 0, 0, buffer);
		semel_buffer_free(&paragraph);
		text = end ? end + 2 : NULL;
	}
}

static void write_examples(const struct semel_example *example, const char *heading,
			   struct semel_buffer *buffer)
{
	if (example && example->line)
		semel_buffer_printf(buffer, "\n%s:\n", heading);
	for (; example && example->line; example++)
		semel_buffer_printf(buffer, "  # %s\n  %s\n", example->why, example->line);
}

static void write_command_row(const struct semel_command *command, struct semel_buffer *buffer)
{
	semel_buffer_printf(buffer, "  %-*s", NAME_WIDTH, command->name);
	wrap(command->summary, NAME_WIDTH + 2, NAME_WIDTH + 2, buffer);
}

static void command_help(const struct semel_command *command, struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, "Usage: ");
	semel_help_synopsis(command, buffer);
	semel_buffer_printf(buffer, "\n\n%c%s.\n", command->summary[0] - 'a' + 'A',
			    command->summary + 1);
	write_paragraphs(command->details, buffer);
	if (command->subcommands)
		semel_buffer_string(buffer, "\nCommands:\n");
	for (size_t i = 0; command->subcommands && command->subcommands[i]; i++)
		write_command_row(command->subcommands[i], buffer);
	write_options(command->options, "Options", buffer);
	write_options(semel_global_options, "Global options", buffer);
	if (semel_help_has_duration(command->options)) {
		semel_buffer_string(buffer, "\n");
		wrap(semel_duration_forms, 0, 0, buffer);
	}
	write_examples(command->examples, "Examples", buffer);
}

static void program_help(struct semel_buffer *buffer)
{
	static const char *const groups[] = { SEMEL_GROUP_START, SEMEL_GROUP_DELIVER,
					      SEMEL_GROUP_OPERATE, SEMEL_GROUP_PROVE };
	semel_buffer_string(buffer,
			    "Usage: semel [--config FILE] [--store URL] [--broker URL] COMMAND "
			    "[options]\n\n"
			    "Delivers events from a database to a message broker, and from there "
			    "to their\nhandlers: no committed event is lost, none that was rolled "
			    "back is sent, and no\neffect in the database happens twice.\n");
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
		semel_buffer_printf(buffer, "\n%s:\n", groups[i]);
		for (size_t j = 0; semel_commands[j]; j++)
			if (semel_commands[j]->group &&
			    strcmp(semel_commands[j]->group, groups[i]) == 0)
				write_command_row(semel_commands[j], buffer);
	}
	write_options(semel_global_options, "Global options", buffer);
	semel_buffer_string(buffer, "\nEnvironment:\n");
	for (const struct semel_variable_row *row = semel_variable_rows; row->name; row++)
		semel_buffer_printf(buffer, "  %-18s  %s\n", row->name, row->meaning);
	semel_buffer_string(buffer, "\nExit codes:\n");
	for (const struct semel_exit_row *row = semel_exit_rows; row->meaning; row++)
		semel_buffer_printf(buffer, "  %2d  %s\n", semel_status_exit_code(row->status),
				    row->meaning);
	semel_buffer_string(buffer, "\n");
	wrap(semel_duration_forms, 0, 0, buffer);
	write_examples(semel_first_steps, "First steps", buffer);
	semel_buffer_string(buffer, "\nHelp for a command: semel COMMAND --help\n");
}

void semel_help_text(const struct semel_command *command, struct semel_buffer *buffer)
{
	if (command)
		command_help(command, buffer);
	else
		program_help(buffer);
}
