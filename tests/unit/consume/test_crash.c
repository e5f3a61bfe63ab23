/* SPDX-License-Identifier: Apache-2.0 */
/* A C handler that ends the whole process at one event: that event is given up, and the others run
 * once. */
#include "unit/fixture.h"

#include <signal.h>
#include <sys/wait.h>

#define ATTEMPTS 3
#define MANY     20

static semel_verdict handle(const semel_event *event, semel_context *context, void *user)
{
	if (strstr(semel_event_payload(event, NULL), "boom"))
		raise(SIGKILL);
	return fixture_handle(event, context, user);
}

static void consume(struct fixture *fixture, semel_consumer_options options)
{
	static const char *const topics[] = { "order.events", NULL };
	struct fixture_reader reader = { fixture, "billing" };
	semel_consumer *consumer = NULL;

	options.scope = "billing";
	options.store = fixture->store_url;
	options.broker = fixture->broker_url;
	options.topics = topics;
	options.attempts = ATTEMPTS;
	fixture_ok(fixture, semel_consumer_open(&options, &consumer, &fixture->error));
	fixture_ok(fixture, semel_consumer_handle(consumer, handle, &reader, &fixture->error));
	fixture_ok(fixture, semel_consumer_drain(consumer, FIXTURE_DRAIN_MS, 0, &fixture->error));
	semel_consumer_close(consumer);
}

/* As a supervisor does it: again and again, until one ends well. Gives back how many died. */
static int supervise(struct fixture *fixture, semel_consumer_options options)
{
	for (int died = 0; died < MANY; died++) {
		int code = 0;
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			consume(fixture, options);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &code, 0), child);
		if (WIFEXITED(code)) {
			assert_int_equal(WEXITSTATUS(code), 0);
			return died;
		}
		assert_int_equal(WTERMSIG(code), SIGKILL);
	}
	fail_msg("%d consumers died", MANY);
	return MANY;
}

static void expect_one_letter(struct fixture *fixture)
{
	fixture_expect(fixture,
		       "SELECT failure_reason || ', ' || attempts FROM semel_dead_letter"
		       " WHERE status = 'PENDING' AND parked_behind IS NULL",
		       "crashed the consumer 3 times, 3");
	fixture_expect(fixture, "SELECT count(*) FROM semel_running", "0");
	fixture_expect(fixture, "SELECT count(*) FROM semel_consumer", "0");
}

static void publish(struct fixture *fixture, const char *aggregate, const char *word)
{
	char id[SEMEL_ID_SIZE];
	fixture_publish(fixture, aggregate, word, id);
}

static void kill_at_one_of_ten(struct fixture *fixture, semel_consumer_options options)
{
	for (int i = 0; i < 10; i++) {
		char aggregate[8];
		snprintf(aggregate, sizeof aggregate, "%d", i);
		publish(fixture, aggregate, i == 4 ? "boom" : "fine");
	}
	fixture_relay(fixture);
	assert_int_equal(supervise(fixture, options), ATTEMPTS + 1);
	fixture_expect(fixture, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		       "9 of 9");
	expect_one_letter(fixture);
}

static void the_event_at_which_consumers_die_is_given_up(void **state)
{
	kill_at_one_of_ten(fixture_of(state), (semel_consumer_options){ 0 });
}

static void so_it_is_without_claims(void **state)
{
	kill_at_one_of_ten(fixture_of(state),
			   (semel_consumer_options){ .guarantee = SEMEL_AT_LEAST_ONCE });
}

static void a_follower_at_which_consumers_die_is_given_up_too(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "poison";
	publish(fixture, "1", "poison");
	publish(fixture, "1", "first");
	publish(fixture, "1", "boom");
	publish(fixture, "1", "behind");
	publish(fixture, "2", "other");
	fixture_relay(fixture);
	assert_int_equal(supervise(fixture, (semel_consumer_options){ 0 }), 0);
	struct fixture_letter head = fixture_letter(fixture);
	fixture_ok(fixture, semel_dead_letter_discard(fixture->store, head.entry_id, "a test",
						      &fixture->error));
	assert_in_range(supervise(fixture, (semel_consumer_options){ 0 }), 1, ATTEMPTS + 1);
	fixture_expect(fixture, "SELECT group_concat(payload) FROM effect", "\"other\",\"first\"");
	expect_one_letter(fixture);
}

static void a_crash_between_events_costs_no_attempt(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_sql(fixture,
		    "INSERT INTO semel_consumer (scope, owner, updated_at, expires_at) VALUES"
		    " ('billing', 'long dead', '2020-01-01T00:00:00.000Z',"
		    " '2020-01-01T00:00:00.000Z')");
	publish(fixture, "1", "fine");
	publish(fixture, "1", "fine");
	fixture_relay(fixture);
	assert_int_equal(supervise(fixture, (semel_consumer_options){ 0 }), 0);
	fixture_expect(fixture, "SELECT count(*) FROM effect", "2");
	fixture_expect(fixture, "SELECT count(*) FROM semel_dead_letter", "0");
	fixture_expect(fixture, "SELECT count(*) FROM semel_running", "0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_event_at_which_consumers_die_is_given_up,
						fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(so_it_is_without_claims, fixture_begin,
						fixture_end),
		cmocka_unit_test_setup_teardown(a_follower_at_which_consumers_die_is_given_up_too,
						fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(a_crash_between_events_costs_no_attempt,
						fixture_begin, fixture_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
