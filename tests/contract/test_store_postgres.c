/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL store keeps the contract of stores, and what is true of PostgreSQL alone. */
#include "contract/postgres_steps.h"

#include <semel/inbox.h>
#include <semel/outbox.h>

static const semel_event_input input = {
	.type = "order.created.v1", .aggregate_type = "order", .aggregate_id = "a", .payload = "{}"
};

/* ---- borrowed connections -------------------------------------------------------------------- */

static void a_borrowed_transaction_commits_event_and_business_change_together(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "CREATE TABLE orders (id text)");
	postgres_ask(connection, "BEGIN; INSERT INTO orders VALUES ('o1')");
	assert_ok(semel_outbox_publish(semel_borrow_postgres(connection), &input, NULL, NULL));
	postgres_ask(connection, "ROLLBACK");
	assert_answer(connection, "SELECT count(*) FROM semel_outbox", "0");
	postgres_ask(connection, "BEGIN; INSERT INTO orders VALUES ('o1')");
	assert_ok(semel_outbox_publish(semel_borrow_postgres(connection), &input, NULL, NULL));
	postgres_ask(connection, "COMMIT");
	assert_answer(connection, "SELECT count(*) FROM semel_outbox, orders", "1");
	assert_answer(connection, "SELECT count(*) FROM pg_prepared_statements", "0");
	assert_ptr_equal(semel_tx_postgres(semel_borrow_postgres(connection)), connection);
	assert_null(semel_tx_sqlite(semel_borrow_postgres(connection)));
	semel_libpq.finish(connection);
}

static void a_borrowed_connection_wants_a_sound_transaction(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_tx tx = semel_borrow_postgres(connection);
	semel_claim_outcome outcome;
	const semel_claim claim = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	assert_int_equal(semel_outbox_publish(tx, &input, NULL, NULL), SEMEL_NO_TRANSACTION);
	assert_int_equal(semel_inbox_try_claim_same_tx(tx, &claim, &outcome, NULL),
			 SEMEL_NO_TRANSACTION);
	postgres_ask(connection, "BEGIN");
	assert_refused(connection, "SELECT 1/0");
	assert_int_equal(semel_outbox_publish(tx, &input, NULL, NULL), SEMEL_NO_TRANSACTION);
	postgres_ask(connection, "ROLLBACK");
	assert_answer(connection, "SELECT count(*) FROM semel_outbox", "0");
	semel_libpq.finish(connection);
}

static void a_borrowed_connection_without_the_tables_is_refused_with_the_remedy(void **state)
{
	(void)state;
	semel_error error = { 0 };
	PGconn *connection = postgres_connect(store_url);
	postgres_ask(connection, "BEGIN");
	assert_int_equal(
		semel_outbox_publish(semel_borrow_postgres(connection), &input, NULL, &error),
		SEMEL_NO_SCHEMA);
	assert_non_null(strstr(error.text, "init"));
	semel_libpq.finish(connection);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void a_password_is_never_in_a_message(void **state)
{
	(void)state;
	static const char *const urls[] = { "postgres://u:sesame@127.0.0.1:1/db",
					    "postgres://u:sesame@127.0.0.1:99999999/db",
					    "postgres://u:sesame%zz@127.0.0.1:1/db",
					    "postgres://127.0.0.1:1/db?password=sesame&x=1" };
	for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++) {
		semel_store *store = NULL;
		semel_error error = { 0 };
		assert_int_not_equal(semel_store_open(urls[i], &store, &error), SEMEL_OK);
		assert_null(strstr(error.text, "sesame"));
		assert_true(strlen(error.text) > 0);
	}
}

static void an_unreachable_server_is_an_outage(void **state)
{
	(void)state;
	semel_store *store = NULL;
	assert_int_equal(semel_store_open("postgresql://127.0.0.1:1/db", &store, NULL),
			 SEMEL_OUTAGE);
}

