/* SPDX-License-Identifier: Apache-2.0 */
/* Two commits for a batch on either way, as in Semel: log then mark, effect then cursor. */
#include "cli/plays/bench/bare.h"

#include "base/env.h"
#include "base/error.h"
#include "base/sqlite_file.h"
#include "base/time.h"

static const char log_tables[] =
	"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
	"CREATE TABLE log (position INTEGER PRIMARY KEY, appended_at TEXT, id TEXT, type TEXT,"
	" aggregate_type TEXT, aggregate_id TEXT, topic TEXT, routing_key TEXT, content_type TEXT,"
	" headers TEXT, time TEXT, payload);"
	"CREATE TABLE cursor (scope TEXT PRIMARY KEY, position INTEGER NOT NULL);"
	"INSERT INTO cursor VALUES ('bench', 0)";

#define BATCH_TEXT_(number) #number
#define BATCH_TEXT(number)  BATCH_TEXT_(number)
#define BATCH_LIMIT         " LIMIT " BATCH_TEXT(SEMEL_BENCH_BATCH)

/* Ordered by file: those before LOG_ADD are of the store. */
static const char *const statements_sql[SEMEL_BARE_STATEMENT_COUNT] = {
	[SEMEL_BARE_OUTBOX_READ] =
		"SELECT seq, id, event_type, aggregate_type, aggregate_id, topic, routing_key,"
		" content_type, headers, created_at, payload FROM semel_outbox"
		" WHERE seq > ?1 AND status = 'NEW' ORDER BY seq" BATCH_LIMIT,
	[SEMEL_BARE_OUTBOX_MARK] = "UPDATE semel_outbox SET status = 'PUBLISHED', published_at = ?3"
				   " WHERE seq > ?1 AND seq <= ?2",
	[SEMEL_BARE_INBOX_ADD] =
		"INSERT OR IGNORE INTO semel_inbox (scope, event_id, week_start, status,"
		" first_seen_at, processed_at, topic, \"partition\", \"offset\")"
		" VALUES ('bench', ?1, ?2, 'PROCESSED', ?3, ?3, ?4, 0, ?5)",
	[SEMEL_BARE_EFFECT] = SEMEL_BENCH_EFFECT,
	[SEMEL_BARE_STORE_BEGIN] = "BEGIN IMMEDIATE",
	[SEMEL_BARE_STORE_COMMIT] = "COMMIT",
	[SEMEL_BARE_LOG_ADD] = "INSERT INTO log (position, id, type, aggregate_type, aggregate_id,"
			       " topic, routing_key, content_type, headers, time, payload,"
			       " appended_at)"
			       " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
	[SEMEL_BARE_LOG_READ] = "SELECT position, id, aggregate_id, topic, time, payload FROM log"
				" WHERE position > ?1 ORDER BY position" BATCH_LIMIT,
	[SEMEL_BARE_CURSOR_SET] = "UPDATE cursor SET position = ?1 WHERE scope = 'bench'",
	[SEMEL_BARE_LOG_BEGIN] = "BEGIN IMMEDIATE",
	[SEMEL_BARE_LOG_COMMIT] = "COMMIT",
};

/* ---- small steps ----------------------------------------------------------------------------- */

static semel_status run(struct semel_bare *bare, enum semel_bare_statement statement)
{
	return semel_bench_run(bare->bench, bare->statements[statement]);
}

static void copy_text(sqlite3_stmt *from, int column, sqlite3_stmt *to, int at)
{
	sqlite3_bind_text(to, at, (const char *)sqlite3_column_text(from, column),
			  sqlite3_column_bytes(from, column), SQLITE_STATIC);
}

static void bind_now(sqlite3_stmt *statement, int at)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(semel_now_ms(semel_env_system()), time);
	sqlite3_bind_text(statement, at, time, -1, SQLITE_TRANSIENT);
}

/* Calls take for every row; last_out: the first column of the last one. */
static semel_status each_row(struct semel_bare *bare, sqlite3_stmt *reader, int64_t *last_out,
			     semel_status (*take)(struct semel_bare *bare, sqlite3_stmt *row))
{
	semel_status status = SEMEL_OK;
	int code = SQLITE_DONE;
	while (status == SEMEL_OK && (code = sqlite3_step(reader)) == SQLITE_ROW) {
		*last_out = sqlite3_column_int64(reader, 0);
		status = take(bare, reader);
	}
	sqlite3_reset(reader);
	if (status == SEMEL_OK && code != SQLITE_DONE)
		status = semel_sqlite_error(sqlite3_db_handle(reader), code, "read a batch",
					    bare->bench->error);
	return status;
}

/* ---- outbox to log --------------------------------------------------------------------------- */

static semel_status add_to_log(struct semel_bare *bare, sqlite3_stmt *row)
{
	sqlite3_stmt *add = bare->statements[SEMEL_BARE_LOG_ADD];
	sqlite3_bind_int64(add, 1, sqlite3_column_int64(row, 0));
	for (int column = 1; column <= 10; column++)
		copy_text(row, column, add, column + 1);
	return semel_bench_run(bare->bench, add);
}

