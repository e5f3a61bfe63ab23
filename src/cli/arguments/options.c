/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a command line are rows in tables; this file parses argv by them. No command and no
 * option but the global ones is named here. */
#include "cli/arguments/options.h"

#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "base/url.h"
#include "cli/arguments/command.h"

#include <assert.h>
#include <semel/relay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAMES_MAX    128
#define WHAT_SIZE    256
#define CHOICES_MAX  16
#define COMMANDS_MAX 64

const struct semel_option semel_global_options[] = {
	{ .name = "config",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "FILE",
	  .help = "read settings from this YAML file (environment: SEMEL_CONFIG)" },
	{ .name = "store",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "URL",
	  .default_value = "sqlite:semel.db",
	  .help = "database of the application, with Semel's tables (environment: SEMEL_STORE, "
		  "SEMEL_STORE_FILE)" },
	{ .name = "broker",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "URL",
	  .default_value = "local:semel-broker.db",
	  .help = "message broker (environment: SEMEL_BROKER, SEMEL_BROKER_FILE)" },
	{ .name = "help",
	  .letter = 'h',
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "print help for the program or the command, and exit" },
	{ .name = "version",
	  .letter = 'V',
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "print the version, and exit" },
	{ 0 },
};

const struct semel_choice semel_poison_choices[] = {
	[SEMEL_POISON_PARK_KEY] = { "park-key", "park them behind the dead letter" },
	[SEMEL_POISON_BLOCK] = { "block", "park them; --drain does not exit while they wait" },
	[SEMEL_POISON_SKIP] = { "skip", "deliver them without waiting" },
	{ 0 },
};

/* ---- commands -------------------------------------------------------------------------------- */

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

/* ---- arguments ------------------------------------------------------------------------------- */

struct entry {
	const struct semel_option *option;
	const char **values; /* owned; NULL-terminated */
	size_t count;
};

struct semel_args {
	const struct semel_command *command;
	struct entry *entries; /* the command's options, then the global ones */
	size_t entry_count;
	const char **positionals; /* owned; NULL-terminated */
	size_t positional_count;
};

struct reader {
	char **argv;
	int argc, at;
	const struct semel_command *const *commands; /* commands of the next level; NULL: none */
	struct semel_args *args;
	semel_error *error;
};

static const char *const no_values[] = { NULL };

/* ---- the tables ------------------------------------------------------------------------------ */

const struct semel_option *semel_option_find(const struct semel_option *options, const char *name)
{
	for (; options && options->name; options++)
		if (strcmp(options->name, name) == 0)
			return options;
	return NULL;
}

static size_t option_count(const struct semel_option *options)
{
	size_t count = 0;
	while (options && options[count].name)
		count++;
	return count;
}

static void name_bounds(const struct semel_option *option, char *what_out, size_t size)
{
	char least[SEMEL_TIME_SIZE], most[SEMEL_TIME_SIZE];
	bool number = option->kind == SEMEL_OPTION_NUMBER;
	if (number) {
		snprintf(least, sizeof least, "%lld", (long long)option->min);
		snprintf(most, sizeof most, "%lld", (long long)option->max);
	} else {
		semel_duration_format(option->min, least);
		semel_duration_format(option->max, most);
	}
	const char *noun = number ? "a number" : "a duration like 500ms, 30s, 5m, 24h or 14d";
	if (option->max)
		snprintf(what_out, size, "%s from %s to %s", noun, least, most);
	else if (option->min)
		snprintf(what_out, size, "%s, %s or more", noun, least);
	else
		snprintf(what_out, size, "%s", noun);
}

static bool lacks_unit(const char *duration)
{
	return duration[strspn(duration, "0123456789")] == '\0';
}

static bool accepts_bounded(const struct semel_option *option, const char *value, char *what_out,
			    size_t size)
{
	long long number = 0;
	int64_t duration_ms = 0;
	bool good = option->kind == SEMEL_OPTION_NUMBER
			    ? semel_text_to_int64(value, INT64_MIN, INT64_MAX, &number)
			    : semel_duration_parse(value, &duration_ms) &&
				      !(option->unit_needed && lacks_unit(value));
	int64_t amount = option->kind == SEMEL_OPTION_NUMBER ? number : duration_ms;
	if (good && amount >= option->min && (!option->max || amount <= option->max))
		return true;
	name_bounds(option, what_out, size);
	return false;
}

static bool is_choice(const struct semel_option *option, const char *name, const char *value)
{
	return option->any_case ? strcasecmp(name, value) == 0 : strcmp(name, value) == 0;
}

