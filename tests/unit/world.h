/* SPDX-License-Identifier: Apache-2.0 */
/* A small world for tests of rules: a store and a local broker in a folder of their own, a relay,
 * and consumers whose handler writes down what it did and can be told to fail. */
#ifndef SEMEL_TESTS_UNIT_WORLD_H
#define SEMEL_TESTS_UNIT_WORLD_H

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

#define WORLD_DRAIN_MS 20000

struct world {
	char folder[64];
	char store_url[128], broker_url[128];
	semel_store *store;
	sqlite3 *db; /* a stranger's connection */
	semel_error error;
	const char *poison; /* payloads that hold this word are rejected; NULL: none */
	uint32_t replays;
};

static inline struct world *world_of(void **state)
{
	return *state;
}

static inline void world_ok(struct world *world, semel_status status)
{
	if (status != SEMEL_OK)
		fail_msg("%s: %s", semel_status_name(status), world->error.text);
}

static inline void world_sql(struct world *world, const char *sql)
{
	char *message = NULL;
	if (sqlite3_exec(world->db, sql, NULL, NULL, &message) != SQLITE_OK)
		fail_msg("%s: %s", sql, message);
}

/* One number or text; the text is the caller's to free. */
static inline char *world_ask(struct world *world, const char *sql)
{
	sqlite3_stmt *statement = NULL;
	if (sqlite3_prepare_v2(world->db, sql, -1, &statement, NULL) != SQLITE_OK)
		fail_msg("%s: %s", sql, sqlite3_errmsg(world->db));
	char *answer = NULL;
	if (sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_text(statement, 0))
		answer = strdup((const char *)sqlite3_column_text(statement, 0));
	sqlite3_finalize(statement);
	return answer;
}

static inline void world_expect(struct world *world, const char *sql, const char *expected)
{
	char *answer = world_ask(world, sql);
	assert_string_equal(answer ? answer : "(none)", expected);
	free(answer);
}

static inline int world_begin(void **state)
{
	struct world *world = calloc(1, sizeof(*world));
	snprintf(world->folder, sizeof(world->folder), "/tmp/semel-test-XXXXXX");
	if (!mkdtemp(world->folder))
		return -1;
	snprintf(world->store_url, sizeof(world->store_url), "sqlite:%s/store.db", world->folder);
	snprintf(world->broker_url, sizeof(world->broker_url), "local:%s/broker.db", world->folder);
	world_ok(world, semel_store_init(world->store_url, &world->error));
	world_ok(world, semel_store_open(world->store_url, &world->store, &world->error));
	assert_int_equal(sqlite3_open(world->store_url + strlen("sqlite:"), &world->db), SQLITE_OK);
	sqlite3_busy_timeout(world->db, 5000);
	world_sql(world, "CREATE TABLE effect (number INTEGER PRIMARY KEY, scope TEXT, id TEXT, "
			 "payload TEXT)");
	*state = world;
	return 0;
}

static inline int world_end(void **state)
{
	struct world *world = *state;
	sqlite3_close(world->db);
	semel_store_close(world->store);
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", world->folder);
	int code = system(command);
	free(world);
	return code;
}

/* ---- producing ------------------------------------------------------------------------------- */

static inline void world_publish_input(struct world *world, const semel_event_input *input,
				       char id_out[SEMEL_ID_SIZE])
{
	const struct semel_store_driver *driver = world->store->driver;
	world_ok(world, driver->begin(world->store, &world->error));
	world_ok(world,
		 semel_outbox_publish(driver->tx(world->store), input, id_out, &world->error));
	world_ok(world, driver->commit(world->store, &world->error));
}

/* An event of order:aggregate with the JSON text word as its payload. */
static inline void world_publish(struct world *world, const char *aggregate, const char *word,
				 char id_out[SEMEL_ID_SIZE])
{
	char payload[128];
	snprintf(payload, sizeof(payload), "\"%s\"", word);
	semel_event_input input = { .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = aggregate,
				    .payload = payload };
	world_publish_input(world, &input, id_out);
}

static inline void world_relay(struct world *world)
{
	semel_relay_options options = { .store = world->store_url, .broker = world->broker_url };
	semel_relay *relay = NULL;
	world_ok(world, semel_relay_open(&options, &relay, &world->error));
	world_ok(world, semel_relay_drain(relay, WORLD_DRAIN_MS, &world->error));
	semel_relay_close(relay);
}

/* As the relay does it when the budget is used up. */
static inline void world_give_up_first_row(struct world *world)
{
	struct semel_arena *arena = semel_arena_new(4096);
	const struct semel_store_driver *driver = world->store->driver;
	struct semel_lease lease = { 0 };
	world_ok(world, driver->outbox->lease_list(world->store, &lease, &world->error));
	world_ok(world, driver->outbox->lease_take(world->store, &lease, "tester", INT64_MAX / 4,
						   &world->error));
	struct semel_outbox_row row;
	struct semel_outbox_batch batch = {
		.arena = arena, .rows = &row, .capacity = 1, .bytes_max = 1000
	};
	world_ok(world, driver->outbox->fetch(world->store, &lease, 0, &batch, &world->error));
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
	world_ok(world, driver->outbox->mark(world->store, &lease, &marks, &world->error));
	driver->outbox->lease_release(world->store, &lease);
	semel_arena_free(arena);
}

/* ---- consuming ------------------------------------------------------------------------------- */

struct world_reader {
	struct world *world;
	const char *scope;
};

static inline semel_verdict world_handle(const semel_event *event, semel_context *context,
					 void *user)
{
	const struct world_reader *reader = user;
	const char *payload = semel_event_payload(event, NULL);
	if (reader->world->poison && strstr(payload, reader->world->poison)) {
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
static inline void world_consume_some(struct world *world, semel_consumer_options options,
				      uint64_t max)
{
	static const char *const orders[] = { "order.events", NULL };
	options.store = world->store_url;
	options.broker = world->broker_url;
	options.topics = options.topics ? options.topics : orders;
	struct world_reader reader = { world, options.scope };
	semel_consumer *consumer = NULL;
	world_ok(world, semel_consumer_open(&options, &consumer, &world->error));
	world_ok(world, semel_consumer_handle(consumer, world_handle, &reader, &world->error));
	world_ok(world, semel_consumer_drain(consumer, WORLD_DRAIN_MS, max, &world->error));
	semel_consumer_close(consumer);
}

static inline void world_consume_with(struct world *world, semel_consumer_options options)
{
	world_consume_some(world, options, 0);
}

static inline void world_consume(struct world *world, const char *scope)
{
	world_consume_with(world, (semel_consumer_options){ .scope = scope });
}

/* ---- looking --------------------------------------------------------------------------------- */

struct world_letter {
	char entry_id[SEMEL_ID_SIZE], event_id[SEMEL_ID_SIZE];
	char reason[128], scope[32];
	uint32_t attempts, replay_count;
	semel_dead_status status;
	uint64_t parked;
	unsigned count;
};

static inline void world_letter_seen(const semel_dead_letter *letter, void *user)
{
	struct world_letter *kept = user;
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

/* The oldest dead letter; count tells how many there are. */
static inline struct world_letter world_letter(struct world *world)
{
	struct world_letter letter = { 0 };
	world_ok(world, semel_dead_letter_list(world->store, NULL, world_letter_seen, &letter,
					       &world->error));
	return letter;
}

#endif
