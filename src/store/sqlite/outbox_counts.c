/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits in the outbox, and why. The run is counted from the low mark on, so what was
 * published long ago costs nothing. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "store/rules.h"

static const struct semel_sqlite_query count_run = {
	SEMEL_SQL_ONCE, "count what waits in the outbox",
	"SELECT count(*), min(o.committed_at) FROM semel_outbox o"
	" WHERE o.seq > (SELECT low_seq FROM semel_lease WHERE lane = 0) AND o.status = 'NEW'"
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.seq = o.seq)"
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.aggregate_type ="
	" o.aggregate_type AND e.aggregate_id = o.aggregate_id AND e.seq < o.seq)"
};
/* Events that the run has not come to yet, but which will be parked when it does. CROSS JOIN: from
 * the few exceptions to their aggregates, never through the whole outbox. */
static const struct semel_sqlite_query count_held = {
	SEMEL_SQL_ONCE, "count what is held in the outbox",
	"SELECT h.state, h.state, h.blocks, count(*), min(h.due_at), min(o.committed_at), NULL"
	" FROM semel_outbox_exception h CROSS JOIN semel_outbox o"
	" ON o.aggregate_type = h.aggregate_type AND o.aggregate_id = h.aggregate_id"
	" WHERE h.seq = (SELECT min(seq) FROM semel_outbox_exception f WHERE"
	" f.aggregate_type = h.aggregate_type AND f.aggregate_id = h.aggregate_id)"
	" AND o.seq > h.seq AND o.status = 'NEW'"
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.seq = o.seq)"
	" GROUP BY h.state, h.blocks"
};
static const struct semel_sqlite_query count_exceptions = {
	SEMEL_SQL_ONCE, "count the exceptions of the outbox",
	"SELECT x.state, h.state, h.blocks, count(*), min(x.due_at), min(o.committed_at),"
	" max(o.last_error)"
	" FROM semel_outbox_exception x JOIN semel_outbox o ON o.seq = x.seq"
	" JOIN semel_outbox_exception h ON h.seq = (SELECT min(seq) FROM semel_outbox_exception f"
	" WHERE f.aggregate_type = x.aggregate_type AND f.aggregate_id = x.aggregate_id)"
	" GROUP BY x.state, h.state, h.blocks"
};
static const struct semel_sqlite_query count_failed = {
	SEMEL_SQL_ONCE, "count the failed events of the outbox",
	"SELECT count(*), max(failure_reason) FROM semel_dead_letter"
	" WHERE scope = 'relay' AND parked_behind IS NULL AND status = 'PENDING'"
};

static void keep_error(struct semel_outbox_counts *counts, sqlite3_stmt *statement, int column)
{
	if (counts->last_error[0] == '\0')
		semel_sqlite_copy(statement, column, counts->last_error,
				  sizeof(counts->last_error));
}

static void add_run(sqlite3_stmt *statement, struct semel_outbox_counts *counts)
{
	counts->waiting = (uint64_t)sqlite3_column_int64(statement, 0);
	semel_outbox_counts_add_oldest(counts, semel_sqlite_time(statement, 1));
}

static struct semel_outbox_group tally_of(sqlite3_stmt *statement)
{
	return (struct semel_outbox_group){
		.state = (const char *)sqlite3_column_text(statement, 0),
		.head = (const char *)sqlite3_column_text(statement, 1),
		.blocks = sqlite3_column_int(statement, 2) != 0,
		.count = (uint64_t)sqlite3_column_int64(statement, 3),
		.due_ms = semel_sqlite_time(statement, 4),
		.oldest_ms = semel_sqlite_time(statement, 5),
	};
}

static void add_exceptions(sqlite3_stmt *statement, struct semel_outbox_counts *counts)
{
	keep_error(counts, statement, 6);
	semel_outbox_counts_add(counts, tally_of(statement));
}

/* The head's own state stands in the first column; here it is the followers that are counted. */
static void add_held(sqlite3_stmt *statement, struct semel_outbox_counts *counts)
{
	struct semel_outbox_group tally = tally_of(statement);
	tally.state = NULL;
	semel_outbox_counts_add(counts, tally);
}

static void add_failed(sqlite3_stmt *statement, struct semel_outbox_counts *counts)
{
	counts->failed = (uint64_t)sqlite3_column_int64(statement, 0);
	keep_error(counts, statement, 1);
}

typedef void (*add_row)(sqlite3_stmt *statement, struct semel_outbox_counts *counts);

static semel_status add_each(semel_tx tx, const struct semel_sqlite_query *query, add_row add,
			     struct semel_outbox_counts *counts, semel_error *error)
{
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, query, &statement, error);
	if (status != SEMEL_OK)
		return status;
	do {
		status = semel_sqlite_step(tx, query, statement, &row, error);
		if (row)
			add(statement, counts);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, query, statement);
	return status;
}

semel_status semel_sqlite_outbox_count(semel_store *store, int64_t now_ms,
				       struct semel_outbox_counts *counts_out, semel_error *error)
{
	(void)now_ms;
	static const struct {
		const struct semel_sqlite_query *query;
		add_row add;
	} parts[] = { { &count_run, add_run },
		      { &count_exceptions, add_exceptions },
		      { &count_held, add_held },
		      { &count_failed, add_failed } };
	semel_status status = SEMEL_OK;
	*counts_out = (struct semel_outbox_counts){ 0 };
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == SEMEL_OK; i++)
		status = add_each(semel_sqlite_tx(store), parts[i].query, parts[i].add, counts_out,
				  error);
	return status;
}
