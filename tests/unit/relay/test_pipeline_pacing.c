/* SPDX-License-Identifier: Apache-2.0 */
/* When the pipeline probes, marks and sleeps: between a store that reads its lanes by one
 * statement, a broker that wakes by its outcomes, and a clock that the test advances. */
#include "relay/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LANES      2
#define WINDOW     64
#define MARK_DELAY 10
#define FEW        8 /* on their way: they may be read again */

/* ---- the clock ---------------------------------------------------------------------------------
 */

static int64_t clock_ms;

static int64_t read_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static uint64_t no_chance(void *user)
{
	(void)user;
	return 0;
}

static const struct semel_env env = { .now_ms = read_clock,
				      .steady_ms = read_clock,
				      .random = no_chance };

/* ---- the store ---------------------------------------------------------------------------------
 */

static unsigned probes, reads, mark_calls, marked;
static int64_t rows_of[LANES]; /* numbers 1 to so many are there */

static semel_status probe(semel_store *store, struct semel_lane_probe *found, size_t count,
			  int64_t now_ms, semel_error *error)
{
	(void)store, (void)now_ms, (void)error;
	probes++;
	for (size_t i = 0; i < count; i++) {
		found[i].run = found[i].after_seq < rows_of[found[i].lane];
		found[i].due = false;
		found[i].complete_seq = found[i].after_seq;
	}
	return SEMEL_OK;
}

static void fill(const struct semel_lane_read *read)
{
	struct semel_outbox_batch *batch = read->batch;
	int64_t seq = read->after_seq;
	batch->count = 0;
	batch->cut = false;
	while (seq < rows_of[read->lease->lane] && batch->count < batch->capacity)
		batch->rows[batch->count++] = (struct semel_outbox_row){
			.seq = ++seq,
			.event = { .id = SEMEL_TEXT("e"),
				   .aggregate_type = SEMEL_TEXT("order"),
				   .aggregate_id = SEMEL_TEXT("a"),
				   .topic = SEMEL_TEXT("order.events"),
				   .payload = SEMEL_TEXT("{}") },
		};
	batch->complete_seq = seq;
}

static semel_status fetch_lanes(semel_store *store, const struct semel_lane_read *asked,
				size_t count, semel_error *error)
{
	(void)store, (void)error;
	reads++;
	for (size_t i = 0; i < count; i++)
		fill(&asked[i]);
	return SEMEL_OK;
}

static semel_status mark_lanes(semel_store *store, struct semel_lane_marks *marks, size_t count,
			       semel_error *error)
{
	(void)store, (void)error;
	mark_calls++;
	for (size_t i = 0; i < count; i++)
		marked += (unsigned)marks[i].batch.count;
	return SEMEL_OK;
}

static const struct semel_store_driver store_driver = {
	.scheme = "test",
	.outbox = &(const struct semel_outbox_functions){ .probe = probe,
							  .fetch_lanes = fetch_lanes,
							  .mark_lanes = mark_lanes }
};

/* ---- the broker --------------------------------------------------------------------------------
 */

static void *tokens[256];
static unsigned offered, answered, allowed;

static semel_status publish(struct semel_broker *broker, const struct semel_event *event,
			    const struct semel_publish_metadata *metadata, void *token,
			    semel_error *error)
{
	(void)broker, (void)event, (void)metadata, (void)error;
	tokens[offered++] = token;
	return SEMEL_OK;
}

static semel_status poll_answers(struct semel_broker *broker, int64_t wait_ms,
				 semel_outcome_callback seen, void *user, semel_error *error)
{
	(void)broker, (void)error;
	assert_int_equal(wait_ms, 0); /* it wakes: no wait here */
	while (answered < allowed && answered < offered) {
		struct semel_publish_outcome outcome = { .token = tokens[answered++],
							 .status = SEMEL_OK };
		seen(&outcome, user);
	}
	return SEMEL_OK;
}

static const char *never_blocked(struct semel_broker *broker)
{
	(void)broker;
	return NULL;
}

static void watch(struct semel_broker *broker, struct semel_wake *wake)
{
	(void)broker, (void)wake;
}

static const struct semel_broker_driver broker_driver = { .scheme = "test",
							  .publish = publish,
							  .poll = poll_answers,
							  .blocked = never_blocked,
							  .watch_outcomes = watch };

/* ---- one relay ---------------------------------------------------------------------------------
 */

static semel_store store = { .driver = &store_driver };
static struct semel_broker broker = { .driver = &broker_driver };
static struct semel_lane lane_list[LANES];
static struct semel_lanes lanes;
static struct semel_source *source;
static struct semel_pipeline *pipeline;

static int set_up(void **state)
{
	(void)state;
	const struct semel_pipeline_options options = {
		.window = WINDOW,
		.window_bytes = 100000,
		.confirm_timeout_ms = 30000,
		.mark_delay_ms = MARK_DELAY,
		.refusal = { .attempts_max = 3, .backoff = { 10, 10 } },
	};
	clock_ms = 1000;
	probes = reads = mark_calls = marked = offered = answered = allowed = 0;
	lanes = (struct semel_lanes){
		.env = &env, .lease_ms = 5000, .count = LANES, .lanes = lane_list
	};
	assert_int_equal(semel_source_open_poll(&env, &lanes, &source, NULL), SEMEL_OK);
	assert_int_equal(semel_pipeline_open(&options, &env, &lanes, source, &pipeline, NULL),
			 SEMEL_OK);
	semel_pipeline_connect(pipeline, &store, &broker);
	for (int32_t i = 0; i < LANES; i++) {
		lane_list[i] = (struct semel_lane){ .mine = true, .lease = { .lane = i } };
		rows_of[i] = 0;
	}
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	semel_source_close(source);
	semel_pipeline_close(pipeline);
	return 0;
}

