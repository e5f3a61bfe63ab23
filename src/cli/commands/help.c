/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that print documentation, all of it written from the tables: help, man, completion,
 * reference (docs/commands.md) and states (docs/states.md). */
#include "cli/arguments/help.h"

#include "base/error.h"
#include "base/url.h"
#include "state/state.h"
#include "store/rules.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- the completion for bash: commands, options, and the values of options that have choices - */

typedef void (*command_visitor)(struct semel_buffer *buffer, const char *title,
				const struct semel_command *command);

static void each_command(struct semel_buffer *buffer, const struct semel_command *const *commands,
			 command_visitor visit)
{
	for (; *commands; commands++) {
		char title[128];
		semel_command_title(*commands, title, sizeof title);
		if ((*commands)->group || (*commands)->parent)
			visit(buffer, title, *commands);
		if ((*commands)->subcommands)
			each_command(buffer, (*commands)->subcommands, visit);
	}
}

static void add_subcommand(struct semel_buffer *buffer, const char *title,
			   const struct semel_command *command)
{
	if (command->parent)
		semel_buffer_printf(buffer, "%s|", title);
}

static void add_name(struct semel_buffer *buffer, const char *title,
		     const struct semel_command *command)
{
	if (!command->parent)
		semel_buffer_printf(buffer, "%s ", title);
}

/* The words that may follow the command. */
static void add_words(struct semel_buffer *buffer, const char *title,
		      const struct semel_command *command)
{
	semel_buffer_printf(buffer, "\t\"%s \"*) words='", title);
	for (size_t i = 0; command->subcommands && command->subcommands[i]; i++)
		semel_buffer_printf(buffer, "%s ", command->subcommands[i]->name);
	const struct semel_option *option = command->options;
	for (; option && option->name; option++)
		semel_buffer_printf(buffer, "--%s ", option->name);
	semel_buffer_string(buffer, "' ;;\n");
}

/* The words that may follow one of its options. */
static void add_choices(struct semel_buffer *buffer, const char *title,
			const struct semel_command *command)
{
	const struct semel_option *option = command->options;
	for (; option && option->name; option++) {
		if (option->kind != SEMEL_OPTION_CHOICE)
			continue;
		semel_buffer_printf(buffer, "\t\"%s --%s\") words='", title, option->name);
		for (size_t i = 0; option->choices[i].name; i++)
			semel_buffer_printf(buffer, "%s ", option->choices[i].name);
		semel_buffer_string(buffer, "' global= ;;\n");
	}
}

/* The command is named by the words before the cursor that are not options; values of global
 * options before it are skipped. */
static const char find_title[] = "\tfor ((i = 1; i < COMP_CWORD; i++)); do\n"
				 "\t\tword=${COMP_WORDS[i]}\n"
				 "\t\tcase $word in\n"
				 "\t\t--config|--store|--broker) ((i++)) ;;\n"
				 "\t\t-*) ;;\n"
				 "\t\t*)\n"
				 "\t\t\tif [[ -z $title ]]; then\n"
				 "\t\t\t\ttitle=$word\n"
				 "\t\t\telif [[ $subcommands == *\"|$title $word|\"* ]]; then\n"
				 "\t\t\t\ttitle=\"$title $word\"\n"
				 "\t\t\tfi ;;\n"
				 "\t\tesac\n"
				 "\tdone\n";

static void write_completion(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer, "# bash completion for semel; written by: semel completion bash\n"
			"_semel()\n"
			"{\n"
			"\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
			"\tlocal title= word words= global= i\n"
			"\tlocal subcommands='|");
	each_command(buffer, semel_commands, add_subcommand);
	semel_buffer_string(buffer, "'\n\tglobal='");
	for (const struct semel_option *option = semel_global_options; option->name; option++)
		semel_buffer_printf(buffer, "--%s ", option->name);
	semel_buffer_string(buffer, "'\n");
	semel_buffer_string(buffer, find_title);
	semel_buffer_string(buffer, "\tcase \"$title $prev\" in\n"
				    "\t*\" --config\") COMPREPLY=($(compgen -f -- \"$cur\")); "
				    "return ;;\n");
	each_command(buffer, semel_commands, add_choices);
	each_command(buffer, semel_commands, add_words);
	semel_buffer_string(buffer, "\t*) words='");
	each_command(buffer, semel_commands, add_name);
	semel_buffer_string(buffer, "help' ;;\n"
				    "\tesac\n"
				    "\tCOMPREPLY=($(compgen -W \"$words$global\" -- \"$cur\"))\n"
				    "}\n"
				    "complete -o default -F _semel semel\n");
}

