/* SPDX-License-Identifier: Apache-2.0 */
/* What a person can do with dead letters, on the real store and broker. */
#include "deadletter/deadletter.h"
#include "fault/failpoint.h"
#include "unit/world.h"

static const char *const orders_of_one = "SELECT group_concat(payload, ' ') FROM "
					 "(SELECT payload FROM effect ORDER BY number)";

static semel_status replay(struct world *world, const char *entry_id)
{
	return semel_dead_letter_replay(world->store, world->broker_url, entry_id, &world->error);
}

static semel_status discard(struct world *world, const char *entry_id)
{
	return semel_dead_letter_discard(world->store, entry_id, "not wanted", &world->error);
}

/* A poisoned event, and whatever was published after it, consumed once by billing. */
static struct world_letter poison_one(struct world *world)
{
	world->poison = "bad";
	world_relay(world);
	world_consume(world, "billing");
	return world_letter(world);
}

static bool has_holds(struct world *world)
{
	const struct semel_store_driver *driver = world->store->driver;
	bool any = false;
	world_ok(world, driver->holds->has_any(driver->tx(world->store), SEMEL_TEXT("billing"),
					       &any, &world->error));
	return any;
}

static void a_rejected_event_is_kept_with_its_reason(void **state)
{
	struct world *world = world_of(state);
	char id[SEMEL_ID_SIZE];
	world_publish(world, "1", "bad", id);
	struct world_letter letter = poison_one(world);

	assert_int_equal(letter.count, 1);
	assert_string_equal(letter.event_id, id);
	assert_string_equal(letter.scope, "billing");
	assert_non_null(strstr(letter.reason, "is poison"));
	assert_int_equal(letter.status, SEMEL_DEAD_PENDING);
	uint64_t count = 0;
	world_ok(world, semel_dead_letter_count(world->store, NULL, &count, &world->error));
	assert_int_equal(count, 1);
}

static void a_replay_works_at_once_and_once(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);

	world->poison = NULL;
	world_ok(world, replay(world, letter.entry_id));
	world_consume(world, "billing");
	world_expect(world, "SELECT count(*) FROM effect", "1");
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(replay(world, letter.entry_id), SEMEL_NOT_PENDING);
	assert_int_equal(discard(world, letter.entry_id), SEMEL_NOT_PENDING);
	assert_false(has_holds(world));
}

static void a_replay_reaches_no_other_scope(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);
	world->poison = NULL;
	world_consume(world, "audit");

	world_ok(world, replay(world, letter.entry_id));
	world_consume(world, "audit");
	world_expect(world, "SELECT count(*) FROM effect WHERE scope = 'audit'", "1");
	world_consume(world, "billing");
	world_expect(world, "SELECT count(*) FROM effect WHERE scope = 'billing'", "1");
}

static void an_entry_is_replayed_three_times_over_its_life(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);

	for (uint32_t i = 1; i <= SEMEL_REPLAYS_MAX; i++) {
		world_ok(world, replay(world, letter.entry_id));
		world_consume(world, "billing");
		struct world_letter again = world_letter(world);
		assert_int_equal(again.count, 1);
		assert_string_equal(again.entry_id, letter.entry_id);
		assert_int_equal(again.status, SEMEL_DEAD_PENDING);
		assert_int_equal(again.replay_count, i);
	}
	assert_int_equal(replay(world, letter.entry_id), SEMEL_REPLAY_LIMIT);
	world_ok(world, discard(world, letter.entry_id));
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_DISCARDED);
}

static void followers_come_after_a_replayed_head_in_order(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	world_publish(world, "1", "second", NULL);
	world_publish(world, "2", "other", NULL);
	world_publish(world, "1", "third", NULL);
	struct world_letter letter = poison_one(world);
	assert_int_equal(letter.parked, 2);
	world_expect(world, orders_of_one, "\"other\"");

	world->poison = NULL;
	world_ok(world, replay(world, letter.entry_id));
	world_consume(world, "billing");
	world_expect(world, orders_of_one, "\"other\" \"bad\" \"second\" \"third\"");
	assert_false(has_holds(world));
}

static void a_discarded_head_lets_its_followers_go_in_order(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	world_publish(world, "1", "second", NULL);
	world_publish(world, "1", "third", NULL);
	struct world_letter letter = poison_one(world);

	world_ok(world, discard(world, letter.entry_id));
	world_consume(world, "billing");
	world_expect(world, orders_of_one, "\"second\" \"third\"");
	assert_false(has_holds(world));
	world_expect(world, "SELECT discard_reason FROM semel_dead_letter", "not wanted");
}

