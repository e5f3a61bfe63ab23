/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/window.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* ---- when answered batches are marked
 * ------------------------------------------------------------
 */

static const struct semel_mark_facts one_answered = { .batches = 1,
						      .rows = 1,
						      .answered_at_ms = 1000,
						      .rows_min = 250,
						      .batches_max = 16,
						      .delay_ms = 10 };

static void without_an_answered_load_there_is_nothing_to_mark(void **state)
{
	(void)state;
	struct semel_mark_facts facts = one_answered;
	facts.batches = facts.rows = 0;
	facts.refused = true;
	assert_int_equal(semel_pacing_mark_at_ms(&facts), INT64_MAX);
}

static void a_few_answered_rows_wait_for_others(void **state)
{
	(void)state;
	assert_int_equal(semel_pacing_mark_at_ms(&one_answered), 1010);
}

static void what_is_worth_a_statement_or_fills_one_is_marked_at_once(void **state)
{
	(void)state;
	struct semel_mark_facts rows = one_answered, batches = one_answered;
	rows.rows = rows.rows_min;
	batches.batches = batches.batches_max;
	assert_int_equal(semel_pacing_mark_at_ms(&rows), 0);
	assert_int_equal(semel_pacing_mark_at_ms(&batches), 0);
}

static void a_refusal_and_what_others_wait_for_are_marked_at_once(void **state)
{
	(void)state;
	struct semel_mark_facts refused = one_answered, urgent = one_answered;
	refused.refused = true;
	urgent.urgent = true;
	assert_int_equal(semel_pacing_mark_at_ms(&refused), 0);
	assert_int_equal(semel_pacing_mark_at_ms(&urgent), 0);
}

/* ---- how outcomes are reported ------------------------------------------------------------------
 */

static const struct semel_outcome_facts single_rows = {
	.broker_works_in_background = true, .source_listens = true, .can_read = true, .sparse = true
};

static void answers_to_single_rows_are_polled_later(void **state)
{
	(void)state;
	assert_int_equal(semel_pacing_outcome_mode(&single_rows), SEMEL_OUTCOMES_DEFERRED);
}

static void answers_are_awaited_when_nothing_else_would_wake(void **state)
{
	(void)state;
	struct semel_outcome_facts many = single_rows, full = single_rows, deaf = single_rows,
				   transactional = single_rows, idle_broker = single_rows;
	many.sparse = full.can_read = deaf.source_listens = false;
	idle_broker.broker_works_in_background = false;
	transactional.transactional = true;
	assert_int_equal(semel_pacing_outcome_mode(&many), SEMEL_OUTCOMES_POLLED);
	assert_int_equal(semel_pacing_outcome_mode(&full), SEMEL_OUTCOMES_POLLED);
	assert_int_equal(semel_pacing_outcome_mode(&deaf), SEMEL_OUTCOMES_POLLED);
	assert_int_equal(semel_pacing_outcome_mode(&transactional), SEMEL_OUTCOMES_POLLED);
	assert_int_equal(semel_pacing_outcome_mode(&idle_broker), SEMEL_OUTCOMES_POLLED);
}

static void a_broker_that_wakes_is_awaited_beside_a_source_that_wakes_all_the_time(void **state)
{
	(void)state;
	struct semel_outcome_facts facts = { .broker_wakes = true,
					     .source_reports_exhausted = true };
	assert_int_equal(semel_pacing_outcome_mode(&facts), SEMEL_OUTCOMES_WAKE);
	facts.source_reports_exhausted = false;
	assert_int_equal(semel_pacing_outcome_mode(&facts), SEMEL_OUTCOMES_POLLED);
}

/* ---- how long the relay may sleep --------------------------------------------------------------
 */

static const struct semel_pacing_facts idle = {
	.now_ms = 5000, .most_ms = 1000, .mark_at_ms = INT64_MAX, .outcomes = SEMEL_OUTCOMES_WAKE
};

static void with_nothing_to_do_it_sleeps_as_long_as_it_may(void **state)
{
	(void)state;
	struct semel_pacing_facts facts = idle;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 1000);
	facts.unanswered = 3; /* they wake */
	assert_int_equal(semel_pacing_sleep_ms(&facts), 1000);
}

static void answers_without_a_wakeup_bound_the_sleep(void **state)
{
	(void)state;
	struct semel_pacing_facts facts = idle;
	facts.unanswered = 3;
	facts.outcomes = SEMEL_OUTCOMES_POLLED;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 0);
	facts.outcomes = SEMEL_OUTCOMES_DEFERRED;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 5);
	facts.most_ms = 2;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 2);
}

static void marks_bound_the_sleep(void **state)
{
	(void)state;
	struct semel_pacing_facts facts = idle;
	facts.mark_at_ms = facts.now_ms + 7;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 7);
	facts.mark_at_ms = facts.now_ms;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 0);
	facts.mark_at_ms = facts.now_ms + 5000;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 1000);
}

static void it_reads_on_at_once_after_a_step_that_moved_something(void **state)
{
	(void)state;
	struct semel_pacing_facts facts = idle;
	facts.may_read = true;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 1000); /* the last probe found nothing */
	facts.progressed = true;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 0);
}

static void a_source_with_unfinished_work_is_asked_again_soon(void **state)
{
	(void)state;
	struct semel_pacing_facts facts = idle;
	facts.unfinished = true;
	assert_int_equal(semel_pacing_sleep_ms(&facts), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_an_answered_load_there_is_nothing_to_mark),
		cmocka_unit_test(a_few_answered_rows_wait_for_others),
		cmocka_unit_test(what_is_worth_a_statement_or_fills_one_is_marked_at_once),
		cmocka_unit_test(a_refusal_and_what_others_wait_for_are_marked_at_once),
		cmocka_unit_test(answers_to_single_rows_are_polled_later),
		cmocka_unit_test(answers_are_awaited_when_nothing_else_would_wake),
		cmocka_unit_test(
			a_broker_that_wakes_is_awaited_beside_a_source_that_wakes_all_the_time),
		cmocka_unit_test(with_nothing_to_do_it_sleeps_as_long_as_it_may),
		cmocka_unit_test(answers_without_a_wakeup_bound_the_sleep),
		cmocka_unit_test(marks_bound_the_sleep),
		cmocka_unit_test(it_reads_on_at_once_after_a_step_that_moved_something),
		cmocka_unit_test(a_source_with_unfinished_work_is_asked_again_soon),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