/* ---- docs/commands.md ------------------------------------------------------------------------ */

/* A bar would end the cell, so it is escaped. */
static void cell(struct semel_buffer *buffer, const char *text)
{
	for (; *text; text++)
		semel_buffer_printf(buffer, *text == '|' ? "\\%c" : "%c", *text);
}

static void choice_lines(struct semel_buffer *buffer, const struct semel_choice *choice)
{
	for (; choice->name; choice++) {
		semel_buffer_printf(buffer, "<br>`%s`: ", choice->name);
		cell(buffer, choice->meaning);
	}
}

static void option_rows(struct semel_buffer *buffer, const struct semel_option *option,
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
			choice_lines(buffer, option->choices);
		semel_buffer_string(buffer, " |\n");
		semel_buffer_free(&form);
		semel_buffer_free(&help);
	}
}

static void example_block(struct semel_buffer *buffer, const struct semel_example *example)
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
	option_rows(buffer, command->options, "option");
	example_block(buffer, command->examples);
	for (size_t i = 0; command->subcommands && command->subcommands[i]; i++)
		command_section(buffer, command->subcommands[i], "###");
}

static void write_reference(struct semel_buffer *buffer)
{
	semel_buffer_string(buffer,
			    "<!-- Written by `semel reference`; change the tables in src/cli, not "
			    "this page. -->\n"
			    "# Commands\n\n```\nsemel [--config FILE] [--store URL] [--broker URL] "
			    "COMMAND [options]\n```\n\n"
			    "An option on the command line overrides the environment, the "
			    "environment the config file, and the config file the default.\n");
	option_rows(buffer, semel_global_options, "global options");
	semel_buffer_string(buffer, "\n| environment | |\n|---|---|\n");
	for (const struct semel_variable_row *row = semel_variable_rows; row->name; row++)
		semel_buffer_printf(buffer, "| `%s` | %s |\n", row->name, row->meaning);
	semel_buffer_string(buffer, "\n| exit code | meaning |\n|---|---|\n");
	for (const struct semel_exit_row *row = semel_exit_rows; row->meaning; row++)
		semel_buffer_printf(buffer, "| %d | %s |\n", semel_status_exit_code(row->status),
				    row->meaning);
	semel_buffer_printf(buffer, "\n%s\n", semel_duration_forms);
	for (size_t i = 0; semel_commands[i]; i++)
		if (semel_commands[i]->group)
			command_section(buffer, semel_commands[i], "##");
}

/* ---- docs/states.md -------------------------------------------------------------------------- */

static const char *event_state(int state)
{
	return semel_state_name((enum semel_state)state);
}

static const char *hold_state(int state)
{
	return state == SEMEL_HOLD_NONE ? "free"
					: semel_hold_state_name((enum semel_hold_state)state);
}

/* Names in a diagram must not contain blanks. */
static void node(struct semel_buffer *buffer, const char *name)
{
	for (; *name; name++)
		semel_buffer_printf(buffer, "%c", *name == ' ' ? '_' : *name);
}

static bool is_drawn(struct semel_transitions table, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (table.rows[i].from == table.rows[at].from &&
		    table.rows[i].to == table.rows[at].to)
			return true;
	return table.rows[at].from == table.rows[at].to;
}

