/* SPDX-License-Identifier: Apache-2.0 */
/* A command is one row: the parser, the help, the man page, the completion and the reference are
 * all made from it. Each commands/NAME.c ends with its row; commands/table.c lists them. */
#ifndef SEMEL_CLI_ARGUMENTS_COMMAND_H
#define SEMEL_CLI_ARGUMENTS_COMMAND_H

#include "cli/arguments/options.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>

struct semel_config;

/* The input of a command. */
struct semel_invocation {
	const struct semel_args *args;
	const char *store;                 /* URL: option, environment, config file, default */
	const char *broker;                /* URL, likewise */
	const struct semel_config *config; /* never NULL; without a file it holds the defaults */
	bool json;                         /* --json was given */
	semel_error error;                 /* for the text that main prints when it fails */
};

struct semel_example {
	const char *line; /* "semel init --store sqlite:shop.db" */
	const char *why;  /* a phrase without a full stop */
};

/* Which part of the config file holds defaults for the command's options. */
enum semel_config_part {
	SEMEL_CONFIG_PART_NONE,
	SEMEL_CONFIG_PART_RELAY,
	SEMEL_CONFIG_PART_SUBSCRIPTION, /* the one with the same scope */
	SEMEL_CONFIG_PART_ADMIN
};

struct semel_command {
	const char *name;
	/* Writes results to stdout and the error to invocation->error. NULL: it has subcommands. */
	semel_status (*run)(struct semel_invocation *invocation);
	const char *group;       /* heading in the program's help; NULL: hidden there */
	const char *summary;     /* one phrase without a full stop */
	const char *positionals; /* "EVENT_ID"; NULL: none are taken */
	size_t positionals_min, positionals_max;
	const struct semel_option *options;   /* NULL: only the global ones */
	const char *details;                  /* paragraphs, divided by blank lines; may be NULL */
	const struct semel_example *examples; /* ends with a row of zeroes; may be NULL */
	const struct semel_command *const *subcommands; /* NULL-terminated; NULL: none */
	const struct semel_command *parent;             /* of a subcommand; otherwise NULL */
	enum semel_config_part config_part;
};

/* Headings of the program's help, in this order. */
#define SEMEL_GROUP_START   "Start"
#define SEMEL_GROUP_DELIVER "Deliver"
#define SEMEL_GROUP_OPERATE "Operate"
#define SEMEL_GROUP_PROVE   "Prove"

/* NULL-terminated. */
extern const struct semel_command *const semel_commands[];

/* NULL if no command of the NULL-terminated list has this name. */
const struct semel_command *semel_command_find(const struct semel_command *const *commands,
					       const char *name);
/* "dlq list": the title includes the name of the parent, if there is one. */
void semel_command_title(const struct semel_command *command, char *title_out, size_t size);
/* The name nearest to word among the commands, or NULL. */
const char *semel_command_nearest(const struct semel_command *const *commands, const char *word);

#endif
