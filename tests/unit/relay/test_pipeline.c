/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline between a store and a broker that answer on command. */
#include "relay/pipeline.h"

#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define CONFIRM_TIMEOUT_MS 30000

static const struct semel_text no_text = { NULL, 0 };

/* ---- a clock that stands still unless it is set ------------------------------------------------
 */

static int64_t clock_ms;
static int64_t ticks_ms; /* pass whenever the broker is polled */

static int64_t read_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static uint64_t chance(void *user)
{
	(void)user;
	return 0;
}

static const struct semel_env env = { .now_ms = read_clock,
				      .steady_ms = read_clock,
				      .random = chance };

/* ---- a store with one row ---------------------------------------------------------------------
 */

static uint32_t written;    /* rows, all of one aggregate and one transaction */
static bool apart;          /* each is of an aggregate of its own */
static int64_t complete_to; /* nothing will come late up to here; -1: to the last row */
static unsigned marked, failed, published, renewed;
static int64_t marked_epoch, marked_low;
static semel_status mark_status;

static semel_status probe(semel_store *store, struct semel_lane_probe *probes, size_t count,
			  int64_t now_ms, semel_error *error)
{
	(void)store, (void)now_ms, (void)error;
	for (size_t i = 0; i < count; i++) {
		probes[i].run = true;
		probes[i].due = false;
	}
	return SEMEL_OK;
}

static semel_status fetch(semel_store *store, const struct semel_lease *lease, int64_t after_seq,
			  struct semel_outbox_batch *batch, semel_error *error)
{
	(void)store, (void)lease, (void)error;
	const struct semel_text names[] = { SEMEL_TEXT("e1"), SEMEL_TEXT("e2") };
	batch->count = after_seq < 1 ? written : 0;
	batch->complete_seq = complete_to >= 0 ? complete_to : written;
	for (uint32_t i = 0; i < batch->count; i++)
		batch->rows[i] = (struct semel_outbox_row){
			.seq = i + 1,
			.previous = no_text,
			.transaction = 7,
			.event = { .id = names[i],
				   .aggregate_type = SEMEL_TEXT("order"),
				   .aggregate_id = apart ? names[i] : SEMEL_TEXT("a"),
				   .topic = SEMEL_TEXT("order.events"),
				   .payload = SEMEL_TEXT("{}") },
		};
	return SEMEL_OK;
}

static semel_status mark(semel_store *store, struct semel_lease *lease,
			 const struct semel_mark_batch *batch, semel_error *error)
{
	(void)store;
	if (mark_status != SEMEL_OK)
		return semel_error_set(error, mark_status, "refused by the store");
	marked += (unsigned)batch->count;
	marked_epoch = lease->epoch;
	marked_low = batch->low_seq;
	for (size_t i = 0; i < batch->count; i++) {
		failed += batch->marks[i].kind == SEMEL_MARK_FAILED;
		published += batch->marks[i].kind == SEMEL_MARK_PUBLISHED;
	}
	return SEMEL_OK;
}

static semel_status renew(semel_store *store, struct semel_lease *lease, int64_t expires_at_ms,
			  semel_error *error)
{
	(void)store, (void)lease, (void)expires_at_ms, (void)error;
	renewed++;
	return SEMEL_OK;
}

static const struct semel_store_driver store_driver = {
	.scheme = "test",
	.outbox =
		&(const struct semel_outbox_functions){
			.probe = probe, .fetch = fetch, .mark = mark, .lease_renew = renew }
};

/* ---- a broker that keeps its outcomes back -----------------------------------------------------
 */

static void *tokens[8];
static unsigned offered, answered, allowed, limits;
static semel_status outcome_status;
static semel_status next_outcome_status; /* of those after the first */
static semel_status publish_status;
static unsigned not_ready;     /* for transactions, so many times */
static bool jammed;            /* it takes the first and never another one */
static const char *blocked_by; /* NULL: it takes everything */

static semel_status publish(struct semel_broker *broker, const struct semel_event *event,
			    const struct semel_publish_metadata *metadata, void *token,
			    semel_error *error)
{
	(void)broker, (void)event, (void)metadata;
	if (offered - answered >= limits || (jammed && offered > 0))
		return SEMEL_FULL;
	if (publish_status != SEMEL_OK)
		return semel_error_set(error, publish_status, "refused by the broker");
	tokens[offered++] = token;
	return SEMEL_OK;
}

static semel_status poll_answers(struct semel_broker *broker, int64_t wait_ms,
				 semel_outcome_callback seen, void *user, semel_error *error)
{
	(void)broker, (void)wait_ms, (void)error;
	clock_ms += ticks_ms;
	while (answered < allowed && answered < offered) {
		struct semel_publish_outcome outcome = { .token = tokens[answered++],
							 .status = outcome_status };
		outcome_status = next_outcome_status;
		seen(&outcome, user);
	}
	return SEMEL_OK;
}