static bool accepts_choice(const struct semel_option *option, const char *value, char *what_out,
			   size_t size)
{
	const char *names[CHOICES_MAX];
	size_t count = 0, length = 0;
	for (; option->choices[count].name && count < CHOICES_MAX; count++) {
		names[count] = option->choices[count].name;
		if (is_choice(option, names[count], value))
			return true;
	}
	length += (size_t)snprintf(what_out, size, "one of ");
	for (size_t i = 0; i < count && length < size; i++)
		length += (size_t)snprintf(what_out + length, size - length, "%s%s", i ? ", " : "",
					   names[i]);
	const char *nearest = semel_text_nearest(value, names, count);
	if (nearest && length < size)
		snprintf(what_out + length, size - length, "; did you mean %s?", nearest);
	return false;
}

bool semel_option_accepts(const struct semel_option *option, const char *value, char *what_out,
			  size_t what_size)
{
	switch (option->kind) {
	case SEMEL_OPTION_NUMBER:
	case SEMEL_OPTION_DURATION:
		return accepts_bounded(option, value, what_out, what_size);
	case SEMEL_OPTION_CHOICE:
		return accepts_choice(option, value, what_out, what_size);
	case SEMEL_OPTION_FLAG:
	case SEMEL_OPTION_TEXT:
	case SEMEL_OPTION_MULTI:
		break;
	}
	if (!option->is_valid || option->is_valid(value))
		return true;
	snprintf(what_out, what_size, "%s", option->expected);
	return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static struct entry *find_entry(const struct semel_args *args, const char *name)
{
	for (size_t i = 0; i < args->entry_count; i++)
		if (strcmp(args->entries[i].option->name, name) == 0)
			return &args->entries[i];
	return NULL;
}

/* A command asks for its own options only: a name that is in no table is a bug. */
static const struct entry *expect_entry(const struct semel_args *args, const char *name)
{
	const struct entry *entry = find_entry(args, name);
	assert(entry);
	return entry;
}

static bool append(const char ***list, size_t *count, const char *value)
{
	const char **grown = realloc(*list, (*count + 2) * sizeof *grown);
	if (!grown)
		return false;
	grown[(*count)++] = value;
	grown[*count] = NULL;
	*list = grown;
	return true;
}

static bool add_entries(struct semel_args *args, const struct semel_option *options)
{
	size_t count = option_count(options);
	struct entry *grown =
		realloc(args->entries, (args->entry_count + count + 1) * sizeof *grown);
	if (!grown)
		return false;
	args->entries = grown;
	for (size_t i = 0; i < count; i++)
		args->entries[args->entry_count++] = (struct entry){ .option = &options[i] };
	return true;
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the command line");
}

/* ---- parsing --------------------------------------------------------------------------------- */

static void title_of(const struct reader *reader, char title_out[WHAT_SIZE])
{
	title_out[0] = '\0';
	if (!reader->args->command)
		return;
	char title[WHAT_SIZE - 8];
	semel_command_title(reader->args->command, title, sizeof title);
	snprintf(title_out, WHAT_SIZE, " for %s", title);
}

static semel_status unknown_option(const struct reader *reader, const char *dashes,
				   const char *name)
{
	const char *names[NAMES_MAX];
	size_t count = 0;
	for (size_t i = 0; i < reader->args->entry_count && count < NAMES_MAX; i++)
		names[count++] = reader->args->entries[i].option->name;
	char title[WHAT_SIZE], shown[WHAT_SIZE];
	title_of(reader, title);
	const char *nearest = semel_text_nearest(name, names, count);
	name = semel_word_redact(name, shown, sizeof shown);
	if (nearest)
		return semel_error_set(reader->error, SEMEL_USAGE,
				       "unknown option %s%s%s (did you mean --%s?)", dashes, name,
				       title, nearest);
	const struct semel_command *command = reader->args->command;
	if (!command)
		return semel_error_set(reader->error, SEMEL_USAGE,
				       "unknown option %s%s before the command (the options of a "
				       "command follow it; run: semel --help)",
				       dashes, name);
	return semel_error_set(reader->error, SEMEL_USAGE,
			       "unknown option %s%s%s (run: semel%s --help)", dashes, name, title,
			       title + strlen(" for"));
}

static semel_status set_value(const struct reader *reader, struct entry *entry, const char *value)
{
	const struct semel_option *option = entry->option;
	char what[WHAT_SIZE], shown[WHAT_SIZE];
	if (!semel_option_accepts(option, value, what, sizeof what))
		return semel_error_set(
			reader->error, SEMEL_USAGE, "invalid value \"%s\" for --%s (expected %s)",
			semel_word_redact(value, shown, sizeof shown), option->name, what);
	bool again = entry->count > 0 && option->kind != SEMEL_OPTION_MULTI;
	if (again && option->kind != SEMEL_OPTION_FLAG)
		return semel_error_set(reader->error, SEMEL_USAGE,
				       "--%s was given twice (keep one of them)", option->name);
	if (again)
		return SEMEL_OK;
	return append(&entry->values, &entry->count, value) ? SEMEL_OK : no_memory(reader->error);
}

/* In "--type --payload X" a value is missing; the type is not "--payload". */
static bool is_an_option(const struct semel_args *args, const char *word)
{
	if (strncmp(word, "--", 2) != 0)
		return false;
	char name[WHAT_SIZE];
	snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
	return find_entry(args, name) != NULL;
}

/* inline_value: the text after "=", or NULL. */
static semel_status read_value(struct reader *reader, struct entry *entry, const char *inline_value)
{
	const struct semel_option *option = entry->option;
	if (option->kind == SEMEL_OPTION_FLAG) {
		if (inline_value)
			return semel_error_set(reader->error, SEMEL_USAGE,
					       "--%s takes no value (use --%s alone)", option->name,
					       option->name);
		return set_value(reader, entry, "true");
	}
	if (inline_value)
		return set_value(reader, entry, inline_value);
	const char *next = reader->at < reader->argc ? reader->argv[reader->at] : NULL;
	if (!next || is_an_option(reader->args, next))
		return semel_error_set(reader->error, SEMEL_USAGE, "--%s needs a value: --%s %s",
				       option->name, option->name, option->argument);
	reader->at++;
	return set_value(reader, entry, next);
}

static semel_status read_long(struct reader *reader, const char *word)
{
	char name[WHAT_SIZE];
	size_t length = strcspn(word, "=");
	snprintf(name, sizeof name, "%.*s", (int)length, word);
	struct entry *entry = find_entry(reader->args, name);
	if (!entry)
		return unknown_option(reader, "--", name);
	return read_value(reader, entry, word[length] == '=' ? word + length + 1 : NULL);
}

static semel_status read_short(struct reader *reader, const char *word)
{
	for (size_t i = 0; i < reader->args->entry_count; i++) {
		struct entry *entry = &reader->args->entries[i];
		if (entry->option->letter == word[0] && word[1] == '\0')
			return read_value(reader, entry, NULL);
	}
	return unknown_option(reader, "-", word);
}

static semel_status read_command(struct reader *reader, const char *word)
{
	struct semel_args *args = reader->args;
	const struct semel_command *command = semel_command_find(reader->commands, word);
	if (!command) {
		const char *parent = args->command ? args->command->name : "";
		const char *space = args->command ? " " : "";
		char shown[WHAT_SIZE];
		const char *nearest = semel_command_nearest(reader->commands, word);
		word = semel_word_redact(word, shown, sizeof shown);
		if (nearest)
			return semel_error_set(reader->error, SEMEL_USAGE,
					       "unknown command \"%s%s%s\" (did you mean %s%s%s?)",
					       parent, space, word, parent, space, nearest);
		return semel_error_set(reader->error, SEMEL_USAGE,
				       "unknown command \"%s%s%s\" (run: semel %s%s--help)", parent,
				       space, word, parent, space);
	}
	args->command = command;
	reader->commands = command->subcommands;
	return add_entries(args, command->options) ? SEMEL_OK : no_memory(reader->error);
}

static semel_status read_word(struct reader *reader, const char *word, bool options_ended)
{
	if (!options_ended && word[0] == '-' && word[1] == '-')
		return read_long(reader, word + 2);
	if (!options_ended && word[0] == '-' && word[1] != '\0')
		return read_short(reader, word + 1);
	if (reader->commands)
		return read_command(reader, word);
	struct semel_args *args = reader->args;
	return append(&args->positionals, &args->positional_count, word) ? SEMEL_OK
									 : no_memory(reader->error);
}

semel_status semel_args_parse(int argc, char **argv, const struct semel_command *const *commands,
			      struct semel_args **args_out, semel_error *error)
{
	*args_out = NULL;
	struct semel_args *args = calloc(1, sizeof *args);
	if (!args || !add_entries(args, semel_global_options)) {
		free(args);
		return no_memory(error);
	}
	struct reader reader = { .argv = argv,
				 .argc = argc,
				 .at = 1,
				 .commands = commands,
				 .args = args,
				 .error = error };
	bool options_ended = false;
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK && reader.at < argc) {
		const char *word = argv[reader.at++];
		if (!options_ended && strcmp(word, "--") == 0)
			options_ended = true;
		else
			status = read_word(&reader, word, options_ended);
	}
	if (status != SEMEL_OK) {
		semel_args_free(args);
		return status;
	}
	*args_out = args;
	return SEMEL_OK;
}

