/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of states: every state can be reached and left, and no row is there twice. */
#include "state/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static bool is_end(int state)
{
	return state == SEMEL_STATE_UNSEEN;
}

static bool leads(struct semel_transitions table, int from, int to)
{
	for (size_t i = 0; i < table.count; i++)
		if (table.rows[i].from == from && table.rows[i].to == to)
			return true;
	return false;
}

static bool is_reached(struct semel_transitions table, int state)
{
	for (size_t i = 0; i < table.count; i++)
		if (table.rows[i].to == state && table.rows[i].from != state)
			return true;
	return false;
}

static bool is_left(struct semel_transitions table, int state)
{
	for (size_t i = 0; i < table.count; i++)
		if (table.rows[i].from == state && table.rows[i].to != state)
			return true;
	return false;
}

static void every_state_of_an_event_is_reached_and_left(void **unused)
{
	struct semel_transitions table = semel_state_transitions();
	(void)unused;
	for (int state = 0; state < SEMEL_STATE_COUNT; state++) {
		assert_true(is_end(state) || is_reached(table, state));
		assert_true(is_left(table, state));
		assert_non_null(semel_state_name((enum semel_state)state));
		assert_non_null(semel_state_sentence((enum semel_state)state));
	}
}

static void every_state_of_a_hold_is_reached_and_left(void **unused)
{
	struct semel_transitions table = semel_hold_transitions();
	(void)unused;
	for (int state = SEMEL_HOLD_NONE; state <= SEMEL_HOLD_RELEASED; state++) {
		assert_true(is_reached(table, state));
		assert_true(is_left(table, state));
		assert_non_null(semel_hold_state_sentence((enum semel_hold_state)state));
	}
}

static void no_row_stands_twice(void **unused)
{
	struct semel_transitions tables[] = { semel_state_transitions(), semel_hold_transitions() };
	(void)unused;
	for (size_t t = 0; t < 2; t++)
		for (size_t i = 0; i < tables[t].count; i++)
			for (size_t j = i + 1; j < tables[t].count; j++)
				assert_false(tables[t].rows[i].from == tables[t].rows[j].from &&
					     tables[t].rows[i].to == tables[t].rows[j].to &&
					     tables[t].rows[i].by == tables[t].rows[j].by);
}

static void only_an_operator_runs_again_what_is_dead(void **unused)
{
	struct semel_transitions table = semel_state_transitions();
	(void)unused;
	assert_false(leads(table, SEMEL_STATE_DEAD, SEMEL_STATE_CLAIMED));
	assert_false(leads(table, SEMEL_STATE_DISCARDED, SEMEL_STATE_RECEIVED));
	assert_false(leads(table, SEMEL_STATE_IN_DOUBT, SEMEL_STATE_CLAIMED));
}

static void a_letter_decides_which_copies_run(void **unused)
{
	const struct {
		struct semel_state_result answer;
		uint32_t copy;
		enum semel_authority authority;
	} cases[] = {
		{ { .letter = SEMEL_DEAD_ANY }, 0, SEMEL_AUTHORITY_CLAIMS },
		{ { .letter = SEMEL_DEAD_PENDING }, 0, SEMEL_AUTHORITY_SUPERSEDED },
		{ { .letter = SEMEL_DEAD_PENDING, .replay_count = 1 },
		  1,
		  SEMEL_AUTHORITY_SUPERSEDED },
		{ { .letter = SEMEL_DEAD_PENDING, .replay_count = 1 }, 2, SEMEL_AUTHORITY_REPLAY },
		{ { .letter = SEMEL_DEAD_DISCARDED }, 1, SEMEL_AUTHORITY_SUPERSEDED },
		{ { .letter = SEMEL_DEAD_REPLAYED, .replay_count = 2 }, 0, SEMEL_AUTHORITY_REPLAY },
		{ { .letter = SEMEL_DEAD_REPLAYED, .replay_count = 1, .settled = true },
		  1,
		  SEMEL_AUTHORITY_CLAIMS },
	};
	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(semel_letter_authority(&cases[i].answer, cases[i].copy),
				 cases[i].authority);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_state_of_an_event_is_reached_and_left),
		cmocka_unit_test(every_state_of_a_hold_is_reached_and_left),
		cmocka_unit_test(no_row_stands_twice),
		cmocka_unit_test(only_an_operator_runs_again_what_is_dead),
		cmocka_unit_test(a_letter_decides_which_copies_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
