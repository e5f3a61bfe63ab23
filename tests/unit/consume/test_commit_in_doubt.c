/* SPDX-License-Identifier: Apache-2.0 */
/* The connection breaks during the commit of an effect: the consumer does not learn its outcome. */
#include "consume/consumer.h"
#include "unit/fixture.h"

static struct semel_store_driver failing; /* the driver, but for its commit */
static const struct semel_store_driver *original;
static bool commits;

static semel_status fail_commit(semel_store *store, semel_error *error)
{
	if (commits)
		assert_int_equal(original->commit(store, error), SEMEL_OK);
	else
		original->rollback(store);
	error->status = SEMEL_OUTAGE;
	snprintf(error->text, sizeof error->text, "the server is gone");
	return SEMEL_OUTAGE;
}

/* The first run makes commits fail; the consumer opens the store anew afterwards. */
static semel_verdict handle(const semel_event *event, semel_context *context, void *user)
{
	struct fixture_reader *reader = user;
	semel_consumer *consumer = (semel_consumer *)(uintptr_t)reader->fixture->poison;

	const char *consumers = reader->fixture->poison;
	reader->fixture->poison = NULL;
	semel_verdict verdict = fixture_handle(event, context, user);
	reader->fixture->poison = consumers;
	if (!original) {
		original = consumer->store->driver;
		failing = *original;
		failing.commit = fail_commit;
		consumer->store->driver = &failing;
	}
	return verdict;
}

static void consume(struct fixture *fixture, bool committed, semel_consumer_options options)
{
	static const char *const topics[] = { "order.events", NULL };
	struct fixture_reader reader = { fixture, "billing" };
	semel_consumer *consumer = NULL;
	char id[SEMEL_ID_SIZE];

	original = NULL;
	commits = committed;
	fixture_publish(fixture, "1", "first", id);
	fixture_publish(fixture, "2", "second", id);
	fixture_relay(fixture);
	options.scope = "billing";
	options.store = fixture->store_url;
	options.broker = fixture->broker_url;
	options.topics = topics;
	fixture_ok(fixture, semel_consumer_open(&options, &consumer, &fixture->error));
	fixture->poison = (const char *)consumer;
	fixture_ok(fixture, semel_consumer_handle(consumer, handle, &reader, &fixture->error));
	fixture_ok(fixture, semel_consumer_drain(consumer, FIXTURE_DRAIN_MS, 0, &fixture->error));
	semel_consumer_close(consumer);
	assert_non_null(original);
}

static void expect_each_once(struct fixture *fixture)
{
	fixture_expect(fixture, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		       "2 of 2");
	assert_int_equal(fixture_letter(fixture).count, 0);
}

static void with_the_claim_in_the_transaction_a_lost_commit_runs_once(void **state)
{
	consume(fixture_of(state), true, (semel_consumer_options){ 0 });
	expect_each_once(fixture_of(state));
}

static void with_the_claim_in_the_transaction_a_lost_rollback_runs_once(void **state)
{
	consume(fixture_of(state), false, (semel_consumer_options){ 0 });
	expect_each_once(fixture_of(state));
}

static void a_separate_claim_shows_that_it_was_committed(void **state)
{
	consume(fixture_of(state), true, (semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
	expect_each_once(fixture_of(state));
}

static void a_separate_claim_shows_that_it_was_rolled_back(void **state)
{
	consume(fixture_of(state), false,
		(semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
	expect_each_once(fixture_of(state));
}

static void at_most_once_an_event_in_doubt_is_dead_lettered(void **state)
{
	struct fixture *fixture = fixture_of(state);
	consume(fixture, false, (semel_consumer_options){ .guarantee = SEMEL_AT_MOST_ONCE });
	fixture_expect(fixture, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		       "1 of 1");
	struct fixture_letter letter = fixture_letter(fixture);
	assert_int_equal(letter.count, 1);
	assert_non_null(strstr(letter.reason, "in doubt"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			with_the_claim_in_the_transaction_a_lost_commit_runs_once, fixture_begin,
			fixture_end),
		cmocka_unit_test_setup_teardown(
			with_the_claim_in_the_transaction_a_lost_rollback_runs_once, fixture_begin,
			fixture_end),
		cmocka_unit_test_setup_teardown(a_separate_claim_shows_that_it_was_committed,
						fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(a_separate_claim_shows_that_it_was_rolled_back,
						fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(at_most_once_an_event_in_doubt_is_dead_lettered,
						fixture_begin, fixture_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
