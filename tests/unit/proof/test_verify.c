/* SPDX-License-Identifier: Apache-2.0 */
/* Verify finds what is missing, doubled or orphaned, and nothing else. */
#include "proof/verify.h"
#include "unit/fixture.h"

struct trial {
	struct semel_verify_plan plan;
	struct semel_verify_report report;
	struct semel_arena *arena;
};

static struct trial trial; /* the last one; its arena lives until the next */

static struct semel_verify_report *verify_scopes(struct fixture *fixture, const char *const *scopes)
{
	semel_store *stores[] = { fixture->store };
	semel_arena_free(trial.arena);
	trial.arena = semel_arena_new(65536);
	trial.plan = (struct semel_verify_plan){ .producer = fixture->store,
						 .consumers = stores,
						 .consumer_count = 1,
						 .broker_url = fixture->broker_url,
						 .scopes = scopes,
						 .env = semel_env_system() };
	fixture_ok(fixture,
		   semel_verify_run(&trial.plan, trial.arena, &trial.report, &fixture->error));
	return &trial.report;
}

static struct semel_verify_report *verify(struct fixture *fixture)
{
	return verify_scopes(fixture, NULL);
}

static void publish_three(struct fixture *fixture)
{
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "2", "second", NULL);
	fixture_publish(fixture, "1", "third", NULL);
	fixture_relay(fixture);
}

static void an_untouched_store_is_clean(void **state)
{
	struct semel_verify_report *report = verify(fixture_of(state));
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->committed, 0);
	assert_int_equal(report->scope_count, 0);
}

static void everything_processed_is_clean(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_consume(fixture, "audit");
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->committed, 3);
	assert_int_equal(report->published, 3);
	assert_int_equal(report->scope_count, 2);
	assert_int_equal(report->scopes[0].expected, 3);
	assert_int_equal(report->scopes[0].processed, 3);
}

static void what_is_not_published_yet_waits(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_publish(fixture, "3", "fourth", NULL);
	struct semel_verify_report *report = verify(fixture);
	assert_false(semel_verify_is_clean(report));
	assert_int_equal(report->unpublished, 1);
	assert_int_equal(report->scopes[0].waiting, 1);
	assert_int_equal(report->scopes[0].missing.count, 0);
}

static void what_is_at_the_broker_waits(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_publish(fixture, "3", "fourth", NULL);
	fixture_relay(fixture);
	struct semel_verify_report *report = verify(fixture);
	assert_false(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].waiting, 1);
	assert_int_equal(report->scopes[0].missing.count, 0);
}

static void an_event_without_a_trace_in_its_scope_is_missing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	publish_three(fixture);
	fixture_publish(fixture, "3", "fourth", id);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	char sql[128];
	snprintf(sql, sizeof(sql), "DELETE FROM semel_inbox WHERE event_id = '%s'", id);
	fixture_sql(fixture, sql);
	struct semel_verify_report *report = verify(fixture);
	assert_false(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].missing.count, 1);
	assert_string_equal(report->scopes[0].missing.ids[0].data, id);
	assert_int_equal(report->scopes[0].processed, 3);
}

static void very_many_missing_events_are_counted_and_some_are_listed(void **state)
{
	struct fixture *fixture = fixture_of(state);
	for (int i = 0; i < 150; i++)
		fixture_publish(fixture, "1", "word", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_sql(fixture, "DELETE FROM semel_inbox");
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->scopes[0].missing.count, 150);
	for (int i = 0; i < SEMEL_VERIFY_SAMPLES; i++)
		assert_int_equal(report->scopes[0].missing.ids[i].length, 36);
}

/* One is processed, and 150 are at the broker. */
static void leave_very_many_waiting(struct fixture *fixture)
{
	fixture_publish(fixture, "1", "word", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	for (int i = 0; i < 150; i++)
		fixture_publish(fixture, "1", "word", NULL);
	fixture_relay(fixture);
}

static void very_many_waiting_events_are_not_missing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	leave_very_many_waiting(fixture);
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->scopes[0].missing.count, 0);
	assert_int_equal(report->scopes[0].waiting, 150);
}

