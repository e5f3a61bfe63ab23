/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator can do with dead letters, on the real store and broker. */
#include "deadletter/deadletter.h"
#include "fault/failpoint.h"
#include "unit/fixture.h"

static const char *const orders_of_one = "SELECT group_concat(payload, ' ') FROM "
					 "(SELECT payload FROM effect ORDER BY number)";

static semel_status replay(struct fixture *fixture, const char *entry_id)
{
	return semel_dead_letter_replay(fixture->store, fixture->broker_url, entry_id,
					&fixture->error);
}

static semel_status discard(struct fixture *fixture, const char *entry_id)
{
	return semel_dead_letter_discard(fixture->store, entry_id, "not wanted", &fixture->error);
}

/* A poisoned event, and whatever was published after it, consumed once by billing. */
static struct fixture_letter poison_one(struct fixture *fixture)
{
	fixture->poison = "bad";
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	return fixture_letter(fixture);
}

static bool has_holds(struct fixture *fixture)
{
	const struct semel_store_driver *driver = fixture->store->driver;
	bool any = false;
	fixture_ok(fixture, driver->holds->has_any(driver->tx(fixture->store),
						   SEMEL_TEXT("billing"), &any, &fixture->error));
	return any;
}

static void a_rejected_event_is_kept_with_its_reason(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	fixture_publish(fixture, "1", "bad", id);
	struct fixture_letter letter = poison_one(fixture);

	assert_int_equal(letter.count, 1);
	assert_string_equal(letter.event_id, id);
	assert_string_equal(letter.scope, "billing");
	assert_non_null(strstr(letter.reason, "is poison"));
	assert_int_equal(letter.status, SEMEL_DEAD_PENDING);
	uint64_t count = 0;
	fixture_ok(fixture, semel_dead_letter_count(fixture->store, NULL, &count, &fixture->error));
	assert_int_equal(count, 1);
}

static void a_replay_works_at_once_and_once(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);

	fixture->poison = NULL;
	fixture_ok(fixture, replay(fixture, letter.entry_id));
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT count(*) FROM effect", "1");
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(replay(fixture, letter.entry_id), SEMEL_NOT_PENDING);
	assert_int_equal(discard(fixture, letter.entry_id), SEMEL_NOT_PENDING);
	assert_false(has_holds(fixture));
}

static void a_replay_reaches_no_other_scope(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);
	fixture->poison = NULL;
	fixture_consume(fixture, "audit");

	fixture_ok(fixture, replay(fixture, letter.entry_id));
	fixture_consume(fixture, "audit");
	fixture_expect(fixture, "SELECT count(*) FROM effect WHERE scope = 'audit'", "1");
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT count(*) FROM effect WHERE scope = 'billing'", "1");
}

static void an_entry_is_replayed_three_times_over_its_life(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);

	for (uint32_t i = 1; i <= SEMEL_REPLAYS_MAX; i++) {
		fixture_ok(fixture, replay(fixture, letter.entry_id));
		fixture_consume(fixture, "billing");
		struct fixture_letter again = fixture_letter(fixture);
		assert_int_equal(again.count, 1);
		assert_string_equal(again.entry_id, letter.entry_id);
		assert_int_equal(again.status, SEMEL_DEAD_PENDING);
		assert_int_equal(again.replay_count, i);
	}
	assert_int_equal(replay(fixture, letter.entry_id), SEMEL_REPLAY_LIMIT);
	fixture_ok(fixture, discard(fixture, letter.entry_id));
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_DISCARDED);
}

static void followers_come_after_a_replayed_head_in_order(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	fixture_publish(fixture, "2", "other", NULL);
	fixture_publish(fixture, "1", "third", NULL);
	struct fixture_letter letter = poison_one(fixture);
	assert_int_equal(letter.parked, 2);
	fixture_expect(fixture, orders_of_one, "\"other\"");

	fixture->poison = NULL;
	fixture_ok(fixture, replay(fixture, letter.entry_id));
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, orders_of_one, "\"other\" \"bad\" \"second\" \"third\"");
	assert_false(has_holds(fixture));
}