static const char *blocked(struct semel_broker *broker)
{
	(void)broker;
	return blocked_by;
}

static semel_status transact(struct semel_broker *broker, const char *name, semel_error *error)
{
	(void)broker, (void)name;
	clock_ms += ticks_ms;
	if (not_ready > 0 && not_ready--)
		return semel_error_set(error, SEMEL_FULL, "no coordinator");
	return SEMEL_OK;
}

static bool complete(struct semel_broker *broker, bool whole)
{
	(void)broker, (void)whole;
	return true;
}

static const struct semel_broker_driver broker_driver = { .scheme = "test",
							  .publish = publish,
							  .poll = poll_answers,
							  .blocked = blocked,
							  .init_transactions = transact,
							  .complete_transaction = complete };

/* ---- one relay --------------------------------------------------------------------------------
 */

static semel_store store = { .driver = &store_driver };
static struct semel_broker broker = { .driver = &broker_driver };
static struct semel_lane lane;
static struct semel_lanes lanes;
static struct semel_source *source;
static struct semel_pipeline *pipeline;

/* The source has a name, as the change stream has. */
static semel_status label(struct semel_source *named, char label_out[SEMEL_SOURCE_LABEL_SIZE],
			  semel_error *error)
{
	(void)named, (void)error;
	label_out[0] = '\0';
	return SEMEL_OK;
}

static void give_label(void)
{
	static struct semel_source_driver labelled;
	labelled = *source->driver;
	labelled.label = label;
	source->driver = &labelled;
}

static int set_up_with(bool transactions)
{
	const struct semel_pipeline_options options = {
		.transactions = transactions,
		.window = 4,
		.window_bytes = 1000,
		.confirm_timeout_ms = CONFIRM_TIMEOUT_MS,
		.refusal = { .attempts_max = 3, .backoff = { 10, 10 } },
	};
	marked = failed = published = renewed = offered = answered = allowed = 0;
	marked_low = -1;
	mark_status = publish_status = SEMEL_OK;
	apart = jammed = false;
	not_ready = 0;
	complete_to = -1;
	written = 1;
	limits = 8;
	clock_ms = 1000000;
	ticks_ms = 0;
	blocked_by = NULL;
	outcome_status = next_outcome_status = SEMEL_OK;
	lane = (struct semel_lane){ .lease = { .epoch = 1 } };
	lanes = (struct semel_lanes){ .env = &env, .lease_ms = 5000, .count = 1, .lanes = &lane };
	assert_int_equal(semel_source_open_poll(&env, &lanes, &source, NULL), SEMEL_OK);
	give_label();
	assert_int_equal(semel_pipeline_open(&options, &env, &lanes, source, &pipeline, NULL),
			 SEMEL_OK);
	semel_pipeline_connect(pipeline, &store, &broker);
	lane.mine = true;
	return 0;
}

static int set_up(void **state)
{
	(void)state;
	return set_up_with(false);
}

static int set_up_transactions(void **state)
{
	(void)state;
	return set_up_with(true);
}

static int tear_down(void **state)
{
	(void)state;
	semel_source_close(source);
	semel_pipeline_close(pipeline);
	return 0;
}

static void step(void)
{
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error), SEMEL_OK);
}

/* Another relay had the lane in between. */
static void lose_and_take_again(void)
{
	lane.mine = false;
	step();
	lane.lease.epoch += 2;
	lane.mine = true;
	lane.cursor = lane.read_to = lane.lease.low_seq;
}

static void a_confirmed_row_is_marked_under_the_epoch_that_read_it(void **state)
{
	(void)state;
	step();
	assert_int_equal(offered, 1);
	assert_int_equal(marked, 0);
	allowed = 1;
	step();
	assert_int_equal(marked, 1);
	assert_int_equal(marked_epoch, 1);
}

static void what_was_read_before_the_lane_was_lost_is_never_marked(void **state)
{
	(void)state;
	step();
	lose_and_take_again();
	allowed = 1; /* the outcome to what was offered before */
	step();
	assert_int_equal(marked, 0);
	assert_true(lane.mine); /* the new lease is as good as before */
}

static void a_lane_that_was_taken_again_is_read_and_marked_anew(void **state)
{
	(void)state;
	step();
	lose_and_take_again();
	allowed = 8;
	for (int i = 0; i < 3; i++)
		step();
	assert_int_equal(offered, 2);
	assert_int_equal(marked, 1);
	assert_int_equal(marked_epoch, 3);
}

