/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in a scope for something else than a person, for those who ask whether it ever moves;
 * and other looks over whole tables. Page by page along a key; a row is told from one statement, so
 * what it says of an event, its hold and its letter was true at one moment. */
#include "store/postgres/postgres.h"

#include "store/rules.h"

#define PAGE_ROWS   5000
#define KEY_DUE     SEMEL_PG_MS("coalesce(h.due_at, t.due_at)")
#define HOLD_DUE    SEMEL_PG_MS("h.due_at")
#define MOVED_AT    SEMEL_PG_MS("moved_at")
#define LEASE_UNTIL SEMEL_PG_MS("lease_until")

/* event, key, hold's state and head, letter, settled, entry, owner, time; then where the next page
 * begins. $1 the scope, $2 and $3 where the last page ended, $4 rows. */
static const struct semel_pg_query parked_waits = {
	"look what is parked",
	"SELECT d.event_id, coalesce(h.aggregate_type, t.aggregate_type, d.aggregate_type),"
	" coalesce(h.aggregate_id, t.aggregate_id, d.aggregate_id), coalesce(h.state, t.state),"
	" coalesce(h.head_id, t.head_id), l.status, l.settled_at IS NOT NULL, l.entry_id, "
	"NULL, " KEY_DUE ", d.position::text, '' FROM"
	" semel_dead_letter d"
	" LEFT JOIN semel_hold h ON h.scope = d.scope AND h.aggregate_type = d.aggregate_type"
	" AND h.aggregate_id = d.aggregate_id"
	" LEFT JOIN semel_hold t ON t.scope = d.scope AND t.aggregate_type = ''"
	" AND t.aggregate_id = d.topic"
	" LEFT JOIN semel_dead_letter l ON l.scope = d.scope AND l.parked_behind IS NULL"
	" AND l.event_id IS NOT NULL AND l.event_id = coalesce(h.head_id, t.head_id)"
	" WHERE d.scope = $1 AND d.parked_behind IS NOT NULL"
	" AND d.position > coalesce(nullif($2, ''), '-1')::bigint AND $3::text IS NOT NULL"
	" AND NOT (coalesce(h.state, t.state, '') = 'dead' AND coalesce(l.status, '') = 'PENDING')"
	" ORDER BY d.position LIMIT $4"
};
static const struct semel_pg_query hold_waits = {
	"look what is held",
	"SELECT h.head_id, h.aggregate_type, h.aggregate_id, h.state, h.head_id, l.status,"
	" l.settled_at IS NOT NULL, l.entry_id, NULL, " HOLD_DUE
	", h.aggregate_type, h.aggregate_id FROM semel_hold h"
	" LEFT JOIN semel_dead_letter l ON l.scope = h.scope AND l.parked_behind IS NULL"
	" AND l.event_id IS NOT NULL AND l.event_id = h.head_id WHERE h.scope = $1"
	" AND (h.aggregate_type, h.aggregate_id) > ($2, $3)"
	" AND (h.state = 'retry' OR (h.state = 'dead' AND l.status IS DISTINCT FROM 'PENDING'))"
	" ORDER BY h.aggregate_type, h.aggregate_id LIMIT $4"
};
static const struct semel_pg_query replay_waits = {
	"look what is replayed",
	"SELECT event_id, aggregate_type, aggregate_id, NULL, NULL, status, false, entry_id, "
	"NULL, " MOVED_AT ", event_id, '' FROM semel_dead_letter AS l WHERE scope = $1"
	" AND parked_behind IS NULL AND event_id IS NOT NULL AND event_id > $2"
	" AND $3::text IS NOT NULL AND status = 'REPLAYED' AND settled_at IS NULL"
	" AND NOT EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = l.scope"
	" AND p.event_id = l.event_id AND p.parked_behind IS NOT NULL)"
	" ORDER BY event_id LIMIT $4"
};
static const struct semel_pg_query claim_waits = {
	"look what is claimed",
	"SELECT event_id, NULL, NULL, NULL, NULL, NULL, false, NULL, owner, " LEASE_UNTIL
	", event_id, '' FROM semel_inbox AS i WHERE scope = $1"
	" AND event_id > $2 AND $3::text IS NOT NULL AND status = 'CLAIMED'"
	" AND NOT EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = i.scope"
	" AND p.event_id = i.event_id AND p.parked_behind IS NOT NULL)"
	" ORDER BY event_id LIMIT $4"
};
static const struct semel_pg_query any_of_topic = {
	"look for claims of a topic", "SELECT EXISTS (SELECT 1 FROM semel_inbox WHERE topic = $1)"
};
/* A lane is one stretch of the key. */
static const struct semel_pg_query newest_topics = {
	"look at the topics of the outbox",
	"SELECT DISTINCT coalesce(o.topic, o.aggregate_type || '.events') FROM semel_lease l"
	" CROSS JOIN LATERAL (SELECT topic, aggregate_type FROM semel_outbox"
	" WHERE lane = l.lane ORDER BY seq DESC LIMIT 1000) o"
};
static const struct semel_pg_query each_routing = {
	"read the outbox", "SELECT id, coalesce(routing_key, event_type) FROM semel_outbox"
			   " WHERE id > $1 ORDER BY id LIMIT $2"
};

