/* SPDX-License-Identifier: Apache-2.0 */
/* Two at once on PostgreSQL: after waiting for a lock, a transaction reads again before it decides.
 */
#include "contract/postgres_steps.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- steps ----------------------------------------------------------------------------------- */

/* A step on a connection of its own while another one holds a lock. */
struct other {
	semel_store *store;
	semel_status (*act)(semel_store *store);
	pthread_t thread;
	semel_status status;
	atomic_bool over;
	char waits[128]; /* asks whether it waits for a lock */
};

static void *run_other(void *user)
{
	struct other *other = user;
	other->status = other->act(other->store);
	atomic_store(&other->over, true);
	return NULL;
}

/* Returns when it is over, or cannot continue before the other one commits. */
static void start_other(struct other *other, PGconn *watcher)
{
	other->store = store_open_one();
	snprintf(other->waits, sizeof(other->waits),
		 "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
		 " AND wait_event_type = 'Lock'",
		 semel_libpq.backendPID(semel_tx_postgres(store_tx(other->store))));
	assert_int_equal(pthread_create(&other->thread, NULL, run_other, other), 0);
	while (!atomic_load(&other->over) && *postgres_ask(watcher, other->waits) == '0')
		usleep(1000);
}

static void end_other(struct other *other)
{
	assert_int_equal(pthread_join(other->thread, NULL), 0);
	assert_ok(other->status);
	semel_store_close(other->store);
}

/* ---- prune ----------------------------------------------------------------------------------- */

static semel_status prune_dead_letters(semel_store *store)
{
	struct semel_prune_counts counts;
	struct semel_retention_cutoffs cutoffs = { .dead_ms = STORE_NOW };
	semel_status status = SEMEL_OK;
	for (bool more = true; more && status == SEMEL_OK;)
		status = store->driver->upkeep->prune(store, &cutoffs, false, &counts, &more, NULL);
	return status;
}

static void hold_behind_an_old_letter(PGconn *connection)
{
	postgres_ask(connection, "INSERT INTO semel_dead_letter (entry_id, scope, event_id,"
				 " aggregate_type, aggregate_id, topic, failed_at) VALUES ('d1',"
				 " 'billing', 'e1', 'order', 'a', 't', '2025-01-01');"
				 " INSERT INTO semel_hold (scope, aggregate_type, aggregate_id,"
				 " state, head_id) VALUES ('billing', 'order', 'a', 'dead', 'e1')");
}

static void a_hold_that_has_just_gained_a_follower_is_not_pruned(void **state)
{
	(void)state;
	PGconn *consumer = connect_as_application(), *watcher = connect_as_application();
	struct other pruner = { .act = prune_dead_letters };
	hold_behind_an_old_letter(watcher);
	postgres_ask(consumer, "BEGIN; SELECT 1 FROM semel_hold FOR UPDATE;"
			       " INSERT INTO semel_dead_letter (entry_id, scope, event_id,"
			       " aggregate_type, aggregate_id, topic, failed_at, parked_behind)"
			       " VALUES ('d2', 'billing', 'e2', 'order', 'a', 't', now(), 'e1')");
	start_other(&pruner, watcher);
	postgres_ask(consumer, "COMMIT");
	end_other(&pruner);
	assert_answer(watcher, "SELECT count(*) FROM semel_hold", "1");
	assert_answer(watcher, "SELECT count(*) FROM semel_dead_letter", "2");
	semel_libpq.finish(consumer);
	semel_libpq.finish(watcher);
}

static void a_letter_that_comes_back_while_it_is_pruned_stays_and_leaves_no_claim(void **state)
{
	(void)state;
	PGconn *consumer = connect_as_application(), *watcher = connect_as_application();
	struct other pruner = { .act = prune_dead_letters };
	hold_behind_an_old_letter(watcher);
	postgres_ask(watcher, "DELETE FROM semel_hold");
	postgres_ask(consumer, "BEGIN; UPDATE semel_dead_letter SET failed_at = now()");
	start_other(&pruner, watcher);
	postgres_ask(consumer, "COMMIT");
	end_other(&pruner);
	assert_answer(watcher, "SELECT count(*) FROM semel_dead_letter", "1");
	assert_answer(watcher, "SELECT count(*) FROM semel_inbox", "0");
	semel_libpq.finish(consumer);
	semel_libpq.finish(watcher);
}

