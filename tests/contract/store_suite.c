/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store, in sentences: opening, tables, transactions, and statements of the
 * user's. The other concepts have files of their own. */
#include "contract/store_suite.h"

#include "contract/store_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct store_suite_factory *suite;

static int make_store(void **state)
{
	(void)state;
	suite->make(store_url);
	return 0;
}

static int drop_store(void **state)
{
	(void)state;
	suite->drop();
	return 0;
}

static uint64_t count_waiting(semel_store *store)
{
	struct semel_outbox_counts counts;
	assert_ok(store->driver->outbox->count(store, &counts, NULL));
	return counts.waiting;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void open_without_tables_says_how_to_make_them(void **state)
{
	(void)state;
	semel_store *store = NULL;
	semel_error error = { 0 };
	assert_int_not_equal(semel_store_open(store_url, &store, &error), SEMEL_OK);
	assert_null(store);
	assert_non_null(strstr(error.text, "init"));
}

static void init_twice_is_as_good_as_once(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	store_publish(store, "e1", "a", NULL);
	assert_ok(semel_store_init(store_url, NULL));
	assert_int_equal(count_waiting(store), 1);
	semel_store_close(store);
}

static bool init_in_process(int number)
{
	(void)number;
	semel_error error = { 0 };
	bool done = semel_store_init(store_url, &error) == SEMEL_OK;
	if (!done)
		fprintf(stderr, "init: %s\n", error.text);
	return done;
}

static void init_from_many_processes_at_once_makes_the_tables_once(void **state)
{
	(void)state;
	store_in_processes(6, init_in_process);
	semel_store *store = store_open_one();
	store_publish(store, "e1", "a", NULL);
	assert_int_equal(count_waiting(store), 1);
	semel_store_close(store);
}

static void newer_tables_are_refused_with_both_versions(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_execute(store, "INSERT INTO semel_schema (version, applied_at)"
			     " VALUES (99, '2026-01-01T00:00:00.000Z')");
	semel_store_close(store);
	store = NULL;
	assert_int_equal(semel_store_open(store_url, &store, &error), SEMEL_SCHEMA_NEWER);
	assert_non_null(strstr(error.text, "99"));
	assert_non_null(strstr(error.text, "upgrade"));
	assert_int_equal(semel_store_init(store_url, &error), SEMEL_SCHEMA_NEWER);
	assert_null(store);
}

static void a_mistyped_parameter_of_the_url_is_named(void **state)
{
	(void)state;
	char url[STORE_SUITE_URL_SIZE + 16];
	semel_store *store = NULL;
	semel_error error = { 0 };
	snprintf(url, sizeof(url), "%s%cbusy-timeuot=1", store_url,
		 strchr(store_url, '?') ? '&' : '?');
	assert_int_equal(semel_store_open(url, &store, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "busy-timeuot"));
}

static void a_store_of_an_unknown_kind_is_a_bad_configuration(void **state)
{
	(void)state;
	semel_store *store = NULL;
	semel_error error = { 0 };
	assert_int_equal(semel_store_open("oracle:db", &store, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "oracle"));
	assert_int_equal(semel_store_open("", &store, &error), SEMEL_INVALID);
	assert_int_equal(semel_store_open(NULL, &store, &error), SEMEL_INVALID);
}

/* ---- transactions ---------------------------------------------------------------------------- */

static void a_rolled_back_transaction_leaves_nothing(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	assert_false(store->driver->in_transaction(store_tx(store)));
	store_begin(store);
	assert_true(store->driver->in_transaction(store_tx(store)));
	assert_ok(store->driver->outbox->insert(store_tx(store), &event, 1, NULL));
	store->driver->rollback(store);
	assert_false(store->driver->in_transaction(store_tx(store)));
	assert_int_equal(count_waiting(store), 0);
	store->driver->rollback(store); /* once more is harmless */
	semel_store_close(store);
}

static void a_savepoint_takes_back_one_event_and_keeps_the_others(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event events[] = { store_event("e1", "a"), store_event("e2", "b"),
					store_event("e3", "c") };
	store_begin(store);
	for (int i = 0; i < 3; i++) {
		assert_ok(store->driver->savepoint(store, NULL));
		assert_ok(store->driver->outbox->insert(store_tx(store), &events[i], 1, NULL));
		if (i == 1)
			assert_ok(store->driver->rollback_to(store, NULL));
		else
			assert_ok(store->driver->release(store, NULL));
	}
	store_commit(store);
	struct store_relay relay;
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "e1 e3");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_savepoint_wants_a_transaction(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_int_equal(store->driver->savepoint(store, NULL), SEMEL_NO_TRANSACTION);
	assert_int_equal(store->driver->commit(store, NULL), SEMEL_NO_TRANSACTION);
	semel_store_close(store);
}

/* ---- the user's statements ------------------------------------------------------------------- */

static void the_business_change_and_the_event_commit_together(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_execute(store, "CREATE TABLE orders (id TEXT PRIMARY KEY); -- a comment behind");
	store_begin(store);
	assert_ok(store->driver->execute(store, "INSERT INTO orders VALUES ('o1')", &error));
	store->driver->rollback(store);
	store_execute(store, "INSERT INTO orders VALUES ('o1'); INSERT INTO orders VALUES ('o2')");
	store_begin(store);
	assert_int_equal(store->driver->execute(store, "INSERT INTO orders VALUES ('o1')", &error),
			 SEMEL_INVALID);
	assert_non_null(strstr(error.text, "orders"));
	store->driver->rollback(store);
	semel_store_close(store);
}

static void wrong_sql_is_refused_in_the_engines_words(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_begin(store);
	assert_int_equal(store->driver->execute(store, "INSERT INTO nowhere VALUES (1)", &error),
			 SEMEL_INVALID);
	assert_non_null(strstr(error.text, "nowhere"));
	store->driver->rollback(store);
	assert_int_equal(store->driver->execute(store, "SELECT 1", &error), SEMEL_NO_TRANSACTION);
	semel_store_close(store);
}

static void the_user_cannot_end_the_transaction(void **state)
{
	(void)state;
	static const char *const control[] = { "COMMIT", "ROLLBACK", "BEGIN", "SAVEPOINT x",
					       "SELECT 1; COMMIT" };
	semel_store *store = store_open_one();
	for (size_t i = 0; i < sizeof(control) / sizeof(control[0]); i++) {
		store_begin(store);
		assert_int_equal(store->driver->execute(store, control[i], NULL), SEMEL_INVALID);
		assert_true(store->driver->in_transaction(store_tx(store)));
		store->driver->rollback(store);
		assert_int_equal(store->driver->inbox->effect_prepare(store, &control[i], 1, NULL),
				 SEMEL_INVALID);
	}
	semel_store_close(store);
}

/* One text of the database, as an expression sees it. */
static void assert_value(semel_store *store, const char *expression, const char *expected)
{
	struct semel_event event = store_event("e1", "a");
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_text value;
	assert_ok(store->driver->inbox->evaluate(store, expression, &event, arena, &value, NULL));
	assert_string_equal(semel_text_shown_or(value, "NULL"), expected);
	semel_arena_free(arena);
}

static void an_sql_handler_gets_every_parameter(void **state)
{
	(void)state;
	static const char *const handler[] = {
		"CREATE TABLE IF NOT EXISTS spare (a TEXT); INSERT INTO seen VALUES (:id, :type,"
		" :aggregate_type, :aggregate_id, :topic, :payload, :headers, :time, :attempt)",
		"INSERT INTO flow VALUES (:flow)"
	};
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	store_execute(store, "CREATE TABLE seen (id TEXT, type TEXT, at TEXT, ai TEXT, topic TEXT,"
			     " payload TEXT, headers TEXT, time TEXT, attempt TEXT);"
			     " CREATE TABLE flow (headers TEXT)");
	semel_error error = { 0 };
	if (store->driver->inbox->effect_prepare(store, handler, 2, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	store_begin(store);
	assert_ok(store->driver->inbox->effect_run(store, &event, 2, NULL));
	store_commit(store);
	assert_value(store,
		     "SELECT id || type || at || ai || topic || payload || headers || time ||"
		     " attempt FROM seen",
		     "e1order.created.v1orderaorder.events{\"total\":5}{}"
		     "2025-11-15T12:00:00.000Z2");
	assert_value(store, "SELECT count(*) FROM flow WHERE headers LIKE '%\"causationId\"%e1%'",
		     "1");
	semel_store_close(store);
}

static void an_unknown_parameter_is_answered_with_the_nearest(void **state)
{
	(void)state;
	static const char *const handler[] = { "SELECT :payloda" };
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	assert_int_equal(store->driver->inbox->effect_prepare(store, handler, 1, &error),
			 SEMEL_INVALID);
	assert_non_null(strstr(error.text, ":payloda"));
	assert_non_null(strstr(error.text, "mean :payload"));
	semel_store_close(store);
}

/* A driver may answer for an effect as late as at the commit. */
static semel_status run_and_commit(semel_store *store, const struct semel_event *event)
{
	semel_status status = store->driver->inbox->effect_run(store, event, 1, NULL);
	if (status == SEMEL_OK)
		status = store->driver->commit(store, NULL);
	store->driver->rollback(store);
	return status;
}

static void a_handler_that_breaks_a_constraint_rejects(void **state)
{
	(void)state;
	static const char *const handler[] = { "INSERT INTO seen VALUES (:id)" };
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	semel_error error = { 0 };
	store_execute(store, "CREATE TABLE seen (id TEXT PRIMARY KEY)");
	assert_ok(store->driver->inbox->effect_prepare(store, handler, 1, NULL));
	assert_int_equal(store->driver->inbox->effect_run(store, &event, 1, &error),
			 SEMEL_NO_TRANSACTION);
	store_begin(store);
	assert_ok(store->driver->inbox->effect_run(store, &event, 1, &error));
	assert_int_equal(run_and_commit(store, &event), SEMEL_HANDLER_REJECT);
	semel_store_close(store);
}

static void behind_a_savepoint_a_handler_is_answered_at_once_and_alone(void **state)
{
	(void)state;
	static const char *const handler[] = { "INSERT INTO seen VALUES (:id)" };
	semel_store *store = store_open_one();
	struct semel_event one = store_event("e1", "a"), two = store_event("e2", "a");
	store_execute(store, "CREATE TABLE seen (id TEXT PRIMARY KEY)");
	assert_ok(store->driver->inbox->effect_prepare(store, handler, 1, NULL));
	store_begin(store);
	assert_ok(store->driver->inbox->effect_run(store, &one, 1, NULL));
	assert_ok(store->driver->savepoint(store, NULL));
	assert_int_equal(store->driver->inbox->effect_run(store, &one, 1, NULL),
			 SEMEL_HANDLER_REJECT);
	assert_ok(store->driver->rollback_to(store, NULL));
	assert_ok(store->driver->inbox->effect_run(store, &two, 1, NULL));
	store_commit(store);
	assert_value(store, "SELECT count(*) FROM seen", "2");
	semel_store_close(store);
}

static void a_handler_whose_table_is_gone_may_be_tried_again(void **state)
{
	(void)state;
	static const char *const handler[] = { "INSERT INTO seen VALUES (:id)" };
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	store_execute(store, "CREATE TABLE seen (id TEXT)");
	assert_ok(store->driver->inbox->effect_prepare(store, handler, 1, NULL));
	store_execute(store, "DROP TABLE seen");
	store_begin(store);
	assert_int_equal(run_and_commit(store, &event), SEMEL_HANDLER_RETRY);
	semel_store_close(store);
}

static void an_expression_yields_a_text_of_the_event(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e1", "a");
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_text value;
	assert_value(store, ":id || '-' || :aggregate_id", "e1-a");
	assert_value(store, "NULL", "NULL");
	assert_int_equal(store->driver->inbox->evaluate(store,
							"1); DELETE FROM semel_outbox; SELECT (1",
							&event, arena, &value, NULL),
			 SEMEL_INVALID);
	semel_arena_free(arena);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(open_without_tables_says_how_to_make_them),
	cmocka_unit_test(init_twice_is_as_good_as_once),
	cmocka_unit_test(init_from_many_processes_at_once_makes_the_tables_once),
	cmocka_unit_test(newer_tables_are_refused_with_both_versions),
	cmocka_unit_test(a_mistyped_parameter_of_the_url_is_named),
	cmocka_unit_test(a_store_of_an_unknown_kind_is_a_bad_configuration),
	cmocka_unit_test(a_rolled_back_transaction_leaves_nothing),
	cmocka_unit_test(a_savepoint_takes_back_one_event_and_keeps_the_others),
	cmocka_unit_test(a_savepoint_wants_a_transaction),
	cmocka_unit_test(the_business_change_and_the_event_commit_together),
	cmocka_unit_test(wrong_sql_is_refused_in_the_engines_words),
	cmocka_unit_test(the_user_cannot_end_the_transaction),
	cmocka_unit_test(an_sql_handler_gets_every_parameter),
	cmocka_unit_test(an_unknown_parameter_is_answered_with_the_nearest),
	cmocka_unit_test(a_handler_that_breaks_a_constraint_rejects),
	cmocka_unit_test(behind_a_savepoint_a_handler_is_answered_at_once_and_alone),
	cmocka_unit_test(a_handler_whose_table_is_gone_may_be_tried_again),
	cmocka_unit_test(an_expression_yields_a_text_of_the_event),
};
const struct store_tests store_basic_tests = { tests, sizeof(tests) / sizeof(tests[0]) };

int store_suite_run(const struct store_suite_factory *factory)
{
	const struct store_tests *const parts[] = {
		&store_basic_tests, &store_outbox_tests,   &store_relay_tests,
		&store_inbox_tests, &store_position_tests, &store_dead_tests,
		&store_keep_tests,  &store_presence_tests, &store_waits_tests,
	};
	struct CMUnitTest all[160];
	size_t count = 0;
	suite = factory;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		for (size_t j = 0; j < parts[i]->count && count < sizeof(all) / sizeof(all[0]);
		     j++) {
			all[count] = parts[i]->tests[j];
			all[count].setup_func = make_store;
			all[count++].teardown_func = drop_store;
		}
	return _cmocka_run_group_tests(factory->name, all, count, NULL, NULL);
}