static void a_connection_that_was_ended_is_an_outage(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_begin(store);
	char sql[96];
	snprintf(sql, sizeof(sql), "SELECT pg_terminate_backend(%d, 5000)",
		 semel_libpq.backendPID(semel_tx_postgres(store_tx(store))));
	assert_answer(connection, sql, "t");
	assert_int_equal(store->driver->commit(store, &error), SEMEL_OUTAGE);
	assert_int_equal(store->driver->begin(store, &error), SEMEL_OUTAGE);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* ---- commits that come late ------------------------------------------------------------------ */

static void the_mark_waits_for_a_number_that_is_drawn_and_not_committed(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *late = store_open_one();
	struct store_relay relay;
	struct semel_event event = store_event("late", "a");
	store_begin(late);
	assert_ok(late->driver->outbox->insert(store_tx(late), &event, 1, NULL));
	store_publish(store, "early", "a", NULL);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "early");
	int64_t early = relay.rows[0].seq;
	store_relay_published(&relay, "early");
	for (int i = 0; i < 20; i++)
		assert_true(complete_seq(&relay) < early - 1);
	store_commit(late);
	assert_string_equal(store_relay_fetch(&relay, 0), "late");
	wait_for_complete(&relay, early);
	store_relay_close(&relay);
	semel_store_close(late);
	semel_store_close(store);
}

static void a_transaction_that_began_before_and_draws_later_is_waited_for(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *older = store_open_one(),
		    *younger = store_open_one();
	struct store_relay relay;
	struct semel_event first = store_event("first", "a"), second = store_event("second", "a");
	store_execute(store, "CREATE TABLE orders (id text)");
	/* The younger transaction has the lower number, and the older one commits. */
	store_begin(older);
	assert_ok(older->driver->execute(older, "INSERT INTO orders VALUES ('o1')", NULL));
	store_begin(younger);
	assert_ok(younger->driver->outbox->insert(store_tx(younger), &first, 1, NULL));
	assert_ok(older->driver->outbox->insert(store_tx(older), &second, 1, NULL));
	store_commit(older);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "second");
	int64_t seq = relay.rows[0].seq;
	store_relay_published(&relay, "second");
	for (int i = 0; i < 20; i++)
		assert_true(complete_seq(&relay) < seq - 1);
	int64_t complete = complete_seq(&relay);
	store_commit(younger);
	assert_string_equal(store_relay_fetch(&relay, complete), "first");
	store_relay_close(&relay);
	semel_store_close(younger);
	semel_store_close(older);
	semel_store_close(store);
}

static void an_old_transaction_that_is_no_producer_does_not_hold_the_mark_for_long(void **state)
{
	(void)state;
	PGconn *idler = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	postgres_ask(idler, "BEGIN; CREATE TEMP TABLE t (); SELECT pg_current_xact_id()");
	store_publish(store, "e1", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	int64_t seq = relay.rows[0].seq;
	store_relay_published(&relay, "e1");
	wait_for_complete(&relay, seq);
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(idler);
}

/* ---- relays that share ----------------------------------------------------------------------- */

static void relays_know_each_other_until_they_leave_or_fall_silent(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_relay_group group;
	const int64_t soon = STORE_NOW + 5000;
	assert_ok(store->driver->outbox->relay_join(store, "b", STORE_NOW, soon, &group, NULL));
	assert_int_equal(group.members, 1);
	assert_ok(store->driver->outbox->relay_join(store, "a", STORE_NOW, soon, &group, NULL));
	assert_int_equal(group.members, 2);
	assert_int_equal(group.rank, 0);
	assert_ok(store->driver->outbox->relay_join(store, "b", STORE_NOW, soon, &group, NULL));
	assert_int_equal(group.rank, 1);
	store->driver->outbox->relay_leave(store, "a");
	assert_ok(store->driver->outbox->relay_join(store, "b", STORE_NOW, soon, &group, NULL));
	assert_int_equal(group.members, 1);
	assert_ok(
		store->driver->outbox->relay_join(store, "c", soon + 1, soon + 5000, &group, NULL));
	assert_int_equal(group.members, 1); /* b is silent for too long */
	semel_store_close(store);
}

static void an_aggregate_is_always_in_the_same_lane(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "INSERT INTO semel_outbox (aggregate_type, aggregate_id,"
				 " event_type, payload) SELECT 'order', 'o' || g % 100, 't', '{}'"
				 " FROM generate_series(1, 1000) AS g");
	assert_answer(connection,
		      "SELECT max(n) FROM (SELECT count(DISTINCT lane) AS n FROM semel_outbox"
		      " GROUP BY aggregate_id) AS lanes",
		      "1");
	assert_answer(connection, "SELECT count(DISTINCT lane) FROM semel_outbox", "16");
	semel_libpq.finish(connection);
}

