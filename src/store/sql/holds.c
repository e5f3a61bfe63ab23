/* SPDX-License-Identifier: Apache-2.0 */
/* Holds: aggregates whose events must wait, per scope; what the tables have of an event when it is
 * admitted; and what waits in a scope for something other than an operator. Holds are few, and most
 * batches find none: one index lookup shows that. */
#include "store/sql/sql.h"

#include "store/rules.h"

#define COLUMNS   SEMEL_SQL_HOLD_COLUMNS
#define THIS_HOLD " WHERE scope = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3"

static const struct semel_sql_statement any_hold = {
	.what = "find holds",
	.often = true,
	.text = SEMEL_SQL_SAME("SELECT 1 FROM semel_hold WHERE scope = ?1 LIMIT 1")
};
static const struct semel_sql_statement topic_hold = {
	.what = "find holds",
	.often = true,
	.text = SEMEL_SQL_SAME(
		"SELECT 1 FROM semel_hold WHERE scope = ?1 AND aggregate_type = '' LIMIT 1")
};
static const struct semel_sql_statement aggregate_hold = {
	.what = "find holds",
	.often = true,
	.text = SEMEL_SQL_SAME(
		"SELECT 1 FROM semel_hold WHERE scope = ?1 AND aggregate_type > '' LIMIT 1")
};
#define GET_HOLD(D) "SELECT " COLUMNS(D) " FROM semel_hold" THIS_HOLD D##_LOCK
static const struct semel_sql_statement get_hold = { .what = "read a hold",
						     .often = true,
						     .text = SEMEL_SQL_EACH(GET_HOLD) };

#define INSERT_HOLD                                                                                \
	"INSERT INTO semel_hold (scope, aggregate_type, aggregate_id, state, head_id, attempts,"   \
	" due_at, blocks) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"

// clang-format off
#define PUT_HOLD(D)                                                                                \
	INSERT_HOLD D##_ON_CONFLICT("(scope, aggregate_type, aggregate_id)")                       \
	"state = " D##_NEW("state") ", head_id = " D##_NEW("head_id")                              \
	", attempts = " D##_NEW("attempts") ", due_at = " D##_NEW("due_at")                        \
	", blocks = " D##_NEW("blocks")
static const struct semel_sql_statement put_hold = { .what = "hold an aggregate",
						     .often = true,
						     .in_transaction = true,
						     .text = SEMEL_SQL_EACH(PUT_HOLD) };
/* Waits for a concurrent transaction that adds a hold for the same key, and then does nothing. */
#define ADD_HOLD(D) INSERT_HOLD D##_IGNORE("")
static const struct semel_sql_statement add_hold = { .what = "hold an aggregate",
						     .in_transaction = true,
						     .text = SEMEL_SQL_EACH(ADD_HOLD) };
static const struct semel_sql_statement remove_hold = {
	.what = "remove a hold",
	.in_transaction = true,
	.text = SEMEL_SQL_SAME("DELETE FROM semel_hold" THIS_HOLD)
};
/* The index by name: otherwise SQLite's planner would scan all holds of the scope, of which many
 * may be dead. Rows that are locked by other transactions are skipped. */
#define FROM_READY(D)                                                                              \
	" FROM semel_hold" D##_INDEXED_BY("semel_hold_ready") " WHERE scope = ?1"                  \
	" AND state IN ('released', 'gap')"
#define LIST_READY(D)                                                                              \
	"SELECT " COLUMNS(D) FROM_READY(D) " AND (due_at IS NULL OR due_at <= ?2) LIMIT ?3"        \
	D##_SKIP_LOCKED
static const struct semel_sql_statement list_ready = { .what = "find released aggregates",
						       .often = true,
						       .text = SEMEL_SQL_EACH(LIST_READY) };
#define NEXT_DUE(D) "SELECT " D##_MS("min(due_at)") FROM_READY(D)
static const struct semel_sql_statement next_due = { .what = "read when a hold is due",
						     .text = SEMEL_SQL_EACH(NEXT_DUE) };
/* The head of a gap is parked like its followers; a gap without parked events counts as one. */
#define PARKED_OF_TOPIC                                                                            \
	"(SELECT count(*) FROM semel_dead_letter d WHERE d.scope = h.scope"                        \
	" AND d.topic = h.aggregate_id AND d.parked_behind IS NOT NULL)"
#define PARKED_OF_AGGREGATE                                                                        \
	"(SELECT count(*) FROM semel_dead_letter d WHERE d.scope = h.scope"                        \
	" AND d.aggregate_type = h.aggregate_type AND d.aggregate_id = h.aggregate_id"             \
	" AND d.parked_behind IS NOT NULL)"
