/* SPDX-License-Identifier: Apache-2.0 */
/* The SQLite store keeps the contract of stores, and what is true of SQLite alone. */
#include "contract/store_steps.h"

#include "base/sqlite_file.h"

#include <semel/outbox.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path[128];

static void make(char url_out[STORE_SUITE_URL_SIZE])
{
	snprintf(folder, sizeof(folder), "/tmp/semel-store-XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	snprintf(path, sizeof(path), "%s/store.db", folder);
	snprintf(url_out, STORE_SUITE_URL_SIZE, "sqlite:%s", path);
}

static void drop(void)
{
	static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };
	char name[160];
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "%s%s", path, suffixes[i]);
		unlink(name);
	}
	rmdir(folder);
}

static int set_up(void **state)
{
	(void)state;
	make(store_url);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	drop();
	return 0;
}

static const semel_event_input input = {
	.type = "order.created.v1", .aggregate_type = "order", .aggregate_id = "a", .payload = "{}"
};

/* An application's own connection. */
static sqlite3 *connect_as_application(void)
{
	sqlite3 *db = NULL;
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	return db;
}

static void run(sqlite3 *db, const char *sql)
{
	if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
		fail_msg("%s: %s", sql, sqlite3_errmsg(db));
}

static int64_t number(sqlite3 *db, const char *sql)
{
	int64_t value = -1;
	assert_ok(semel_sqlite_int(db, sql, -1, &value, NULL));
	return value;
}

/* ---- borrowed connections -------------------------------------------------------------------- */

static void a_borrowed_transaction_commits_event_and_business_change_together(void **state)
{
	(void)state;
	char id[SEMEL_ID_SIZE];
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	run(db, "CREATE TABLE orders (id)");
	run(db, "BEGIN IMMEDIATE; INSERT INTO orders VALUES ('o1')");
	assert_ok(semel_outbox_publish(semel_borrow_sqlite(db), &input, id, NULL));
	run(db, "ROLLBACK");
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 0);
	run(db, "BEGIN IMMEDIATE; INSERT INTO orders VALUES ('o1')");
	assert_ok(semel_outbox_publish(semel_borrow_sqlite(db), &input, id, NULL));
	run(db, "COMMIT");
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 1);
	assert_int_equal(number(db, "SELECT count(*) FROM orders"), 1);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_borrowed_connection_without_a_transaction_writes_nothing(void **state)
{
	(void)state;
	semel_claim_outcome outcome;
	const semel_claim claim = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	assert_int_equal(semel_outbox_publish(semel_borrow_sqlite(db), &input, NULL, NULL),
			 SEMEL_NO_TRANSACTION);
	assert_int_equal(
		semel_inbox_try_claim_same_tx(semel_borrow_sqlite(db), &claim, &outcome, NULL),
		SEMEL_NO_TRANSACTION);
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 0);
	assert_int_equal(number(db, "SELECT count(*) FROM semel_inbox"), 0);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
	assert_int_equal(semel_outbox_publish(semel_borrow_sqlite(NULL), &input, NULL, NULL),
			 SEMEL_INVALID);
}

