/* SPDX-License-Identifier: Apache-2.0 */
/* docs/commands.md, written from the tables. */
#include "cli/arguments/help.h"

#include <string.h>

/* A bar ends a cell unless it is escaped. */
static void cell(struct semel_buffer *buffer, const char *text)
{
	for (; *text; text++)
		semel_buffer_printf(buffer, *text == '|' ? "\\%c" : "%c", *text);
}

static void choices(struct semel_buffer *buffer, const struct semel_choice *choice)
{
	for (; choice->name; choice++) {
		semel_buffer_printf(buffer, "<br>`%s`: ", choice->name);
		cell(buffer, choice->meaning);
	}
}

static void options(struct semel_buffer *buffer, const struct semel_option *option,
		    const char *default_title)
{
	const char *group = NULL;
	for (bool first = true; option && option->name; option++, first = false) {
		const char *own = option->group ? option->group : default_title;
		if (first || strcmp(own, group) != 0)
			semel_buffer_printf(buffer, "\n| %s | |\n|---|---|\n", own);
		group = own;
		struct semel_buffer form = { 0 }, help = { 0 };
		semel_help_option_form(option, &form);
		semel_help_option_text(option, &help);
		semel_buffer_string(buffer, "| `");
		cell(buffer, form.data);
		semel_buffer_string(buffer, "` | ");
		cell(buffer, help.data);
		if (option->kind == SEMEL_OPTION_CHOICE)
			choices(buffer, option->choices);
		semel_buffer_string(buffer, " |\n");
		semel_buffer_free(&form);
		semel_buffer_free(&help);
	}
}

static void examples(struct semel_buffer *buffer, const struct semel_example *example)
{
	if (!example || !example->line)
		return;
	semel_buffer_string(buffer, "\n```sh\n");
	for (; example->line; example++)
		semel_buffer_printf(buffer, "# %s\n%s\n", example->why, example->line);
	semel_buffer_string(buffer, "```\n");
}

static void command_section(struct semel_buffer *buffer, const struct semel_command *command,
			    const char *heading)
{
	char title[128];
	semel_command_title(command, title, sizeof title);
	semel_buffer_printf(buffer, "\n%s semel %s\n\n%c%s.\n\n```\n", heading, title,
			    command->summary[0] - 'a' + 'A', command->summary + 1);
	semel_help_synopsis(command, buffer);
	semel_buffer_string(buffer, "\n```\n");
	if (command->details)
		semel_buffer_printf(buffer, "\n%s\n", command->details);
	options(buffer, command->options, "option");
	examples(buffer, command->examples);
	for (size_t i = 0; command->subcommands && command->subcommands[i]; i++)
		command_section(buffer, command->subcommands[i], "###");
}

void semel_reference_markdown(struct semel_buffer *buffer)
{
	semel_buffer_string(buffer,
			    "<!-- Written by `semel reference`; change the tables in src/cli, not "
			    "this page. -->\n"
			    "# Commands\n\n```\nsemel [--config FILE] [--store URL] [--broker URL] "
			    "COMMAND [options]\n```\n\n"
			    "An option on the command line overrides the environment, the "
			    "environment the config file, and the config file the default.\n");
	options(buffer, semel_global_options, "global options");
	semel_buffer_string(buffer, "\n| environment | |\n|---|---|\n");
	for (const struct semel_variable_row *row = semel_variable_rows; row->name; row++)
		semel_buffer_printf(buffer, "| `%s` | %s |\n", row->name, row->meaning);
	semel_buffer_string(buffer, "\n| exit code | meaning |\n|---|---|\n");
	for (const struct semel_exit_row *row = semel_exit_rows; row->meaning; row++)
		semel_buffer_printf(buffer, "| %d | %s |\n", row->code, row->meaning);
	semel_buffer_printf(buffer, "\n%s\n", semel_duration_forms);
	for (size_t i = 0; semel_commands[i]; i++)
		if (semel_commands[i]->group)
			command_section(buffer, semel_commands[i], "##");
}