static void a_mark_touches_no_index(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	assert_answer(
		connection,
		"SELECT string_agg(a.attname, ' ' ORDER BY a.attname) FROM pg_index i"
		" JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
		" WHERE i.indrelid = 'semel_outbox'::regclass",
		"id lane seq");
	semel_libpq.finish(connection);
}

/* ---- for other languages --------------------------------------------------------------------- */

static void the_function_publishes_text_and_json(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "SELECT semel_publish('order.created.v1', 'order', 'ord-1',"
				 " '{\"total\": 5}')");
	postgres_ask(connection,
		     "SELECT semel_publish('order.paid.v1', 'order', 'ord-1',"
		     " jsonb_build_object('total', 5), headers => '{\"tenantId\":\"t\"}',"
		     " topic => 'billing', id => 'mine')");
	assert_answer(connection, "SELECT payload FROM semel_outbox WHERE topic IS NULL",
		      "{\"total\": 5}");
	assert_answer(connection,
		      "SELECT event_type || topic || headers FROM semel_outbox"
		      " WHERE id = 'mine'",
		      "order.paid.v1billing{\"tenantId\":\"t\"}");
	assert_refused(connection, "SELECT semel_publish('t', 'order', 'o', '{}', id => 'mine')");
	assert_refused(connection, "SELECT semel_publish('t', 'order', ' ', '{}')");
	semel_libpq.finish(connection);
}

static void the_function_claims_once_and_joins_the_transaction(void **state)
{
	(void)state;
	static const char claim[] = "SELECT semel_try_claim('billing', 'e1', now(), 'order.events',"
				    " 0, 42)";
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "BEGIN");
	assert_answer(connection, claim, "t");
	postgres_ask(connection, "ROLLBACK");
	assert_answer(connection, claim, "t");
	assert_answer(connection, claim, "f");
	assert_refused(connection, "SELECT semel_try_claim(' ', 'e1', now(), 't', 0, 1)");
	assert_refused(connection, "SELECT semel_try_claim('s', '', now(), 't', 0, 1)");
	assert_refused(connection, "SELECT semel_try_claim('s', 'e', NULL, 't', 0, 1)");
	assert_refused(connection, "SELECT semel_try_claim('s', 'e', now(), NULL, 0, 1)");
	assert_answer(connection, "SELECT count(*) FROM semel_inbox", "1");
	semel_libpq.finish(connection);
}

/* ---- weeks ----------------------------------------------------------------------------------- */

static void every_event_finds_its_week(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "SELECT semel_try_claim('s', 'now', now(), 't'),"
				 " semel_try_claim('s', 'ahead', now() + interval '7 days', 't'),"
				 " semel_try_claim('s', 'old', now() - interval '1 year', 't')");
	assert_answer(connection, "SELECT count(DISTINCT tableoid) FROM semel_inbox", "3");
	assert_answer(connection, "SELECT event_id FROM semel_inbox_other", "old");
	semel_libpq.finish(connection);
}