static void a_borrowed_connection_keeps_its_settings(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	run(db, "PRAGMA busy_timeout=77; PRAGMA synchronous=NORMAL");
	run(db, "BEGIN");
	assert_ok(semel_outbox_publish(semel_borrow_sqlite(db), &input, NULL, NULL));
	run(db, "COMMIT");
	assert_int_equal(number(db, "PRAGMA busy_timeout"), 77);
	assert_int_equal(number(db, "PRAGMA synchronous"), 1);
	assert_int_equal(number(db, "PRAGMA wal_autocheckpoint"), 1000);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void publish_on(sqlite3 *db)
{
	run(db, "BEGIN");
	assert_ok(semel_outbox_publish(semel_borrow_sqlite(db), &input, NULL, NULL));
	run(db, "COMMIT");
}

static void a_borrowed_connection_is_prepared_for_once(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	publish_on(db);
	sqlite3_stmt *cached = sqlite3_next_stmt(db, NULL);
	assert_non_null(cached);
	publish_on(db);
	assert_ptr_equal(sqlite3_next_stmt(db, NULL), cached);
	assert_null(sqlite3_next_stmt(db, cached));
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void an_application_may_finalize_whatever_it_finds(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	sqlite3_stmt *any;
	publish_on(db);
	while ((any = sqlite3_next_stmt(db, NULL)) != NULL)
		sqlite3_finalize(any);
	publish_on(db);
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 2);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_connection_that_could_not_be_closed_is_published_on_again(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	sqlite3_stmt *own = NULL;
	publish_on(db);
	assert_int_equal(sqlite3_prepare_v2(db, "SELECT 1", -1, &own, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_close(db), SQLITE_BUSY);
	publish_on(db);
	sqlite3_finalize(own);
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 2);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* What an authorizer may well answer for a table that it does not know. */
static int deny_cached_statements(void *user, int action, const char *table, const char *column,
				  const char *database, const char *trigger)
{
	(void)user, (void)column, (void)database, (void)trigger;
	bool denied =
		action == SQLITE_READ && table && strcmp(table, "semel_cached_statements") == 0;
	return denied ? SQLITE_DENY : SQLITE_OK;
}

static void where_statements_cannot_be_kept_publishing_works_all_the_same(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	sqlite3_set_authorizer(db, deny_cached_statements, NULL);
	publish_on(db);
	assert_null(sqlite3_next_stmt(db, NULL));
	publish_on(db);
	assert_int_equal(number(db, "SELECT count(*) FROM semel_outbox"), 2);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void the_table_of_cached_statements_cannot_be_read(void **state)
{
	(void)state;
	semel_store_close(store_open_one());
	sqlite3 *db = connect_as_application();
	publish_on(db);
	assert_int_equal(
		sqlite3_exec(db, "SELECT * FROM semel_cached_statements", NULL, NULL, NULL),
		SQLITE_ERROR);
	publish_on(db);
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_borrowed_connection_without_the_tables_is_refused_with_the_remedy(void **state)
{
	(void)state;
	semel_error error = { 0 };
	sqlite3 *db = connect_as_application();
	run(db, "BEGIN");
	assert_int_equal(semel_outbox_publish(semel_borrow_sqlite(db), &input, NULL, &error),
			 SEMEL_NO_SCHEMA);
	assert_non_null(strstr(error.text, "init"));
	assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_transaction_shows_its_native_handle(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_non_null(semel_tx_sqlite(store_tx(store)));
	assert_null(semel_tx_sqlite((semel_tx){ 0 }));
	semel_store_close(store);
}

/* ---- the file -------------------------------------------------------------------------------- */

static void init_makes_a_new_file_in_wal_and_leaves_an_old_one_as_it_is(void **state)
{
	(void)state;
	sqlite3 *db = connect_as_application();
	run(db, "PRAGMA journal_mode=DELETE; CREATE TABLE orders (id)");
	assert_ok(semel_store_init(store_url, NULL));
	assert_int_equal(number(db, "SELECT journal_mode = 'delete' FROM pragma_journal_mode"), 1);
	sqlite3_close(db);
	drop();
	make(store_url);
	assert_ok(semel_store_init(store_url, NULL));
	db = connect_as_application();
	assert_int_equal(number(db, "SELECT journal_mode = 'wal' FROM pragma_journal_mode"), 1);
	sqlite3_close(db);
}

static void open_never_creates_a_file(void **state)
{
	(void)state;
	semel_store *store = NULL;
	assert_int_equal(semel_store_open(store_url, &store, NULL), SEMEL_OUTAGE);
	assert_int_not_equal(access(path, F_OK), 0);
}

static void a_database_without_the_tables_is_named_with_the_command_to_run(void **state)
{
	(void)state;
	semel_store *store = NULL;
	semel_error error = { 0 };
	char command[STORE_SUITE_URL_SIZE + 32];
	sqlite3 *db = connect_as_application();
	run(db, "CREATE TABLE orders (id)");
	sqlite3_close(db);
	assert_int_equal(semel_store_open(store_url, &store, &error), SEMEL_NO_SCHEMA);
	snprintf(command, sizeof(command), "run: semel --store %s init", store_url);
	assert_non_null(strstr(error.text, command));
}

static void a_file_that_is_no_database_has_a_status_of_its_own(void **state)
{
	(void)state;
	semel_store *store = NULL;
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	for (int i = 0; i < 200; i++)
		fputs("a shopping list, not a database\n", file);
	fclose(file);
	assert_int_equal(semel_store_open(store_url, &store, NULL), SEMEL_NOT_A_DATABASE);
	assert_int_equal(semel_store_init(store_url, NULL), SEMEL_NOT_A_DATABASE);
}

static void a_lock_held_for_long_is_busy_and_says_how_long_it_waited(void **state)
{
	(void)state;
	semel_error error = { 0 };
	semel_store *store = NULL;
	semel_store_close(store_open_one());
	strcat(store_url, "?busy-timeout=30");
	assert_ok(semel_store_open(store_url, &store, NULL));
	sqlite3 *db = connect_as_application();
	run(db, "BEGIN IMMEDIATE");
	assert_int_equal(store->driver->begin(store, &error), SEMEL_BUSY);
	assert_non_null(strstr(error.text, "waited 30 ms"));
	run(db, "ROLLBACK");
	store_begin(store);
	store_commit(store);
	sqlite3_close(db);
	semel_store_close(store);
}

static void a_full_disk_is_reported_and_leaves_nothing(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	semel_event_input large = input;
	char *payload = malloc(400001);
	assert_non_null(payload);
	memset(payload, 'x', 400000);
	payload[0] = payload[399999] = '"';
	payload[400000] = '\0';
	large.payload = payload;
	run(semel_tx_sqlite(store_tx(store)), "PRAGMA max_page_count=80");
	store_begin(store);
	assert_int_equal(semel_outbox_publish(store_tx(store), &large, NULL, &error),
			 SEMEL_STORAGE_FULL);
	store->driver->rollback(store);
	run(semel_tx_sqlite(store_tx(store)), "PRAGMA max_page_count=1073741823");
	store_begin(store);
	assert_ok(semel_outbox_publish(store_tx(store), &large, NULL, &error));
	store_commit(store);
	free(payload);
	semel_store_close(store);
}

static void a_statement_that_rolls_all_back_cannot_slip_an_effect_past_the_claim(void **state)
{
	(void)state;
	static const char *const handler[] = { "INSERT OR ROLLBACK INTO once VALUES (1)" };
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	struct semel_inbox_claim claim = store_claim("e1");
	struct semel_claim_result answer;
	store_execute(store, "CREATE TABLE once (a UNIQUE); INSERT INTO once VALUES (1)");
	assert_ok(store->driver->inbox->effect_prepare(store, handler, 1, NULL));
	store_begin(store);
	assert_ok(store->driver->savepoint(store, NULL));
	assert_ok(
		store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW, &answer, NULL));
	assert_int_equal(store->driver->inbox->effect_run(store, &event, 1, NULL),
			 SEMEL_HANDLER_REJECT);
	assert_int_equal(store->driver->rollback_to(store, NULL), SEMEL_NO_TRANSACTION);
	assert_int_equal(store->driver->inbox->effect_run(store, &event, 1, NULL),
			 SEMEL_NO_TRANSACTION);
	assert_int_equal(
		store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW, &answer, NULL),
		SEMEL_NO_TRANSACTION);
	assert_int_equal(store->driver->commit(store, NULL), SEMEL_NO_TRANSACTION);
	semel_store_close(store);
}

static void a_deferred_foreign_key_is_judged_with_its_own_event(void **state)
{
	(void)state;
	static const char *const handler[] = { "INSERT INTO invoice VALUES (:aggregate_id)" };
	semel_store *store = store_open_one();
	struct semel_event good = store_event("e1", "a"), bad = store_event("e2", "unknown");
	store_execute(store, "CREATE TABLE orders (id TEXT PRIMARY KEY);"
			     " INSERT INTO orders VALUES ('a');"
			     " CREATE TABLE invoice (id REFERENCES orders"
			     " DEFERRABLE INITIALLY DEFERRED)");
	assert_ok(store->driver->inbox->effect_prepare(store, handler, 1, NULL));
	store_begin(store);
	assert_ok(store->driver->inbox->effect_run(store, &good, 1, NULL));
	assert_ok(store->driver->savepoint(store, NULL));
	assert_int_equal(store->driver->inbox->effect_run(store, &bad, 1, NULL),
			 SEMEL_HANDLER_REJECT);
	assert_ok(store->driver->rollback_to(store, NULL));
	store_commit(store);
	semel_store_close(store);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define THREADS 4

static void *claim_in_thread(void *user)
{
	semel_claim_outcome *outcome = user;
	semel_store *store = NULL;
	const semel_claim claim = { "billing", "e1", STORE_NOW, "order.events", 0, 0, NULL };
	if (semel_store_open(store_url, &store, NULL) != SEMEL_OK ||
	    semel_inbox_try_claim(store, &claim, outcome, NULL) != SEMEL_OK)
		*outcome = SEMEL_IN_PROGRESS;
	semel_store_close(store);
	return NULL;
}

static void exactly_one_of_many_threads_wins_a_claim(void **state)
{
	(void)state;
	pthread_t threads[THREADS];
	semel_claim_outcome outcomes[THREADS] = { 0 };
	int winners = 0;
	semel_store_close(store_open_one());
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, claim_in_thread, &outcomes[i]),
				 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++) {
		assert_int_not_equal(outcomes[i], SEMEL_IN_PROGRESS);
		winners += outcomes[i] == SEMEL_CLAIMED;
	}
	assert_int_equal(winners, 1);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test_setup_teardown(
		a_borrowed_transaction_commits_event_and_business_change_together, set_up,
		tear_down),
	cmocka_unit_test_setup_teardown(a_borrowed_connection_without_a_transaction_writes_nothing,
					set_up, tear_down),
	cmocka_unit_test_setup_teardown(a_borrowed_connection_keeps_its_settings, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(
		a_borrowed_connection_without_the_tables_is_refused_with_the_remedy, set_up,
		tear_down),
	cmocka_unit_test_setup_teardown(a_borrowed_connection_is_prepared_for_once, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(an_application_may_finalize_whatever_it_finds, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(a_connection_that_could_not_be_closed_is_published_on_again,
					set_up, tear_down),
	cmocka_unit_test_setup_teardown(
		where_statements_cannot_be_kept_publishing_works_all_the_same, set_up, tear_down),
	cmocka_unit_test_setup_teardown(the_table_of_cached_statements_cannot_be_read, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(a_transaction_shows_its_native_handle, set_up, tear_down),
	cmocka_unit_test_setup_teardown(init_makes_a_new_file_in_wal_and_leaves_an_old_one_as_it_is,
					set_up, tear_down),
	cmocka_unit_test_setup_teardown(open_never_creates_a_file, set_up, tear_down),
	cmocka_unit_test_setup_teardown(
		a_database_without_the_tables_is_named_with_the_command_to_run, set_up, tear_down),
	cmocka_unit_test_setup_teardown(a_file_that_is_no_database_has_a_status_of_its_own, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(a_lock_held_for_long_is_busy_and_says_how_long_it_waited,
					set_up, tear_down),
	cmocka_unit_test_setup_teardown(a_full_disk_is_reported_and_leaves_nothing, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(
		a_statement_that_rolls_all_back_cannot_slip_an_effect_past_the_claim, set_up,
		tear_down),
	cmocka_unit_test_setup_teardown(a_deferred_foreign_key_is_judged_with_its_own_event, set_up,
					tear_down),
	cmocka_unit_test_setup_teardown(exactly_one_of_many_threads_wins_a_claim, set_up,
					tear_down),
};

int main(void)
{
	const struct store_suite_factory sqlite = { "store contract: sqlite", make, drop };
	int failed = store_suite_run(&sqlite);
	return failed + cmocka_run_group_tests_name("store: sqlite alone", tests, NULL, NULL);
}
