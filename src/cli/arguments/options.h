/* SPDX-License-Identifier: Apache-2.0 */
/* The command line, parsed by tables: an option is one row with its kind, bounds, choices, default
 * and help, and the parser, the help, the man pages, the completion and the config file all use
 * that row. */
#ifndef SEMEL_CLI_ARGUMENTS_OPTIONS_H
#define SEMEL_CLI_ARGUMENTS_OPTIONS_H

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum semel_option_kind {
	SEMEL_OPTION_FLAG,
	SEMEL_OPTION_TEXT,
	SEMEL_OPTION_NUMBER,   /* min to max */
	SEMEL_OPTION_DURATION, /* "500ms", "30s", "5m"; min and max in milliseconds */
	SEMEL_OPTION_CHOICE,
	SEMEL_OPTION_MULTI /* text, given as often as needed */
};

/* A value of an option that has a choice; lists end with a row of zeroes. */
struct semel_choice {
	const char *name;
	const char *meaning; /* a phrase without a full stop */
};

/* Lists of options end with a row of zeroes. */
struct semel_option {
	const char *name; /* without the hyphens */
	char letter;      /* 0: no short form */
	enum semel_option_kind kind;
	bool required;
	bool command_line_only;             /* no key of the config file */
	const char *argument;               /* the name of the value in the help: "URL" */
	const struct semel_choice *choices; /* CHOICE */
	int64_t min, max;                   /* NUMBER, DURATION; max 0: no upper bound */
	bool unit_needed;                   /* DURATION: a number without a unit is refused */
	const char *default_value;          /* as it would be written; NULL: none */
	bool (*is_valid)(
		const char *value); /* TEXT, MULTI: is it of the right form? NULL: any is */
	const char *expected;       /* what is_valid accepts: "TYPE:ID" */
	const char *excludes;       /* options with the same word exclude each other */
	const char *group;          /* heading in the help; NULL: "Options" */
	const char *help;           /* a phrase without a full stop */
};

/* Of every reading command. */
#define SEMEL_OPTION_JSON                                                                          \
	{                                                                                          \
		.name = "json", .kind = SEMEL_OPTION_FLAG, .command_line_only = true,              \
		.help = "print the result as JSON",                                                \
	}

struct semel_command;

/* The values of one command line. They point into argv, the tables or the config, which must
 * outlive it. */
struct semel_args;

/* Parses argv by the tables. USAGE, with the wrong word and the nearest right one. Required options
 * are not checked yet (semel_args_check does that), so that --help works on any line. */
semel_status semel_args_parse(int argc, char **argv, const struct semel_command *const *commands,
			      struct semel_args **args_out, semel_error *error);
/* Required options, and how many positionals there must be. USAGE. */
semel_status semel_args_check(const struct semel_args *args, semel_error *error);
/* A value from a weaker place (the config file): ignored where the command line has the option, or
 * one that excludes it. False: no memory. values must outlive args. */
bool semel_args_fill(struct semel_args *args, const char *name, const char *const *values,
		     size_t count);
void semel_args_free(struct semel_args *args);

/* NULL: the line names none. */
const struct semel_command *semel_args_command(const struct semel_args *args);

/* The rest asks by an option's name, which must stand in the command's table or be a global one. */

/* By the command line or the config file; false when only the default holds. */
bool semel_args_has(const struct semel_args *args, const char *name);
/* The value or the default; NULL when there is neither. */
const char *semel_args_text(const struct semel_args *args, const char *name);
bool semel_args_flag(const struct semel_args *args, const char *name);
/* 0 when there is neither value nor default. */
int64_t semel_args_number(const struct semel_args *args, const char *name);
int64_t semel_args_duration_ms(const struct semel_args *args, const char *name);
/* The index of the value in the option's choices. */
int semel_args_choice(const struct semel_args *args, const char *name);
/* NULL-ended, also when empty. count_out may be NULL. */
const char *const *semel_args_list(const struct semel_args *args, const char *name,
				   size_t *count_out);
const char *const *semel_args_positionals(const struct semel_args *args, size_t *count_out);

/* For the config file: one table per concept. */

/* NULL when the list has none of that name. */
const struct semel_option *semel_option_find(const struct semel_option *options, const char *name);
/* Is this a value for the option? False: what_out says what is needed, for a person. */
bool semel_option_accepts(const struct semel_option *option, const char *value, char *what_out,
			  size_t what_size);
/* By semel_poison; of relay and consume alike. */
extern const struct semel_choice semel_poison_choices[];
/* Options known on every command line. */
extern const struct semel_option semel_global_options[];

#endif
