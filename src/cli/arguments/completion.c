/* SPDX-License-Identifier: Apache-2.0 */
/* The completion for bash, written from the tables: commands, subcommands, options, and the values
 * of options that have choices. */
#include "cli/arguments/help.h"

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

void semel_completion_bash(struct semel_buffer *buffer)
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