#define COUNT_HOLDS(D)                                                                             \
	"SELECT h.state, h.blocks, " D##_MS("h.due_at")                                            \
	", CASE WHEN h.aggregate_type = '' THEN " PARKED_OF_TOPIC                                  \
	" ELSE " PARKED_OF_AGGREGATE " END FROM semel_hold h WHERE h.scope = ?1"
static const struct semel_sql_statement count_holds = { .what = "count what is held",
							.text = SEMEL_SQL_EACH(COUNT_HOLDS) };
// clang-format on

/* From the column `first` on. */
static void read_hold(const struct semel_sql_query *query, int first, struct semel_arena *arena,
		      struct semel_hold *hold)
{
	hold->aggregate_type = semel_sql_text(query, first, arena);
	hold->aggregate_id = semel_sql_text(query, first + 1, arena);
	hold->state = semel_hold_state_of(semel_text_string(semel_sql_peek(query, first + 2)));
	hold->head_id = semel_sql_text(query, first + 3, arena);
	hold->attempts = (uint32_t)semel_sql_int(query, first + 4);
	hold->due_ms = semel_sql_time(query, first + 5);
	hold->blocks = semel_sql_bool(query, first + 6);
}

semel_status semel_sql_hold_has_any(semel_tx tx, struct semel_text scope, bool *any_out,
				    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &any_hold, error);
	semel_sql_bind_text(&query, scope);
	return semel_sql_exists(&query, any_out);
}

semel_status semel_sql_hold_has_other_kind(semel_tx tx, struct semel_text scope, bool total,
					   bool *other_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, total ? &aggregate_hold : &topic_hold, error);
	semel_sql_bind_text(&query, scope);
	return semel_sql_exists(&query, other_out);
}

semel_status semel_sql_hold_get(semel_tx tx, struct semel_text scope,
				const struct semel_hold_key *key, struct semel_arena *arena,
				struct semel_hold *hold_out, semel_error *error)
{
	struct semel_sql_query query;
	*hold_out = (struct semel_hold){ .aggregate_type = key->type, .aggregate_id = key->id };
	semel_sql_prepare(&query, tx, &get_hold, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_text(&query, key->type);
	semel_sql_bind_text(&query, key->id);
	if (semel_sql_next(&query))
		read_hold(&query, 0, arena, hold_out);
	return semel_sql_finish(&query);
}

static void bind_hold(struct semel_sql_query *query, struct semel_text scope,
		      const struct semel_hold *hold)
{
	semel_sql_bind_text(query, scope);
	semel_sql_bind_text(query, hold->aggregate_type);
	semel_sql_bind_text(query, hold->aggregate_id);
	semel_sql_bind_string(query, semel_hold_state_name(hold->state));
	semel_sql_bind_text(query, hold->head_id);
	semel_sql_bind_int(query, hold->attempts);
	semel_sql_bind_time(query, hold->due_ms);
	semel_sql_bind_bool(query, hold->blocks);
}

semel_status semel_sql_hold_put(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
				semel_error *error)
{
	struct semel_sql_query query;
	if (hold->state == SEMEL_HOLD_NONE)
		return semel_sql_hold_remove(tx, scope, hold, error);
	semel_sql_prepare(&query, tx, &put_hold, error);
	bind_hold(&query, scope, hold);
	return semel_sql_finish(&query);
}

semel_status semel_sql_hold_add(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
				bool *added_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &add_hold, error);
	bind_hold(&query, scope, hold);
	semel_status status = semel_sql_finish(&query);
	*added_out = status == SEMEL_OK && semel_sql_changes(&query) > 0;
	return status;
}

semel_status semel_sql_hold_remove(semel_tx tx, struct semel_text scope,
				   const struct semel_hold *hold, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &remove_hold, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_text(&query, hold->aggregate_type);
	semel_sql_bind_text(&query, hold->aggregate_id);
	return semel_sql_finish(&query);
}

semel_status semel_sql_hold_list_ready(semel_tx tx, struct semel_text scope, int64_t now_ms,
				       struct semel_holds *holds, semel_error *error)
{
	struct semel_sql_query query;
	holds->count = 0;
	semel_sql_prepare(&query, tx, &list_ready, error);
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_time(&query, now_ms);
	semel_sql_bind_int(&query, holds->capacity);
	while (semel_sql_next(&query))
		read_hold(&query, 0, holds->arena, &holds->holds[holds->count++]);
	return semel_sql_finish(&query);
}

semel_status semel_sql_hold_next_due(semel_store *store, struct semel_text scope,
				     int64_t *due_ms_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &next_due, error);
	semel_sql_bind_text(&query, scope);
	*due_ms_out = semel_sql_next(&query) ? semel_sql_time(&query, 0) : 0;
	return semel_sql_finish(&query);
}

