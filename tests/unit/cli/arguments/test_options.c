/* SPDX-License-Identifier: Apache-2.0 */
/* The command line is read by tables: what they accept, refuse and fall back to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/arguments/command.h"
#include "cli/arguments/help.h"
#include "cli/arguments/options.h"

#include <string.h>

static const struct semel_choice colours[] = { { "red", "warm" }, { "green", "cool" }, { 0 } };

static const struct semel_option paint_options[] = {
	{ .name = "colour",
	  .kind = SEMEL_OPTION_CHOICE,
	  .argument = "C",
	  .choices = colours,
	  .default_value = "green",
	  .help = "which" },
	{ .name = "coats",
	  .kind = SEMEL_OPTION_NUMBER,
	  .argument = "N",
	  .min = 1,
	  .max = 9,
	  .default_value = "2",
	  .help = "how many" },
	{ .name = "dry",
	  .kind = SEMEL_OPTION_DURATION,
	  .argument = "DURATION",
	  .default_value = "5m",
	  .help = "how long" },
	{ .name = "wall", .kind = SEMEL_OPTION_MULTI, .argument = "WALL", .help = "where" },
	{ .name = "brush",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "B",
	  .excludes = "tool",
	  .help = "by hand" },
	{ .name = "spray", .kind = SEMEL_OPTION_FLAG, .excludes = "tool", .help = "by machine" },
	{ .name = "owner",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "NAME",
	  .required = true,
	  .help = "whose" },
	{ 0 },
};
static const struct semel_command paint = {
	.name = "paint", .options = paint_options, .positionals = "[ROOM]", .positionals_max = 1
};
static const struct semel_command shelf;
static const struct semel_command shelf_add = { .name = "add", .parent = &shelf };
static const struct semel_command *const shelf_commands[] = { &shelf_add, NULL };
static const struct semel_command shelf = { .name = "shelf", .subcommands = shelf_commands };
static const struct semel_command *const commands[] = { &paint, &shelf, NULL };

static semel_error error;
static struct semel_args *args;

#define WORDS_MAX 16

/* words: NULL-terminated, without the program's name. */
static semel_status parse(const char *const *words)
{
	static char copies[WORDS_MAX][64];
	char *argv[WORDS_MAX] = { copies[0] };
	int argc = 1;
	for (; words[argc - 1]; argc++) {
		strcpy(copies[argc], words[argc - 1]);
		argv[argc] = copies[argc];
	}
	semel_args_free(args);
	args = NULL;
	memset(&error, 0, sizeof error);
	return semel_args_parse(argc, argv, commands, &args, &error);
}

#define PARSE(...) parse((const char *const[]){ __VA_ARGS__, NULL })

static int free_args(void **state)
{
	(void)state;
	semel_args_free(args);
	args = NULL;
	return 0;
}

static void assert_says(const char *part)
{
	if (!strstr(error.text, part))
		fail_msg("\"%s\" does not contain \"%s\"", error.text, part);
}

static void values_stand_behind_a_space_or_an_equals_sign(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--colour", "red", "--coats=7"), SEMEL_OK);
	assert_string_equal(semel_args_text(args, "colour"), "red");
	assert_int_equal(semel_args_choice(args, "colour"), 0);
	assert_int_equal(semel_args_number(args, "coats"), 7);
}

static void what_is_not_given_has_its_default(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint"), SEMEL_OK);
	assert_string_equal(semel_args_text(args, "colour"), "green");
	assert_int_equal(semel_args_number(args, "coats"), 2);
	assert_int_equal(semel_args_duration_ms(args, "dry"), 5 * 60 * 1000);
	assert_null(semel_args_text(args, "brush"));
	assert_false(semel_args_flag(args, "spray"));
	assert_false(semel_args_has(args, "coats"));
}

static void repeated_options_keep_their_order(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--wall", "north", "--wall=south"), SEMEL_OK);
	size_t count = 0;
	const char *const *walls = semel_args_list(args, "wall", &count);
	assert_int_equal(count, 2);
	assert_string_equal(walls[0], "north");
	assert_string_equal(walls[1], "south");
	assert_null(walls[2]);
}

static void a_single_option_given_twice_is_refused(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--coats", "1", "--coats", "2"), SEMEL_USAGE);
	assert_says("--coats");
}

static void global_options_stand_before_and_after_the_command(void **state)
{
	(void)state;
	assert_int_equal(PARSE("--store", "sqlite:a.db", "paint", "--broker=local:b.db", "-h"),
			 SEMEL_OK);
	assert_string_equal(semel_args_text(args, "store"), "sqlite:a.db");
	assert_string_equal(semel_args_text(args, "broker"), "local:b.db");
	assert_true(semel_args_flag(args, "help"));
	assert_ptr_equal(semel_args_command(args), &paint);
}

static void an_unknown_option_is_named_with_the_nearest_right_one(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--color", "red"), SEMEL_USAGE);
	assert_string_equal(error.text,
			    "unknown option --color for paint (did you mean --colour?)");
}

static void an_unknown_command_is_named_with_the_nearest_right_one(void **state)
{
	(void)state;
	assert_int_equal(PARSE("piant"), SEMEL_USAGE);
	assert_string_equal(error.text, "unknown command \"piant\" (did you mean paint?)");
}

