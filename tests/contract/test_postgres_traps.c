/* SPDX-License-Identifier: Apache-2.0 */
/* What a server, its settings and its users may do that would lose an event or double an effect,
 * and must not. */
#include "contract/postgres_steps.h"

#include <semel/inbox.h>
#include <semel/outbox.h>

#include <sys/resource.h>

static const semel_event_input input = {
	.type = "order.created.v1", .aggregate_type = "order", .aggregate_id = "a", .payload = "{}"
};

static long resident_peak_kb(void)
{
	struct rusage usage;
	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_maxrss;
}

/* ---- numbers that come late ------------------------------------------------------------------ */

/* An idle transaction elsewhere keeps the snapshots' way shut, so that the writers are asked for
 * one by one. */
static void a_prepared_transaction_is_waited_for(void **state)
{
	(void)state;
	PGconn *late = connect_as_application(), *idler = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	postgres_ask(idler, "BEGIN; SELECT pg_current_xact_id()");
	postgres_ask(late, "BEGIN; SELECT semel_publish('t', 'order', 'a', '{}', id => 'late')");
	store_publish(store, "early", "a", NULL);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "early");
	int64_t early = relay.rows[0].seq;
	store_relay_published(&relay, "early");
	for (int i = 0; i < 1300; i++) { /* it has begun to list those who write */
		assert_true(complete_seq(&relay) < early);
		usleep(1000);
	}
	postgres_ask(late, "PREPARE TRANSACTION 'semel_trap'");
	for (int i = 0; i < 700; i++) {
		assert_true(complete_seq(&relay) < early);
		usleep(1000);
	}
	postgres_ask(late, "COMMIT PREPARED 'semel_trap'");
	assert_string_equal(store_relay_fetch(&relay, 0), "late");
	wait_for_complete(&relay, early);
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(late);
	semel_libpq.finish(idler);
}

static void numbers_in_blocks_are_refused(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_crew crew;
	semel_error error = { 0 };
	postgres_ask(connection, "ALTER SEQUENCE semel_outbox_seq CACHE 20");
	assert_int_equal(
		store->driver->relay_join(store, "r", STORE_NOW, STORE_NOW + 1, &crew, &error),
		SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "CACHE 1"));
	semel_store_close(store);
	semel_libpq.finish(connection);
}

static int64_t low_seq_of_lane_0(semel_store *store)
{
	return store_leases(store).all[0].low_seq;
}

/* As after a fail-over to a logical replica, which has the rows and not the sequence. */
static void a_low_mark_above_all_numbers_is_not_believed(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	postgres_ask(connection, "UPDATE semel_lease SET low_seq = 1000000");
	store_publish(store, "e1", "a", NULL);
	assert_int_equal(low_seq_of_lane_0(store), 0);
	store_relay_open(&relay, store, "r");
	assert_int_equal(relay.leases.all[0].low_seq, 0);
	assert_answer(connection, "SELECT max(low_seq) FROM semel_lease", "0");
	assert_string_equal(store_relay_fetch(&relay, relay.leases.all[0].low_seq), "e1");
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

static void init_brings_the_numbers_beyond_those_of_the_rows(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	postgres_ask(connection, "SELECT semel_publish('t', 'order', 'a', '{}')"
				 " FROM generate_series(1, 5)");
	postgres_ask(connection, "SELECT setval('semel_outbox_seq', 2)");
	assert_ok(semel_store_init(store_url, NULL));
	assert_answer(connection, "SELECT last_value FROM semel_outbox_seq", "5");
	postgres_ask(connection, "SELECT semel_publish('t', 'order', 'a', '{}')");
	assert_ok(semel_store_init(store_url, NULL));
	assert_answer(connection, "SELECT last_value FROM semel_outbox_seq", "6");
	semel_libpq.finish(connection);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* 48 events of 4 MB would be all in memory at once, if the row count alone were asked for. */
static void a_batch_of_large_events_is_bounded_by_its_bytes(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	postgres_ask(connection, "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id,"
				 " event_type, payload) SELECT 'e' || g, 'order', 'a', 't',"
				 " repeat(g::text, 4000000 / length(g::text))"
				 " FROM generate_series(10, 57) AS g");
	long before_kb = resident_peak_kb();
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "e10"); /* bytes_max is 1 MB */
	assert_int_equal(relay.rows[0].event.payload.length, 4000000);
	assert_memory_equal(relay.rows[0].event.payload.data, "10101010", 8);
	relay.batch.bytes_max = 9000000;
	assert_string_equal(store_relay_fetch(&relay, relay.rows[0].seq), "e11 e12");
	assert_memory_equal(relay.rows[1].event.payload.data, "12121212", 8);
	assert_true(resident_peak_kb() - before_kb < 60000);
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* Large and small, text and bytes, side by side. */
static void payloads_of_all_kinds_come_as_they_went(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct store_relay relay;
	postgres_ask(
		connection,
		"INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type,"
		" payload, payload_bytes) VALUES ('e1', 'order', 'a', 't', '', NULL),"
		" ('e2', 'order', 'a', 't', NULL, '\\x00ff00'), ('e3', 'order', 'a', 't', NULL,"
		" decode(repeat('ff00', 20000), 'hex')), ('e4', 'order', 'a', 't',"
		" repeat(U&'\\00e4', 16384), NULL), ('e5', 'order', 'a', 't', NULL, '')");
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "e1 e2 e3 e4 e5");
	static const size_t lengths[] = { 0, 3, 40000, 32768, 0 };
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(relay.rows[i].event.payload.length, lengths[i]);
	assert_memory_equal(relay.rows[1].event.payload.data, "\0\377\0", 3);
	assert_memory_equal(relay.rows[2].event.payload.data + 39998, "\377\0", 2);
	assert_memory_equal(relay.rows[3].event.payload.data + 32766, "\303\244", 2);
	store_relay_close(&relay);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void a_claim_does_not_depend_on_how_the_session_writes_dates(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_claim_outcome outcome;
	const semel_claim claim = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	postgres_ask(connection,
		     "SET DateStyle = 'German'; SET TimeZone = 'Pacific/Apia';"
		     " SET IntervalStyle = 'sql_standard'; SET bytea_output = 'escape'");
	for (int i = 0; i < 2; i++) {
		postgres_ask(connection, "BEGIN");
		assert_ok(semel_inbox_try_claim_same_tx(semel_borrow_postgres(connection), &claim,
							&outcome, NULL));
		assert_int_equal(outcome, i == 0 ? SEMEL_CLAIMED : SEMEL_DUPLICATE);
		postgres_ask(connection, "COMMIT");
	}
	assert_answer(connection, "SELECT week_start = DATE '2025-11-10' FROM semel_inbox", "t");
	semel_libpq.finish(connection);
}

static const struct CMUnitTest tests[] = {
	POSTGRES_TEST(a_prepared_transaction_is_waited_for),
	POSTGRES_TEST(numbers_in_blocks_are_refused),
	POSTGRES_TEST(a_low_mark_above_all_numbers_is_not_believed),
	POSTGRES_TEST(init_brings_the_numbers_beyond_those_of_the_rows),
	POSTGRES_TEST(a_batch_of_large_events_is_bounded_by_its_bytes),
	POSTGRES_TEST(payloads_of_all_kinds_come_as_they_went),
	POSTGRES_TEST(a_claim_does_not_depend_on_how_the_session_writes_dates),
};

int main(void)
{
	(void)input;
	if (postgres_is_missing("store: traps of postgres"))
		return 0;
	return cmocka_run_group_tests_name("store: traps of postgres", tests, NULL, NULL);
}
