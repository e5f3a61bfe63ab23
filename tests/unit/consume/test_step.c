/* SPDX-License-Identifier: Apache-2.0 */
/* A relay and a consumer, turn by turn in one thread, on a clock that the test owns. */
#include "consume/consumer.h"
#include "fault/failpoint.h"
#include "relay/relay.h"
#include "unit/fixture.h"

enum { LONG_MS = 3600000 };

static int64_t clock_ms;

static int64_t read_clock(void *user)
{
	(void)user;
	return clock_ms;
}

static uint64_t next_random(void *user)
{
	static uint64_t state = 1;
	(void)user;
	return state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
}

static void pass_time(void *user, int64_t wait_ms)
{
	(void)user;
	clock_ms += wait_ms;
}

static const struct semel_env env = {
	.now_ms = read_clock, .steady_ms = read_clock, .random = next_random, .advance = pass_time
};

static semel_verdict try_later(const semel_event *event, semel_context *context, void *user)
{
	uint32_t *attempt = user;

	(void)event;
	*attempt = semel_context_attempt(context);
	return *attempt < 4 ? SEMEL_RETRY : SEMEL_DONE;
}

static void relay_all(struct fixture *fixture)
{
	semel_relay_options options = { .store = fixture->store_url,
					.broker = fixture->broker_url };
	semel_relay *relay = NULL;
	int64_t pause_ms = 0;
	bool busy = true;

	fixture_ok(fixture, semel_relay_open_in(&env, &options, &relay, &fixture->error));
	for (int i = 0; i < 10 && busy; i++)
		fixture_ok(fixture, semel_relay_step(relay, &busy, &pause_ms, &fixture->error));
	semel_relay_close(relay);
	fixture_expect(fixture, "SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'",
		       "1");
}

static semel_consumer *open_without_handler(struct fixture *fixture)
{
	static const char *const topics[] = { "order.events", NULL };
	semel_consumer_options options = { .store = fixture->store_url,
					   .broker = fixture->broker_url,
					   .scope = "billing",
					   .topics = topics,
					   .first_delay_ms = LONG_MS,
					   .delay_max_ms = LONG_MS };
	semel_consumer *consumer = NULL;

	fixture_ok(fixture, semel_consumer_open_in(&env, &options, &consumer, &fixture->error));
	return consumer;
}

static semel_consumer *open_consumer(struct fixture *fixture, semel_handler handler, void *user)
{
	semel_consumer *consumer = open_without_handler(fixture);

	fixture_ok(fixture, semel_consumer_handle(consumer, handler, user, &fixture->error));
	fixture_ok(fixture, semel_consumer_prepare(consumer, 0, &fixture->error));
	return consumer;
}

static void step_until_idle(struct fixture *fixture, semel_consumer *consumer)
{
	int64_t pause_ms = 0;
	bool busy = true;

	for (int i = 0; busy; i++) {
		assert_true(i < 20);
		fixture_ok(fixture,
			   semel_consumer_step(consumer, &busy, &pause_ms, &fixture->error));
	}
}

static void an_hour_of_delays_passes_in_a_moment(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	uint32_t attempt = 0;

	clock_ms = semel_now_ms(semel_env_system());
	fixture_publish(fixture, "o-1", "a", id);
	relay_all(fixture);
	semel_consumer *consumer = open_consumer(fixture, try_later, &attempt);
	step_until_idle(fixture, consumer);
	assert_int_equal(attempt, 2); /* at once, as often as that is allowed */
	pass_time(NULL, LONG_MS);
	step_until_idle(fixture, consumer);
	assert_int_equal(attempt, 3);
	pass_time(NULL, 2 * (int64_t)LONG_MS);
	step_until_idle(fixture, consumer);
	assert_int_equal(attempt, 4);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox WHERE status = 'PROCESSED'", "1");
	semel_consumer_close(consumer);
}

static void a_second_handler_is_refused_and_the_first_one_stays(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	uint32_t attempt = 0, other = 0;

	clock_ms = semel_now_ms(semel_env_system());
	fixture_publish(fixture, "o-1", "a", id);
	relay_all(fixture);
	semel_consumer *consumer = open_consumer(fixture, try_later, &attempt);
	assert_int_equal(semel_consumer_handle(consumer, try_later, &other, &fixture->error),
			 SEMEL_INVALID);
	step_until_idle(fixture, consumer);
	assert_int_equal(attempt, 2);
	assert_int_equal(other, 0);
	semel_consumer_close(consumer);
}

static void a_handler_that_could_not_be_used_leaves_its_place_to_another(void **state)
{
	struct fixture *fixture = fixture_of(state);
	static const char *const wrong[] = { "INSERT INTO nowhere VALUES (:id)" };
	static const char *const right[] = { "INSERT INTO effect (scope, id, payload) "
					     "VALUES ('billing', :id, :payload)" };
	char id[SEMEL_ID_SIZE];

	clock_ms = semel_now_ms(semel_env_system());
	fixture_publish(fixture, "o-1", "a", id);
	relay_all(fixture);
	semel_consumer *consumer = open_without_handler(fixture);
	assert_int_not_equal(semel_consumer_use_sql(consumer, wrong, 1, &fixture->error), SEMEL_OK);
	assert_int_equal(semel_consumer_use_outside(consumer, &semel_outside_http, "not a URL",
						    &fixture->error),
			 SEMEL_CONFIG);
	assert_int_equal(semel_consumer_prepare(consumer, 0, &fixture->error), SEMEL_INVALID);
	fixture_ok(fixture, semel_consumer_use_sql(consumer, right, 1, &fixture->error));
	semel_consumer_disconnect(consumer); /* a connection that is lost prepares its handler */
	fixture_ok(fixture, semel_consumer_connect(consumer, &fixture->error));
	fixture_ok(fixture, semel_consumer_prepare(consumer, 0, &fixture->error));
	step_until_idle(fixture, consumer);
	fixture_expect(fixture, "SELECT count(*) FROM effect", "1");
	semel_consumer_close(consumer);
}

static void note_point(enum semel_failpoint point, void *user)
{
	bool *seen = user;

	seen[point] = true;
}

static void an_observer_of_the_failpoints_is_notified_of_every_hit(void **state)
{
	struct fixture *fixture = fixture_of(state);
	bool seen[SEMEL_FP_COUNT] = { 0 };
	char id[SEMEL_ID_SIZE];
	uint32_t attempt = 0;

	clock_ms = semel_now_ms(semel_env_system());
	semel_failpoints_watch(note_point, seen);
	fixture_publish(fixture, "o-1", "a", id);
	relay_all(fixture);
	semel_consumer *consumer = open_consumer(fixture, try_later, &attempt);
	step_until_idle(fixture, consumer);
	semel_consumer_close(consumer);
	semel_failpoints_watch(NULL, NULL);
	assert_true(seen[SEMEL_FP_RELAY_AFTER_MARK]);
	assert_true(seen[SEMEL_FP_CONSUME_AFTER_REQUEUE]);
	assert_false(seen[SEMEL_FP_DLQ_AFTER_MARK]);
	assert_false(semel_failpoints_armed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_hour_of_delays_passes_in_a_moment, fixture_begin,
						fixture_end),
		cmocka_unit_test_setup_teardown(a_second_handler_is_refused_and_the_first_one_stays,
						fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(
			a_handler_that_could_not_be_used_leaves_its_place_to_another, fixture_begin,
			fixture_end),
		cmocka_unit_test_setup_teardown(
			an_observer_of_the_failpoints_is_notified_of_every_hit, fixture_begin,
			fixture_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