static void bad_values_are_refused_with_what_is_needed(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--coats", "10"), SEMEL_USAGE);
	assert_says("from 1 to 9");
	assert_int_equal(PARSE("paint", "--coats", "many"), SEMEL_USAGE);
	assert_says("\"many\" for --coats");
	assert_int_equal(PARSE("paint", "--dry", "soon"), SEMEL_USAGE);
	assert_says("duration");
	assert_int_equal(PARSE("paint", "--colour", "gren"), SEMEL_USAGE);
	assert_says("did you mean green?");
	assert_int_equal(PARSE("paint", "--spray=yes"), SEMEL_USAGE);
	assert_says("takes no value");
}

static void an_option_in_the_place_of_a_value_is_a_forgotten_value(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--brush", "--coats", "3"), SEMEL_USAGE);
	assert_says("--brush needs a value");
	assert_int_equal(PARSE("paint", "--brush"), SEMEL_USAGE);
	assert_int_equal(PARSE("paint", "--brush", "-- a comment"), SEMEL_OK);
}

static void two_hyphens_end_the_options(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--", "--coats"), SEMEL_OK);
	size_t count = 0;
	const char *const *words = semel_args_positionals(args, &count);
	assert_int_equal(count, 1);
	assert_string_equal(words[0], "--coats");
}

static void a_required_option_that_is_missing_is_named(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint"), SEMEL_OK);
	assert_int_equal(semel_args_check(args, &error), SEMEL_USAGE);
	assert_string_equal(error.text, "paint needs --owner NAME");
}

static void options_that_exclude_each_other_are_refused_together(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--owner", "me", "--brush", "b", "--spray"), SEMEL_OK);
	assert_int_equal(semel_args_check(args, &error), SEMEL_USAGE);
	assert_says("are mutually exclusive");
}

static void an_argument_too_many_is_refused(void **state)
{
	(void)state;
	assert_int_equal(PARSE("paint", "--owner", "me", "hall", "attic"), SEMEL_OK);
	assert_int_equal(semel_args_check(args, &error), SEMEL_USAGE);
	assert_says("\"attic\"");
}

static void a_subcommand_is_found_under_its_parent(void **state)
{
	(void)state;
	assert_int_equal(PARSE("shelf", "add"), SEMEL_OK);
	assert_ptr_equal(semel_args_command(args), &shelf_add);
	assert_int_equal(PARSE("shelf", "ad"), SEMEL_USAGE);
	assert_says("did you mean shelf add?");
	assert_int_equal(PARSE("shelf"), SEMEL_OK);
	assert_int_equal(semel_args_check(args, &error), SEMEL_USAGE);
}

static void the_command_line_weighs_more_than_a_filled_in_value(void **state)
{
	(void)state;
	const char *const three[] = { "3" }, *const roller[] = { "roller" };
	assert_int_equal(PARSE("paint", "--spray"), SEMEL_OK);
	assert_true(semel_args_fill(args, "coats", three, 1));
	assert_true(semel_args_fill(args, "brush", roller, 1));
	assert_int_equal(semel_args_number(args, "coats"), 3);
	assert_false(semel_args_has(args, "brush"));
	assert_int_equal(PARSE("paint", "--coats", "5"), SEMEL_OK);
	assert_true(semel_args_fill(args, "coats", three, 1));
	assert_int_equal(semel_args_number(args, "coats"), 5);
}

static void every_exit_code_has_its_line_in_the_help(void **state)
{
	(void)state;
	for (int status = 0; status < SEMEL_STATUS_COUNT; status++) {
		int code = semel_status_exit_code((semel_status)status), lines = 0;
		for (const struct semel_exit_row *row = semel_exit_rows; row->meaning; row++)
			lines += semel_status_exit_code(row->status) == code;
		assert_int_equal(lines, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_stand_behind_a_space_or_an_equals_sign),
		cmocka_unit_test(what_is_not_given_has_its_default),
		cmocka_unit_test(repeated_options_keep_their_order),
		cmocka_unit_test(a_single_option_given_twice_is_refused),
		cmocka_unit_test(global_options_stand_before_and_after_the_command),
		cmocka_unit_test(an_unknown_option_is_named_with_the_nearest_right_one),
		cmocka_unit_test(an_unknown_command_is_named_with_the_nearest_right_one),
		cmocka_unit_test(bad_values_are_refused_with_what_is_needed),
		cmocka_unit_test(an_option_in_the_place_of_a_value_is_a_forgotten_value),
		cmocka_unit_test(two_hyphens_end_the_options),
		cmocka_unit_test(a_required_option_that_is_missing_is_named),
		cmocka_unit_test(options_that_exclude_each_other_are_refused_together),
		cmocka_unit_test(an_argument_too_many_is_refused),
		cmocka_unit_test(a_subcommand_is_found_under_its_parent),
		cmocka_unit_test(the_command_line_weighs_more_than_a_filled_in_value),
		cmocka_unit_test(every_exit_code_has_its_line_in_the_help),
	};
	return cmocka_run_group_tests(tests, NULL, free_args);
}
