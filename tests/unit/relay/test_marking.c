/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/marking.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

static const struct semel_refusal_policy park = { .attempts_max = 3,
						  .backoff = { 1000, 300000 },
						  .poison = SEMEL_POISON_PARK_KEY };
static struct semel_outbox_row row;

static struct semel_mark judged(const struct semel_refusal_policy *policy, semel_status outcome,
				uint32_t attempts)
{
	struct semel_mark mark = { .row = &row };

	row.attempts = attempts;
	semel_refusal_decide(policy, outcome, 10000, 0, &mark);
	return mark;
}

static void a_confirmed_event_is_published(void **state)
{
	(void)state;
	assert_int_equal(judged(&park, SEMEL_OK, 0).kind, SEMEL_MARK_PUBLISHED);
}

static void a_refused_event_comes_again_after_a_doubling_delay(void **state)
{
	struct semel_mark first = judged(&park, SEMEL_NACKED, 0);
	struct semel_mark second = judged(&park, SEMEL_UNROUTABLE, 1);
	(void)state;
	assert_int_equal(first.kind, SEMEL_MARK_RETRY);
	assert_int_equal(first.attempts, 1);
	assert_int_equal(first.due_ms, 10500);
	assert_int_equal(second.due_ms, 11000);
}

static void the_last_attempt_of_the_budget_is_given_up(void **state)
{
	struct semel_mark mark = judged(&park, SEMEL_NACKED, 2);
	(void)state;
	assert_int_equal(mark.kind, SEMEL_MARK_FAILED);
	assert_int_equal(mark.attempts, 3);
	assert_true(mark.holds);
	assert_false(mark.blocks);
}

static void what_can_never_be_taken_is_given_up_at_once(void **state)
{
	(void)state;
	assert_int_equal(judged(&park, SEMEL_TOO_LARGE, 0).kind, SEMEL_MARK_FAILED);
}

static void a_held_event_is_parked_and_keeps_its_attempts(void **state)
{
	struct semel_mark mark = judged(&park, SEMEL_HELD, 2);
	(void)state;
	assert_int_equal(mark.kind, SEMEL_MARK_PARKED);
	assert_int_equal(mark.attempts, 0);
}

static void a_stalled_partition_costs_no_attempt_and_gives_no_event_up(void **state)
{
	struct semel_mark mark = judged(&park, SEMEL_STALLED, 2);
	(void)state;
	assert_int_equal(mark.kind, SEMEL_MARK_RETRY);
	assert_int_equal(mark.attempts, 2);
	assert_int_equal(mark.due_ms, 14000);
}

static void skip_holds_no_event_back_and_block_holds_and_blocks(void **state)
{
	struct semel_refusal_policy skip = park, block = park;
	(void)state;
	skip.poison = SEMEL_POISON_SKIP;
	block.poison = SEMEL_POISON_BLOCK;
	assert_false(judged(&skip, SEMEL_TOO_LARGE, 0).holds);
	assert_true(judged(&block, SEMEL_TOO_LARGE, 0).holds);
	assert_true(judged(&block, SEMEL_TOO_LARGE, 0).blocks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_confirmed_event_is_published),
		cmocka_unit_test(a_refused_event_comes_again_after_a_doubling_delay),
		cmocka_unit_test(the_last_attempt_of_the_budget_is_given_up),
		cmocka_unit_test(what_can_never_be_taken_is_given_up_at_once),
		cmocka_unit_test(a_held_event_is_parked_and_keeps_its_attempts),
		cmocka_unit_test(a_stalled_partition_costs_no_attempt_and_gives_no_event_up),
		cmocka_unit_test(skip_holds_no_event_back_and_block_holds_and_blocks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
