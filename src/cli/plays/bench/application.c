/* SPDX-License-Identifier: Apache-2.0 */
/* What an application does with sqlite3 by hand: open, prepare, run, and write events itself. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "base/sqlite_file.h"

#include <inttypes.h>
#include <semel/store.h>
#include <stdio.h>

/* An order has three events, with those of a thousand other orders in between. */
#define ACTIVE_ORDERS    1000
#define EVENTS_PER_ORDER 3

static const char application_tables[] =
	"CREATE TABLE bench_order (id TEXT NOT NULL, customer TEXT NOT NULL, total INTEGER NOT "
	"NULL);" SEMEL_BENCH_INVOICE;

/* The same texts as semel_bench_aggregate_id and semel_bench_payload write. */
static const char fill_outbox[] =
	"WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?1 + ?2)"
	" INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"
	" routing_key, headers, created_at, payload) SELECT"
	" printf('%08x-%04x-7000-8000-%012x', i >> 16, i & 65535, i), 'order',"
	" printf('ord-%08d', i / (?3 * ?4) * ?3 + i % ?3), '" SEMEL_BENCH_TYPE
	"', '" SEMEL_BENCH_TOPIC "', '" SEMEL_BENCH_TYPE "', ?5,"
	" strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),"
	" printf('{\"orderId\":\"ord-%08d\",\"customer\":\"customer-%05d\",\"currency\":\"EUR\","
	"\"total\":%d,\"lines\":[{\"product\":\"tea\",\"quantity\":2,\"price\":450},"
	"{\"product\":\"cup\",\"quantity\":1,\"price\":1290}]}',"
	" i / (?3 * ?4) * ?3 + i % ?3, i % 5000, i % 900 + 100) FROM n";

void semel_bench_aggregate_id(uint64_t number, char *text_out, size_t size)
{
	uint64_t order = number / (ACTIVE_ORDERS * EVENTS_PER_ORDER) * ACTIVE_ORDERS +
			 number % ACTIVE_ORDERS;
	snprintf(text_out, size, "ord-%08" PRIu64, order);
}

void semel_bench_payload(uint64_t number, char *text_out, size_t size)
{
	char order[32];
	semel_bench_aggregate_id(number, order, sizeof order);
	snprintf(text_out, size,
		 "{\"orderId\":\"%s\",\"customer\":\"customer-%05" PRIu64
		 "\",\"currency\":\"EUR\",\"total\":%" PRIu64
		 ",\"lines\":[{\"product\":\"tea\",\"quantity\":2,\"price\":450},"
		 "{\"product\":\"cup\",\"quantity\":1,\"price\":1290}]}",
		 order, number % 5000, number % 900 + 100);
}

semel_status semel_bench_exec(struct semel_bench *bench, sqlite3 *db, const char *sql)
{
	return semel_sqlite_exec(db, sql, bench->error);
}

semel_status semel_bench_prepare(struct semel_bench *bench, sqlite3 *db, const char *sql,
				 sqlite3_stmt **statement_out)
{
	int code = sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, statement_out, NULL);
	return code == SQLITE_OK ? SEMEL_OK : semel_sqlite_error(db, code, sql, bench->error);
}

semel_status semel_bench_run(struct semel_bench *bench, sqlite3_stmt *statement)
{
	int code;
	do
		code = sqlite3_step(statement);
	while (code == SQLITE_ROW);
	sqlite3_reset(statement);
	return code == SQLITE_DONE ? SEMEL_OK
				   : semel_sqlite_error(sqlite3_db_handle(statement), code,
							sqlite3_sql(statement), bench->error);
}

semel_status semel_bench_open_application(struct semel_bench *bench, const char *name,
					  sqlite3 **db_out)
{
	const char *url = semel_sandbox_path(bench->sandbox, "sqlite:", name);
	const char *path = semel_sandbox_path(bench->sandbox, "", name);
	if (!url || !path)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
	semel_status status = semel_store_init(url, bench->error);
	if (status != SEMEL_OK)
		return status;
	int code = sqlite3_open(path, db_out);
	if (code != SQLITE_OK)
		return semel_sqlite_error(*db_out, code, "open the database", bench->error);
	sqlite3_busy_timeout(*db_out, 10000);
	status = semel_bench_exec(bench, *db_out,
				  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
	return status == SEMEL_OK ? semel_bench_exec(bench, *db_out, application_tables) : status;
}

semel_status semel_bench_fill(struct semel_bench *bench, sqlite3 *db, uint64_t *next,
			      uint64_t count)
{
	sqlite3_stmt *statement = NULL;
	semel_status status = semel_bench_prepare(bench, db, fill_outbox, &statement);
	if (status != SEMEL_OK)
		return status;
	sqlite3_bind_int64(statement, 1, (sqlite3_int64)*next);
	sqlite3_bind_int64(statement, 2, (sqlite3_int64)count);
	sqlite3_bind_int(statement, 3, ACTIVE_ORDERS);
	sqlite3_bind_int(statement, 4, EVENTS_PER_ORDER);
	sqlite3_bind_text(statement, 5, SEMEL_BENCH_HEADERS, -1, SQLITE_STATIC);
	status = semel_bench_run(bench, statement);
	sqlite3_finalize(statement);
	*next += count;
	return status;
}