/* ---- requirements ---------------------------------------------------------------------------- */

static const struct entry *excluded_by(const struct semel_args *args, const struct entry *entry)
{
	for (size_t i = 0; entry->option->excludes && i < args->entry_count; i++) {
		const struct entry *other = &args->entries[i];
		if (other != entry && other->count > 0 && other->option->excludes &&
		    strcmp(other->option->excludes, entry->option->excludes) == 0)
			return other;
	}
	return NULL;
}

static semel_status check_positionals(const struct semel_args *args, semel_error *error)
{
	const struct semel_command *command = args->command;
	char title[WHAT_SIZE];
	semel_command_title(command, title, sizeof title);
	if (args->positional_count < command->positionals_min)
		return semel_error_set(error, SEMEL_USAGE, "%s needs %s (run: semel %s --help)",
				       title, command->positionals, title);
	if (args->positional_count <= command->positionals_max)
		return SEMEL_OK;
	char shown[WHAT_SIZE];
	const char *word =
		semel_word_redact(args->positionals[command->positionals_max], shown, sizeof shown);
	return semel_error_set(error, SEMEL_USAGE, "unexpected argument \"%s\" for %s (%s%s)", word,
			       title, command->positionals ? "it takes " : "it takes none",
			       command->positionals ? command->positionals : "");
}