semel_status semel_sql_hold_count(semel_store *store, struct semel_text scope,
				  struct semel_hold_counts *counts_out, semel_error *error)
{
	struct semel_sql_query query;
	*counts_out = (struct semel_hold_counts){ 0 };
	semel_sql_prepare(&query, store->driver->tx(store), &count_holds, error);
	semel_sql_bind_text(&query, scope);
	while (semel_sql_next(&query)) {
		struct semel_text state = semel_sql_peek(&query, 0);
		struct semel_hold_summary summary = {
			.state = semel_hold_state_of(semel_text_string(state)),
			.blocks = semel_sql_bool(&query, 1),
			.due_ms = semel_sql_time(&query, 2),
			.behind = (uint64_t)semel_sql_int(&query, 3),
		};
		semel_hold_counts_add(counts_out, summary);
	}
	return semel_sql_finish(&query);
}

/* ---- admission ------------------------------------------------------------------------------- */

static const struct semel_sql_statement any_state = {
	.what = "find holds and dead letters",
	.often = true,
	.text = SEMEL_SQL_SAME(
		"SELECT 1 FROM semel_hold WHERE scope = ?1 UNION ALL"
		" SELECT 1 FROM semel_dead_letter WHERE scope = ?1 AND parked_behind IS NULL"
		" AND event_id IS NOT NULL LIMIT 1")
};

// clang-format off
/* PostgreSQL has one statement for the batch, in its driver. */
#define READ_STATE(D)                                                                              \
	"SELECT " COLUMNS(D) ", letter, replay_count, settled FROM (SELECT 1)"                     \
	" LEFT JOIN (SELECT " COLUMNS(D) " FROM semel_hold" THIS_HOLD ")"                          \
	" LEFT JOIN (SELECT status AS letter, replay_count, settled_at IS NOT NULL AS settled"     \
	" FROM semel_dead_letter WHERE scope = ?1 AND event_id = ?4 AND parked_behind IS NULL)"
static const struct semel_sql_statement read_state = {
	.what = "read a hold and a dead letter",
	.often = true,
	.in_transaction = true,
	.text = { [SEMEL_SQL_SQLITE] = READ_STATE(SEMEL_SQL_SQLITE) }
};
// clang-format on

semel_status semel_sql_states_exist(semel_tx tx, struct semel_text scope, bool *any_out,
				    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, tx, &any_state, error);
	semel_sql_bind_text(&query, scope);
	return semel_sql_exists(&query, any_out);
}

void semel_sql_state_read(const struct semel_sql_query *query, int first, struct semel_arena *arena,
			  struct semel_state_result *result)
{
	int letter = first + SEMEL_SQL_HOLD_WIDTH;
	if (!semel_sql_is_null(query, first))
		read_hold(query, first, arena, &result->hold);
	if (semel_sql_is_null(query, letter))
		return;
	result->letter = semel_dead_status_of(semel_text_string(semel_sql_peek(query, letter)));
	result->replay_count = (uint32_t)semel_sql_int(query, letter + 1);
	result->settled = semel_sql_bool(query, letter + 2);
}

void semel_sql_states_clear(struct semel_state_batch *batch)
{
	for (size_t i = 0; i < batch->count; i++)
		batch->results[i] = (struct semel_state_result){
			.hold = { .aggregate_type = batch->queries[i].key.type,
				  .aggregate_id = batch->queries[i].key.id },
			.letter = SEMEL_DEAD_ANY,
		};
}

semel_status semel_sql_states_read(semel_tx tx, struct semel_text scope,
				   struct semel_state_batch *batch, semel_error *error)
{
	semel_status status = tx.driver->sql->require_transaction(tx, read_state.what, error);
	semel_sql_states_clear(batch);
	for (size_t i = 0; i < batch->count && status == SEMEL_OK; i++) {
		struct semel_sql_query query;
		semel_sql_prepare(&query, tx, &read_state, error);
		semel_sql_bind_text(&query, scope);
		semel_sql_bind_text(&query, batch->queries[i].key.type);
		semel_sql_bind_text(&query, batch->queries[i].key.id);
		semel_sql_bind_any_text(&query, batch->queries[i].event_id);
		if (semel_sql_next(&query))
			semel_sql_state_read(&query, 0, batch->arena, &batch->results[i]);
		status = semel_sql_finish(&query);
	}
	return status;
}

/* ---- what waits ------------------------------------------------------------------------------ */

/* The row of a wait comes from one statement, so its event, its hold and its letter are
 * consistent. */
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
	PAGE_KEY /* and the next column: where the next page begins */
};

