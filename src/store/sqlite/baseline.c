/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline with sqlite3's own calls and prepared statements, in WAL mode with synchronous=FULL.
 * Two commits per batch in each direction, as in Semel: log then mark, effect then cursor. */
#include "store/baseline.h"

#include "base/env.h"
#include "base/error.h"
#include "base/sqlite_file.h"
#include "base/time.h"
#include "base/uuid.h"

#include <stdlib.h>
#include <string.h>

#define BUSY_MS 10000

#define NUMBER_TEXT_(number) #number
#define NUMBER_TEXT(number)  NUMBER_TEXT_(number)
#define BATCH_LIMIT          " LIMIT " NUMBER_TEXT(SEMEL_BASELINE_BATCH)

static const char application_tables[] =
	"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
	"CREATE TABLE bench_order (id TEXT NOT NULL, customer TEXT NOT NULL, total INTEGER NOT "
	"NULL);"
	"CREATE TABLE bench_invoice (event_id TEXT NOT NULL, order_id TEXT NOT NULL, total)";

static const char log_tables[] =
	"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
	"CREATE TABLE log (position INTEGER PRIMARY KEY, appended_at TEXT, id TEXT, type TEXT,"
	" aggregate_type TEXT, aggregate_id TEXT, topic TEXT, routing_key TEXT, content_type TEXT,"
	" headers TEXT, time TEXT, payload);"
	"CREATE TABLE cursor (scope TEXT PRIMARY KEY, position INTEGER NOT NULL);"
	"INSERT INTO cursor VALUES ('bench', 0)";

/* Those from LOG_ADD on are for the log's database. */
enum statement {
	BEGIN,
	COMMIT,
	ORDER_INSERT,
	OUTBOX_INSERT,
	OUTBOX_READ,
	OUTBOX_MARK,
	INBOX_ADD,
	EFFECT,
	LOG_ADD,
	LOG_READ,
	LOG_BEGIN,
	LOG_COMMIT,
	CURSOR_SET,
	STATEMENT_COUNT
};

static const char *const statements_sql[STATEMENT_COUNT] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[COMMIT] = "COMMIT",
	[ORDER_INSERT] = "INSERT INTO bench_order (id, customer, total) VALUES (?1, ?2, ?3)",
	[OUTBOX_INSERT] =
		"INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"
		" routing_key, content_type, headers, created_at, payload)"
		" VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
	[OUTBOX_READ] =
		"SELECT seq, id, event_type, aggregate_type, aggregate_id, topic, routing_key,"
		" content_type, headers, created_at, payload FROM semel_outbox"
		" WHERE seq > ?1 AND status = 'NEW' ORDER BY seq" BATCH_LIMIT,
	[OUTBOX_MARK] = "UPDATE semel_outbox SET status = 'PUBLISHED', published_at = ?3"
			" WHERE seq > ?1 AND seq <= ?2",
	[INBOX_ADD] = "INSERT OR IGNORE INTO semel_inbox (scope, event_id, week_start, status,"
		      " first_seen_at, processed_at, topic, \"partition\", \"offset\")"
		      " VALUES ('bench', ?1, ?2, 'PROCESSED', ?3, ?3, ?4, 0, ?5)",
	[EFFECT] = SEMEL_BASELINE_EFFECT,
	[LOG_ADD] = "INSERT INTO log (position, id, type, aggregate_type, aggregate_id, topic,"
		    " routing_key, content_type, headers, time, payload, appended_at)"
		    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
	[LOG_READ] = "SELECT position, id, aggregate_id, topic, time, payload FROM log"
		     " WHERE position > ?1 ORDER BY position" BATCH_LIMIT,
	[LOG_BEGIN] = "BEGIN IMMEDIATE",
	[LOG_COMMIT] = "COMMIT",
	[CURSOR_SET] = "UPDATE cursor SET position = ?1 WHERE scope = 'bench'",
};

