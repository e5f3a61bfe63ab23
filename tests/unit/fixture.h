/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture for tests of rules: a store and a local broker in a folder of their own, a relay,
 * and consumers whose handler records what it did and can be made to fail. */
#ifndef SEMEL_TESTS_UNIT_FIXTURE_H
#define SEMEL_TESTS_UNIT_FIXTURE_H

#include "base/env.h"
#include "base/wake.h"
#include "broker/broker.h"
#include "store/store.h"

#include <semel/semel.h>

#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FIXTURE_DRAIN_MS 20000

struct fixture {
	char folder[64];
	char store_url[128], broker_url[128];
	semel_store *store;
	sqlite3 *db; /* a connection without the library */
	semel_error error;
	const char *poison; /* payloads that hold this word are rejected; NULL: none */
	uint32_t replays;
};

static inline struct fixture *fixture_of(void **state)
{
	return *state;
}

static inline void fixture_ok(struct fixture *fixture, semel_status status)
{
	if (status != SEMEL_OK)
		fail_msg("%s: %s", semel_status_name(status), fixture->error.text);
}

static inline void fixture_sql(struct fixture *fixture, const char *sql)
{
	char *message = NULL;
	if (sqlite3_exec(fixture->db, sql, NULL, NULL, &message) != SQLITE_OK)
		fail_msg("%s: %s", sql, message);
}

/* One number or text; the text is the caller's to free. */
static inline char *fixture_ask(struct fixture *fixture, const char *sql)
{
	sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(fixture->db, sql, -1, &statement, NULL) != SQLITE_OK)
		fail_msg("%s: %s", sql, sqlite3_errmsg(fixture->db));
	char *answer = NULL;
	if (sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_text(statement, 0))
		answer = strdup((const char *)sqlite3_column_text(statement, 0));
	sqlite3_finalize(statement);
	return answer;
}

static inline void fixture_expect(struct fixture *fixture, const char *sql, const char *expected)
{
	char *answer = fixture_ask(fixture, sql);
	assert_string_equal(answer ? answer : "(none)", expected);
	free(answer);
}

static inline int fixture_begin(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	snprintf(fixture->folder, sizeof(fixture->folder), "/tmp/semel-test-XXXXXX");
	if (!mkdtemp(fixture->folder))
		return -1;
	snprintf(fixture->store_url, sizeof(fixture->store_url), "sqlite:%s/store.db",
		 fixture->folder);
	snprintf(fixture->broker_url, sizeof(fixture->broker_url), "local:%s/broker.db",
		 fixture->folder);
	fixture_ok(fixture, semel_store_init(fixture->store_url, &fixture->error));
	fixture_ok(fixture, semel_store_open(fixture->store_url, &fixture->store, &fixture->error));
	assert_int_equal(sqlite3_open(fixture->store_url + strlen("sqlite:"), &fixture->db),
			 SQLITE_OK);
	sqlite3_busy_timeout(fixture->db, 5000);
	fixture_sql(fixture,
		    "CREATE TABLE effect (number INTEGER PRIMARY KEY, scope TEXT, id TEXT, "
		    "payload TEXT)");
	*state = fixture;
	return 0;
}

static inline int fixture_end(void **state)
{
	struct fixture *fixture = *state;
	sqlite3_close(fixture->db);
	semel_store_close(fixture->store);
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", fixture->folder);
	int code = system(command);
	free(fixture);
	return code;
}

/* ---- producing ------------------------------------------------------------------------------- */

static inline void fixture_publish_input(struct fixture *fixture, const semel_event_input *input,
					 char id_out[SEMEL_ID_SIZE])
{
	const struct semel_store_driver *driver = fixture->store->driver;
	fixture_ok(fixture, driver->begin(fixture->store, &fixture->error));
	fixture_ok(fixture, semel_outbox_publish(driver->tx(fixture->store), input, id_out,
						 &fixture->error));
	fixture_ok(fixture, driver->commit(fixture->store, &fixture->error));
}

/* An event of order:aggregate with the JSON text word as its payload. */
static inline void fixture_publish(struct fixture *fixture, const char *aggregate, const char *word,
				   char id_out[SEMEL_ID_SIZE])
{
	char payload[128];
	snprintf(payload, sizeof(payload), "\"%s\"", word);
	semel_event_input input = { .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = aggregate,
				    .payload = payload };
	fixture_publish_input(fixture, &input, id_out);
}

static inline void fixture_relay(struct fixture *fixture)
{
	semel_relay_options options = { .store = fixture->store_url,
					.broker = fixture->broker_url };
	semel_relay *relay = NULL;
	fixture_ok(fixture, semel_relay_open(&options, &relay, &fixture->error));
	fixture_ok(fixture, semel_relay_drain(relay, FIXTURE_DRAIN_MS, &fixture->error));
	semel_relay_close(relay);
}

