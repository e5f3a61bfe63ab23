/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits in the outbox, and why. The run is counted from the lanes' low marks on, so what
 * was published long ago costs nothing. */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "store/rules.h"

#define OF_SAME_AGGREGATE(left, right)                                                             \
	left ".aggregate_type = " right ".aggregate_type AND " left ".aggregate_id = " right       \
	     ".aggregate_id"
#define OLDEST SEMEL_PG_MS("min(" SEMEL_PG_COMMITTED_AT("o") ")")
#define NOT_SET_ASIDE                                                                              \
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.lane = o.lane"            \
	" AND x.seq = o.seq)"

#define FIRST_OF(exception)                                                                        \
	"(SELECT f.seq FROM semel_outbox_exception f WHERE " OF_SAME_AGGREGATE(                    \
		"f", exception) " ORDER BY f.place, f.seq LIMIT 1)"
#define EARLIER_EXCEPTION                                                                          \
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE " OF_SAME_AGGREGATE(        \
		"e", "o") " AND e.seq < o.seq)"
#define FIRST_DUE_OF_HEADS      SEMEL_PG_MS("min(h.due_at)")
#define FIRST_DUE_OF_EXCEPTIONS SEMEL_PG_MS("min(x.due_at)")
#define BEHIND_HEAD             "o.seq > h.seq AND " OF_SAME_AGGREGATE("o", "h")

static const struct semel_pg_query count_run = {
	"count what waits in the outbox",
	"SELECT count(*), " OLDEST " FROM semel_lease l"
	" JOIN semel_outbox o ON o.lane = l.lane AND o.seq > l.low_seq"
	" WHERE o.status = 'NEW'" NOT_SET_ASIDE EARLIER_EXCEPTION
};
/* Events that the run has not come to yet, but which will be parked when it does. */
static const struct semel_pg_query count_held = {
	"count what is held in the outbox",
	"SELECT h.state, h.state, h.blocks, count(*), " FIRST_DUE_OF_HEADS ", " OLDEST ", NULL"
	" FROM semel_outbox_exception h JOIN semel_outbox o ON o.lane = h.lane AND " BEHIND_HEAD
	" WHERE h.seq = " FIRST_OF("h") " AND o.status = 'NEW'" NOT_SET_ASIDE
					" GROUP BY h.state, h.blocks"
};
static const struct semel_pg_query count_exceptions = {
	"count the exceptions of the outbox",
	"SELECT x.state, h.state, h.blocks, count(*), " FIRST_DUE_OF_EXCEPTIONS ", " OLDEST
	", max(o.last_error) FROM semel_outbox_exception x"
	" JOIN semel_outbox o ON o.lane = x.lane AND o.seq = x.seq"
	" JOIN semel_outbox_exception h ON h.lane = x.lane AND h.seq = " FIRST_OF(
		"x") " GROUP BY x.state, h.state, h.blocks"
};
static const struct semel_pg_query count_failed = {
	"count the failed events of the outbox",
	"SELECT count(*), max(failure_reason) FROM semel_dead_letter"
	" WHERE scope = 'relay' AND parked_behind IS NULL AND status = 'PENDING'"
};

static void keep_error(struct semel_outbox_counts *counts, const PGresult *result, int row,
		       int column)
{
	if (counts->last_error[0] == '\0')
		semel_pg_copy(result, row, column, counts->last_error, sizeof(counts->last_error));
}

static void add_run(const PGresult *result, int row, struct semel_outbox_counts *counts)
{
	counts->waiting = (uint64_t)semel_pg_int(result, row, 0);
	semel_outbox_counts_add_oldest(counts, semel_pg_int(result, row, 1));
}

static struct semel_outbox_group tally_of(const PGresult *result, int row)
{
	return (struct semel_outbox_group){
		.state = semel_pg_value(result, row, 0),
		.head = semel_pg_value(result, row, 1),
		.blocks = semel_pg_bool(result, row, 2),
		.count = (uint64_t)semel_pg_int(result, row, 3),
		.due_ms = semel_pg_int(result, row, 4),
		.oldest_ms = semel_pg_int(result, row, 5),
	};
}

static void add_exceptions(const PGresult *result, int row, struct semel_outbox_counts *counts)
{
	keep_error(counts, result, row, 6);
	semel_outbox_counts_add(counts, tally_of(result, row));
}

/* The head's own state stands in the first column; here it is the followers that are counted. */
static void add_held(const PGresult *result, int row, struct semel_outbox_counts *counts)
{
	struct semel_outbox_group tally = tally_of(result, row);
	tally.state = NULL;
	semel_outbox_counts_add(counts, tally);
}

static void add_failed(const PGresult *result, int row, struct semel_outbox_counts *counts)
{
	counts->failed = (uint64_t)semel_pg_int(result, row, 0);
	keep_error(counts, result, row, 1);
}

typedef void (*add_row)(const PGresult *result, int row, struct semel_outbox_counts *counts);

static semel_status add_each(semel_tx tx, const struct semel_pg_query *query, add_row add,
			     struct semel_outbox_counts *counts, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = semel_pg_run(tx, query, NULL, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++)
		add(result, row, counts);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_count(semel_store *store, int64_t now_ms,
				   struct semel_outbox_counts *counts_out, semel_error *error)
{
	(void)now_ms;
	static const struct {
		const struct semel_pg_query *query;
		add_row add;
	} parts[] = { { &count_run, add_run },
		      { &count_exceptions, add_exceptions },
		      { &count_held, add_held },
		      { &count_failed, add_failed } };
	semel_status status = SEMEL_OK;
	*counts_out = (struct semel_outbox_counts){ 0 };
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == SEMEL_OK; i++)
		status = add_each(semel_pg_tx(store), parts[i].query, parts[i].add, counts_out,
				  error);
	return status;
}
