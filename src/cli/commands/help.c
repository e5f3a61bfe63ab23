/* SPDX-License-Identifier: Apache-2.0 */
/* `semel help`, and the hidden commands that write the man pages, the completion and the generated
 * docs for the build. */
#include "cli/arguments/help.h"
#include "base/error.h"
#include "base/url.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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
					       "unknown command \"%s\" (try: semel --help)",
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
		status = semel_error_set(&invocation->error, SEMEL_INTERNAL, "no memory");
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
	if (fclose(file) != 0 && status == SEMEL_OK)
		status = semel_error_set(&invocation->error, SEMEL_OUTAGE, "cannot write %s: %s",
					 path, strerror(errno));
	return status;
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
	semel_completion_bash(&buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status run_reference(struct semel_invocation *invocation)
{
	struct semel_buffer buffer = { 0 };
	semel_reference_markdown(&buffer);
	return put(invocation, &buffer, stdout);
}

static semel_status run_states(struct semel_invocation *invocation)
{
	struct semel_buffer buffer = { 0 };
	semel_states_markdown(&buffer);
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
