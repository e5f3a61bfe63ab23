/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in a scope for something else than an operator, to find out whether it ever moves. A
 * row comes from one statement, so what it has of an event, its hold and its letter was true at one
 * moment. */
#include "store/sql/sql.h"

#include "store/rules.h"

enum column {
	EVENT_ID,
	KEY_TYPE,
	KEY_ID,
	STATE,
	HEAD_ID,
	LETTER,
	SETTLED,
	ENTRY_ID,
	OWNER,
	DUE,
	PAGE_KEY /* and the one behind it: where the next page begins */
};

/* PART(ms, page_key, page): what a page selects, and its bounds; empty where rows are streamed. ?1
 * is the scope, ?2 and ?3 where the last page ended, ?4 how many rows. */
#define EACH_PART(PART, key, page)                                                                 \
	{                                                                                          \
		[SEMEL_SQL_SQLITE] = PART(SEMEL_SQL_SQLITE_MS, "", ""),                            \
		[SEMEL_SQL_POSTGRES] = PART(SEMEL_SQL_POSTGRES_MS, ", " key, page " LIMIT ?4")     \
	}
#define IS_PARKED_TOO(row)                                                                         \
	"EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = " row ".scope"               \
	" AND p.event_id = " row ".event_id AND p.parked_behind IS NOT NULL)"

#define PARKED(ms, key, page)                                                                      \
	"SELECT d.event_id, coalesce(h.aggregate_type, t.aggregate_type, d.aggregate_type),"       \
	" coalesce(h.aggregate_id, t.aggregate_id, d.aggregate_id), coalesce(h.state, t.state),"   \
	" coalesce(h.head_id, t.head_id), l.status, l.settled_at IS NOT NULL, l.entry_id, "        \
	"NULL, " ms("coalesce(h.due_at, t.due_at)") key                                            \
		" FROM semel_dead_letter d"                                                        \
		" LEFT JOIN semel_hold h ON h.scope = d.scope AND h.aggregate_type = "             \
		"d.aggregate_type"                                                                 \
		" AND h.aggregate_id = d.aggregate_id"                                             \
		" LEFT JOIN semel_hold t ON t.scope = d.scope AND t.aggregate_type = ''"           \
		" AND t.aggregate_id = d.topic"                                                    \
		" LEFT JOIN semel_dead_letter l ON l.scope = d.scope AND l.parked_behind IS NULL"  \
		" AND l.event_id IS NOT NULL AND l.event_id = coalesce(h.head_id, t.head_id)"      \
		" WHERE d.scope = ?1 AND d.parked_behind IS NOT NULL AND NOT (coalesce(h.state, "  \
		"t.state,"                                                                         \
		" '') = 'dead' AND coalesce(l.status, '') = 'PENDING')" page
static const struct semel_sql_statement parked_waits = {
	.what = "read what is parked",
	.text = EACH_PART(PARKED, "d.position::text, ''",
			  " AND d.position > coalesce(nullif(?2, ''), '-1')::bigint"
			  " AND ?3::text IS NOT NULL ORDER BY d.position")
};
#define HELD(ms, key, page)                                                                        \
	"SELECT h.head_id, h.aggregate_type, h.aggregate_id, h.state, h.head_id, l.status,"        \
	" l.settled_at IS NOT NULL, l.entry_id, NULL, " ms("h.due_at") key                         \
		" FROM semel_hold h"                                                               \
		" LEFT JOIN semel_dead_letter l ON l.scope = h.scope AND l.parked_behind IS NULL"  \
		" AND l.event_id IS NOT NULL AND l.event_id = h.head_id WHERE h.scope = ?1"        \
		" AND (h.state = 'retry' OR (h.state = 'dead' AND coalesce(l.status, '') <> "      \
		"'PENDING'))" page
static const struct semel_sql_statement hold_waits = {
	.what = "read what is held",
	.text = EACH_PART(HELD, "h.aggregate_type, h.aggregate_id",
			  " AND (h.aggregate_type, h.aggregate_id) > (?2, ?3)"
			  " ORDER BY h.aggregate_type, h.aggregate_id")
};
#define PAGE_BY_EVENT " AND event_id > ?2 AND ?3::text IS NOT NULL ORDER BY event_id"
#define REPLAYED(ms, key, page)                                                                    \
	"SELECT event_id, aggregate_type, aggregate_id, NULL, NULL, status, (1 = 0), entry_id,"    \
	" NULL, " ms("moved_at") key                                                               \
		" FROM semel_dead_letter AS l WHERE scope = ?1"                                    \
		" AND parked_behind IS NULL AND event_id IS NOT NULL AND status = 'REPLAYED'"      \
		" AND settled_at IS NULL AND NOT " IS_PARKED_TOO("l") page
