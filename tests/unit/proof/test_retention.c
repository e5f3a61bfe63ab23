/* SPDX-License-Identifier: Apache-2.0 */
/* Retention forgets in the right order, and refuses settings under which a replay could double. */
#include "proof/retention.h"
#include "unit/fixture.h"

#define DAY_MS ((int64_t)24 * 3600 * 1000)

static const struct semel_retention_ages usual = { .outbox_ms = 14 * DAY_MS,
						   .inbox_ms = 30 * DAY_MS,
						   .dead_ms = 7 * DAY_MS };

static int64_t shifted_now_ms(void *user)
{
	return semel_now_ms(semel_env_system()) + *(const int64_t *)user;
}

/* Prunes as if so many days had passed. */
static struct semel_retention_counts prune_after(struct fixture *fixture, int64_t days,
						 bool dry_run)
{
	int64_t shift_ms = days * DAY_MS;
	struct semel_env env = *semel_env_system();
	env.now_ms = shifted_now_ms;
	env.user = &shift_ms;
	struct semel_retention_plan plan = {
		.store = fixture->store, .env = &env, .ages = usual, .dry_run = dry_run
	};
	fixture_ok(fixture, semel_broker_open(fixture->broker_url, semel_env_system(), 1,
					      &plan.broker, &fixture->error));
	struct semel_retention_counts counts;
	fixture_ok(fixture, semel_retention_run(&plan, &counts, &fixture->error));
	semel_broker_close(plan.broker);
	return counts;
}

static void publish_and_consume(struct fixture *fixture)
{
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "2", "second", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
}

static void an_inbox_that_forgets_first_is_refused_with_both_numbers(void **state)
{
	(void)state;
	semel_error error = { 0 };
	struct semel_retention_ages ages = usual;
	assert_int_equal(semel_retention_check(&ages, &error), SEMEL_OK);
	ages.inbox_ms = ages.outbox_ms;
	assert_int_equal(semel_retention_check(&ages, &error), SEMEL_OK);
	ages.inbox_ms--;
	assert_int_equal(semel_retention_check(&ages, &error), SEMEL_CONFIG);
	ages.inbox_ms = 7 * DAY_MS;
	assert_int_equal(semel_retention_check(&ages, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "7d"));
	assert_non_null(strstr(error.text, "14d"));
	assert_non_null(strstr(error.text, "retention.inbox"));
}

static void what_is_young_stays(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_and_consume(fixture);
	struct semel_retention_counts counts = prune_after(fixture, 13, false);
	assert_int_equal(counts.rows.outbox, 0);
	assert_int_equal(counts.rows.inbox, 0);
	assert_int_equal(counts.broker, 0);
}

static void the_outbox_and_the_brokers_log_go_before_the_inbox(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_and_consume(fixture);
	struct semel_retention_counts counts = prune_after(fixture, 15, false);
	assert_int_equal(counts.rows.outbox, 2);
	assert_int_equal(counts.broker, 2);
	assert_int_equal(counts.rows.inbox, 0);
	counts = prune_after(fixture, 45, false);
	assert_int_equal(counts.rows.inbox, 2);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "0");
}

static void a_dry_run_counts_and_removes_nothing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_and_consume(fixture);
	struct semel_retention_counts counts = prune_after(fixture, 45, true);
	assert_int_equal(counts.rows.outbox, 2);
	assert_int_equal(counts.rows.inbox, 2);
	assert_int_equal(counts.broker, 2);
	fixture_expect(fixture, "SELECT count(*) FROM semel_outbox", "2");
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "2");
}

static void what_was_not_delivered_never_goes(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_and_consume(fixture);
	fixture_publish(fixture, "3", "waits", NULL);
	prune_after(fixture, 400, false);
	fixture_expect(fixture, "SELECT count(*) FROM semel_outbox", "1");
}

static void a_dead_letter_with_followers_stays(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_publish(fixture, "1", "follower", NULL);
	fixture_publish(fixture, "2", "bad too", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	struct semel_retention_counts counts = prune_after(fixture, 8, false);
	assert_int_equal(counts.rows.dead, 1);
	struct fixture_letter letter = fixture_letter(fixture);
	assert_int_equal(letter.count, 1);
	assert_int_equal(letter.parked, 1);
}

static void a_forgotten_dead_letter_is_remembered_as_given_up(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	prune_after(fixture, 8, false);
	assert_int_equal(fixture_letter(fixture).count, 0);
	fixture_expect(fixture, "SELECT status || ' ' || error_code FROM semel_inbox",
		       "FAILED dead-letter-pruned");
	fixture_expect(fixture,
		       "SELECT count(*) FROM semel_inbox WHERE week_start = "
		       "(SELECT date(created_at, 'weekday 0', '-6 days') FROM semel_outbox)",
		       "1");
}

static void a_forgotten_failure_of_the_relay_goes_with_the_outbox(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "first", NULL);
	fixture_give_up_first_row(fixture);
	prune_after(fixture, 8, false);
	fixture_expect(fixture, "SELECT count(*) FROM semel_outbox", "1");
	prune_after(fixture, 15, false);
	fixture_expect(fixture, "SELECT count(*) FROM semel_outbox", "0");
}

static void a_notified_wakeup_stops(void **state)
{
	struct fixture *fixture = fixture_of(state);
	struct semel_retention_plan plan = { .store = fixture->store,
					     .env = semel_env_system(),
					     .ages = usual };
	struct semel_retention_counts counts;
	fixture_ok(fixture, semel_wake_new(&plan.wake, &fixture->error));
	semel_wake_notify(plan.wake);
	assert_int_equal(semel_retention_run(&plan, &counts, &fixture->error), SEMEL_STOPPED);
	semel_wake_free(plan.wake);
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_inbox_that_forgets_first_is_refused_with_both_numbers),
		WORLD_TEST(what_is_young_stays),
		WORLD_TEST(the_outbox_and_the_brokers_log_go_before_the_inbox),
		WORLD_TEST(a_dry_run_counts_and_removes_nothing),
		WORLD_TEST(what_was_not_delivered_never_goes),
		WORLD_TEST(a_dead_letter_with_followers_stays),
		WORLD_TEST(a_forgotten_dead_letter_is_remembered_as_given_up),
		WORLD_TEST(a_forgotten_failure_of_the_relay_goes_with_the_outbox),
		WORLD_TEST(a_notified_wakeup_stops),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
