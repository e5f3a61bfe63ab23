/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the outbox: how much waits in it, and why; its ids, topics and routing keys. Rows are
 * counted from the lanes' low marks on, so what was published long ago costs nothing. */
#include "store/sql/sql.h"

#include "store/rules.h"

/* ---- what waits ------------------------------------------------------------------------------ */

#define SAME_AGGREGATE(left, right)                                                                \
	left ".aggregate_type = " right ".aggregate_type AND " left ".aggregate_id = " right       \
	     ".aggregate_id"
#define NO_EARLIER_EXCEPTION                                                                       \
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE " SAME_AGGREGATE(           \
		"e", "o") " AND e.seq < o.seq)"
/* SQLite has one lane, and numbers in the order of commits. */
#define NO_EXCEPTION_SQLITE                                                                        \
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.seq = o.seq)"
#define NO_EXCEPTION_POSTGRES                                                                      \
	" AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.lane = o.lane"            \
	" AND x.seq = o.seq)"
#define FIRST_SQLITE(exception)                                                                    \
	"(SELECT min(seq) FROM semel_outbox_exception f WHERE " SAME_AGGREGATE("f", exception) ")"
#define FIRST_POSTGRES(exception)                                                                  \
	"(SELECT f.seq FROM semel_outbox_exception f WHERE " SAME_AGGREGATE(                       \
		"f", exception) " ORDER BY f.place, f.seq LIMIT 1)"
#define OLDEST(D) D##_MS("min(" D##_COMMITTED_AT("o") ")")

#define RUN_SQLITE                                                                                 \
	"SELECT count(*), " OLDEST(                                                                \
		SEMEL_SQL_SQLITE) " FROM semel_outbox o"                                           \
				  " WHERE o.seq > (SELECT low_seq FROM semel_lease WHERE lane = "  \
				  "0)"                                                             \
				  " AND o.status = 'NEW'" NO_EXCEPTION_SQLITE NO_EARLIER_EXCEPTION
#define RUN_POSTGRES                                                                               \
	"SELECT count(*), " OLDEST(                                                                \
		SEMEL_SQL_POSTGRES) " FROM semel_lease l JOIN semel_outbox o ON o.lane = l.lane "  \
				    "AND o.seq > l.low_seq"                                        \
				    " WHERE o.status = 'NEW'" NO_EXCEPTION_POSTGRES                \
					    NO_EARLIER_EXCEPTION
static const struct semel_sql_statement count_run = {
	.what = "count what waits in the outbox",
	.text = { [SEMEL_SQL_SQLITE] = RUN_SQLITE, [SEMEL_SQL_POSTGRES] = RUN_POSTGRES }
};

#define EXCEPTIONS(D)                                                                              \
	"SELECT x.state, h.state, h.blocks, count(*), " D##_MS("min(x.due_at)") ", " OLDEST(       \
		D) ", max(o.last_error) FROM semel_outbox_exception x "                            \
		   "JOIN semel_outbox o ON o.seq = x.seq"
#define BY_STATES " GROUP BY x.state, h.state, h.blocks"
#define EXCEPTIONS_SQLITE                                                                          \
	EXCEPTIONS(SEMEL_SQL_SQLITE)                                                               \
	" JOIN semel_outbox_exception h ON h.seq = " FIRST_SQLITE("x") BY_STATES
#define EXCEPTIONS_POSTGRES                                                                        \
	EXCEPTIONS(SEMEL_SQL_POSTGRES)                                                             \
	" AND o.lane = x.lane JOIN semel_outbox_exception h ON h.lane = x.lane"                    \
	" AND h.seq = " FIRST_POSTGRES("x") BY_STATES
static const struct semel_sql_statement count_exceptions = {
	.what = "count the exceptions of the outbox",
	.text = { [SEMEL_SQL_SQLITE] = EXCEPTIONS_SQLITE,
		  [SEMEL_SQL_POSTGRES] = EXCEPTIONS_POSTGRES }
};

/* Events that the relay has not read yet, but which will be parked when it does. SQLite's CROSS
 * JOIN reads from the few exceptions to their aggregates, never the whole outbox. */
