/* SPDX-License-Identifier: Apache-2.0 */
/* A schema of its own for each test, in the database that SEMEL_TEST_POSTGRES names. */
#ifndef SEMEL_TESTS_POSTGRES_STEPS_H
#define SEMEL_TESTS_POSTGRES_STEPS_H

#include "contract/store_steps.h"
#include "store/postgres/libpq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char postgres_schema[48];

static inline const char *postgres_server(void)
{
	return getenv("SEMEL_TEST_POSTGRES");
}

/* Without a server there is nothing to test; reported by name, so that it is counted. */
static inline bool postgres_is_missing(const char *suite)
{
	if (postgres_server() != NULL)
		return false;
	printf("[  SKIPPED ] %s: SEMEL_TEST_POSTGRES names no server\n", suite);
	return true;
}

static inline PGconn *postgres_connect(const char *url)
{
	static const char *const keywords[] = { "dbname", NULL };
	const char *const values[] = { url, NULL };
	assert_ok(semel_libpq_load(NULL));
	PGconn *connection = semel_libpq.connectdbParams(keywords, values, 1);
	if (semel_libpq.status(connection) != CONNECTION_OK)
		fail_msg("%s", semel_libpq.errorMessage(connection));
	return connection;
}

/* The first value of the last result; empty without one. Stays valid until the next call. */
static inline const char *postgres_ask(PGconn *connection, const char *sql)
{
	static char value[256];
	PGresult *result = semel_libpq.exec(connection, sql);
	ExecStatusType status = semel_libpq.resultStatus(result);
	value[0] = '\0';
	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		fail_msg("%s: %s", sql, semel_libpq.errorMessage(connection));
	if (status == PGRES_TUPLES_OK && semel_libpq.ntuples(result) > 0)
		snprintf(value, sizeof(value), "%s", semel_libpq.getvalue(result, 0, 0));
	semel_libpq.clear(result);
	return value;
}

static inline void postgres_change_schema(const char *verb, const char *how)
{
	char sql[128];
	PGconn *connection = postgres_connect(postgres_server());
	snprintf(sql, sizeof(sql),
		 "SET client_min_messages = error; SET lock_timeout = '10s'; %s SCHEMA %s%s", verb,
		 postgres_schema, how);
	postgres_ask(connection, sql);
	semel_libpq.finish(connection);
}

static inline void postgres_make(char url_out[STORE_SUITE_URL_SIZE])
{
	static int number;
	snprintf(postgres_schema, sizeof(postgres_schema), "test_%d_%d", (int)getpid(), number++);
	postgres_change_schema("CREATE", "");
	snprintf(url_out, STORE_SUITE_URL_SIZE, "%s%coptions=-csearch_path%%3D%s",
		 postgres_server(), strchr(postgres_server(), '?') ? '&' : '?', postgres_schema);
}

static inline void postgres_drop(void)
{
	postgres_change_schema("DROP", " CASCADE");
}

static inline int postgres_set_up(void **state)
{
	(void)state;
	postgres_make(store_url);
	return 0;
}

static inline int postgres_tear_down(void **state)
{
	(void)state;
	postgres_drop();
	return 0;
}

/* The tables are there; the connection is an application's own. */
static inline PGconn *connect_as_application(void)
{
	semel_store_close(store_open_one());
	return postgres_connect(store_url);
}

static inline void assert_answer(PGconn *connection, const char *sql, const char *expected)
{
	assert_string_equal(postgres_ask(connection, sql), expected);
}

static inline void assert_refused(PGconn *connection, const char *sql)
{
	PGresult *result = semel_libpq.exec(connection, sql);
	assert_int_equal(semel_libpq.resultStatus(result), PGRES_FATAL_ERROR);
	semel_libpq.clear(result);
}

/* How far the relay may advance, as the lanes are probed now. */
static inline int64_t complete_seq(struct store_relay *relay)
{
	struct semel_lane_probe probe = { .lane = 0 };
	assert_ok(relay->store->driver->outbox->probe(relay->store, &probe, 1, STORE_NOW, NULL));
	return probe.complete_seq;
}

static inline void wait_for_complete(struct store_relay *relay, int64_t seq)
{
	for (int i = 0; i < 60000 && complete_seq(relay) < seq; i++)
		usleep(1000);
	assert_true(complete_seq(relay) >= seq);
}

#define POSTGRES_TEST(name)                                                                        \
	cmocka_unit_test_setup_teardown(name, postgres_set_up, postgres_tear_down)

#endif
