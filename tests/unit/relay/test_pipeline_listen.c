/* SPDX-License-Identifier: Apache-2.0 */
/* When the pipeline waits for a broker that works alone, and when it sleeps until the next row:
 * between a source that wakes by its rows, and a broker that answers on command. */
#include "relay/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WINDOW  4
#define WAIT_MS 7 /* for outcomes, before the source is asked again */
#define LONG_MS 1000

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

/* ---- the source --------------------------------------------------------------------------------
 */

static struct semel_lanes lanes;
static struct semel_relay_batches *batches;
static unsigned waiting; /* rows that the next read brings */
static bool listening;

static void connect_to(struct semel_source *source, semel_store *store,
		       struct semel_relay_batches *given)
{
	(void)source, (void)store;
	batches = given;
}

static semel_status probe(struct semel_source *source, semel_error *error)
{
	(void)source, (void)error;
	return SEMEL_OK;
}

static semel_status read_one(struct semel_source *source, const struct semel_read_limits *limits,
			     struct semel_relay_batch **batch_out, semel_error *error)
{
	(void)source, (void)error;
	*batch_out = NULL;
	if (waiting == 0 || limits->rows == 0)
		return SEMEL_OK;
	waiting--;
	struct semel_relay_batch *batch = semel_relay_batch_acquire_mixed(batches, &lanes);
	batch->fetched.rows[0] = (struct semel_outbox_row){
		.event = { .id = SEMEL_TEXT("e"),
			   .aggregate_type = SEMEL_TEXT("order"),
			   .aggregate_id = SEMEL_TEXT("a"),
			   .topic = SEMEL_TEXT("order.events"),
			   .payload = SEMEL_TEXT("{}") },
	};
	batch->fetched.count = 1;
	*batch_out = batch;
	return SEMEL_OK;
}

static bool is_listening(const struct semel_source *source)
{
	(void)source;
	return listening;
}

static const struct semel_source_driver source_driver = { .name = "test",
							  .wait_ms = WAIT_MS,
							  .connect = connect_to,
							  .probe = probe,
							  .read = read_one,
							  .is_listening = is_listening };

/* ---- the broker --------------------------------------------------------------------------------
 */

static void *tokens[16];
static unsigned offered, answered, allowed;
static int64_t waited_ms; /* in the last poll */

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
	waited_ms = wait_ms;
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

static struct semel_broker_driver broker_driver = {
	.scheme = "test", .publish = publish, .poll = poll_answers, .blocked = never_blocked
};

/* ---- one relay ---------------------------------------------------------------------------------
 */

static const struct semel_store_driver store_driver = {
	.scheme = "test", .outbox = &(const struct semel_outbox_functions){ 0 }
};
static semel_store store = { .driver = &store_driver };
static struct semel_broker broker = { .driver = &broker_driver };
static struct semel_source source = { .driver = &source_driver };
static struct semel_lane lane;
static struct semel_pipeline *pipeline;

static int set_up(void **state)
{
	(void)state;
	const struct semel_pipeline_options options = { .window = WINDOW,
							.window_bytes = 1000,
							.confirm_timeout_ms = 30000 };
	clock_ms = 1000;
	waiting = offered = answered = allowed = 0;
	listening = broker_driver.works_in_background = true;
	lane = (struct semel_lane){ .mine = true };
	lanes = (struct semel_lanes){ .env = &env, .lease_ms = 5000, .count = 1, .lanes = &lane };
	assert_int_equal(semel_pipeline_open(&options, &env, &lanes, &source, &pipeline, NULL),
			 SEMEL_OK);
	semel_pipeline_connect(pipeline, &store, &broker);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	semel_pipeline_close(pipeline);
	return 0;
}

/* A millisecond later so many rows are there. */
static void step_with(unsigned rows)
{
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	clock_ms++;
	waiting = rows;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error), SEMEL_OK);
}

static int64_t rest_ms(void)
{
	return semel_pipeline_sleep_ms(pipeline, LONG_MS);
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static void the_answer_for_a_single_row_is_polled_with_the_next(void **state)
{
	(void)state;
	step_with(1);
	assert_in_range(rest_ms(), 1, 20);
	allowed = 1;
	step_with(1);
	assert_int_equal(waited_ms, 0);
	assert_int_equal(answered, 1);
	assert_int_equal(semel_pipeline_published(pipeline), 1);
}

static void with_everything_answered_it_sleeps_for_as_long_as_it_may(void **state)
{
	(void)state;
	allowed = 1;
	step_with(1);
	assert_int_equal(rest_ms(), LONG_MS);
}

static void while_many_rows_come_the_broker_is_waited_for(void **state)
{
	(void)state;
	step_with(2);
	assert_int_equal(rest_ms(), 0);
	step_with(0);
	assert_int_equal(waited_ms, WAIT_MS);
}

static void rows_that_cannot_be_taken_do_not_keep_it_awake(void **state)
{
	(void)state;
	for (int i = 0; i < WINDOW; i++)
		step_with(1);
	step_with(1);
	assert_int_equal(offered, WINDOW);
	assert_int_equal(rest_ms(), 0);
	assert_int_equal(waited_ms, WAIT_MS);
}

static void a_source_that_has_more_is_not_slept_on(void **state)
{
	(void)state;
	listening = false;
	step_with(1);
	assert_int_equal(rest_ms(), 0);
	step_with(0);
	assert_int_equal(waited_ms, WAIT_MS);
}

static void a_broker_that_needs_to_be_polled_is_polled(void **state)
{
	(void)state;
	broker_driver.works_in_background = false;
	step_with(1);
	assert_int_equal(rest_ms(), 0);
	step_with(0);
	assert_int_equal(waited_ms, WAIT_MS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(the_answer_for_a_single_row_is_polled_with_the_next),
		TEST(with_everything_answered_it_sleeps_for_as_long_as_it_may),
		TEST(while_many_rows_come_the_broker_is_waited_for),
		TEST(rows_that_cannot_be_taken_do_not_keep_it_awake),
		TEST(a_source_that_has_more_is_not_slept_on),
		TEST(a_broker_that_needs_to_be_polled_is_polled),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