static struct semel_text peek(const PGresult *result, int row, int column)
{
	if (semel_pg_is_null(result, row, column))
		return (struct semel_text){ NULL, 0 };
	return semel_text_from(semel_pg_value(result, row, column),
			       (size_t)semel_libpq.getlength(result, row, column));
}

static struct semel_wait wait_of(enum semel_wait_kind kind, const PGresult *page, int row)
{
	struct semel_text state = peek(page, row, 3), letter = peek(page, row, 5);
	return (struct semel_wait){
		.kind = kind,
		.event_id = peek(page, row, 0),
		.key = { peek(page, row, 1), peek(page, row, 2) },
		.state = state.data ? semel_hold_state_of(semel_text_string(state))
				    : SEMEL_HOLD_NONE,
		.head_id = peek(page, row, 4),
		.letter = letter.data ? semel_dead_status_of(semel_text_string(letter))
				      : SEMEL_DEAD_ANY,
		.settled = semel_pg_bool(page, row, 6),
		.entry_id = peek(page, row, 7),
		.owner = peek(page, row, 8),
		.due_ms = semel_pg_int(page, row, 9),
	};
}

struct walk {
	semel_wait_visitor seen;
	void *user;
};

/* Reads the page behind the last one, which it clears. */
static semel_status turn(semel_tx tx, const struct semel_pg_query *query, struct semel_text scope,
			 PGresult **page, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *last = *page;
	int end = semel_pg_rows(last) - 1;
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, last == NULL ? SEMEL_TEXT("") : peek(last, end, 10));
	semel_pg_add_text(&params, last == NULL ? SEMEL_TEXT("") : peek(last, end, 11));
	semel_pg_add_int(&params, PAGE_ROWS);
	semel_status status = semel_pg_run(tx, query, &params, page, error);
	semel_pg_clear(last);
	return status;
}

static semel_status walk_kind(semel_store *store, struct semel_text scope,
			      enum semel_wait_kind kind, const struct walk *walk,
			      semel_error *error)
{
	static const struct semel_pg_query *const queries[] = {
		[SEMEL_WAIT_PARKED] = &parked_waits,
		[SEMEL_WAIT_HOLD] = &hold_waits,
		[SEMEL_WAIT_REPLAY] = &replay_waits,
		[SEMEL_WAIT_CLAIM] = &claim_waits,
	};
	semel_tx tx = semel_pg_tx(store);
	PGresult *page = NULL;
	semel_status status = SEMEL_OK;
	do {
		status = turn(tx, queries[kind], scope, &page, error);
		for (int row = 0; row < semel_pg_rows(page) && status == SEMEL_OK; row++) {
			struct semel_wait wait = wait_of(kind, page, row);
			if (kind == SEMEL_WAIT_CLAIM)
				wait.due_ms = semel_pg_clock_to_local(tx, wait.due_ms);
			status = walk->seen(&wait, walk->user);
		}
	} while (status == SEMEL_OK && semel_pg_rows(page) == PAGE_ROWS);
	semel_pg_clear(page);
	return status;
}

semel_status semel_pg_waits_each(semel_store *store, struct semel_text scope,
				 semel_wait_visitor seen, void *user, semel_error *error)
{
	const struct walk walk = { seen, user };
	semel_status status = SEMEL_OK;
	for (int kind = SEMEL_WAIT_PARKED; kind <= SEMEL_WAIT_CLAIM && status == SEMEL_OK; kind++)
		status = walk_kind(store, scope, (enum semel_wait_kind)kind, &walk, error);
	return status;
}

semel_status semel_pg_inbox_has_topic(semel_store *store, struct semel_text topic, bool *has_out,
				      semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, topic);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &any_of_topic, &params, &result, error);
	*has_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_routing_each(semel_store *store, semel_routing_visitor seen,
					  void *user, semel_error *error)
{
	PGresult *page = NULL;
	semel_status status = SEMEL_OK;
	do {
		struct semel_pg_params params = { 0 };
		PGresult *last = page;
		semel_pg_add_text(&params, last == NULL ? SEMEL_TEXT("")
							: peek(last, semel_pg_rows(last) - 1, 0));
		semel_pg_add_int(&params, PAGE_ROWS);
		status = semel_pg_run(semel_pg_tx(store), &each_routing, &params, &page, error);
		semel_pg_clear(last);
		for (int row = 0; row < semel_pg_rows(page) && status == SEMEL_OK; row++)
			status = seen(peek(page, row, 0), peek(page, row, 1), user);
	} while (status == SEMEL_OK && semel_pg_rows(page) == PAGE_ROWS);
	semel_pg_clear(page);
	return status;
}

semel_status semel_pg_outbox_topics_each(semel_store *store, semel_text_visitor seen, void *user,
					 semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &newest_topics, NULL, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++)
		seen(peek(result, row, 0), user);
	semel_pg_clear(result);
	return status;
}