static const struct semel_sql_statement replay_waits = {
	.what = "read what is replayed", .text = EACH_PART(REPLAYED, "event_id, ''", PAGE_BY_EVENT)
};
#define CLAIMED(ms, key, page)                                                                     \
	"SELECT event_id, NULL, NULL, NULL, NULL, NULL, (1 = 0), NULL, owner, " ms("lease_until")  \
		key " FROM semel_inbox AS i WHERE scope = ?1 AND status = 'CLAIMED'"               \
		    " AND NOT " IS_PARKED_TOO("i") page
static const struct semel_sql_statement claim_waits = {
	.what = "read what is claimed", .text = EACH_PART(CLAIMED, "event_id, ''", PAGE_BY_EVENT)
};

static struct semel_wait wait_of(enum semel_wait_kind kind, const struct semel_sql_query *query)
{
	struct semel_text state = semel_sql_peek(query, STATE);
	struct semel_text letter = semel_sql_peek(query, LETTER);
	return (struct semel_wait){
		.kind = kind,
		.event_id = semel_sql_peek(query, EVENT_ID),
		.key = { semel_sql_peek(query, KEY_TYPE), semel_sql_peek(query, KEY_ID) },
		.state = state.data ? semel_hold_state_of(semel_text_string(state))
				    : SEMEL_HOLD_NONE,
		.head_id = semel_sql_peek(query, HEAD_ID),
		.letter = letter.data ? semel_dead_status_of(semel_text_string(letter))
				      : SEMEL_DEAD_ANY,
		.settled = semel_sql_bool(query, SETTLED),
		.entry_id = semel_sql_peek(query, ENTRY_ID),
		.owner = semel_sql_peek(query, OWNER),
		.due_ms = kind == SEMEL_WAIT_CLAIM ? semel_sql_lease(query, DUE)
						   : semel_sql_time(query, DUE),
	};
}

struct reading {
	struct semel_text scope;
	semel_wait_visitor visit;
	void *user;
};

static semel_status read_page(struct semel_sql_query *query, struct semel_sql_page *page,
			      enum semel_wait_kind kind, const struct reading *reading)
{
	while (semel_sql_page_next(query, page, PAGE_KEY)) {
		struct semel_wait wait = wait_of(kind, query);
		semel_sql_stop(query, reading->visit(&wait, reading->user));
	}
	return semel_sql_finish(query);
}

static semel_status read_kind(semel_store *store, enum semel_wait_kind kind,
			      const struct reading *reading, semel_error *error)
{
	static const struct semel_sql_statement *const statements[] = {
		[SEMEL_WAIT_PARKED] = &parked_waits,
		[SEMEL_WAIT_HOLD] = &hold_waits,
		[SEMEL_WAIT_REPLAY] = &replay_waits,
		[SEMEL_WAIT_CLAIM] = &claim_waits,
	};
	struct semel_sql_query query;
	struct semel_sql_page page;
	semel_status status = SEMEL_OK;
	semel_sql_page_start(&page);
	do {
		semel_sql_prepare(&query, store->driver->tx(store), statements[kind], error);
		semel_sql_bind_text(&query, reading->scope);
		semel_sql_page_bind(&query, &page);
		status = read_page(&query, &page, kind, reading);
	} while (status == SEMEL_OK && semel_sql_page_is_full(&query, &page));
	semel_sql_page_end(&page);
	return status;
}

semel_status semel_sql_waits_each(semel_store *store, struct semel_text scope,
				  semel_wait_visitor visit, void *user, semel_error *error)
{
	const struct reading reading = { scope, visit, user };
	semel_status status = SEMEL_OK;
	for (int kind = SEMEL_WAIT_PARKED; kind <= SEMEL_WAIT_CLAIM && status == SEMEL_OK; kind++)
		status = read_kind(store, (enum semel_wait_kind)kind, &reading, error);
	return status;
}