#define HELD(D)                                                                                    \
	"SELECT h.state, h.state, h.blocks, count(*), " D##_MS("min(h.due_at)") ", " OLDEST(       \
		D) ", NULL"                                                                        \
		   " FROM semel_outbox_exception h"
#define BY_HEAD " GROUP BY h.state, h.blocks"
#define OF_HEAD SAME_AGGREGATE("o", "h")
#define HELD_SQLITE                                                                                \
	HELD(SEMEL_SQL_SQLITE)                                                                     \
	" CROSS JOIN semel_outbox o ON " OF_HEAD " AND o.seq > h.seq WHERE o.status = 'NEW'"       \
	" AND h.seq = " FIRST_SQLITE("h") NO_EXCEPTION_SQLITE BY_HEAD
#define HELD_POSTGRES                                                                              \
	HELD(SEMEL_SQL_POSTGRES)                                                                   \
	" JOIN semel_outbox o ON o.lane = h.lane AND o.seq > h.seq AND " OF_HEAD                   \
	" WHERE o.status = 'NEW' AND h.seq = " FIRST_POSTGRES("h") NO_EXCEPTION_POSTGRES BY_HEAD
static const struct semel_sql_statement count_held = {
	.what = "count what is held in the outbox",
	.text = { [SEMEL_SQL_SQLITE] = HELD_SQLITE, [SEMEL_SQL_POSTGRES] = HELD_POSTGRES }
};

static const struct semel_sql_statement count_failed = {
	.what = "count the failed events of the outbox",
	.text = SEMEL_SQL_SAME("SELECT count(*), max(failure_reason) FROM semel_dead_letter"
			       " WHERE scope = 'relay' AND parked_behind IS NULL"
			       " AND status = 'PENDING'")
};

static void keep_error(struct semel_outbox_counts *counts, const struct semel_sql_query *query,
		       int column)
{
	if (counts->last_error[0] == '\0')
		semel_sql_copy(query, column, counts->last_error, sizeof(counts->last_error));
}

static void add_run(const struct semel_sql_query *query, struct semel_outbox_counts *counts)
{
	counts->waiting = (uint64_t)semel_sql_int(query, 0);
	semel_outbox_counts_add_oldest(counts, semel_sql_time(query, 1));
}

static struct semel_outbox_group group_of(const struct semel_sql_query *query)
{
	return (struct semel_outbox_group){
		.state = semel_text_string(semel_sql_peek(query, 0)),
		.head = semel_text_string(semel_sql_peek(query, 1)),
		.blocks = semel_sql_bool(query, 2),
		.count = (uint64_t)semel_sql_int(query, 3),
		.due_ms = semel_sql_time(query, 4),
		.oldest_ms = semel_sql_time(query, 5),
	};
}

static void add_exceptions(const struct semel_sql_query *query, struct semel_outbox_counts *counts)
{
	keep_error(counts, query, 6);
	semel_outbox_counts_add(counts, group_of(query));
}

/* The first column has the state of the head itself, but here its followers are counted. */
static void add_held(const struct semel_sql_query *query, struct semel_outbox_counts *counts)
{
	struct semel_outbox_group group = group_of(query);
	group.state = NULL;
	semel_outbox_counts_add(counts, group);
}

static void add_failed(const struct semel_sql_query *query, struct semel_outbox_counts *counts)
{
	counts->failed = (uint64_t)semel_sql_int(query, 0);
	keep_error(counts, query, 1);
}

typedef void (*add_row)(const struct semel_sql_query *query, struct semel_outbox_counts *counts);

static semel_status add_rows(semel_tx tx, const struct semel_sql_statement *statement, add_row add,
			     struct semel_outbox_counts *counts, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, statement, error);
	while (semel_sql_next(&query))
		add(&query, counts);
	return semel_sql_finish(&query);
}