semel_status semel_args_check(const struct semel_args *args, semel_error *error)
{
	if (!args->command)
		return semel_error_set(error, SEMEL_USAGE, "no command given (run: semel --help)");
	char title[WHAT_SIZE];
	semel_command_title(args->command, title, sizeof title);
	if (args->command->subcommands)
		return semel_error_set(error, SEMEL_USAGE,
				       "%s needs a subcommand (run: semel %s --help)", title,
				       title);
	for (size_t i = 0; i < args->entry_count; i++) {
		const struct entry *entry = &args->entries[i];
		const struct entry *other = entry->count > 0 ? excluded_by(args, entry) : NULL;
		if (other)
			return semel_error_set(error, SEMEL_USAGE,
					       "--%s and --%s are mutually exclusive (use one)",
					       entry->option->name, other->option->name);
		if (entry->option->required && entry->count == 0)
			return semel_error_set(error, SEMEL_USAGE, "%s needs --%s %s", title,
					       entry->option->name, entry->option->argument);
	}
	return check_positionals(args, error);
}

bool semel_args_fill(struct semel_args *args, const char *name, const char *const *values,
		     size_t count)
{
	struct entry *entry = find_entry(args, name);
	assert(entry);
	if (entry->count > 0 || excluded_by(args, entry))
		return true;
	for (size_t i = 0; i < count; i++)
		if (!append(&entry->values, &entry->count, values[i]))
			return false;
	return true;
}

void semel_args_free(struct semel_args *args)
{
	if (!args)
		return;
	for (size_t i = 0; i < args->entry_count; i++)
		free(args->entries[i].values);
	free(args->entries);
	free(args->positionals);
	free(args);
}

/* ---- reading --------------------------------------------------------------------------------- */

const struct semel_command *semel_args_command(const struct semel_args *args)
{
	return args->command;
}

bool semel_args_has(const struct semel_args *args, const char *name)
{
	return expect_entry(args, name)->count > 0;
}

const char *semel_args_text(const struct semel_args *args, const char *name)
{
	const struct entry *entry = expect_entry(args, name);
	return entry->count > 0 ? entry->values[0] : entry->option->default_value;
}

bool semel_args_flag(const struct semel_args *args, const char *name)
{
	const char *value = semel_args_text(args, name);
	return value && strcmp(value, "true") == 0;
}

int64_t semel_args_number(const struct semel_args *args, const char *name)
{
	const char *value = semel_args_text(args, name);
	long long number = 0;
	bool read = !value || semel_text_to_int64(value, INT64_MIN, INT64_MAX, &number);
	assert(read); /* values are checked when they are given */
	(void)read;
	return number;
}

int64_t semel_args_duration_ms(const struct semel_args *args, const char *name)
{
	const char *value = semel_args_text(args, name);
	int64_t duration_ms = 0;
	bool read = !value || semel_duration_parse(value, &duration_ms);
	assert(read); /* values are checked when they are given */
	(void)read;
	return duration_ms;
}

int semel_args_choice(const struct semel_args *args, const char *name)
{
	const struct entry *entry = expect_entry(args, name);
	const char *value = semel_args_text(args, name);
	for (int i = 0; value && entry->option->choices[i].name; i++)
		if (is_choice(entry->option, entry->option->choices[i].name, value))
			return i;
	return 0;
}

const char *const *semel_args_list(const struct semel_args *args, const char *name,
				   size_t *count_out)
{
	const struct entry *entry = expect_entry(args, name);
	if (count_out)
		*count_out = entry->count;
	return entry->count > 0 ? entry->values : no_values;
}

const char *const *semel_args_positionals(const struct semel_args *args, size_t *count_out)
{
	if (count_out)
		*count_out = args->positional_count;
	return args->positional_count > 0 ? args->positionals : no_values;
}