static semel_status mark(struct semel_bare *bare, int64_t from, int64_t to)
{
	sqlite3_stmt *update = bare->statements[SEMEL_BARE_OUTBOX_MARK];
	sqlite3_bind_int64(update, 1, from);
	sqlite3_bind_int64(update, 2, to);
	bind_now(update, 3);
	semel_status status = run(bare, SEMEL_BARE_STORE_BEGIN);
	if (status == SEMEL_OK)
		status = run(bare, SEMEL_BARE_OUTBOX_MARK);
	if (status == SEMEL_OK)
		status = run(bare, SEMEL_BARE_STORE_COMMIT);
	return status;
}

static semel_status relay_batch(struct semel_bare *bare, int64_t *last_out)
{
	sqlite3_stmt *reader = bare->statements[SEMEL_BARE_OUTBOX_READ];
	sqlite3_bind_int64(reader, 1, bare->relayed);
	bind_now(bare->statements[SEMEL_BARE_LOG_ADD], 12);
	semel_status status = run(bare, SEMEL_BARE_LOG_BEGIN);
	if (status == SEMEL_OK)
		status = each_row(bare, reader, last_out, add_to_log);
	if (status == SEMEL_OK)
		status = run(bare, SEMEL_BARE_LOG_COMMIT);
	if (status == SEMEL_OK && *last_out > bare->relayed)
		status = mark(bare, bare->relayed, *last_out);
	return status;
}

semel_status semel_bare_relay(struct semel_bare *bare)
{
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK) {
		int64_t last = bare->relayed;
		status = relay_batch(bare, &last);
		if (last == bare->relayed)
			break;
		bare->relayed = last;
	}
	return status;
}

/* ---- log to effect --------------------------------------------------------------------------- */

enum { POSITION, ID, AGGREGATE_ID, TOPIC, TIME, PAYLOAD };

static void bind_week(sqlite3_stmt *add, const char *time)
{
	int64_t time_ms = 0;
	char week[SEMEL_TIME_SIZE];
	if (!semel_time_parse(time, &time_ms))
		time_ms = 0; /* cannot be: we wrote it */
	semel_time_format(semel_time_week_start(time_ms), week);
	sqlite3_bind_text(add, 2, week, -1, SQLITE_TRANSIENT);
}

static semel_status apply(struct semel_bare *bare, sqlite3_stmt *row)
{
	sqlite3_stmt *add = bare->statements[SEMEL_BARE_INBOX_ADD];
	sqlite3_stmt *effect = bare->statements[SEMEL_BARE_EFFECT];
	copy_text(row, ID, add, 1);
	bind_week(add, (const char *)sqlite3_column_text(row, TIME));
	copy_text(row, TOPIC, add, 4);
	sqlite3_bind_int64(add, 5, sqlite3_column_int64(row, POSITION));
	semel_status status = semel_bench_run(bare->bench, add);
	if (status != SEMEL_OK || sqlite3_changes(bare->store) == 0)
		return status; /* a duplicate */
	copy_text(row, ID, effect, 1);
	copy_text(row, AGGREGATE_ID, effect, 2);
	copy_text(row, PAYLOAD, effect, 3);
	return semel_bench_run(bare->bench, effect);
}

static semel_status consume_batch(struct semel_bare *bare, int64_t *last_out)
{
	sqlite3_stmt *reader = bare->statements[SEMEL_BARE_LOG_READ];
	sqlite3_stmt *cursor = bare->statements[SEMEL_BARE_CURSOR_SET];
	sqlite3_bind_int64(reader, 1, bare->consumed);
	bind_now(bare->statements[SEMEL_BARE_INBOX_ADD], 3);
	semel_status status = run(bare, SEMEL_BARE_STORE_BEGIN);
	if (status == SEMEL_OK)
		status = each_row(bare, reader, last_out, apply);
	if (status == SEMEL_OK)
		status = run(bare, SEMEL_BARE_STORE_COMMIT);
	if (status != SEMEL_OK || *last_out == bare->consumed)
		return status;
	sqlite3_bind_int64(cursor, 1, *last_out);
	return semel_bench_run(bare->bench, cursor);
}

semel_status semel_bare_consume(struct semel_bare *bare)
{
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK) {
		int64_t last = bare->consumed;
		status = consume_batch(bare, &last);
		if (last == bare->consumed)
			break;
		bare->consumed = last;
	}
	return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

semel_status semel_bare_open(struct semel_bench *bench, struct semel_bare *bare)
{
	*bare = (struct semel_bare){ .bench = bench };
	semel_status status = semel_bench_open_application(bench, "bare.db", &bare->store);
	if (status != SEMEL_OK)
		return status;
	const char *path = semel_sandbox_path(bench->sandbox, "", "bare-log.db");
	if (!path)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
	int code = sqlite3_open(path, &bare->log);
	if (code != SQLITE_OK)
		return semel_sqlite_error(bare->log, code, "open the log", bench->error);
	status = semel_bench_exec(bench, bare->log, log_tables);
	for (int i = 0; i < SEMEL_BARE_STATEMENT_COUNT && status == SEMEL_OK; i++)
		status =
			semel_bench_prepare(bench, i < SEMEL_BARE_LOG_ADD ? bare->store : bare->log,
					    statements_sql[i], &bare->statements[i]);
	return status;
}

void semel_bare_close(struct semel_bare *bare)
{
	for (int i = 0; i < SEMEL_BARE_STATEMENT_COUNT; i++)
		sqlite3_finalize(bare->statements[i]);
	sqlite3_close(bare->log);
	sqlite3_close(bare->store);
}