/* Low marks pass what is in flight once it is complete: what an older lease had is not. */
static void what_an_older_lease_had_in_flight_is_read_again_with_late_rows(void **state)
{
	(void)state;
	written = 2;
	step();
	assert_int_equal(offered, 2);
	lose_and_take_again();
	written = 1;
	complete_to = 0;
	step();
	assert_int_equal(offered, 3);
	written = 2;
	complete_to = 2;
	step();
	assert_int_equal(offered, 4);
	allowed = 8;
	step();
	assert_int_equal(marked, 2);
	assert_int_equal(marked_low, 2);
}

static void an_event_that_waited_for_room_does_not_pass_one_that_was_refused_meanwhile(void **state)
{
	(void)state;
	written = 2;
	limits = 1;
	outcome_status = SEMEL_NACKED;
	allowed = 8;
	step();
	assert_int_equal(offered, 1);
}

static void what_is_left_of_a_transaction_that_was_refused_is_refused_too(void **state)
{
	(void)state;
	written = 2;
	limits = 1;
	outcome_status = SEMEL_INVALID;
	allowed = 8;
	for (int i = 0; i < 3; i++)
		step();
	assert_int_equal(offered, 1);
	assert_int_equal(failed, 2);
}

static void without_transactions_what_is_behind_a_refused_event_waits(void **state)
{
	(void)state;
	written = 2;
	limits = 1;
	outcome_status = SEMEL_INVALID;
	allowed = 8;
	for (int i = 0; i < 3; i++)
		step();
	assert_int_equal(offered, 1);
	assert_int_equal(marked, 2);
	assert_int_equal(failed, 1);
}

/* ---- a refusal, and the rest of its batch -------------------------------------------------------
 */

static void a_refusal_is_marked_while_the_rest_of_its_load_is_not_answered(void **state)
{
	(void)state;
	written = 2;
	outcome_status = SEMEL_INVALID;
	allowed = 1;
	step();
	assert_int_equal(offered, 2);
	assert_int_equal(failed, 1);
	assert_int_equal(marked, 1);
	assert_int_equal(marked_low, 0); /* the low mark passes nothing that is not marked */
	step();
	assert_int_equal(marked, 1);
	allowed = 2;
	step();
	assert_int_equal(published, 1);
	assert_int_equal(marked, 2); /* each once */
	assert_int_equal(marked_low, 2);
	assert_false(semel_pipeline_has_in_flight(pipeline));
	assert_int_equal(semel_pipeline_published(pipeline), 1);
}

static void a_refusal_that_was_reported_while_the_broker_had_no_room_is_marked_at_once(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	written = 2;
	apart = jammed = true;
	outcome_status = SEMEL_INVALID;
	allowed = 1;
	ticks_ms = 1000;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_OUTAGE);
	assert_int_equal(offered, 1);
	assert_int_equal(failed, 1);
}

static void a_refusal_of_a_row_that_cannot_be_seen_yet_is_marked_later(void **state)
{
	(void)state;
	outcome_status = SEMEL_INVALID;
	allowed = 1;
	mark_status = SEMEL_NOT_FINISHED;
	for (int i = 0; i < 3; i++)
		step();
	assert_int_equal(marked, 0);
	assert_true(semel_pipeline_has_in_flight(pipeline));
	mark_status = SEMEL_OK;
	step();
	assert_int_equal(failed, 1);
	assert_int_equal(offered, 1);
}

static void leases_are_renewed_while_the_broker_has_no_room(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	written = 2;
	limits = 1;
	ticks_ms = 1000;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_OUTAGE);
	assert_in_range(renewed, CONFIRM_TIMEOUT_MS / 5000, CONFIRM_TIMEOUT_MS / 1000);
}

static void leases_are_renewed_while_the_broker_is_not_ready_for_transactions(void **state)
{
	(void)state;
	not_ready = 20;
	ticks_ms = 1000;
	step();
	assert_int_equal(offered, 1);
	assert_in_range(renewed, 4, 20);
}

static void a_broker_that_is_not_ready_for_transactions_within_the_limit_is_an_outage(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	not_ready = 1000;
	ticks_ms = 1000;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_OUTAGE);
	assert_string_equal(error.text, "no coordinator");
	assert_int_equal(offered, 0);
}

static void what_was_answered_is_marked_before_the_connections_are_closed(void **state)
{
	(void)state;
	written = 2;
	allowed = 1;
	step();
	assert_int_equal(marked, 0);
	semel_pipeline_mark_answered(pipeline);
	assert_int_equal(published, 1);
	assert_int_equal(marked, 1);
	assert_int_equal(marked_low, 0);
}