/* A consumer is quicker than verify, between its questions to the broker: when the backlog is about
 * to be counted, it takes some. */
static struct fixture *meanwhile;

static int before_statement(unsigned kind, void *user, void *statement, void *text)
{
	struct fixture *fixture = meanwhile;
	(void)kind;
	(void)user;
	(void)statement;
	if (!fixture || !strstr(text, "p.appended - coalesce(s.settled"))
		return 0;
	meanwhile = NULL;
	fixture_consume_some(fixture, (semel_consumer_options){ .scope = "billing" }, 60);
	return 0;
}

static int watch_statements(sqlite3 *database, char **text, const void *api)
{
	(void)text;
	(void)api;
	return sqlite3_trace_v2(database, SQLITE_TRACE_STMT, before_statement, NULL);
}

static void what_is_settled_while_the_broker_is_asked_is_not_missing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	leave_very_many_waiting(fixture);
	sqlite3_auto_extension((void (*)(void))watch_statements);
	meanwhile = fixture;
	struct semel_verify_report *report = verify(fixture);
	sqlite3_cancel_auto_extension((void (*)(void))watch_statements);
	assert_null(meanwhile);
	assert_int_equal(report->scopes[0].processed, 61);
	assert_int_equal(report->scopes[0].waiting, 90);
	assert_int_equal(report->scopes[0].missing.count, 0);
}

static void a_claim_without_an_event_is_orphaned(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_sql(fixture,
		    "INSERT INTO semel_inbox (scope, event_id, week_start, status, "
		    "first_seen_at, processed_at, topic) SELECT scope, 'orphan', week_start, "
		    "status, first_seen_at, processed_at, topic FROM semel_inbox LIMIT 1");
	struct semel_verify_report *report = verify(fixture);
	assert_false(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].orphaned.count, 1);
	assert_string_equal(report->scopes[0].orphaned.ids[0].data, "orphan");
}

static void a_claim_of_another_producers_topic_is_only_foreign(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_sql(fixture,
		    "INSERT INTO semel_inbox (scope, event_id, week_start, status, "
		    "first_seen_at, processed_at, topic) SELECT scope, 'theirs', week_start, "
		    "status, first_seen_at, processed_at, 'other.events' FROM semel_inbox "
		    "LIMIT 1");
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].foreign, 1);
}

static void an_id_claimed_in_two_weeks_is_doubled(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_sql(fixture,
		    "INSERT INTO semel_inbox (scope, event_id, week_start, status, "
		    "first_seen_at, processed_at, topic) SELECT scope, event_id, '1970-01-05', "
		    "status, first_seen_at, processed_at, topic FROM semel_inbox LIMIT 1");
	struct semel_verify_report *report = verify(fixture);
	assert_false(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].doubled.count, 1);
	assert_int_equal(report->scopes[0].processed, 3);
}

static void dead_letters_and_their_followers_are_accounted_for(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_publish(fixture, "1", "follower", NULL);
	fixture_publish(fixture, "2", "good", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].pending, 1);
	assert_int_equal(report->scopes[0].parked, 1);
	assert_int_equal(report->scopes[0].processed, 1);

	fixture_ok(fixture,
		   semel_dead_letter_discard(fixture->store, fixture_letter(fixture).entry_id, "no",
					     &fixture->error));
	fixture_consume(fixture, "billing");
	report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].discarded, 1);
	assert_int_equal(report->scopes[0].processed, 2);
}