static void a_discarded_event_without_followers_leaves_no_hold(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);
	assert_true(has_holds(world));
	world_ok(world, discard(world, letter.entry_id));
	assert_false(has_holds(world));
}

static void a_discarded_head_under_total_order_frees_its_topic(void **state)
{
	struct world *world = world_of(state);
	snprintf(world->broker_url, sizeof(world->broker_url), "local:%s/broker.db?partitions=1",
		 world->folder);
	world_publish(world, "1", "bad", NULL);
	world_relay(world);
	world->poison = "bad";
	semel_consumer_options total = { .scope = "billing",
					 .order = SEMEL_ORDER_TOTAL,
					 .poison = SEMEL_POISON_BLOCK };
	world_consume_with(world, total);
	assert_true(has_holds(world));

	world_ok(world, discard(world, world_letter(world).entry_id));
	assert_false(has_holds(world));
	world_publish(world, "2", "next", NULL);
	world_relay(world);
	world_consume_with(world, total);
	world_expect(world, orders_of_one, "\"next\"");
}

static void a_parked_follower_goes_with_its_head_only(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	world_publish(world, "1", "second", NULL);
	poison_one(world);
	char *parked = world_ask(world, "SELECT entry_id FROM semel_dead_letter "
					"WHERE parked_behind IS NOT NULL");
	assert_non_null(parked);
	assert_int_equal(replay(world, parked), SEMEL_NOT_FOUND);
	assert_int_equal(discard(world, parked), SEMEL_NOT_FOUND);
	free(parked);
}

static void an_unknown_entry_is_not_found(void **state)
{
	struct world *world = world_of(state);
	const char *unknown = "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41";
	assert_int_equal(replay(world, unknown), SEMEL_NOT_FOUND);
	assert_int_equal(discard(world, unknown), SEMEL_NOT_FOUND);
	assert_int_equal(replay(world, " "), SEMEL_INVALID);
}

static void an_event_without_an_id_cannot_be_replayed_but_discarded(void **state)
{
	struct world *world = world_of(state);
	const struct semel_store_driver *driver = world->store->driver;
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_dead_entry entry = { .entry_id = SEMEL_TEXT(
						  "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41"),
					  .scope = SEMEL_TEXT("billing"),
					  .reason = SEMEL_TEXT("no id"),
					  .event = { .topic = SEMEL_TEXT("order.events"),
						     .headers = SEMEL_TEXT("{}"),
						     .payload = SEMEL_TEXT("\xff") },
					  .failed_at_ms = 1,
					  .status = SEMEL_DEAD_PENDING };
	world_ok(world, driver->begin(world->store, &world->error));
	world_ok(world,
		 driver->dead_letters->add(driver->tx(world->store), &entry, arena, &world->error));
	world_ok(world, driver->commit(world->store, &world->error));
	semel_arena_free(arena);

	struct world_letter letter = world_letter(world);
	assert_string_equal(letter.event_id, "");
	assert_int_equal(replay(world, letter.entry_id), SEMEL_INVALID);
	world_ok(world, discard(world, letter.entry_id));
}

static void a_dead_letter_of_the_relay_goes_back_to_the_outbox(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "first", NULL);
	world_publish(world, "1", "second", NULL);
	world_give_up_first_row(world);
	world_relay(world);
	world_consume(world, "billing");
	world_expect(world, "SELECT count(*) FROM effect", "0");

	struct world_letter letter = world_letter(world);
	assert_string_equal(letter.scope, SEMEL_SCOPE_RELAY);
	world_ok(world, replay(world, letter.entry_id));
	world_relay(world);
	world_consume(world, "billing");
	world_expect(world, orders_of_one, "\"first\" \"second\"");
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_REPLAYED);
}

static void a_discarded_dead_letter_of_the_relay_frees_its_aggregate(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "first", NULL);
	world_publish(world, "1", "second", NULL);
	world_give_up_first_row(world);

	world_ok(world, discard(world, world_letter(world).entry_id));
	world_relay(world);
	world_consume(world, "billing");
	world_expect(world, orders_of_one, "\"second\"");
}