static void whoever_finishes_takes_another_step_after_a_load_is_settled(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	step();
	allowed = 1;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_FINISH, &busy, &error), SEMEL_OK);
	assert_int_equal(marked, 1);
	assert_true(busy); /* the source may have to mark what was settled */
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_FINISH, &busy, &error), SEMEL_OK);
	assert_false(busy);
}

static void what_was_answered_under_an_older_lease_is_not(void **state)
{
	(void)state;
	written = 2;
	allowed = 1;
	step();
	lane.lease.epoch += 2;
	semel_pipeline_mark_answered(pipeline);
	assert_int_equal(marked, 0);
}

static void an_answer_about_no_event_costs_no_attempt(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	outcome_status = SEMEL_CONFIG;
	allowed = 1;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_CONFIG);
	assert_int_equal(marked, 0);
}

static void an_offer_that_fails_for_a_setting_costs_no_attempt(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	publish_status = SEMEL_CONFIG;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_CONFIG);
	publish_status = SEMEL_OK;
	step();
	assert_int_equal(marked, 0);
}

/* ---- a broker that does not answer ------------------------------------------------------------
 */

static void expect_outage_of(const char *events)
{
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_POLL, &busy, &error),
			 SEMEL_OUTAGE);
	assert_non_null(strstr(error.text, events));
	assert_int_equal(marked, 0);
}

static void a_broker_that_does_not_answer_within_the_limit_is_an_outage(void **state)
{
	(void)state;
	written = 2;
	allowed = 1;
	step();
	assert_int_equal(offered, 2);
	clock_ms += CONFIRM_TIMEOUT_MS;
	step();
	clock_ms++;
	expect_outage_of("1 events within 30000 ms");
}

static void what_was_answered_is_not_late(void **state)
{
	(void)state;
	step();
	clock_ms += CONFIRM_TIMEOUT_MS + 1;
	allowed = 1;
	step();
	assert_int_equal(marked, 1);
	clock_ms += CONFIRM_TIMEOUT_MS + 1;
	step();
}

static void a_broker_that_was_blocked_has_the_whole_limit_again_afterwards(void **state)
{
	(void)state;
	step();
	blocked_by = "low on memory";
	for (int i = 0; i < 3; i++) {
		clock_ms += CONFIRM_TIMEOUT_MS + 1;
		step();
	}
	blocked_by = NULL;
	clock_ms += CONFIRM_TIMEOUT_MS;
	step();
	clock_ms++;
	expect_outage_of("1 events within 30000 ms");
}

static void a_broker_that_makes_no_room_within_the_limit_is_an_outage(void **state)
{
	(void)state;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;
	written = 2;
	limits = 1;
	ticks_ms = 1000;
	assert_int_equal(semel_pipeline_step(pipeline, SEMEL_STEP_READ, &busy, &error),
			 SEMEL_OUTAGE);
	assert_int_equal(offered, 1);
	assert_int_equal(marked, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_broker_that_does_not_answer_within_the_limit_is_an_outage, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_broker_that_makes_no_room_within_the_limit_is_an_outage, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(what_was_answered_is_not_late, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_refusal_is_marked_while_the_rest_of_its_load_is_not_answered, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_refusal_that_was_reported_while_the_broker_had_no_room_is_marked_at_once,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			a_refusal_of_a_row_that_cannot_be_seen_yet_is_marked_later, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(leases_are_renewed_while_the_broker_has_no_room,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			leases_are_renewed_while_the_broker_is_not_ready_for_transactions,
			set_up_transactions, tear_down),
		cmocka_unit_test_setup_teardown(
			a_broker_that_is_not_ready_for_transactions_within_the_limit_is_an_outage,
			set_up_transactions, tear_down),
		cmocka_unit_test_setup_teardown(
			what_was_answered_is_marked_before_the_connections_are_closed, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			whoever_finishes_takes_another_step_after_a_load_is_settled, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(what_was_answered_under_an_older_lease_is_not,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(an_answer_about_no_event_costs_no_attempt, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(an_offer_that_fails_for_a_setting_costs_no_attempt,
						set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			what_an_older_lease_had_in_flight_is_read_again_with_late_rows, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_broker_that_was_blocked_has_the_whole_limit_again_afterwards, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			an_event_that_waited_for_room_does_not_pass_one_that_was_refused_meanwhile,
			set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			what_is_left_of_a_transaction_that_was_refused_is_refused_too,
			set_up_transactions, tear_down),
		cmocka_unit_test_setup_teardown(
			without_transactions_what_is_behind_a_refused_event_waits, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(
			a_confirmed_row_is_marked_under_the_epoch_that_read_it, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			what_was_read_before_the_lane_was_lost_is_never_marked, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_lane_that_was_taken_again_is_read_and_marked_anew,
						set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