static const char add_events_sql[] =
	"WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1 + ?2)"
	" INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"
	" routing_key, headers, created_at, payload) SELECT"
	" printf('%08x-%04x-7000-8000-%012x', i >> 16, i & 65535, i), 'order',"
	" printf('ord-%08d', i / (?3 * ?4) * ?3 + i % ?3), '" SEMEL_BASELINE_TYPE
	"', '" SEMEL_BASELINE_TOPIC "', '" SEMEL_BASELINE_TYPE "', '" SEMEL_BASELINE_HEADERS "',"
	" strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),"
	" printf('{\"orderId\":\"ord-%08d\",\"customer\":\"customer-%05d\",\"currency\":\"EUR\","
	"\"total\":%d,\"lines\":[{\"product\":\"tea\",\"quantity\":2,\"price\":450},"
	"{\"product\":\"cup\",\"quantity\":1,\"price\":1290}]}',"
	" i / (?3 * ?4) * ?3 + i % ?3, i % 5000, i % 900 + 100) FROM n";

struct semel_baseline {
	sqlite3 *store, *log;
	sqlite3_stmt *statements[STATEMENT_COUNT];
	int64_t relayed;  /* seq of the last event in the log */
	int64_t consumed; /* position of the last event that had its effect */
};

/* ---- statements ------------------------------------------------------------------------------ */

static semel_status prepare(sqlite3 *db, const char *sql, sqlite3_stmt **statement_out,
			    semel_error *error)
{
	int code = sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, statement_out, NULL);
	return code == SQLITE_OK ? SEMEL_OK : semel_sqlite_error(db, code, sql, error);
}

/* Runs the statement to its end, and resets it. */
static semel_status run(sqlite3_stmt *statement, semel_error *error)
{
	int code;
	do
		code = sqlite3_step(statement);
	while (code == SQLITE_ROW);
	sqlite3_reset(statement);
	return code == SQLITE_DONE ? SEMEL_OK
				   : semel_sqlite_error(sqlite3_db_handle(statement), code,
							sqlite3_sql(statement), error);
}

static void bind_string(sqlite3_stmt *statement, int at, const char *string)
{
	sqlite3_bind_text(statement, at, string, -1, SQLITE_STATIC);
}

static void bind_now(sqlite3_stmt *statement, int at)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(semel_now_ms(semel_env_system()), time);
	sqlite3_bind_text(statement, at, time, -1, SQLITE_TRANSIENT);
}

static void copy_text(sqlite3_stmt *from, int column, sqlite3_stmt *to, int at)
{
	sqlite3_bind_text(to, at, (const char *)sqlite3_column_text(from, column),
			  sqlite3_column_bytes(from, column), SQLITE_STATIC);
}

/* ---- opening --------------------------------------------------------------------------------- */

static semel_status open_database(const char *path, const char *tables, sqlite3 **db_out,
				  semel_error *error)
{
	int code = sqlite3_open(path, db_out);
	if (code != SQLITE_OK)
		return semel_sqlite_error(*db_out, code, "open the database", error);
	sqlite3_busy_timeout(*db_out, BUSY_MS);
	return semel_sqlite_exec(*db_out, tables, error);
}