static void an_old_week_goes_with_its_partition_and_claims_at_work_stay(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_prune_counts counts;
	struct semel_retention_cutoffs cutoffs = { 0 };
	uint64_t gone = 0;
	bool more = true;
	postgres_ask(connection, "SELECT semel_try_claim('s', 'e' || g, now(), 't')"
				 " FROM generate_series(1, 50) AS g");
	postgres_ask(connection, "UPDATE semel_inbox SET status = 'CLAIMED' WHERE event_id = 'e7'");
	cutoffs.inbox_ms =
		strtoll(postgres_ask(connection, "SELECT (extract(epoch FROM now()) * 1000)::bigint"
						 " + 8 * 86400000::bigint"),
			NULL, 10);
	while (more) {
		assert_ok(
			store->driver->upkeep->prune(store, &cutoffs, false, &counts, &more, NULL));
		gone += counts.inbox;
	}
	assert_int_equal(gone, 49);
	assert_answer(connection, "SELECT event_id || tableoid::regclass FROM semel_inbox",
		      "e7semel_inbox_other");
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* ---- order between consumers ------------------------------------------------------------------
 */

/* Without the lock one consumer parks behind a hold that another one has just found empty. */
static void a_hold_that_was_read_is_locked_until_the_transaction_ends(void **state)
{
	(void)state;
	static const char probe[] = "SELECT 1 FROM semel_hold FOR UPDATE NOWAIT";
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_event event = store_event("e1", "a");
	struct semel_hold hold = { .aggregate_type = event.aggregate_type,
				   .aggregate_id = event.aggregate_id,
				   .head_id = SEMEL_TEXT("e0"),
				   .state = SEMEL_HOLD_DEAD };
	struct semel_text scope = SEMEL_TEXT("billing");
	struct semel_hold_key key = { event.aggregate_type, event.aggregate_id };
	store_begin(store);
	assert_ok(store->driver->holds->put(store_tx(store), scope, &hold, NULL));
	store_commit(store);
	assert_answer(connection, probe, "1");
	store_begin(store);
	assert_ok(store->driver->holds->get(store_tx(store), scope, &key, arena, &hold, NULL));
	assert_refused(connection, probe);
	store_commit(store);
	assert_answer(connection, probe, "1");
	semel_arena_free(arena);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

#define TEST(name) POSTGRES_TEST(name)

static const struct CMUnitTest tests[] = {
	TEST(a_borrowed_transaction_commits_event_and_business_change_together),
	TEST(a_borrowed_connection_wants_a_sound_transaction),
	TEST(a_borrowed_connection_without_the_tables_is_refused_with_the_remedy),
	TEST(a_password_is_never_in_a_message),
	TEST(an_unreachable_server_is_an_outage),
	TEST(a_connection_that_was_ended_is_an_outage),
	TEST(the_mark_waits_for_a_number_that_is_drawn_and_not_committed),
	TEST(a_transaction_that_began_before_and_draws_later_is_waited_for),
	TEST(an_old_transaction_that_is_no_producer_does_not_hold_the_mark_for_long),
	TEST(relays_know_each_other_until_they_leave_or_fall_silent),
	TEST(an_aggregate_is_always_in_the_same_lane),
	TEST(a_mark_touches_no_index),
	TEST(the_function_publishes_text_and_json),
	TEST(the_function_claims_once_and_joins_the_transaction),
	TEST(every_event_finds_its_week),
	TEST(an_old_week_goes_with_its_partition_and_claims_at_work_stay),
	TEST(a_hold_that_was_read_is_locked_until_the_transaction_ends),
};

int main(void)
{
	const struct store_suite_factory postgres = { "store contract: postgres", postgres_make,
						      postgres_drop };
	if (postgres_is_missing(postgres.name))
		return 0;
	int failed = store_suite_run(&postgres);
	return failed + cmocka_run_group_tests_name("store: postgres alone", tests, NULL, NULL);
}