/* The replayer fails between the two steps; the consumer that processes the event settles it. */
static void a_replayer_that_dies_before_the_mark_loses_and_doubles_nothing(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);
	world->poison = NULL;

	world_ok(world, semel_failpoints_arm("dlq.after-publish:error@1", &world->error));
	assert_int_equal(replay(world, letter.entry_id), SEMEL_OUTAGE);
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_PENDING);
	world_ok(world, replay(world, letter.entry_id)); /* the operator tries again */
	world_consume(world, "billing");
	world_expect(world, "SELECT count(*) FROM effect", "1");
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_REPLAYED);
	assert_int_equal(world_letter(world).replay_count, 1);
}

static void the_consumer_settles_what_the_replayer_could_not_mark(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);
	world->poison = NULL;

	world_ok(world, semel_failpoints_arm("dlq.after-publish:error@1", &world->error));
	assert_int_equal(replay(world, letter.entry_id), SEMEL_OUTAGE);
	world_consume(world, "billing");
	world_expect(world, "SELECT count(*) FROM effect", "1");
	assert_int_equal(world_letter(world).status, SEMEL_DEAD_REPLAYED);
}

/* The replayer died between sending and marking, and what it sent failed for now. */
static void a_head_that_is_discarded_while_it_is_tried_again_frees_its_aggregate(void **state)
{
	struct world *world = world_of(state);
	world_publish(world, "1", "bad", NULL);
	struct world_letter letter = poison_one(world);

	world_sql(world, "UPDATE semel_hold SET state = 'retry', attempts = 1,"
			 " due_at = '2026-01-01T00:00:00.000Z'");
	world_ok(world, semel_dead_letter_discard(world->store, letter.entry_id, "given up",
						  &world->error));
	world_expect(world, "SELECT count(*) FROM semel_hold", "0");
	world_publish(world, "1", "good", NULL);
	world_relay(world);
	world_consume(world, "billing");
	world_expect(world, "SELECT payload FROM effect", "\"good\"");
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
	struct world *world = world_of(state);
	char entry_id[SEMEL_ID_SIZE];
	semel_tx tx = semel_borrow_sqlite(world->db);
	world_sql(world, "BEGIN IMMEDIATE");
	world_ok(world, semel_dead_letter_add(tx, "payments", &own, "no such account", entry_id,
					      &world->error));
	world_sql(world, "ROLLBACK");
	assert_int_equal(world_letter(world).count, 0);

	world_sql(world, "BEGIN IMMEDIATE");
	world_ok(world, semel_dead_letter_add(tx, "payments", &own, "no such account", entry_id,
					      &world->error));
	world_sql(world, "COMMIT");
	struct world_letter letter = world_letter(world);
	assert_string_equal(letter.entry_id, entry_id);
	assert_string_equal(letter.scope, "payments");
	world_expect(world, "SELECT saga_id || ' ' || correlation_id FROM semel_dead_letter",
		     "s-1 c-1");
}

static void a_letter_of_ones_own_needs_a_transaction_and_a_scope(void **state)
{
	struct world *world = world_of(state);
	semel_tx tx = semel_borrow_sqlite(world->db);
	semel_error *error = &world->error;
	assert_int_equal(semel_dead_letter_add(tx, "payments", &own, "why", NULL, error),
			 SEMEL_NO_TRANSACTION);
	world_sql(world, "BEGIN IMMEDIATE");
	assert_int_equal(semel_dead_letter_add(tx, " ", &own, "why", NULL, error), SEMEL_INVALID);
	assert_int_equal(semel_dead_letter_add(tx, NULL, &own, "why", NULL, error), SEMEL_INVALID);
	assert_int_equal(semel_dead_letter_add(tx, "relay", &own, "why", NULL, error),
			 SEMEL_INVALID);
	world_sql(world, "ROLLBACK");
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

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, world_begin, world_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(a_rejected_event_is_kept_with_its_reason),
		WORLD_TEST(a_replay_works_at_once_and_once),
		WORLD_TEST(a_replay_reaches_no_other_scope),
		WORLD_TEST(an_entry_is_replayed_three_times_over_its_life),
		WORLD_TEST(followers_come_after_a_replayed_head_in_order),
		WORLD_TEST(a_discarded_head_lets_its_followers_go_in_order),
		WORLD_TEST(a_discarded_event_without_followers_leaves_no_hold),
		WORLD_TEST(a_discarded_head_under_total_order_frees_its_topic),
		WORLD_TEST(a_parked_follower_goes_with_its_head_only),
		WORLD_TEST(an_unknown_entry_is_not_found),
		WORLD_TEST(an_event_without_an_id_cannot_be_replayed_but_discarded),
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