static void a_discarded_head_releases_its_followers_in_order(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	fixture_publish(fixture, "1", "third", NULL);
	struct fixture_letter letter = poison_one(fixture);

	fixture_ok(fixture, discard(fixture, letter.entry_id));
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, orders_of_one, "\"second\" \"third\"");
	assert_false(has_holds(fixture));
	fixture_expect(fixture, "SELECT discard_reason FROM semel_dead_letter", "not wanted");
}

static void a_discarded_event_without_followers_leaves_no_hold(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);
	assert_true(has_holds(fixture));
	fixture_ok(fixture, discard(fixture, letter.entry_id));
	assert_false(has_holds(fixture));
}

static void a_discarded_head_under_total_order_frees_its_topic(void **state)
{
	struct fixture *fixture = fixture_of(state);
	snprintf(fixture->broker_url, sizeof(fixture->broker_url),
		 "local:%s/broker.db?partitions=1", fixture->folder);
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture->poison = "bad";
	semel_consumer_options total = { .scope = "billing",
					 .order = SEMEL_ORDER_TOTAL,
					 .poison = SEMEL_POISON_BLOCK };
	fixture_consume_with(fixture, total);
	assert_true(has_holds(fixture));

	fixture_ok(fixture, discard(fixture, fixture_letter(fixture).entry_id));
	assert_false(has_holds(fixture));
	fixture_publish(fixture, "2", "next", NULL);
	fixture_relay(fixture);
	fixture_consume_with(fixture, total);
	fixture_expect(fixture, orders_of_one, "\"next\"");
}

static void a_parked_follower_goes_with_its_head_only(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	poison_one(fixture);
	char *parked = fixture_ask(fixture, "SELECT entry_id FROM semel_dead_letter "
					    "WHERE parked_behind IS NOT NULL");
	assert_non_null(parked);
	assert_int_equal(replay(fixture, parked), SEMEL_NOT_FOUND);
	assert_int_equal(discard(fixture, parked), SEMEL_NOT_FOUND);
	free(parked);
}

static void an_unknown_entry_is_not_found(void **state)
{
	struct fixture *fixture = fixture_of(state);
	const char *unknown = "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41";
	assert_int_equal(replay(fixture, unknown), SEMEL_NOT_FOUND);
	assert_int_equal(discard(fixture, unknown), SEMEL_NOT_FOUND);
	assert_int_equal(replay(fixture, " "), SEMEL_INVALID);
}

static void an_event_without_an_id_cannot_be_replayed_but_discarded(void **state)
{
	struct fixture *fixture = fixture_of(state);
	const struct semel_store_driver *driver = fixture->store->driver;
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_dead_letter_row entry = { .entry_id = SEMEL_TEXT(
						       "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41"),
					       .scope = SEMEL_TEXT("billing"),
					       .reason = SEMEL_TEXT("no id"),
					       .event = { .topic = SEMEL_TEXT("order.events"),
							  .headers = SEMEL_TEXT("{}"),
							  .payload = SEMEL_TEXT("\xff") },
					       .failed_at_ms = 1,
					       .status = SEMEL_DEAD_PENDING };
	fixture_ok(fixture, driver->begin(fixture->store, &fixture->error));
	fixture_ok(fixture, driver->dead_letters->add(driver->tx(fixture->store), &entry, arena,
						      &fixture->error));
	fixture_ok(fixture, driver->commit(fixture->store, &fixture->error));
	semel_arena_free(arena);

	struct fixture_letter letter = fixture_letter(fixture);
	assert_string_equal(letter.event_id, "");
	assert_int_equal(replay(fixture, letter.entry_id), SEMEL_INVALID);
	fixture_ok(fixture, discard(fixture, letter.entry_id));
}

static void count_letter(const semel_dead_letter *letter, void *user)
{
	(void)letter;
	(*(uint32_t *)user)++;
}

static uint32_t list_length(struct fixture *fixture, uint32_t limit)
{
	semel_dead_letter_filter filter = { .limit = limit };
	uint32_t count = 0;
	fixture_ok(fixture, semel_dead_letter_list(fixture->store, &filter, count_letter, &count,
						   &fixture->error));
	return count;
}

