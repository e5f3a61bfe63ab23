/* SPDX-License-Identifier: Apache-2.0 */
/* When the relay reads the change stream, when it polls, and what becomes of the slot. */
#include "relay/cdc/cdc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct semel_slot_state sound = { .known = true,
					       .exists = true,
					       .position = 100,
					       .current = 500,
					       .retained = 400,
					       .identity = "7/1",
					       .publication = "1/2/3",
					       .recorded_publication = "1/2/3",
					       .recorded = true,
					       .recorded_position = 100,
					       .recorded_identity = "7/1" };

static enum semel_slot_action decide(struct semel_slot_state state, bool caught_up)
{
	struct semel_slot_decision decision;
	semel_slot_decide(&(struct semel_slot_view){ .state = &state,
						     .budget = 1000,
						     .caught_up = caught_up },
			  &decision);
	assert_true(decision.action == SEMEL_SLOT_STREAM || decision.reason[0] != '\0');
	return decision.action;
}

static void a_sound_slot_is_read(void **state)
{
	(void)state;
	assert_int_equal(decide(sound, false), SEMEL_SLOT_STREAM);
}

static void a_slot_that_was_set_back_is_read(void **state)
{
	(void)state;
	struct semel_slot_state back = sound;
	back.position = 50;
	assert_int_equal(decide(back, false), SEMEL_SLOT_STREAM);
}

static void a_slot_that_is_further_than_remembered_is_not_trusted(void **state)
{
	(void)state;
	struct semel_slot_state further = sound, unknown = sound;
	further.position = 101;
	unknown.recorded = false;
	assert_int_equal(decide(further, true), SEMEL_SLOT_RESYNC);
	assert_int_equal(decide(unknown, true), SEMEL_SLOT_RESYNC);
}

static void what_is_older_than_the_slot_is_polled_first(void **state)
{
	(void)state;
	struct semel_slot_state young = sound;
	young.poll_to_seq = 1;
	assert_int_equal(decide(young, true), SEMEL_SLOT_POLL_FIRST);
}

static void a_slot_over_its_budget_is_dropped_whatever_else(void **state)
{
	(void)state;
	struct semel_slot_state fat = sound;
	fat.retained = 1001;
	fat.active = true;
	fat.poll_to_seq = 5;
	assert_int_equal(decide(fat, false), SEMEL_SLOT_DROP);
	fat.retained = 1000;
	assert_int_equal(decide(fat, false), SEMEL_SLOT_POLL_FIRST);
}

static void a_lost_slot_and_one_of_another_history_are_dropped(void **state)
{
	(void)state;
	struct semel_slot_state lost = sound, promoted = sound;
	lost.lost = true;
	snprintf(promoted.identity, sizeof(promoted.identity), "7/2");
	assert_int_equal(decide(lost, true), SEMEL_SLOT_DROP);
	assert_int_equal(decide(promoted, true), SEMEL_SLOT_DROP);
}

static void a_missing_slot_is_made_only_when_polling_has_caught_up(void **state)
{
	(void)state;
	struct semel_slot_state missing = sound;
	missing.exists = false;
	assert_int_equal(decide(missing, false), SEMEL_SLOT_WAIT);
	assert_int_equal(decide(missing, true), SEMEL_SLOT_CREATE);
}

static void a_problem_means_polling(void **state)
{
	(void)state;
	struct semel_slot_state hindered = sound;
	snprintf(hindered.problem, sizeof(hindered.problem), "wal_level is replica");
	assert_int_equal(decide(hindered, true), SEMEL_SLOT_POLL);
	hindered.retained = 1001;
	assert_int_equal(decide(hindered, true), SEMEL_SLOT_DROP);
	hindered.foreign = true;
	assert_int_equal(decide(hindered, true), SEMEL_SLOT_POLL);
	hindered.foreign = hindered.known = false;
	assert_int_equal(decide(hindered, true), SEMEL_SLOT_POLL);
}

static void a_slot_whose_publication_was_changed_is_dropped(void **state)
{
	(void)state;
	struct semel_slot_state changed = sound, unknown = sound;
	snprintf(changed.publication, sizeof(changed.publication), "1/2/4");
	assert_int_equal(decide(changed, true), SEMEL_SLOT_DROP);
	snprintf(changed.problem, sizeof(changed.problem), "it has a row filter");
	assert_int_equal(decide(changed, true), SEMEL_SLOT_DROP);
	unknown.recorded_publication[0] = '\0';
	assert_int_equal(decide(unknown, true), SEMEL_SLOT_RESYNC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_slot_is_read),
		cmocka_unit_test(a_slot_that_was_set_back_is_read),
		cmocka_unit_test(a_slot_that_is_further_than_remembered_is_not_trusted),
		cmocka_unit_test(what_is_older_than_the_slot_is_polled_first),
		cmocka_unit_test(a_slot_over_its_budget_is_dropped_whatever_else),
		cmocka_unit_test(a_lost_slot_and_one_of_another_history_are_dropped),
		cmocka_unit_test(a_missing_slot_is_made_only_when_polling_has_caught_up),
		cmocka_unit_test(a_problem_means_polling),
		cmocka_unit_test(a_slot_whose_publication_was_changed_is_dropped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