// clang-format off
/* ?1 is the scope, ?2 and ?3 are where the last page ended, ?4 is how many rows. */
#define IS_PARKED_TOO(row)                                                                         \
	"EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = " row ".scope"               \
	" AND p.event_id = " row ".event_id AND p.parked_behind IS NOT NULL)"

#define PARKED(D)                                                                                  \
	"SELECT d.event_id, coalesce(h.aggregate_type, t.aggregate_type, d.aggregate_type),"       \
	" coalesce(h.aggregate_id, t.aggregate_id, d.aggregate_id), coalesce(h.state, t.state),"   \
	" coalesce(h.head_id, t.head_id), l.status, l.settled_at IS NOT NULL, l.entry_id,"         \
	" NULL, " D##_MS("coalesce(h.due_at, t.due_at)")                                           \
	D##_PAGE(", " D##_AS_TEXT("d.position") ", ''")                                            \
	" FROM semel_dead_letter d LEFT JOIN semel_hold h ON h.scope = d.scope"                    \
	" AND h.aggregate_type = d.aggregate_type AND h.aggregate_id = d.aggregate_id"             \
	" LEFT JOIN semel_hold t ON t.scope = d.scope AND t.aggregate_type = ''"                   \
	" AND t.aggregate_id = d.topic"                                                            \
	" LEFT JOIN semel_dead_letter l ON l.scope = d.scope AND l.parked_behind IS NULL"          \
	" AND l.event_id IS NOT NULL AND l.event_id = coalesce(h.head_id, t.head_id)"              \
	" WHERE d.scope = ?1 AND d.parked_behind IS NOT NULL"                                      \
	" AND NOT (coalesce(h.state, t.state, '') = 'dead'"                                        \
	" AND coalesce(l.status, '') = 'PENDING')"                                                 \
	D##_PAGE(" AND d.position > " D##_AS_INT("coalesce(nullif(?2, ''), '-1')")                 \
	" AND " D##_AS_TEXT("?3") " IS NOT NULL ORDER BY d.position LIMIT ?4")
static const struct semel_sql_statement parked_waits = { .what = "read what is parked",
							 .text = SEMEL_SQL_EACH(PARKED) };
#define HELD(D)                                                                                    \
	"SELECT h.head_id, h.aggregate_type, h.aggregate_id, h.state, h.head_id, l.status,"        \
	" l.settled_at IS NOT NULL, l.entry_id, NULL, " D##_MS("h.due_at")                         \
	D##_PAGE(", h.aggregate_type, h.aggregate_id")                                             \
	" FROM semel_hold h LEFT JOIN semel_dead_letter l ON l.scope = h.scope"                    \
	" AND l.parked_behind IS NULL AND l.event_id IS NOT NULL AND l.event_id = h.head_id"       \
	" WHERE h.scope = ?1 AND (h.state = 'retry'"                                               \
	" OR (h.state = 'dead' AND coalesce(l.status, '') <> 'PENDING'))"                          \
	D##_PAGE(" AND (h.aggregate_type, h.aggregate_id) > (?2, ?3)"                              \
	" ORDER BY h.aggregate_type, h.aggregate_id LIMIT ?4")
static const struct semel_sql_statement hold_waits = { .what = "read what is held",
						       .text = SEMEL_SQL_EACH(HELD) };
#define PAGE_BY_EVENT(D)                                                                           \
	D##_PAGE(" AND event_id > ?2 AND " D##_AS_TEXT("?3") " IS NOT NULL"                        \
		 " ORDER BY event_id LIMIT ?4")
#define REPLAYED(D)                                                                                \
	"SELECT event_id, aggregate_type, aggregate_id, NULL, NULL, status, (1 = 0), entry_id,"    \
	" NULL, " D##_MS("moved_at") D##_PAGE(", event_id, ''")                                    \
	" FROM semel_dead_letter AS l WHERE scope = ?1 AND parked_behind IS NULL"                  \
	" AND event_id IS NOT NULL AND status = 'REPLAYED' AND settled_at IS NULL"                 \
	" AND NOT " IS_PARKED_TOO("l") PAGE_BY_EVENT(D)
static const struct semel_sql_statement replay_waits = { .what = "read what is replayed",
							 .text = SEMEL_SQL_EACH(REPLAYED) };
#define CLAIMED(D)                                                                                 \
	"SELECT event_id, NULL, NULL, NULL, NULL, NULL, (1 = 0), NULL, owner, "                    \
	D##_MS("lease_until") D##_PAGE(", event_id, ''") " FROM semel_inbox AS i WHERE scope = ?1" \
	" AND status = 'CLAIMED' AND NOT " IS_PARKED_TOO("i") PAGE_BY_EVENT(D)
static const struct semel_sql_statement claim_waits = { .what = "read what is claimed",
							.text = SEMEL_SQL_EACH(CLAIMED) };
// clang-format on

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