static void step(enum semel_step kind)
{
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	assert_int_equal(semel_pipeline_step(pipeline, kind, &busy, &error), SEMEL_OK);
}

static int64_t rest_ms(void)
{
	return semel_pipeline_sleep_ms(pipeline, 1000);
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void lanes_are_read_without_a_probe_soon_after_one(void **state)
{
	(void)state;
	rows_of[0] = 1;
	step(SEMEL_STEP_READ);
	assert_int_equal(probes, 1);
	rows_of[1] = 1;
	step(SEMEL_STEP_READ);
	assert_int_equal(probes, 1);
	assert_int_equal(offered, 2);
	clock_ms += 1000;
	step(SEMEL_STEP_READ);
	assert_int_equal(probes, 2);
}

static void a_read_that_finds_nothing_is_followed_by_a_probe(void **state)
{
	(void)state;
	rows_of[0] = 1;
	step(SEMEL_STEP_READ);
	step(SEMEL_STEP_READ);
	assert_int_equal(probes, 1);
	step(SEMEL_STEP_READ);
	assert_int_equal(probes, 2);
}

static void lanes_that_gave_all_they_had_are_not_asked_again(void **state)
{
	(void)state;
	rows_of[0] = rows_of[1] = 1;
	step(SEMEL_STEP_READ);
	assert_int_equal(offered, 2);
	assert_int_equal(reads, 1);
	assert_false(semel_pipeline_has_more(pipeline));
	assert_int_equal(rest_ms(), 1000); /* an outcome or a notification wakes */
}

static void no_more_than_the_window_is_unmarked(void **state)
{
	(void)state;
	rows_of[0] = rows_of[1] = 100;
	step(SEMEL_STEP_READ);
	assert_int_equal(offered, WINDOW);
	assert_true(semel_pipeline_has_more(pipeline));
	assert_false(semel_pipeline_can_read(pipeline));
	step(SEMEL_STEP_READ);
	assert_int_equal(offered, WINDOW);
	assert_int_equal(rest_ms(), 1000);
	allowed = 1; /* of a batch that is not answered as a whole */
	step(SEMEL_STEP_READ);
	assert_int_equal(offered, WINDOW);
}

static void marks_gather_until_the_delay_is_over(void **state)
{
	(void)state;
	rows_of[0] = 1;
	step(SEMEL_STEP_READ);
	allowed = 1;
	step(SEMEL_STEP_POLL);
	assert_int_equal(marked, 0);
	assert_int_equal(rest_ms(), MARK_DELAY);
	clock_ms += MARK_DELAY - 1;
	rows_of[1] = 1;
	allowed = 2;
	step(SEMEL_STEP_READ);
	assert_int_equal(marked, 0);
	clock_ms++;
	step(SEMEL_STEP_POLL);
	assert_int_equal(marked, 2);
	assert_int_equal(mark_calls, 1);
	assert_false(semel_pipeline_has_in_flight(pipeline));
}

static void many_marks_wait_for_no_delay(void **state)
{
	(void)state;
	rows_of[0] = rows_of[1] = WINDOW / 2;
	step(SEMEL_STEP_READ);
	allowed = WINDOW;
	step(SEMEL_STEP_POLL);
	assert_int_equal(marked, WINDOW);
	assert_int_equal(mark_calls, 1);
}

static void who_finishes_marks_at_once(void **state)
{
	(void)state;
	rows_of[0] = 1;
	step(SEMEL_STEP_READ);
	allowed = 1;
	step(SEMEL_STEP_POLL);
	step(SEMEL_STEP_FINISH);
	assert_int_equal(marked, 1);
}

/* A row that commits late has a lower number than one that is on its way already. */
static void a_lane_that_was_left_out_is_read_after_the_mark(void **state)
{
	(void)state;
	rows_of[0] = FEW;
	step(SEMEL_STEP_READ);
	lane_list[0].cursor = 0; /* nothing is proven to be complete */
	rows_of[0]++;
	step(SEMEL_STEP_READ);
	assert_int_equal(offered, FEW + 1);
	lane_list[0].cursor = 0;
	rows_of[0] += 4;
	step(SEMEL_STEP_READ); /* more than a few are on their way: not now */
	assert_int_equal(offered, FEW + 1);
	assert_true(semel_pipeline_has_more(pipeline));
	allowed = offered;
	step(SEMEL_STEP_READ);
	assert_int_equal(rest_ms(), MARK_DELAY);
	clock_ms += MARK_DELAY;
	step(SEMEL_STEP_READ);
	assert_int_equal(rest_ms(), 0); /* they are marked: again, at once */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(lanes_are_read_without_a_probe_soon_after_one),
		TEST(a_read_that_finds_nothing_is_followed_by_a_probe),
		TEST(lanes_that_gave_all_they_had_are_not_asked_again),
		TEST(no_more_than_the_window_is_unmarked),
		TEST(marks_gather_until_the_delay_is_over),
		TEST(many_marks_wait_for_no_delay),
		TEST(who_finishes_marks_at_once),
		TEST(a_lane_that_was_left_out_is_read_after_the_mark),
	};
	return cmocka_run_group_tests_name("pipeline at rest", tests, NULL, NULL);
}