static void a_replay_that_was_sent_waits_and_one_that_is_gone_is_missing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_ok(fixture,
		   semel_dead_letter_replay(fixture->store, fixture->broker_url,
					    fixture_letter(fixture).entry_id, &fixture->error));
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->scopes[0].waiting, 1);
	assert_int_equal(report->scopes[0].missing.count, 0);

	fixture->poison = NULL;
	fixture_consume(fixture, "billing");
	fixture_sql(fixture, "DELETE FROM semel_inbox");
	report = verify(fixture);
	assert_int_equal(report->scopes[0].missing.count, 1);
}

static void a_scope_without_claims_is_not_tracked(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume_with(fixture, (semel_consumer_options){ .scope = "metrics",
								.guarantee = SEMEL_AT_LEAST_ONCE });
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->scope_count, 1);
	assert_false(report->scopes[0].tracked);
	assert_true(semel_verify_is_clean(report));
}

static void a_scope_that_began_at_the_end_expects_nothing_before_it(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	semel_consumer_options latest = { .scope = "late", .from_latest = true };
	fixture_consume_with(fixture, latest);
	fixture_publish(fixture, "1", "fourth", NULL);
	fixture_relay(fixture);
	fixture_consume_with(fixture, latest);
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].expected, 1);
	assert_int_equal(report->scopes[0].processed, 1);
}

static void only_topics_that_a_scope_reads_are_expected(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	semel_event_input input = { .type = "item.added.v1",
				    .aggregate_type = "item",
				    .aggregate_id = "1",
				    .payload = "1" };
	fixture_publish_input(fixture, &input, NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->committed, 4);
	assert_int_equal(report->scopes[0].expected, 3);
	assert_true(semel_verify_scope_is_clean(&report->scopes[0]));
}

static void pruned_events_are_beyond_proof(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	int64_t later_ms = semel_now_ms(semel_env_system()) + 60000;
	struct semel_retention_cutoffs cutoffs = { .outbox_ms = later_ms };
	struct semel_prune_counts counts = { 0 };
	bool more = true;
	while (more)
		fixture_ok(fixture,
			   fixture->store->driver->upkeep->prune(fixture->store, &cutoffs, false,
								 &counts, &more, &fixture->error));
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->committed, 0);
	assert_true(report->pruned_until_ms > 0);
	assert_int_equal(report->scopes[0].orphaned.count, 0);
	assert_true(semel_verify_is_clean(report));
}

static void prune_dead_letters(struct fixture *fixture)
{
	int64_t later_ms = semel_now_ms(semel_env_system()) + 60000;
	struct semel_retention_cutoffs cutoffs = { .dead_ms = later_ms };
	struct semel_prune_counts counts = { 0 };
	bool more = false;
	fixture_ok(fixture, fixture->store->driver->upkeep->prune(fixture->store, &cutoffs, false,
								  &counts, &more, &fixture->error));
	assert_int_equal(counts.dead, 1);
}

static void a_dead_letter_past_its_retention_is_not_missing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	prune_dead_letters(fixture);
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->scopes[0].discarded, 1);
}

static void a_failure_of_the_relay_is_accounted_for_also_when_its_letter_is_gone(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	fixture_give_up_first_row(fixture);
	fixture_relay(fixture);
	struct semel_verify_report *report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->failed, 1);
	assert_int_equal(report->parked, 1);

	fixture_ok(fixture,
		   semel_dead_letter_discard(fixture->store, fixture_letter(fixture).entry_id, "no",
					     &fixture->error));
	fixture_relay(fixture);
	prune_dead_letters(fixture);
	report = verify(fixture);
	assert_true(semel_verify_is_clean(report));
	assert_int_equal(report->failed, 1);
	assert_int_equal(report->published, 1);
}

static void claims_without_a_subscription_are_verified_when_named(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_sql(fixture,
		    "INSERT INTO semel_inbox (scope, event_id, week_start, status, "
		    "first_seen_at, processed_at, topic) SELECT 'by-hand', id, '2026-11-09', "
		    "'PROCESSED', created_at, created_at, 'order.events' FROM semel_outbox "
		    "WHERE aggregate_id = '1'");
	static const char *const scopes[] = { "by-hand", NULL };
	struct semel_verify_report *report = verify_scopes(fixture, scopes);
	assert_int_equal(report->scopes[0].processed, 2);
	assert_int_equal(report->scopes[0].missing.count, 1);
}