static void diagram(struct semel_buffer *buffer, struct semel_transitions table,
		    const char *(*name)(int))
{
	semel_buffer_printf(buffer, "\n```mermaid\nstateDiagram-v2\n    [*] --> ");
	node(buffer, name(0));
	semel_buffer_string(buffer, "\n");
	for (size_t i = 0; i < table.count; i++) {
		if (is_drawn(table, i))
			continue;
		semel_buffer_string(buffer, "    ");
		node(buffer, name(table.rows[i].from));
		semel_buffer_string(buffer, " --> ");
		node(buffer, name(table.rows[i].to));
		semel_buffer_string(buffer, "\n");
	}
	semel_buffer_string(buffer, "```\n");
}

static void transitions(struct semel_buffer *buffer, struct semel_transitions table,
			const char *(*name)(int))
{
	semel_buffer_string(buffer, "\n| from | to | by | when | in which transaction |\n"
				    "|---|---|---|---|---|\n");
	for (size_t i = 0; i < table.count; i++)
		semel_buffer_printf(buffer, "| %s | %s | %s | %s | %s |\n",
				    name(table.rows[i].from), name(table.rows[i].to),
				    semel_actor_name(table.rows[i].by), table.rows[i].when,
				    table.rows[i].transaction);
}

static void event_part(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer,
		"\n## An event at a subscription\n\n"
		"An event has one state at each subscription. It is derived from the rows of the "
		"scope: claim, dead letter, parked row and hold. A copy at the broker carries no "
		"authority: it makes the consumer read these rows, and they decide. So a copy may "
		"be "
		"lost, repeated or late.\n\n| state | the event |\n|---|---|\n");
	for (int state = 0; state < SEMEL_STATE_COUNT; state++)
		semel_buffer_printf(buffer, "| %s | %s |\n", event_state(state),
				    semel_state_sentence((enum semel_state)state));
	diagram(buffer, semel_state_transitions(), event_state);
	transitions(buffer, semel_state_transitions(), event_state);
}

static void hold_part(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer, "\n## A hold\n\n"
			"A hold keeps an ordering key (an aggregate, or a topic under total order) "
			"waiting for one event, its head. Later events of the key are parked "
			"behind it.\n\n| state | meaning |\n|---|---|\n");
	for (int state = SEMEL_HOLD_NONE; state <= SEMEL_HOLD_RELEASED; state++)
		semel_buffer_printf(buffer, "| %s | %s |\n", hold_state(state),
				    semel_hold_state_sentence((enum semel_hold_state)state));
	diagram(buffer, semel_hold_transitions(), hold_state);
	transitions(buffer, semel_hold_transitions(), hold_state);
}

static void write_states(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer, "<!-- Written by `semel states`; change the tables in src/state, not this "
			"page. -->\n# States\n\n"
			"Every state and every transition, with who makes it and in which "
			"transaction. What is not listed here is refused, and "
			"[tests/model](../tests/model) explores the combinations.\n");
	event_part(buffer);
	hold_part(buffer);
}

/* ---- the commands ---------------------------------------------------------------------------- */

static semel_status named_command(struct semel_invocation *invocation,
				  const struct semel_command **command_out)
{
	size_t count = 0;
	const char *const *words = semel_args_positionals(invocation->args, &count);
	const struct semel_command *const *level = semel_commands;
	*command_out = NULL;
	for (size_t i = 0; i < count; i++) {
		const struct semel_command *found =
			level ? semel_command_find(level, words[i]) : NULL;
		const char *nearest = level ? semel_command_nearest(level, words[i]) : NULL;
		char shown[128];
		if (!found && nearest)
			return semel_error_set(&invocation->error, SEMEL_USAGE,
					       "unknown command \"%s\" (did you mean %s?)",
					       semel_word_redact(words[i], shown, sizeof shown),
					       nearest);
		if (!found)
			return semel_error_set(&invocation->error, SEMEL_USAGE,
					       "unknown command \"%s\" (run: semel --help)",
					       semel_word_redact(words[i], shown, sizeof shown));
		*command_out = found;
		level = found->subcommands;
	}
	return SEMEL_OK;
}