semel_status semel_sql_outbox_count(semel_store *store, struct semel_outbox_counts *counts_out,
				    semel_error *error)
{
	static const struct {
		const struct semel_sql_statement *statement;
		add_row add;
	} parts[] = { { &count_run, add_run },
		      { &count_exceptions, add_exceptions },
		      { &count_held, add_held },
		      { &count_failed, add_failed } };
	semel_status status = SEMEL_OK;
	*counts_out = (struct semel_outbox_counts){ 0 };
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && status == SEMEL_OK; i++)
		status = add_rows(store->driver->tx(store), parts[i].statement, parts[i].add,
				  counts_out, error);
	return status;
}

/* ---- ids, topics and routing keys ------------------------------------------------------------ */

// clang-format off
#define TOPIC(D, row) "coalesce(" row "topic, " D##_CONCAT(row "aggregate_type", "'.events'") ")"

#define ROW(D) "SELECT id, status, " TOPIC(D, "") ", " D##_MS("created_at")
static const struct semel_sql_statement each_outbox = {
	.what = "read the outbox",
	.text = { [SEMEL_SQL_SQLITE] = ROW(SEMEL_SQL_SQLITE) " FROM semel_outbox ORDER BY id",
		  [SEMEL_SQL_POSTGRES] = ROW(SEMEL_SQL_POSTGRES) ", id, '' FROM semel_outbox"
				" WHERE ?1::text IS NULL AND id > ?2 AND ?3::text IS NOT NULL"
				" ORDER BY id LIMIT ?4" }
};

#define EACH_ROUTING(D)                                                                            \
	"SELECT id, coalesce(routing_key, event_type)" D##_PAGE(", id, ''") " FROM semel_outbox"   \
	D##_PAGE(" WHERE id > ?1 AND " D##_AS_TEXT("?2") " IS NOT NULL") " ORDER BY id"            \
	D##_PAGE(" LIMIT ?3")
static const struct semel_sql_statement each_routing = { .what = "read the outbox",
							 .text = SEMEL_SQL_EACH(EACH_ROUTING) };

/* On PostgreSQL a lane is one range of the key. */
#define NEWEST_SQLITE                                                                              \
	"SELECT DISTINCT " TOPIC(SEMEL_SQL_SQLITE, "") " FROM (SELECT topic, aggregate_type"       \
	" FROM semel_outbox ORDER BY seq DESC LIMIT 10000)"
#define NEWEST_POSTGRES                                                                            \
	"SELECT DISTINCT " TOPIC(SEMEL_SQL_POSTGRES, "o.") " FROM semel_lease l"                   \
	" CROSS JOIN LATERAL (SELECT topic, aggregate_type FROM semel_outbox WHERE lane = l.lane"  \
	" ORDER BY seq DESC LIMIT 1000) o"
static const struct semel_sql_statement newest_topics = {
	.what = "read the topics of the outbox",
	.text = { [SEMEL_SQL_SQLITE] = NEWEST_SQLITE, [SEMEL_SQL_POSTGRES] = NEWEST_POSTGRES }
};
// clang-format on

semel_status semel_sql_outbox_each(semel_store *store, semel_id_visitor visit, void *user,
				   semel_error *error)
{
	const struct semel_text none = { NULL, 0 };
	return semel_sql_ids_each(store, &each_outbox, none, visit, user, error);
}

semel_status semel_sql_outbox_routing_each(semel_store *store, semel_routing_visitor visit,
					   void *user, semel_error *error)
{
	struct semel_sql_query query;
	struct semel_sql_page page;
	semel_status status = SEMEL_OK;
	semel_sql_page_start(&page);
	do {
		semel_sql_prepare(&query, store->driver->tx(store), &each_routing, error);
		semel_sql_page_bind(&query, &page);
		while (semel_sql_page_next(&query, &page, 2))
			semel_sql_stop(&query, visit(semel_sql_peek(&query, 0),
						     semel_sql_peek(&query, 1), user));
		status = semel_sql_finish(&query);
	} while (status == SEMEL_OK && semel_sql_page_is_full(&query, &page));
	semel_sql_page_end(&page);
	return status;
}

semel_status semel_sql_outbox_topics_each(semel_store *store, semel_text_visitor visit, void *user,
					  semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &newest_topics, error);
	while (semel_sql_next(&query))
		visit(semel_sql_peek(&query, 0), user);
	return semel_sql_finish(&query);
}