static void a_list_without_a_limit_has_the_default_length(void **state)
{
	struct fixture *fixture = fixture_of(state);
	const struct semel_store_driver *driver = fixture->store->driver;
	semel_event_input input = { .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = "1",
				    .payload = "1" };
	fixture_ok(fixture, driver->begin(fixture->store, &fixture->error));
	for (int i = 0; i < SEMEL_DEAD_LIST_DEFAULT + 2; i++)
		fixture_ok(fixture, semel_dead_letter_add(driver->tx(fixture->store), "billing",
							  &input, "no", NULL, &fixture->error));
	fixture_ok(fixture, driver->commit(fixture->store, &fixture->error));
	assert_int_equal(list_length(fixture, 0), SEMEL_DEAD_LIST_DEFAULT);
	assert_int_equal(list_length(fixture, SEMEL_DEAD_LIST_DEFAULT + 1),
			 SEMEL_DEAD_LIST_DEFAULT + 1);
}

static void a_dead_letter_of_the_relay_goes_back_to_the_outbox(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	fixture_give_up_first_row(fixture);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT count(*) FROM effect", "0");

	struct fixture_letter letter = fixture_letter(fixture);
	assert_string_equal(letter.scope, SEMEL_SCOPE_RELAY);
	fixture_ok(fixture, replay(fixture, letter.entry_id));
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, orders_of_one, "\"first\" \"second\"");
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_REPLAYED);
}

static void a_discarded_dead_letter_of_the_relay_frees_its_aggregate(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "first", NULL);
	fixture_publish(fixture, "1", "second", NULL);
	fixture_give_up_first_row(fixture);

	fixture_ok(fixture, discard(fixture, fixture_letter(fixture).entry_id));
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, orders_of_one, "\"second\"");
}

/* The replayer fails between the two steps; the consumer that processes the event settles it. */
static void a_replayer_that_dies_before_the_mark_loses_and_doubles_nothing(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);
	fixture->poison = NULL;

	fixture_ok(fixture, semel_failpoints_arm("dlq.after-publish:error@1", &fixture->error));
	assert_int_equal(replay(fixture, letter.entry_id), SEMEL_OUTAGE);
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_PENDING);
	fixture_ok(fixture, replay(fixture, letter.entry_id)); /* the operator tries again */
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT count(*) FROM effect", "1");
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(fixture_letter(fixture).replay_count, 1);
}

static void the_consumer_settles_what_the_replayer_could_not_mark(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);
	fixture->poison = NULL;

	fixture_ok(fixture, semel_failpoints_arm("dlq.after-publish:error@1", &fixture->error));
	assert_int_equal(replay(fixture, letter.entry_id), SEMEL_OUTAGE);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT count(*) FROM effect", "1");
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_REPLAYED);
}