/* e1 was refused for good; a relay is about to set e2 aside behind it, under its lane's fence. */
static PGconn *relay_that_parks_e2(PGconn *watcher)
{
	PGconn *relay = connect_as_application();
	postgres_ask(watcher,
		     "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type,"
		     " payload, created_at) VALUES ('e1', 'order', 'a', 't', '{}', '2025-01-01'),"
		     " ('e2', 'order', 'a', 't', '{}', '2025-01-01');"
		     " UPDATE semel_outbox SET status = 'FAILED' WHERE id = 'e1';"
		     " INSERT INTO semel_outbox_exception (lane, seq, aggregate_type, aggregate_id,"
		     " state) SELECT lane, seq, aggregate_type, aggregate_id, 'failed'"
		     " FROM semel_outbox WHERE id = 'e1';"
		     " INSERT INTO semel_dead_letter (entry_id, scope, event_id, aggregate_type,"
		     " aggregate_id, topic, failed_at) VALUES ('d1', 'relay', 'e1', 'order', 'a',"
		     " 't', '2025-01-01')");
	postgres_ask(relay, "BEGIN; UPDATE semel_lease SET low_seq = low_seq WHERE lane ="
			    " (SELECT lane FROM semel_outbox WHERE id = 'e2');"
			    " INSERT INTO semel_outbox_exception (lane, seq, aggregate_type,"
			    " aggregate_id, state) SELECT lane, seq, aggregate_type, aggregate_id,"
			    " 'parked' FROM semel_outbox WHERE id = 'e2'");
	return relay;
}

static void an_exception_that_has_just_gained_a_follower_is_not_pruned(void **state)
{
	(void)state;
	PGconn *watcher = connect_as_application();
	PGconn *relay = relay_that_parks_e2(watcher);
	struct other pruner = { .act = prune_dead_letters };
	start_other(&pruner, watcher);
	postgres_ask(relay, "COMMIT");
	end_other(&pruner);
	assert_answer(watcher,
		      "SELECT string_agg(state, ' ' ORDER BY seq)"
		      " FROM semel_outbox_exception",
		      "failed parked");
	assert_answer(watcher, "SELECT count(*) FROM semel_dead_letter", "1");
	semel_libpq.finish(relay);
	semel_libpq.finish(watcher);
}

static semel_status discard_letter_of_the_relay(semel_store *store)
{
	struct semel_event event = store_event("e1", "a");
	struct semel_dead_letter_row entry = { .entry_id = SEMEL_TEXT("d1"),
					       .scope = SEMEL_TEXT("relay"),
					       .event = event };
	semel_tx tx = store_tx(store);
	semel_status status = store->driver->begin(store, NULL);
	if (status == SEMEL_OK)
		status = store->driver->dead_letters->move(tx, &entry, SEMEL_DEAD_DISCARDED, "no",
							   STORE_NOW, NULL);
	if (status == SEMEL_OK)
		status = store->driver->dead_letters->return_to_outbox(tx, &entry, true, NULL);
	return status == SEMEL_OK ? store->driver->commit(store, NULL) : status;
}

static void an_event_that_is_just_parked_goes_when_the_one_before_it_is_discarded(void **state)
{
	(void)state;
	PGconn *watcher = connect_as_application();
	PGconn *relay = relay_that_parks_e2(watcher);
	struct other discarder = { .act = discard_letter_of_the_relay };
	start_other(&discarder, watcher);
	postgres_ask(relay, "COMMIT");
	end_other(&discarder);
	assert_answer(watcher,
		      "SELECT string_agg(state, ' ' ORDER BY seq)"
		      " FROM semel_outbox_exception",
		      "due");
	semel_libpq.finish(relay);
	semel_libpq.finish(watcher);
}

/* ---- parking --------------------------------------------------------------------------------- */

static struct semel_lease lane_of_e2;

static semel_status park_e2(semel_store *store)
{
	struct semel_outbox_row row = { .event = store_event("e2", "a"), .seq = 2 };
	struct semel_mark mark = { .row = &row, .kind = SEMEL_MARK_PARKED };
	struct semel_mark_batch batch = {
		.marks = &mark, .count = 1, .now_ms = STORE_NOW, .expires_at_ms = STORE_NOW + 7000
	};
	return store->driver->outbox->mark(store, &lane_of_e2, &batch, NULL);
}

