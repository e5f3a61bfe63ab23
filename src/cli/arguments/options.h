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
	bool command_line_only;              /* no key of the config file */
	const char *argument;                /* the name of the value in the help: "URL" */
	const struct semel_choice *choices;  /* CHOICE */
	bool any_case;                       /* CHOICE: a value may be in lower or upper case */
	int64_t min, max;                    /* NUMBER, DURATION; max 0: no upper bound */
	bool unit_needed;                    /* DURATION: a number without a unit is refused */
	const char *default_value;           /* as a user would write it; NULL: none */
	bool (*is_valid)(const char *value); /* TEXT, MULTI: is the value valid? NULL: always */
	const char *expected;                /* what is_valid accepts: "TYPE:ID" */
	const char *excludes;                /* options with the same word exclude each other */
	const char *group;                   /* heading in the help; NULL: "Options" */
	const char *help;                    /* a phrase without a full stop */
};

/* An option of every command that prints a result. */
#define SEMEL_OPTION_JSON                                                                          \
	{                                                                                          \
		.name = "json", .kind = SEMEL_OPTION_FLAG, .command_line_only = true,              \
		.help = "print the result as JSON",                                                \
	}

struct semel_command;

/* The values of one command line. They point into argv, the tables or the config, which must
 * outlive it. */
struct semel_args;

/* Parses argv by the tables. USAGE: the error names the wrong word and the nearest valid one.
 * Required options are not checked yet (semel_args_check does that), so that --help works on any
 * line. */
semel_status semel_args_parse(int argc, char **argv, const struct semel_command *const *commands,
			      struct semel_args **args_out, semel_error *error);
/* USAGE if the line lacks a command or a required option, has options that exclude each other, or
 * has the wrong number of positionals. */
semel_status semel_args_check(const struct semel_args *args, semel_error *error);
/* Sets an option from the config file. Ignored if the command line has this option, or one that
 * excludes it. values must outlive args. False: out of memory. */
bool semel_args_fill(struct semel_args *args, const char *name, const char *const *values,
		     size_t count);
void semel_args_free(struct semel_args *args);

/* NULL: the command line names no command. */
const struct semel_command *semel_args_command(const struct semel_args *args);

/* name, in the functions below, is an option of the command's table or a global one. */

/* Is it set, on the command line or in the config file? False if only the default applies. */
bool semel_args_has(const struct semel_args *args, const char *name);
/* The value or the default; NULL when there is neither. */
const char *semel_args_text(const struct semel_args *args, const char *name);
bool semel_args_flag(const struct semel_args *args, const char *name);
/* 0 when there is neither value nor default. */
int64_t semel_args_number(const struct semel_args *args, const char *name);
int64_t semel_args_duration_ms(const struct semel_args *args, const char *name);
/* The index of the value in the option's choices. */
int semel_args_choice(const struct semel_args *args, const char *name);
/* NULL-terminated, even if empty. count_out may be NULL. */
const char *const *semel_args_list(const struct semel_args *args, const char *name,
				   size_t *count_out);
const char *const *semel_args_positionals(const struct semel_args *args, size_t *count_out);

/* For the config file, which uses the same tables. */

/* NULL if no option of the list has this name. */
const struct semel_option *semel_option_find(const struct semel_option *options, const char *name);
/* Is the value valid for the option? If not, what_out describes what is valid. */
bool semel_option_accepts(const struct semel_option *option, const char *value, char *what_out,
			  size_t what_size);
/* Indexed by semel_poison; used by relay and consume. */
extern const struct semel_choice semel_poison_choices[];
/* Options known on every command line. */
extern const struct semel_option semel_global_options[];

#endif
