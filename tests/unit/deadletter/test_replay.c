/* SPDX-License-Identifier: Apache-2.0 */
/* Sending retained events again: who gets them, what is refused, what runs twice on purpose. */
#include "deadletter/replay.h"
#include "fault/failpoint.h"
#include "unit/fixture.h"

#define DAY_MS ((int64_t)24 * 3600 * 1000)

struct trial {
	struct semel_replay_plan plan;
	struct semel_replay_counts counts;
};

/* Runs the plan; what a test does not set has its default. */
static semel_status try_replay(struct fixture *fixture, struct trial *trial)
{
	struct semel_broker *broker = NULL;
	struct semel_wake *wake = NULL;
	semel_store *stores[] = { fixture->store };
	const struct semel_env *env = semel_env_system();
	fixture_ok(fixture, semel_wake_new(&wake, &fixture->error));
	fixture_ok(fixture, semel_broker_open(fixture->broker_url, env, SEMEL_REPLAY_WINDOW,
					      &broker, &fixture->error));
	if (trial->plan.wake)
		semel_wake_notify(wake);
	trial->plan.producer = fixture->store;
	trial->plan.consumers = stores;
	trial->plan.consumer_count = 1;
	trial->plan.broker = broker;
	trial->plan.env = env;
	trial->plan.wake = wake;
	if (trial->plan.inbox_retention_ms == 0)
		trial->plan.inbox_retention_ms = 30 * DAY_MS;
	semel_status status = semel_replay_run(&trial->plan, &trial->counts, &fixture->error);
	semel_broker_close(broker);
	semel_wake_free(wake);
	return status;
}

static void publish_three(struct fixture *fixture)
{
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "2", "second", NULL);
	fixture_publish(fixture, "1", "third", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
}

static void publish_old(struct fixture *fixture, int64_t age_ms)
{
	semel_event_input input = { .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = "1",
				    .payload = "\"old\"",
				    .time_ms = semel_now_ms(semel_env_system()) - age_ms };
	fixture_publish_input(fixture, &input, NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
}

static const char *const effects = "SELECT count(*) FROM effect";

static void who_has_an_event_skips_it_when_it_comes_again(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { 0 };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.sent, 3);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, effects, "3");
}

static void a_replay_to_all_scopes_reaches_a_later_scope_once(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { 0 };
	fixture_ok(fixture, try_replay(fixture, &trial));
	fixture_consume(fixture, "audit");
	fixture_expect(fixture, "SELECT count(*) FROM effect WHERE scope = 'audit'", "3");
}

static void a_scope_alone_gets_what_is_sent_to_it(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "audit");
	struct trial trial = { .plan = { .scope = "audit", .reprocess = true } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.sent, 3);
	fixture_consume(fixture, "billing");
	fixture_consume(fixture, "audit");
	fixture_expect(fixture, "SELECT count(*) FROM effect WHERE scope = 'billing'", "3");
	fixture_expect(fixture, "SELECT count(*) FROM effect WHERE scope = 'audit'", "6");
}

static void reprocessing_runs_each_event_once_more_in_order(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_sql(fixture, "DELETE FROM effect");
	struct trial trial = { .plan = { .scope = "billing",
					 .reprocess = true,
					 .filter = { .aggregate_type = "order",
						     .aggregate_id = "1" } } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	fixture_consume(fixture, "billing");
	fixture_expect(
		fixture,
		"SELECT group_concat(payload, ' ') FROM (SELECT payload FROM effect ORDER BY "
		"number)",
		"\"first\" \"third\"");
}

static void without_reprocess_a_scope_skips_what_it_has(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { .plan = { .scope = "billing" } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.sent, 3);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, effects, "3");
}

static void a_scope_is_sent_only_topics_that_it_reads(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	semel_event_input input = { .type = "item.added.v1",
				    .aggregate_type = "item",
				    .aggregate_id = "1",
				    .payload = "1" };
	fixture_publish_input(fixture, &input, NULL);
	fixture_relay(fixture);
	struct trial trial = { .plan = { .scope = "billing" } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.sent, 3);
}

static void an_unknown_scope_is_refused(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { .plan = { .scope = "biling" } };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_INVALID);
	assert_non_null(strstr(fixture->error.text, "biling"));
}

static void reprocessing_all_scopes_is_refused(void **state)
{
	struct fixture *fixture = fixture_of(state);
	struct trial trial = { .plan = { .reprocess = true } };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_USAGE);
}

static void what_the_inbox_may_have_forgotten_is_refused_unless_forced(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	publish_old(fixture, 40 * DAY_MS);
	struct trial trial = { 0 };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_INVALID);
	assert_int_equal(trial.counts.too_old, 1);
	assert_int_equal(trial.counts.sent, 0);
	assert_non_null(strstr(fixture->error.text, "1 of 4"));
	assert_non_null(strstr(fixture->error.text, "--force"));

	struct trial newer = { .plan = { .filter = { .since_ms = semel_now_ms(semel_env_system()) -
								 DAY_MS } } };
	fixture_ok(fixture, try_replay(fixture, &newer));
	assert_int_equal(newer.counts.sent, 3);
	struct trial forced = { .plan = { .force = true } };
	fixture_ok(fixture, try_replay(fixture, &forced));
	assert_int_equal(forced.counts.sent, 4);
}