static void an_unknown_scope_is_refused(void **state)
{
	struct fixture *fixture = fixture_of(state);
	static const char *const scopes[] = { "biling", NULL };
	semel_store *stores[] = { fixture->store };
	struct semel_verify_plan plan = { .producer = fixture->store,
					  .consumers = stores,
					  .consumer_count = 1,
					  .scopes = scopes,
					  .env = semel_env_system() };
	struct semel_arena *arena = semel_arena_new(65536);
	struct semel_verify_report report;
	assert_int_equal(semel_verify_run(&plan, arena, &report, &fixture->error), SEMEL_INVALID);
	semel_arena_free(arena);
}

static void a_failed_row_without_a_dead_letter_is_unexplained(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_sql(fixture, "UPDATE semel_outbox SET status = 'FAILED' WHERE seq = 1");
	struct semel_verify_report *report = verify(fixture);
	assert_int_equal(report->unexplained.count, 1);
	assert_false(semel_verify_is_clean(report));
}

static void an_unreachable_broker_is_reported(void **state)
{
	struct fixture *fixture = fixture_of(state);
	publish_three(fixture);
	fixture_consume(fixture, "billing");
	fixture_sql(fixture, "DELETE FROM semel_inbox WHERE event_id IN "
			     "(SELECT id FROM semel_outbox WHERE seq = 1)");
	snprintf(fixture->broker_url, sizeof(fixture->broker_url), "local:%s/none/broker.db",
		 fixture->folder);
	struct semel_verify_report *report = verify(fixture);
	assert_true(report->broker_error[0] != '\0');
	assert_int_equal(report->scopes[0].missing.count, 1);
}

static int forget_last(void **state)
{
	(void)state;
	semel_arena_free(trial.arena);
	return 0;
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(an_untouched_store_is_clean),
		WORLD_TEST(everything_processed_is_clean),
		WORLD_TEST(what_is_not_published_yet_waits),
		WORLD_TEST(what_is_at_the_broker_waits),
		WORLD_TEST(an_event_without_a_trace_in_its_scope_is_missing),
		WORLD_TEST(very_many_missing_events_are_counted_and_some_are_listed),
		WORLD_TEST(very_many_waiting_events_are_not_missing),
		WORLD_TEST(what_is_settled_while_the_broker_is_asked_is_not_missing),
		WORLD_TEST(a_claim_without_an_event_is_orphaned),
		WORLD_TEST(a_claim_of_another_producers_topic_is_only_foreign),
		WORLD_TEST(an_id_claimed_in_two_weeks_is_doubled),
		WORLD_TEST(dead_letters_and_their_followers_are_accounted_for),
		WORLD_TEST(a_replay_that_was_sent_waits_and_one_that_is_gone_is_missing),
		WORLD_TEST(a_scope_without_claims_is_not_tracked),
		WORLD_TEST(a_scope_that_began_at_the_end_expects_nothing_before_it),
		WORLD_TEST(only_topics_that_a_scope_reads_are_expected),
		WORLD_TEST(pruned_events_are_beyond_proof),
		WORLD_TEST(a_dead_letter_past_its_retention_is_not_missing),
		WORLD_TEST(a_failure_of_the_relay_is_accounted_for_also_when_its_letter_is_gone),
		WORLD_TEST(claims_without_a_subscription_are_verified_when_named),
		WORLD_TEST(an_unknown_scope_is_refused),
		WORLD_TEST(a_failed_row_without_a_dead_letter_is_unexplained),
		WORLD_TEST(an_unreachable_broker_is_reported),
	};
	return cmocka_run_group_tests(tests, NULL, forget_last);
}