/* Whoever discards the head has the lane, and has not committed yet; the relay, which has read the
 * row as held, waits for the lane, and then finds no row to park it behind. */
static void an_event_is_not_parked_behind_one_that_is_being_discarded(void **state)
{
	(void)state;
	PGconn *discarder = connect_as_application(), *watcher = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct other parker = { .act = park_e2 };
	semel_libpq.finish(relay_that_parks_e2(watcher));
	store_relay_open(&relay, store, "r");
	lane_of_e2 = relay.leases.all[atoi(
		postgres_ask(watcher, "SELECT lane FROM semel_outbox WHERE id = 'e2'"))];
	postgres_ask(discarder, "BEGIN; SELECT 1 FROM semel_lease FOR UPDATE;"
				" DELETE FROM semel_outbox_exception");
	start_other(&parker, watcher);
	assert_false(atomic_load(&parker.over));
	postgres_ask(discarder, "COMMIT");
	end_other(&parker);
	assert_answer(watcher, "SELECT string_agg(state, ' ') FROM semel_outbox_exception", "due");
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(discarder);
	semel_libpq.finish(watcher);
}

/* Prune has the lane first, and then the letter; so does a decision about the letter. */
static void a_discard_waits_for_who_has_the_lane_and_neither_fails(void **state)
{
	(void)state;
	PGconn *pruner = connect_as_application(), *watcher = connect_as_application();
	struct other discarder = { .act = discard_letter_of_the_relay };
	semel_libpq.finish(relay_that_parks_e2(watcher));
	postgres_ask(pruner, "BEGIN; SELECT 1 FROM semel_lease FOR UPDATE");
	start_other(&discarder, watcher);
	assert_false(atomic_load(&discarder.over));
	postgres_ask(pruner, "SELECT 1 FROM semel_dead_letter FOR UPDATE; COMMIT");
	end_other(&discarder);
	assert_answer(watcher, "SELECT status FROM semel_dead_letter", "DISCARDED");
	assert_answer(watcher, "SELECT count(*) FROM semel_outbox_exception", "0");
	semel_libpq.finish(pruner);
	semel_libpq.finish(watcher);
}

/* ---- discard --------------------------------------------------------------------------------- */

static semel_status discard_d1(semel_store *store)
{
	return semel_dead_letter_discard(store, "d1", "no", NULL);
}

