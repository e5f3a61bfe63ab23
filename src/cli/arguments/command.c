/* SPDX-License-Identifier: Apache-2.0 */
/* Finding commands in their table, and naming them. */
#include "cli/arguments/command.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define COMMANDS_MAX 64

const struct semel_command *semel_command_find(const struct semel_command *const *commands,
					       const char *name)
{
	for (; *commands; commands++)
		if (strcmp((*commands)->name, name) == 0)
			return *commands;
	return NULL;
}

void semel_command_title(const struct semel_command *command, char *title_out, size_t size)
{
	if (command->parent)
		snprintf(title_out, size, "%s %s", command->parent->name, command->name);
	else
		snprintf(title_out, size, "%s", command->name);
}

const char *semel_command_nearest(const struct semel_command *const *commands, const char *word)
{
	const char *names[COMMANDS_MAX];
	size_t count = 0;
	for (; *commands && count < COMMANDS_MAX; commands++)
		names[count++] = (*commands)->name;
	return semel_text_nearest(word, names, count);
}