/* The inbox was pruned by a shorter retention than the one that is configured now. */
static void what_the_inbox_has_forgotten_is_refused_whatever_the_settings_say(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_old(fixture, 40 * DAY_MS);
	fixture_sql(fixture, "UPDATE semel_inbox SET first_seen_at = '2020-01-01T00:00:00.000Z'");
	struct semel_retention_cutoffs cutoffs = { .inbox_ms = semel_now_ms(semel_env_system()) -
							       20 * DAY_MS };
	struct semel_prune_counts counts = { 0 };
	bool more = true;
	while (more)
		fixture_ok(fixture,
			   fixture->store->driver->upkeep->prune(fixture->store, &cutoffs, false,
								 &counts, &more, &fixture->error));
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "0");
	struct trial trial = { .plan = { .inbox_retention_ms = 365 * DAY_MS } };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_INVALID);
	assert_int_equal(trial.counts.too_old, 1);
}

static void reprocessing_a_held_aggregate_is_refused_and_others_are_not(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");

	struct trial held = { .plan = { .scope = "billing", .reprocess = true } };
	assert_int_equal(try_replay(fixture, &held), SEMEL_INVALID);
	assert_int_equal(held.counts.held, 3);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "3");
	struct trial other = { .plan = { .scope = "billing",
					 .reprocess = true,
					 .filter = { .aggregate_type = "order",
						     .aggregate_id = "2" } } };
	fixture_ok(fixture, try_replay(fixture, &other));
	assert_int_equal(other.counts.sent, 1);
}

static void reprocessing_a_held_topic_is_refused(void **state)
{
	struct fixture *fixture = fixture_of(state);
	semel_consumer_options total = { .scope = "billing",
					 .order = SEMEL_ORDER_TOTAL,
					 .poison = SEMEL_POISON_BLOCK };
	snprintf(fixture->broker_url, sizeof(fixture->broker_url),
		 "local:%s/broker.db?partitions=1", fixture->folder);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "2", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume_with(fixture, total);
	struct trial trial = { .plan = { .scope = "billing", .reprocess = true } };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_INVALID);
	assert_int_equal(trial.counts.held, 2);
}

static void a_dry_run_counts_and_sends_nothing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { .plan = { .dry_run = true, .scope = "billing", .reprocess = true } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.chosen, 3);
	assert_int_equal(trial.counts.sent, 0);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "3");
}

static void max_takes_the_first_ones(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct trial trial = { .plan = { .max = 2 } };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.matching, 3);
	assert_int_equal(trial.counts.chosen, 2);
	assert_int_equal(trial.counts.sent, 2);
}

static void only_published_events_are_replayed(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_publish(fixture, "3", "fourth", NULL);
	struct trial trial = { 0 };
	fixture_ok(fixture, try_replay(fixture, &trial));
	assert_int_equal(trial.counts.sent, 3);
}

static void a_wakeup_stops_a_replay_before_the_next_event(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	struct semel_wake *notified = NULL;
	fixture_ok(fixture, semel_wake_new(&notified, &fixture->error));
	struct trial trial = { .plan = { .wake = notified } };
	assert_int_equal(try_replay(fixture, &trial), SEMEL_STOPPED);
	assert_int_equal(trial.counts.sent, 0);
	semel_wake_free(notified);
}

static void a_replay_cut_short_is_repeated_without_a_second_effect(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_sql(fixture, "DELETE FROM effect");
	fixture_ok(fixture, semel_failpoints_arm("replay.after-publish:error@2", &fixture->error));
	/* Ten a second: one event to a stroke. */
	struct trial cut = { .plan = { .scope = "billing", .reprocess = true, .rate = 10 } };
	assert_int_equal(try_replay(fixture, &cut), SEMEL_OUTAGE);
	assert_int_equal(cut.counts.sent, 2);
	struct trial again = { .plan = { .scope = "billing", .reprocess = true } };
	fixture_ok(fixture, try_replay(fixture, &again));
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, effects, "3");
}

static void a_rate_spreads_events_evenly(void **state)
{
	(void)state;
	assert_int_equal(semel_replay_due_ms(0, 10), 0);
	assert_int_equal(semel_replay_due_ms(1, 10), 100);
	assert_int_equal(semel_replay_due_ms(25, 10), 2500);
	assert_int_equal(semel_replay_due_ms(1000000, 0), 0);
	assert_int_equal(semel_replay_due_ms(1, 2000), 0);
	assert_int_equal(semel_replay_due_ms(4000, 2000), 2000);
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(who_has_an_event_skips_it_when_it_comes_again),
		WORLD_TEST(a_replay_to_all_scopes_reaches_a_later_scope_once),
		WORLD_TEST(a_scope_alone_gets_what_is_sent_to_it),
		WORLD_TEST(reprocessing_runs_each_event_once_more_in_order),
		WORLD_TEST(without_reprocess_a_scope_skips_what_it_has),
		WORLD_TEST(a_scope_is_sent_only_topics_that_it_reads),
		WORLD_TEST(an_unknown_scope_is_refused),
		WORLD_TEST(reprocessing_all_scopes_is_refused),
		WORLD_TEST(what_the_inbox_may_have_forgotten_is_refused_unless_forced),
		WORLD_TEST(what_the_inbox_has_forgotten_is_refused_whatever_the_settings_say),
		WORLD_TEST(reprocessing_a_held_aggregate_is_refused_and_others_are_not),
		WORLD_TEST(reprocessing_a_held_topic_is_refused),
		WORLD_TEST(a_dry_run_counts_and_sends_nothing),
		WORLD_TEST(max_takes_the_first_ones),
		WORLD_TEST(only_published_events_are_replayed),
		WORLD_TEST(a_wakeup_stops_a_replay_before_the_next_event),
		WORLD_TEST(a_replay_cut_short_is_repeated_without_a_second_effect),
		cmocka_unit_test(a_rate_spreads_events_evenly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