static semel_status prepare_all(struct semel_baseline *baseline, sqlite3 *db, int from, int to,
				semel_error *error)
{
	for (int i = from; i < to; i++) {
		semel_status status =
			prepare(db, statements_sql[i], &baseline->statements[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static void close_baseline(struct semel_baseline *baseline)
{
	if (!baseline)
		return;
	for (int i = 0; i < STATEMENT_COUNT; i++)
		sqlite3_finalize(baseline->statements[i]);
	sqlite3_close(baseline->log);
	sqlite3_close(baseline->store);
	free(baseline);
}

static semel_status open_baseline(const char *url, struct semel_baseline **baseline_out,
				  semel_error *error)
{
	*baseline_out = NULL;
	semel_status status = semel_store_init(url, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_baseline *baseline = calloc(1, sizeof *baseline);
	if (!baseline)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	status =
		open_database(url + strlen("sqlite:"), application_tables, &baseline->store, error);
	if (status != SEMEL_OK)
		goto close_baseline;
	status = prepare_all(baseline, baseline->store, 0, LOG_ADD, error);
	if (status != SEMEL_OK)
		goto close_baseline;
	*baseline_out = baseline;
	return SEMEL_OK;

close_baseline:
	close_baseline(baseline);
	return status;
}

static semel_status open_log(struct semel_baseline *baseline, const char *path, semel_error *error)
{
	semel_status status = open_database(path, log_tables, &baseline->log, error);
	if (status != SEMEL_OK)
		return status;
	return prepare_all(baseline, baseline->log, LOG_ADD, STATEMENT_COUNT, error);
}

/* ---- the application ------------------------------------------------------------------------- */

static semel_status add_events(struct semel_baseline *baseline, uint64_t first, uint64_t count,
			       semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = prepare(baseline->store, add_events_sql, &statement, error);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, (sqlite3_int64)first);
	sqlite3_bind_int64(statement, 2, (sqlite3_int64)count);
	sqlite3_bind_int(statement, 3, SEMEL_BASELINE_ACTIVE_ORDERS);
	sqlite3_bind_int(statement, 4, SEMEL_BASELINE_EVENTS_PER_ORDER);
	status = run(statement, error);
	sqlite3_finalize(statement);
	return status;
}

static semel_status begin(struct semel_baseline *baseline, semel_error *error)
{
	return run(baseline->statements[BEGIN], error);
}

static semel_status commit(struct semel_baseline *baseline, semel_error *error)
{
	return run(baseline->statements[COMMIT], error);
}

static semel_status insert_order(struct semel_baseline *baseline,
				 const struct semel_baseline_order *order, semel_error *error)
{
	sqlite3_stmt *insert = baseline->statements[ORDER_INSERT];
	bind_string(insert, 1, order->id);
	bind_string(insert, 2, order->customer);
	sqlite3_bind_int64(insert, 3, order->total);
	return run(insert, error);
}

static semel_status insert_event(struct semel_baseline *baseline, const semel_event_input *event,
				 semel_error *error)
{
	sqlite3_stmt *insert = baseline->statements[OUTBOX_INSERT];
	char id[SEMEL_UUID_SIZE], time[SEMEL_TIME_SIZE];
	semel_uuid_make(semel_env_system(), id);
	semel_time_format(semel_now_ms(semel_env_system()), time);
	const char *const values[] = { id,
				       event->aggregate_type,
				       event->aggregate_id,
				       event->type,
				       SEMEL_BASELINE_TOPIC,
				       event->type,
				       "application/json",
				       event->headers,
				       time,
				       event->payload };
	for (int i = 0; i < (int)(sizeof values / sizeof *values); i++)
		bind_string(insert, i + 1, values[i]);
	return run(insert, error);
}

static semel_tx tx(struct semel_baseline *baseline)
{
	return semel_borrow_sqlite(baseline->store);
}

/* ---- outbox to log --------------------------------------------------------------------------- */

typedef semel_status (*row_callback)(struct semel_baseline *baseline, sqlite3_stmt *row,
				     semel_error *error);

/* last_out: the first column of the last row. */
static semel_status each_row(struct semel_baseline *baseline, sqlite3_stmt *reader,
			     row_callback take, int64_t *last_out, semel_error *error)
{
	semel_status status = SEMEL_OK;
	int code;
	while ((code = sqlite3_step(reader)) == SQLITE_ROW) {
		*last_out = sqlite3_column_int64(reader, 0);
		status = take(baseline, reader, error);
		if (status != SEMEL_OK)
			break;
	}
	sqlite3_reset(reader);
	if (status != SEMEL_OK || code == SQLITE_DONE)
		return status;
	return semel_sqlite_error(sqlite3_db_handle(reader), code, "read a batch", error);
}

static semel_status add_to_log(struct semel_baseline *baseline, sqlite3_stmt *row,
			       semel_error *error)
{
	sqlite3_stmt *add = baseline->statements[LOG_ADD];
	sqlite3_bind_int64(add, 1, sqlite3_column_int64(row, 0));
	for (int column = 1; column <= 10; column++)
		copy_text(row, column, add, column + 1);
	return run(add, error);
}

static semel_status mark(struct semel_baseline *baseline, int64_t from, int64_t to,
			 semel_error *error)
{
	sqlite3_stmt *update = baseline->statements[OUTBOX_MARK];
	sqlite3_bind_int64(update, 1, from);
	sqlite3_bind_int64(update, 2, to);
	bind_now(update, 3);
	semel_status status = begin(baseline, error);
	if (status != SEMEL_OK)
		return status;
	status = run(update, error);
	if (status != SEMEL_OK)
		return status;
	return commit(baseline, error);
}

static semel_status relay_batch(struct semel_baseline *baseline, int64_t *last_out,
				semel_error *error)
{
	sqlite3_stmt *reader = baseline->statements[OUTBOX_READ];
	sqlite3_bind_int64(reader, 1, baseline->relayed);
	bind_now(baseline->statements[LOG_ADD], 12);
	semel_status status = run(baseline->statements[LOG_BEGIN], error);
	if (status != SEMEL_OK)
		return status;
	status = each_row(baseline, reader, add_to_log, last_out, error);
	if (status != SEMEL_OK)
		return status;
	status = run(baseline->statements[LOG_COMMIT], error);
	if (status != SEMEL_OK || *last_out == baseline->relayed)
		return status;
	return mark(baseline, baseline->relayed, *last_out, error);
}

static semel_status relay(struct semel_baseline *baseline, semel_error *error)
{
	for (;;) {
		int64_t last = baseline->relayed;
		semel_status status = relay_batch(baseline, &last, error);
		if (status != SEMEL_OK || last == baseline->relayed)
			return status;
		baseline->relayed = last;
	}
}

/* ---- log to effect --------------------------------------------------------------------------- */

enum { POSITION, ID, AGGREGATE_ID, TOPIC, TIME, PAYLOAD };

static void bind_week(sqlite3_stmt *add, const char *time)
{
	int64_t time_ms = 0;
	char week[SEMEL_TIME_SIZE];
	if (!semel_time_parse(time, &time_ms))
		time_ms = 0; /* impossible: the relay wrote it */
	semel_time_format(semel_time_week_start(time_ms), week);
	sqlite3_bind_text(add, 2, week, -1, SQLITE_TRANSIENT);
}

static semel_status apply(struct semel_baseline *baseline, sqlite3_stmt *row, semel_error *error)
{
	sqlite3_stmt *add = baseline->statements[INBOX_ADD];
	sqlite3_stmt *effect = baseline->statements[EFFECT];
	copy_text(row, ID, add, 1);
	bind_week(add, (const char *)sqlite3_column_text(row, TIME));
	copy_text(row, TOPIC, add, 4);
	sqlite3_bind_int64(add, 5, sqlite3_column_int64(row, POSITION));
	semel_status status = run(add, error);
	if (status != SEMEL_OK || sqlite3_changes(baseline->store) == 0)
		return status; /* a duplicate */
	copy_text(row, ID, effect, 1);
	copy_text(row, AGGREGATE_ID, effect, 2);
	copy_text(row, PAYLOAD, effect, 3);
	return run(effect, error);
}

static semel_status consume_batch(struct semel_baseline *baseline, int64_t *last_out,
				  semel_error *error)
{
	sqlite3_stmt *reader = baseline->statements[LOG_READ];
	sqlite3_stmt *cursor = baseline->statements[CURSOR_SET];
	sqlite3_bind_int64(reader, 1, baseline->consumed);
	bind_now(baseline->statements[INBOX_ADD], 3);
	semel_status status = begin(baseline, error);
	if (status != SEMEL_OK)
		return status;
	status = each_row(baseline, reader, apply, last_out, error);
	if (status != SEMEL_OK)
		return status;
	status = commit(baseline, error);
	if (status != SEMEL_OK || *last_out == baseline->consumed)
		return status;
	sqlite3_bind_int64(cursor, 1, *last_out);
	return run(cursor, error);
}

static semel_status consume(struct semel_baseline *baseline, semel_error *error)
{
	for (;;) {
		int64_t last = baseline->consumed;
		semel_status status = consume_batch(baseline, &last, error);
		if (status != SEMEL_OK || last == baseline->consumed)
			return status;
		baseline->consumed = last;
	}
}

const struct semel_baseline_functions semel_sqlite_baseline = {
	.open = open_baseline,
	.close = close_baseline,
	.add_events = add_events,
	.begin = begin,
	.commit = commit,
	.insert_order = insert_order,
	.insert_event = insert_event,
	.tx = tx,
	.open_log = open_log,
	.relay = relay,
	.consume = consume,
};