static semel_status put(struct semel_invocation *invocation, struct semel_buffer *buffer,
			FILE *file)
{
	semel_status status = SEMEL_OK;
	if (buffer->failed)
		status = semel_error_set(&invocation->error, SEMEL_INTERNAL, "out of memory");
	else
		fwrite(buffer->data, 1, buffer->length, file);
	semel_buffer_free(buffer);
	return status;
}

static semel_status run_help(struct semel_invocation *invocation)
{
	const struct semel_command *command = NULL;
	semel_status status = named_command(invocation, &command);
	if (status != SEMEL_OK)
		return status;
	struct semel_buffer buffer = { 0 };
	semel_help_text(command, &buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status write_page(struct semel_invocation *invocation, const char *directory,
			       const struct semel_command *command)
{
	char name[128], path[4096];
	semel_manual_name(command, name, sizeof name);
	snprintf(path, sizeof path, "%s/%s", directory, name);
	FILE *file = fopen(path, "we");
	if (!file)
		return semel_error_set(&invocation->error, SEMEL_OUTAGE, "cannot write %s: %s",
				       path, strerror(errno));
	struct semel_buffer buffer = { 0 };
	semel_manual_page(command, &buffer);
	semel_status status = put(invocation, &buffer, file);
	bool closed = fclose(file) == 0;
	if (status != SEMEL_OK || closed)
		return status;
	return semel_error_set(&invocation->error, SEMEL_OUTAGE, "cannot write %s: %s", path,
			       strerror(errno));
}

static semel_status run_man(struct semel_invocation *invocation)
{
	const char *directory = semel_args_text(invocation->args, "output");
	if (directory) {
		semel_status status = write_page(invocation, directory, NULL);
		for (size_t i = 0; status == SEMEL_OK && semel_commands[i]; i++)
			if (semel_commands[i]->group)
				status = write_page(invocation, directory, semel_commands[i]);
		return status;
	}
	const struct semel_command *command = NULL;
	semel_status status = named_command(invocation, &command);
	if (status != SEMEL_OK)
		return status;
	struct semel_buffer buffer = { 0 };
	semel_manual_page(command, &buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status run_completion(struct semel_invocation *invocation)
{
	const char *shell = semel_args_positionals(invocation->args, NULL)[0];
	if (strcmp(shell, "bash") != 0)
		return semel_error_set(&invocation->error, SEMEL_USAGE,
				       "no completion for \"%s\" (only for bash)", shell);
	struct semel_buffer buffer = { 0 };
	write_completion(&buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status run_reference(struct semel_invocation *invocation)
{
	struct semel_buffer buffer = { 0 };
	write_reference(&buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status run_states(struct semel_invocation *invocation)
{
	struct semel_buffer buffer = { 0 };
	write_states(&buffer);
	return put(invocation, &buffer, stdout);
}

static const struct semel_option man_options[] = {
	{ .name = "output",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "DIRECTORY",
	  .help = "write all pages into this folder, one file each" },
	{ 0 },
};

const struct semel_command semel_command_help = {
	.name = "help",
	.run = run_help,
	.summary = "print help for the program or a command",
	.positionals = "[COMMAND]",
	.positionals_max = 2,
};

const struct semel_command semel_command_man = {
	.name = "man",
	.run = run_man,
	.summary = "write a manual page in roff",
	.positionals = "[COMMAND]",
	.positionals_max = 1,
	.options = man_options,
};

const struct semel_command semel_command_completion = {
	.name = "completion",
	.run = run_completion,
	.summary = "write the completion for a shell",
	.positionals = "bash",
	.positionals_min = 1,
	.positionals_max = 1,
};

const struct semel_command semel_command_reference = {
	.name = "reference",
	.run = run_reference,
	.summary = "write the reference of all commands in Markdown",
};

const struct semel_command semel_command_states = {
	.name = "states",
	.run = run_states,
	.summary = "write the states of events and holds in Markdown",
};