/* As the relay does it when the budget is used up. */
static inline void fixture_give_up_first_row(struct fixture *fixture)
{
	struct semel_arena *arena = semel_arena_new(4096);
	const struct semel_store_driver *driver = fixture->store->driver;
	struct semel_lease lease = { 0 };
	fixture_ok(fixture, driver->outbox->lease_list(fixture->store, &lease, &fixture->error));
	fixture_ok(fixture, driver->outbox->lease_acquire(fixture->store, &lease, "tester",
							  INT64_MAX / 4, &fixture->error));
	struct semel_outbox_row row;
	struct semel_outbox_batch batch = {
		.arena = arena, .rows = &row, .capacity = 1, .bytes_max = 1000
	};
	fixture_ok(fixture,
		   driver->outbox->fetch(fixture->store, &lease, 0, &batch, &fixture->error));
	assert_int_equal(batch.count, 1);
	int64_t now_ms = semel_now_ms(semel_env_system());
	struct semel_mark mark = { .row = &row,
				   .kind = SEMEL_MARK_FAILED,
				   .attempts = 10,
				   .reason = "no route",
				   .holds = true };
	struct semel_mark_batch marks = { .marks = &mark,
					  .count = 1,
					  .low_seq = row.seq,
					  .now_ms = now_ms,
					  .expires_at_ms = now_ms + 1000 };
	fixture_ok(fixture, driver->outbox->mark(fixture->store, &lease, &marks, &fixture->error));
	driver->outbox->lease_release(fixture->store, &lease);
	semel_arena_free(arena);
}

/* ---- consuming ------------------------------------------------------------------------------- */

struct fixture_reader {
	struct fixture *fixture;
	const char *scope;
};

static inline semel_verdict fixture_handle(const semel_event *event, semel_context *context,
					   void *user)
{
	const struct fixture_reader *reader = user;
	const char *payload = semel_event_payload(event, NULL);
	if (reader->fixture->poison && strstr(payload, reader->fixture->poison)) {
		semel_context_explain(context, "%s is poison", payload);
		return SEMEL_REJECT;
	}
	sqlite3_stmt *statement = NULL;
	sqlite3 *db = semel_tx_sqlite(semel_context_tx(context));
	sqlite3_prepare_v2(db, "INSERT INTO effect (scope, id, payload) VALUES (?1, ?2, ?3)", -1,
			   &statement, NULL);
	sqlite3_bind_text(statement, 1, reader->scope, -1, SQLITE_STATIC);
	sqlite3_bind_text(statement, 2, semel_event_id(event), -1, SQLITE_STATIC);
	sqlite3_bind_text(statement, 3, payload, -1, SQLITE_STATIC);
	bool done = sqlite3_step(statement) == SQLITE_DONE;
	sqlite3_finalize(statement);
	return done ? SEMEL_DONE : SEMEL_RETRY;
}

/* Drains the scope; what options leaves out is filled in. */
/* max 0: all that is there. */
static inline void fixture_consume_some(struct fixture *fixture, semel_consumer_options options,
					uint64_t max)
{
	static const char *const orders[] = { "order.events", NULL };
	options.store = fixture->store_url;
	options.broker = fixture->broker_url;
	options.topics = options.topics ? options.topics : orders;
	struct fixture_reader reader = { fixture, options.scope };
	semel_consumer *consumer = NULL;
	fixture_ok(fixture, semel_consumer_open(&options, &consumer, &fixture->error));
	fixture_ok(fixture,
		   semel_consumer_handle(consumer, fixture_handle, &reader, &fixture->error));
	fixture_ok(fixture, semel_consumer_drain(consumer, FIXTURE_DRAIN_MS, max, &fixture->error));
	semel_consumer_close(consumer);
}

static inline void fixture_consume_with(struct fixture *fixture, semel_consumer_options options)
{
	fixture_consume_some(fixture, options, 0);
}

static inline void fixture_consume(struct fixture *fixture, const char *scope)
{
	fixture_consume_with(fixture, (semel_consumer_options){ .scope = scope });
}

/* ---- dead letters ---------------------------------------------------------------------------- */

struct fixture_letter {
	char entry_id[SEMEL_ID_SIZE], event_id[SEMEL_ID_SIZE];
	char reason[128], scope[32];
	uint32_t attempts, replay_count;
	semel_dead_status status;
	uint64_t parked;
	unsigned count;
};

static inline void fixture_letter_seen(const semel_dead_letter *letter, void *user)
{
	struct fixture_letter *kept = user;
	if (kept->count++ > 0)
		return;
	snprintf(kept->entry_id, sizeof(kept->entry_id), "%s", letter->entry_id);
	snprintf(kept->event_id, sizeof(kept->event_id), "%s",
		 letter->event_id ? letter->event_id : "");
	snprintf(kept->reason, sizeof(kept->reason), "%s", letter->failure_reason);
	snprintf(kept->scope, sizeof(kept->scope), "%s", letter->scope);
	kept->attempts = letter->attempts;
	kept->replay_count = letter->replay_count;
	kept->status = letter->status;
	kept->parked = letter->parked;
}

/* The oldest dead letter; count: how many there are. */
static inline struct fixture_letter fixture_letter(struct fixture *fixture)
{
	struct fixture_letter letter = { 0 };
	fixture_ok(fixture, semel_dead_letter_list(fixture->store, NULL, fixture_letter_seen,
						   &letter, &fixture->error));
	return letter;
}

#endif