/* The replayer died between sending and marking, and what it sent failed and will be retried. */
static void a_head_that_is_discarded_while_it_is_tried_again_frees_its_aggregate(void **state)
{
	struct fixture *fixture = fixture_of(state);
	fixture_publish(fixture, "1", "bad", NULL);
	struct fixture_letter letter = poison_one(fixture);

	fixture_sql(fixture, "UPDATE semel_hold SET state = 'retry', attempts = 1,"
			     " due_at = '2026-01-01T00:00:00.000Z'");
	fixture_ok(fixture, semel_dead_letter_discard(fixture->store, letter.entry_id, "given up",
						      &fixture->error));
	fixture_expect(fixture, "SELECT count(*) FROM semel_hold", "0");
	fixture_publish(fixture, "1", "good", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture_expect(fixture, "SELECT payload FROM effect", "\"good\"");
}

/* ---- an application's own -------------------------------------------------------------------- */

static const semel_event_input own = { .type = "payment.failed.v1",
				       .aggregate_type = "payment",
				       .aggregate_id = "p-1",
				       .payload = "{}",
				       .headers =
					       "{\"sagaId\":\"s-1\",\"correlationId\":\"c-1\"}" };

static void an_applications_own_letter_commits_with_its_transaction(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char entry_id[SEMEL_ID_SIZE];
	semel_tx tx = semel_borrow_sqlite(fixture->db);
	fixture_sql(fixture, "BEGIN IMMEDIATE");
	fixture_ok(fixture, semel_dead_letter_add(tx, "payments", &own, "no such account", entry_id,
						  &fixture->error));
	fixture_sql(fixture, "ROLLBACK");
	assert_int_equal(fixture_letter(fixture).count, 0);

	fixture_sql(fixture, "BEGIN IMMEDIATE");
	fixture_ok(fixture, semel_dead_letter_add(tx, "payments", &own, "no such account", entry_id,
						  &fixture->error));
	fixture_sql(fixture, "COMMIT");
	struct fixture_letter letter = fixture_letter(fixture);
	assert_string_equal(letter.entry_id, entry_id);
	assert_string_equal(letter.scope, "payments");
	fixture_expect(fixture, "SELECT saga_id || ' ' || correlation_id FROM semel_dead_letter",
		       "s-1 c-1");
}

static void a_letter_of_ones_own_needs_a_transaction_and_a_scope(void **state)
{
	struct fixture *fixture = fixture_of(state);
	semel_tx tx = semel_borrow_sqlite(fixture->db);
	semel_error *error = &fixture->error;
	assert_int_equal(semel_dead_letter_add(tx, "payments", &own, "why", NULL, error),
			 SEMEL_NO_TRANSACTION);
	fixture_sql(fixture, "BEGIN IMMEDIATE");
	assert_int_equal(semel_dead_letter_add(tx, " ", &own, "why", NULL, error), SEMEL_INVALID);
	assert_int_equal(semel_dead_letter_add(tx, NULL, &own, "why", NULL, error), SEMEL_INVALID);
	assert_int_equal(semel_dead_letter_add(tx, "relay", &own, "why", NULL, error),
			 SEMEL_INVALID);
	fixture_sql(fixture, "ROLLBACK");
}

/* ---- the record ------------------------------------------------------------------------------ */

static void the_record_has_every_member_also_when_unknown(void **state)
{
	(void)state;
	struct semel_event event = { .headers = SEMEL_TEXT("{}"), .payload = SEMEL_TEXT("") };
	semel_dead_letter letter = { .entry_id = "e",
				     .event = &event,
				     .status = SEMEL_DEAD_PENDING };
	struct semel_buffer buffer = { 0 };
	semel_dead_letter_to_json(&letter, &buffer);
	static const char *const members[] = {
		"\"dlqEntryId\":\"e\"",   "\"originalEventId\":null",
		"\"eventType\":null",     "\"topicName\":null",
		"\"eventRecord\":{",      "\"time\":null",
		"\"failureReason\":null", "\"failureTimestamp\":\"1970-01-01T00:00:00.000Z\"",
		"\"sourceService\":null", "\"sagaId\":null",
		"\"correlationId\":null", "\"attempts\":0",
		"\"replayCount\":0",      "\"status\":\"PENDING\"",
	};
	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		if (!strstr(buffer.data, members[i]))
			fail_msg("%s is not in %s", members[i], buffer.data);
	semel_buffer_free(&buffer);
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(a_rejected_event_is_kept_with_its_reason),
		WORLD_TEST(a_replay_works_at_once_and_once),
		WORLD_TEST(a_replay_reaches_no_other_scope),
		WORLD_TEST(an_entry_is_replayed_three_times_over_its_life),
		WORLD_TEST(followers_come_after_a_replayed_head_in_order),
		WORLD_TEST(a_discarded_head_releases_its_followers_in_order),
		WORLD_TEST(a_discarded_event_without_followers_leaves_no_hold),
		WORLD_TEST(a_discarded_head_under_total_order_frees_its_topic),
		WORLD_TEST(a_parked_follower_goes_with_its_head_only),
		WORLD_TEST(an_unknown_entry_is_not_found),
		WORLD_TEST(an_event_without_an_id_cannot_be_replayed_but_discarded),
		WORLD_TEST(a_list_without_a_limit_has_the_default_length),
		WORLD_TEST(a_dead_letter_of_the_relay_goes_back_to_the_outbox),
		WORLD_TEST(a_discarded_dead_letter_of_the_relay_frees_its_aggregate),
		WORLD_TEST(a_replayer_that_dies_before_the_mark_loses_and_doubles_nothing),
		WORLD_TEST(the_consumer_settles_what_the_replayer_could_not_mark),
		WORLD_TEST(a_head_that_is_discarded_while_it_is_tried_again_frees_its_aggregate),
		WORLD_TEST(an_applications_own_letter_commits_with_its_transaction),
		WORLD_TEST(a_letter_of_ones_own_needs_a_transaction_and_a_scope),
		cmocka_unit_test(the_record_has_every_member_also_when_unknown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