/* The consumer has the hold first, and then the letter; so does a discard. */
static void a_discard_waits_for_a_consumer_that_has_the_hold_and_neither_fails(void **state)
{
	(void)state;
	PGconn *consumer = connect_as_application(), *watcher = connect_as_application();
	struct other discarder = { .act = discard_d1 };
	hold_behind_an_old_letter(watcher);
	postgres_ask(consumer, "BEGIN; SELECT 1 FROM semel_hold FOR UPDATE");
	start_other(&discarder, watcher);
	postgres_ask(consumer, "UPDATE semel_dead_letter SET attempts = attempts + 1; COMMIT");
	end_other(&discarder);
	assert_answer(watcher, "SELECT status FROM semel_dead_letter", "DISCARDED");
	assert_answer(watcher, "SELECT count(*) FROM semel_hold", "0");
	semel_libpq.finish(consumer);
	semel_libpq.finish(watcher);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* Two consumers have a copy each of an event whose replay was asked for once. */
static semel_status read_state_of_e1(semel_store *store)
{
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_state_query query = { SEMEL_TEXT("e1"),
					   { SEMEL_TEXT("order"), SEMEL_TEXT("a") } };
	struct semel_state_result answer;
	struct semel_state_batch batch = { arena, &query, &answer, 1 };
	semel_status status = store->driver->begin(store, NULL);
	if (status == SEMEL_OK)
		status = store->driver->holds->states_read(store_tx(store), SEMEL_TEXT("billing"),
							   &batch, NULL);
	store->driver->rollback(store);
	semel_arena_free(arena);
	if (status != SEMEL_OK)
		return status;
	return answer.settled && answer.hold.state == SEMEL_HOLD_NONE ? SEMEL_OK : SEMEL_INTERNAL;
}

static void whoever_waited_for_a_hold_or_a_letter_sees_what_became_of_them(void **state)
{
	(void)state;
	static const char *const locks[] = { "SELECT 1 FROM semel_hold FOR UPDATE", "" };
	PGconn *consumer = connect_as_application(), *watcher = connect_as_application();
	for (int i = 0; i < 2; i++) {
		struct other second = { .act = read_state_of_e1 };
		postgres_ask(watcher, "DELETE FROM semel_dead_letter");
		hold_behind_an_old_letter(watcher);
		postgres_ask(watcher, "UPDATE semel_dead_letter SET status = 'REPLAYED'");
		if (i == 1)
			postgres_ask(watcher, "DELETE FROM semel_hold");
		postgres_ask(consumer, "BEGIN");
		if (*locks[i] != '\0')
			postgres_ask(consumer, locks[i]);
		postgres_ask(consumer, "UPDATE semel_dead_letter SET settled_at = now();"
				       " DELETE FROM semel_hold");
		start_other(&second, watcher);
		postgres_ask(consumer, "COMMIT");
		end_other(&second);
	}
	semel_libpq.finish(consumer);
	semel_libpq.finish(watcher);
}

/* ---- a refusal of what the change stream delivered before its commit could be seen ------------
 */

static void a_refusal_of_a_row_that_cannot_be_seen_yet_is_marked_once_it_can(void **state)
{
	(void)state;
	PGconn *writer = connect_as_application(), *watcher = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_relay_open(&relay, store, "r");
	postgres_ask(writer, "BEGIN; INSERT INTO semel_outbox (id, aggregate_type, aggregate_id,"
			     " event_type, payload) VALUES ('e1', 'order', 'a', 't', '{}')");
	int64_t seq = atoll(postgres_ask(writer, "SELECT seq FROM semel_outbox"));
	int lane = atoi(postgres_ask(writer, "SELECT lane FROM semel_outbox"));
	const struct semel_outbox_row row = { .seq = seq,
					      .lane = lane,
					      .event = { .id = SEMEL_TEXT("e1"),
							 .type = SEMEL_TEXT("t"),
							 .topic = SEMEL_TEXT("order.events"),
							 .aggregate_type = SEMEL_TEXT("order"),
							 .aggregate_id = SEMEL_TEXT("a"),
							 .payload = SEMEL_TEXT("{}") } };
	const struct semel_mark mark = {
		.row = &row, .kind = SEMEL_MARK_FAILED, .attempts = 1, .reason = "no", .holds = true
	};
	const struct semel_mark_batch batch = {
		.marks = &mark, .count = 1, .now_ms = STORE_NOW, .expires_at_ms = STORE_NOW + 5000
	};
	struct semel_lease *lease = &relay.leases.all[lane];
	assert_int_equal(store->driver->outbox->mark(store, lease, &batch, NULL),
			 SEMEL_NOT_FINISHED);
	assert_answer(watcher, "SELECT count(*) FROM semel_dead_letter", "0");
	postgres_ask(writer, "COMMIT");
	assert_ok(store->driver->outbox->mark(store, lease, &batch, NULL));
	assert_answer(watcher, "SELECT status || attempts FROM semel_outbox", "FAILED1");
	assert_answer(watcher, "SELECT count(*) FROM semel_dead_letter", "1");
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(writer);
	semel_libpq.finish(watcher);
}

static const struct CMUnitTest tests[] = {
	POSTGRES_TEST(a_hold_that_has_just_gained_a_follower_is_not_pruned),
	POSTGRES_TEST(a_letter_that_comes_back_while_it_is_pruned_stays_and_leaves_no_claim),
	POSTGRES_TEST(an_exception_that_has_just_gained_a_follower_is_not_pruned),
	POSTGRES_TEST(an_event_that_is_just_parked_goes_when_the_one_before_it_is_discarded),
	POSTGRES_TEST(an_event_is_not_parked_behind_one_that_is_being_discarded),
	POSTGRES_TEST(a_discard_waits_for_who_has_the_lane_and_neither_fails),
	POSTGRES_TEST(a_discard_waits_for_a_consumer_that_has_the_hold_and_neither_fails),
	POSTGRES_TEST(whoever_waited_for_a_hold_or_a_letter_sees_what_became_of_them),
	POSTGRES_TEST(a_refusal_of_a_row_that_cannot_be_seen_yet_is_marked_once_it_can),
};

int main(void)
{
	if (postgres_is_missing("store: two at once on postgres"))
		return 0;
	return cmocka_run_group_tests_name("store: two at once on postgres", tests, NULL, NULL);
}
