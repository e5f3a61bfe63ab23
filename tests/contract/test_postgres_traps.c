/* SPDX-License-Identifier: Apache-2.0 */
/* What a server, its settings and its users may do that would lose an event or double an effect,
 * and must not. */
#include "contract/postgres_steps.h"
#include "store/postgres/postgres.h"

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
	struct semel_relay_group group;
	semel_error error = { 0 };
	postgres_ask(connection, "ALTER SEQUENCE semel_outbox_seq CACHE 20");
	assert_int_equal(store->driver->outbox->relay_join(store, "r", STORE_NOW, STORE_NOW + 1,
							   &group, &error),
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

/* ---- predecessors ---------------------------------------------------------------------------- */

static void a_relay_that_takes_over_knows_what_was_sent_before_it(void **state)
{
	(void)state;
	semel_store *first = store_open_one(), *second = store_open_one();
	struct store_relay one, other;
	store_publish(first, "e1", "a", "e2", "b", "e3", "a", NULL);
	store_relay_open(&one, first, "one");
	assert_string_equal(store_relay_fetch(&one, 0), "e1 e2 e3");
	store_relay_published(&one, "e1");
	store_relay_published(&one, "e2");
	store_relay_published(&one, "e3");
	store_publish(first, "e4", "a", "e5", "c", NULL);
	store_relay_open(&other, second, "other");
	assert_string_equal(store_relay_fetch(&other, 0), "e4 e5");
	assert_string_equal(other.rows[0].previous.data, "e3");
	assert_null(other.rows[1].previous.data);
	store_relay_close(&one);
	store_relay_close(&other);
	semel_store_close(second);
	semel_store_close(first);
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

/* ---- who can notify, and who cannot -----------------------------------------------------------
 */

/* A relay that listens: it gets the notifications from now on. */
static struct semel_wake *listen(semel_store *store)
{
	struct semel_wake *wake = NULL;
	assert_ok(semel_wake_new(&wake, NULL));
	store->driver->watch(store, wake);
	(void)store->driver->outbox->arm_wakeup(store, false);
	return wake;
}

static void a_relay_at_work_does_not_keep_a_notification_for_another(void **state)
{
	(void)state;
	semel_store *busy = store_open_one(), *sleeper = store_open_one();
	struct semel_wake *wakes[] = { listen(busy), listen(sleeper) };
	struct store_relay relay;
	store_relay_open(&relay, busy, "busy");
	store_publish(sleeper, "e1", "a", NULL);
	store_publish(sleeper, "e2", "a", NULL);
	complete_seq(&relay);
	complete_seq(&relay);
	assert_null(semel_libpq.notifies(semel_tx_postgres(store_tx(busy))));
	store_relay_close(&relay);
	semel_store_close(sleeper);
	semel_store_close(busy);
	semel_wake_free(wakes[0]);
	semel_wake_free(wakes[1]);
}

static void a_commit_in_two_phases_is_possible_while_a_relay_sleeps(void **state)
{
	(void)state;
	static const char publish[] = "BEGIN; SELECT semel_publish('t', 'order', 'a', '{}')";
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_wake *wake = listen(store);
	postgres_ask(connection, publish);
	assert_refused(connection, "PREPARE TRANSACTION 'semel_trap_2'");
	postgres_ask(connection, "SET semel.ring = 'off'");
	postgres_ask(connection, publish);
	postgres_ask(connection, "PREPARE TRANSACTION 'semel_trap_2'");
	postgres_ask(connection, "COMMIT PREPARED 'semel_trap_2'");
	assert_answer(connection, "SELECT count(*) FROM semel_outbox", "1");
	semel_store_close(store);
	semel_wake_free(wake);
	semel_libpq.finish(connection);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* A machine whose clock is an hour behind the server's. */
static semel_store *open_an_hour_behind(void)
{
	semel_store *store = store_open_one();
	((struct semel_pg_store *)store)->clock_offset_ms = 3600000;
	return store;
}

static void leases_go_by_the_clock_of_the_server(void **state)
{
	(void)state;
	static const int64_t hour_ms = 3600000;
	semel_store *behind = open_an_hour_behind(), *right = store_open_one();
	struct store_relay relay;
	store_relay_open(&relay, behind, "r"); /* until STORE_NOW + 5 s of its own clock */
	assert_int_equal(relay.leases.all[3].expires_at_ms, STORE_NOW + 5000);
	assert_int_equal(store_leases(behind).all[3].expires_at_ms, STORE_NOW + 5000);
	assert_int_equal(store_leases(right).all[3].expires_at_ms, STORE_NOW + 5000 + hour_ms);

	struct semel_inbox_claim claim = store_claim("e1");
	claim.status = SEMEL_INBOX_CLAIMED;
	claim.owner = "worker";
	claim.lease_until_ms = STORE_NOW + 30000;
	store_claim_now(behind, claim);
	assert_int_equal(store_claim_now(behind, claim).lease_until_ms, STORE_NOW + 30000);
	assert_int_equal(store_claim_now(right, claim).lease_until_ms, STORE_NOW + 30000 + hour_ms);
	store_relay_close(&relay);
	semel_store_close(right);
	semel_store_close(behind);
}

static void clocks_that_agree_are_left_alone(void **state)
{
	(void)state;
	semel_store *store = open_an_hour_behind();
	assert_ok(store->driver->inbox->renew(store, "worker", STORE_NOW, NULL)); /* reads again */
	assert_int_equal(((struct semel_pg_store *)store)->clock_offset_ms, 0);
	semel_store_close(store);
}

/* ---- what the server answers ----------------------------------------------------------------- */

/* The answer to the only statement of a handler. */
static semel_status run_effect(semel_store *store, semel_error *error)
{
	struct semel_event event = store_event("e1", "a");
	store_begin(store);
	assert_ok(store->driver->savepoint(store, NULL));
	semel_status status = store->driver->inbox->effect_run(store, &event, 1, error);
	store->driver->rollback(store);
	return status;
}

static void prepare_effect(semel_store *store, const char *sql)
{
	assert_ok(store->driver->inbox->effect_prepare(store, &sql, 1, NULL));
}

static void a_handler_whose_table_was_changed_is_prepared_anew_and_no_other_refusal_is(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	postgres_ask(connection, "CREATE TABLE t (a int); CREATE FUNCTION refuse() RETURNS void"
				 " LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not here' USING"
				 " ERRCODE = 'feature_not_supported'; END $$");
	prepare_effect(store, "SELECT * FROM t");
	assert_ok(run_effect(store, NULL));
	postgres_ask(connection, "ALTER TABLE t ADD b int");
	assert_int_equal(run_effect(store, NULL), SEMEL_OUTAGE);
	prepare_effect(store, "SELECT refuse()");
	assert_int_equal(run_effect(store, NULL), SEMEL_HANDLER_RETRY);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

static void an_effect_that_takes_too_long_costs_an_attempt_and_a_lock_does_not(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_execute(store, "CREATE TABLE t (a int)");
	store_execute(store, "SET statement_timeout = '1s'"); /* for all that is asked, too */
	prepare_effect(store, "SELECT pg_sleep(60)");
	assert_int_equal(run_effect(store, &error), SEMEL_HANDLER_RETRY);
	assert_int_equal(error.status, SEMEL_HANDLER_RETRY);
	store_execute(store, "SET statement_timeout = '60s'; SET lock_timeout = '100ms'");
	prepare_effect(store, "INSERT INTO t VALUES (1)");
	postgres_ask(connection, "BEGIN; LOCK TABLE t");
	assert_int_equal(run_effect(store, NULL), SEMEL_BUSY);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

static void a_pooler_that_swaps_sessions_is_named(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	uint64_t count = 0;
	assert_ok(store->driver->dead_letters->count(store, NULL, &count, NULL));
	semel_libpq.clear(semel_libpq.exec(semel_tx_postgres(store_tx(store)), "DEALLOCATE ALL"));
	assert_int_equal(store->driver->dead_letters->count(store, NULL, &count, &error),
			 SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "pooler"));
	semel_store_close(store);
}

/* In another's session, where a pooler shows us one, a name is missing; it must not be another's.
 */
static void two_connections_give_no_statement_the_same_name(void **state)
{
	(void)state;
	semel_store *one = store_open_one(), *other = store_open_one();
	uint64_t count = 0;
	assert_ok(one->driver->dead_letters->count(one, NULL, &count, NULL));
	assert_ok(other->driver->dead_letters->count(other, NULL, &count, NULL));
	PGresult *result = semel_libpq.exec(semel_tx_postgres(store_tx(one)),
					    "SELECT name FROM pg_prepared_statements");
	assert_true(semel_libpq.ntuples(result) > 0);
	for (int row = 0; row < semel_libpq.ntuples(result); row++) {
		const char *name = semel_libpq.getvalue(result, row, 0);
		PGresult *there = semel_libpq.execPrepared(semel_tx_postgres(store_tx(other)), name,
							   0, NULL, NULL, NULL, 0);
		assert_string_equal(semel_libpq.resultErrorField(there, PG_DIAG_SQLSTATE), "26000");
		semel_libpq.clear(there);
	}
	semel_libpq.clear(result);
	semel_store_close(one);
	semel_store_close(other);
}

static const char *count_prepared(semel_store *store)
{
	return postgres_ask(semel_tx_postgres(store_tx(store)),
			    "SELECT count(*) FROM pg_prepared_statements");
}

static void statements_run_without_room_to_prepare_them(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e2", "b");
	struct store_relay relay;
	uint64_t count = 0;
	assert_string_not_equal(count_prepared(store), "0"); /* opening it has prepared some */
	size_t full = semel_pg_of(store)->prepared_count;
	while (semel_pg_of(store)->prepared_count < SEMEL_PG_PREPARED_MAX)
		semel_pg_of(store)->prepared[semel_pg_of(store)->prepared_count++] = NULL;
	store_publish(store, "e1", "a", NULL);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "e1");
	store_relay_published(&relay, "e1");
	assert_int_equal(store_claim_now(store, store_claim("e1")).found, SEMEL_FOUND_NEW);
	store_add_dead_letter(store, store_dead("d1", &event));
	assert_ok(store->driver->dead_letters->count(store, NULL, &count, NULL));
	assert_int_equal(count, 1);
	assert_int_equal(strtoul(count_prepared(store), NULL, 10), full);
	store_relay_close(&relay);
	semel_store_close(store);
}

/* Sends a sum and reads it. */
static void assert_sent(semel_store *store)
{
	static const struct semel_pg_statement sum = { "add", "SELECT $1::int + $2::int" };
	PGconn *connection = semel_tx_postgres(store_tx(store));
	struct semel_pg_params params = { 0 };
	semel_pg_add_int(&params, 40);
	semel_pg_add_int(&params, 2);
	assert_ok(semel_pg_send(semel_pg_of(store), &sum, &params, NULL));
	PGresult *result = semel_libpq.getResult(connection);
	assert_string_equal(semel_libpq.getvalue(result, 0, 0), "42");
	semel_libpq.clear(result);
	assert_null(semel_libpq.getResult(connection));
}

static void a_statement_is_sent_with_and_without_room_to_prepare_it(void **state)
{
	(void)state;
	semel_store *prepares = store_open_one(), *is_full = store_open_one();
	assert_sent(prepares);
	assert_sent(prepares);
	semel_pg_of(is_full)->prepared_count = SEMEL_PG_PREPARED_MAX;
	assert_sent(is_full);
	semel_store_close(is_full);
	semel_store_close(prepares);
}

static void a_borrowed_connection_of_another_encoding_is_refused(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_error error = { 0 };
	postgres_ask(connection, "SET client_encoding = 'LATIN1'; BEGIN");
	assert_int_equal(
		semel_outbox_publish(semel_borrow_postgres(connection), &input, NULL, &error),
		SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "LATIN1"));
	postgres_ask(connection, "SET client_encoding = 'UTF8'");
	assert_ok(semel_outbox_publish(semel_borrow_postgres(connection), &input, NULL, NULL));
	semel_libpq.finish(connection);
}

static void functions_search_only_pg_catalog(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	assert_answer(connection,
		      "SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc"
		      " WHERE pronamespace = current_schema()::regnamespace"
		      " AND proname LIKE 'semel%' AND NOT coalesce("
		      "proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)",
		      "semel_lane semel_outbox_complete semel_outbox_ring semel_uuid7");
	semel_libpq.finish(connection);
}

/* ---- settings ---------------------------------------------------------------------------------
 */

static void expect_time_outs(const char *given, const char *expected)
{
	char url[STORE_SUITE_URL_SIZE * 2];
	semel_store *store = NULL;
	snprintf(url, sizeof(url), "%s%s", store_url,
		 given); /* its end are the session's options */
	assert_ok(semel_store_open(url, &store, NULL));
	assert_answer(semel_pg_of(store)->connection,
		      "SELECT current_setting('statement_timeout') || ' ' ||"
		      " current_setting('lock_timeout') || ' ' ||"
		      " current_setting('idle_in_transaction_session_timeout')",
		      expected);
	semel_store_close(store);
}

static void unset_time_outs_are_set_and_others_are_kept(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	expect_time_outs("%20-cstatement_timeout%3D0%20-clock_timeout%3D0"
			 "%20-cidle_in_transaction_session_timeout%3D0",
			 "1min 5s 1min");
	expect_time_outs("%20-cstatement_timeout%3D7s%20-clock_timeout%3D8s"
			 "%20-cidle_in_transaction_session_timeout%3D9s",
			 "7s 8s 9s");
	expect_time_outs("%20-cstatement_timeout%3D0%20-clock_timeout%3D8s"
			 "%20-cidle_in_transaction_session_timeout%3D0",
			 "1min 8s 1min");
}

/* docs/benchmarks.md measured them: a mark stays in its page, and vacuum comes in time. */
static void the_outbox_has_room_for_marks_and_is_vacuumed_early(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	assert_answer(connection,
		      "SELECT reloptions @> ARRAY['fillfactor=50',"
		      " 'autovacuum_vacuum_scale_factor=0.02', 'autovacuum_vacuum_threshold=1000',"
		      " 'autovacuum_vacuum_insert_scale_factor=0.05',"
		      " 'autovacuum_analyze_scale_factor=0.05', 'autovacuum_vacuum_cost_delay=0']"
		      " FROM pg_class WHERE oid = 'semel_outbox'::regclass",
		      "t");
	assert_answer(connection,
		      "SELECT reloptions FROM pg_class WHERE oid = 'semel_outbox_pkey'::regclass",
		      "{fillfactor=90}");
	assert_answer(connection,
		      "SELECT reloptions @> ARRAY['fillfactor=10',"
		      " 'autovacuum_vacuum_threshold=100', 'autovacuum_vacuum_scale_factor=0']"
		      " FROM pg_class WHERE oid = 'semel_lease'::regclass",
		      "t");
	semel_libpq.finish(connection);
}

/* ---- prune ----------------------------------------------------------------------------------- */

static uint64_t pruned_weeks(semel_store *store, PGconn *connection, int days)
{
	struct semel_prune_counts counts;
	struct semel_retention_cutoffs cutoffs = { 0 };
	uint64_t gone = 0;
	bool more = true;
	cutoffs.inbox_ms =
		strtoll(postgres_ask(connection,
				     "SELECT (extract(epoch FROM now()) * 1000)::bigint"),
			NULL, 10) +
		days * INT64_C(86400000);
	while (more) {
		assert_ok(
			store->driver->upkeep->prune(store, &cutoffs, false, &counts, &more, NULL));
		gone += counts.inbox;
	}
	return gone;
}

static void a_week_in_use_stays_until_the_next_prune(void **state)
{
	(void)state;
	PGconn *reader = connect_as_application(), *connection = connect_as_application();
	semel_store *store = store_open_one();
	postgres_ask(reader, "SELECT semel_try_claim('s', 'e1', now(), 't')");
	postgres_ask(reader, "BEGIN; SELECT count(*) FROM semel_inbox");
	assert_int_equal(pruned_weeks(store, connection, 8), 0);
	postgres_ask(reader, "COMMIT");
	assert_int_equal(pruned_weeks(store, connection, 8), 1);
	semel_store_close(store);
	semel_libpq.finish(connection);
	semel_libpq.finish(reader);
}

static void a_week_with_a_claim_of_late_stays(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	postgres_ask(connection, "CREATE TABLE semel_inbox_20250106 PARTITION OF semel_inbox"
				 " FOR VALUES FROM ('2025-01-06') TO ('2025-01-13')");
	postgres_ask(connection, "SELECT semel_try_claim('s', 'e1', '2025-01-08', 't')");
	assert_int_equal(pruned_weeks(store, connection, -30), 0);
	assert_answer(connection, "SELECT count(*) FROM semel_inbox_20250106", "1");
	postgres_ask(connection,
		     "SELECT semel_try_claim('s', 'e2', '2025-01-08', 't'); UPDATE"
		     " semel_inbox SET first_seen_at = '2025-01-08' WHERE event_id = 'e2'");
	assert_answer(connection, "SELECT semel_inbox_drop('semel_inbox_20250106', '2025-02-01')",
		      "1");
	assert_answer(connection, "SELECT string_agg(event_id, ',') FROM semel_inbox_other", "e1");
	assert_int_equal(pruned_weeks(store, connection, 8), 1);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* 20,000 rows in one lane, of which the first hundred are old: a piece with them, a piece that
 * finds the past at its end, and one read of each of the other lanes. */
static void prune_does_not_read_what_is_young(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_prune_counts counts;
	struct semel_retention_cutoffs cutoffs = { .outbox_ms = STORE_NOW };
	uint64_t gone = 0;
	int pieces = 0;
	bool more = true;
	postgres_ask(connection,
		     "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload,"
		     " committed_at) SELECT 'order', 'a', 't', '{}', CASE WHEN g <= 100 THEN"
		     " timestamptz '2025-01-01' ELSE now() END FROM generate_series(1, 20000) AS g;"
		     " UPDATE semel_outbox SET status = 'PUBLISHED'");
	while (more) {
		assert_ok(
			store->driver->upkeep->prune(store, &cutoffs, false, &counts, &more, NULL));
		gone += counts.outbox;
		pieces += more;
	}
	assert_int_equal(gone, 100);
	assert_int_equal(pieces, 17);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

/* One call of prune; how many dead letters it removed. */
static semel_status prune_once(semel_store *store, uint64_t *dead_out)
{
	const struct semel_retention_cutoffs cutoffs = { .dead_ms = STORE_NOW + 1 };
	struct semel_prune_counts counts = { 0 };
	bool more = false;
	semel_status status =
		store->driver->upkeep->prune(store, &cutoffs, false, &counts, &more, NULL);
	*dead_out = counts.dead;
	return status;
}

static void a_prune_that_failed_begins_again_where_it_failed(void **state)
{
	(void)state;
	PGconn *connection = connect_as_application();
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	uint64_t dead = 0;
	store_add_dead_letter(store, store_dead("d1", &event));
	postgres_ask(connection, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
				 " AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;"
				 " CREATE TRIGGER refuse BEFORE DELETE ON semel_dead_letter"
				 " FOR EACH ROW EXECUTE FUNCTION refuse()");
	assert_int_not_equal(prune_once(store, &dead), SEMEL_OK);
	postgres_ask(connection, "DROP TRIGGER refuse ON semel_dead_letter");
	assert_ok(prune_once(store, &dead));
	assert_int_equal(dead, 1);
	semel_store_close(store);
	semel_libpq.finish(connection);
}

static const struct CMUnitTest tests[] = {
	POSTGRES_TEST(a_prepared_transaction_is_waited_for),
	POSTGRES_TEST(numbers_in_blocks_are_refused),
	POSTGRES_TEST(a_low_mark_above_all_numbers_is_not_believed),
	POSTGRES_TEST(init_brings_the_numbers_beyond_those_of_the_rows),
	POSTGRES_TEST(a_relay_that_takes_over_knows_what_was_sent_before_it),
	POSTGRES_TEST(a_batch_of_large_events_is_bounded_by_its_bytes),
	POSTGRES_TEST(payloads_of_all_kinds_come_as_they_went),
	POSTGRES_TEST(a_claim_does_not_depend_on_how_the_session_writes_dates),
	POSTGRES_TEST(a_relay_at_work_does_not_keep_a_notification_for_another),
	POSTGRES_TEST(a_commit_in_two_phases_is_possible_while_a_relay_sleeps),
	POSTGRES_TEST(leases_go_by_the_clock_of_the_server),
	POSTGRES_TEST(clocks_that_agree_are_left_alone),
	POSTGRES_TEST(a_handler_whose_table_was_changed_is_prepared_anew_and_no_other_refusal_is),
	POSTGRES_TEST(an_effect_that_takes_too_long_costs_an_attempt_and_a_lock_does_not),
	POSTGRES_TEST(a_pooler_that_swaps_sessions_is_named),
	POSTGRES_TEST(two_connections_give_no_statement_the_same_name),
	POSTGRES_TEST(statements_run_without_room_to_prepare_them),
	POSTGRES_TEST(a_statement_is_sent_with_and_without_room_to_prepare_it),
	POSTGRES_TEST(a_borrowed_connection_of_another_encoding_is_refused),
	POSTGRES_TEST(functions_search_only_pg_catalog),
	POSTGRES_TEST(unset_time_outs_are_set_and_others_are_kept),
	POSTGRES_TEST(the_outbox_has_room_for_marks_and_is_vacuumed_early),
	POSTGRES_TEST(a_week_in_use_stays_until_the_next_prune),
	POSTGRES_TEST(a_week_with_a_claim_of_late_stays),
	POSTGRES_TEST(prune_does_not_read_what_is_young),
	POSTGRES_TEST(a_prune_that_failed_begins_again_where_it_failed),
};

int main(void)
{
	if (postgres_is_missing("store: traps of postgres"))
		return 0;
	return cmocka_run_group_tests_name("store: traps of postgres", tests, NULL, NULL);
}
