/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in a scope for something else than a person, for those who ask whether it ever moves;
 * and other looks over whole tables. A row is told from one statement, so what it says of an event,
 * its hold and its letter was true at one moment. */
#include "store/sqlite/sqlite.h"

#include "store/rules.h"

/* event, key, hold's state and head, letter, settled, entry, owner, time */
static const struct semel_sqlite_query parked_waits = {
	SEMEL_SQL_ONCE, "look what is parked",
	"SELECT d.event_id, coalesce(h.aggregate_type, t.aggregate_type, d.aggregate_type),"
	" coalesce(h.aggregate_id, t.aggregate_id, d.aggregate_id), coalesce(h.state, t.state),"
	" coalesce(h.head_id, t.head_id), l.status, l.settled_at IS NOT NULL, l.entry_id, NULL,"
	" coalesce(h.due_at, t.due_at) FROM semel_dead_letter d"
	" LEFT JOIN semel_hold h ON h.scope = d.scope AND h.aggregate_type = d.aggregate_type"
	" AND h.aggregate_id = d.aggregate_id"
	" LEFT JOIN semel_hold t ON t.scope = d.scope AND t.aggregate_type = ''"
	" AND t.aggregate_id = d.topic"
	" LEFT JOIN semel_dead_letter l ON l.scope = d.scope AND l.parked_behind IS NULL"
	" AND l.event_id IS NOT NULL AND l.event_id = coalesce(h.head_id, t.head_id)"
	" WHERE d.scope = ?1 AND d.parked_behind IS NOT NULL"
	" AND NOT (coalesce(h.state, t.state, '') = 'dead' AND coalesce(l.status, '') = 'PENDING')"
};
static const struct semel_sqlite_query hold_waits = {
	SEMEL_SQL_ONCE, "look what is held",
	"SELECT h.head_id, h.aggregate_type, h.aggregate_id, h.state, h.head_id, l.status,"
	" l.settled_at IS NOT NULL, l.entry_id, NULL, h.due_at FROM semel_hold h"
	" LEFT JOIN semel_dead_letter l ON l.scope = h.scope AND l.parked_behind IS NULL"
	" AND l.event_id IS NOT NULL AND l.event_id = h.head_id WHERE h.scope = ?1"
	" AND (h.state = 'retry' OR (h.state = 'dead' AND l.status IS NOT 'PENDING'))"
};
static const struct semel_sqlite_query replay_waits = {
	SEMEL_SQL_ONCE, "look what is replayed",
	"SELECT event_id, aggregate_type, aggregate_id, NULL, NULL, status, 0, entry_id, NULL,"
	" moved_at FROM semel_dead_letter AS l WHERE scope = ?1 AND parked_behind IS NULL"
	" AND event_id IS NOT NULL AND status = 'REPLAYED' AND settled_at IS NULL"
	" AND NOT EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = l.scope"
	" AND p.event_id = l.event_id AND p.parked_behind IS NOT NULL)"
};
static const struct semel_sqlite_query claim_waits = {
	SEMEL_SQL_ONCE, "look what is claimed",
	"SELECT event_id, NULL, NULL, NULL, NULL, NULL, 0, NULL, owner, lease_until"
	" FROM semel_inbox AS i WHERE scope = ?1 AND status = 'CLAIMED'"
	" AND NOT EXISTS (SELECT 1 FROM semel_dead_letter AS p WHERE p.scope = i.scope"
	" AND p.event_id = i.event_id AND p.parked_behind IS NOT NULL)"
};
static const struct semel_sqlite_query any_of_topic = {
	SEMEL_SQL_ONCE, "look for claims of a topic",
	"SELECT 1 FROM semel_inbox WHERE topic = ?1 LIMIT 1"
};
static const struct semel_sqlite_query newest_topics = {
	SEMEL_SQL_ONCE, "look at the topics of the outbox",
	"SELECT DISTINCT coalesce(topic, aggregate_type || '.events') FROM"
	" (SELECT topic, aggregate_type FROM semel_outbox ORDER BY seq DESC LIMIT 10000)"
};
static const struct semel_sqlite_query each_routing = {
	SEMEL_SQL_ONCE, "read the outbox",
	"SELECT id, coalesce(routing_key, event_type) FROM semel_outbox ORDER BY id"
};

static struct semel_text peek(sqlite3_stmt *statement, int column)
{
	const char *data = (const char *)sqlite3_column_text(statement, column);
	return semel_text_from(data, (size_t)sqlite3_column_bytes(statement, column));
}

static struct semel_wait wait_of(enum semel_wait_kind kind, sqlite3_stmt *statement)
{
	struct semel_text state = peek(statement, 3), letter = peek(statement, 5);
	return (struct semel_wait){
		.kind = kind,
		.event_id = peek(statement, 0),
		.key = { peek(statement, 1), peek(statement, 2) },
		.state = state.data ? semel_hold_state_of(semel_text_string(state))
				    : SEMEL_HOLD_NONE,
		.head_id = peek(statement, 4),
		.letter = letter.data ? semel_dead_status_of(semel_text_string(letter))
				      : SEMEL_DEAD_ANY,
		.settled = sqlite3_column_int(statement, 6) != 0,
		.entry_id = peek(statement, 7),
		.owner = peek(statement, 8),
		.due_ms = semel_sqlite_time(statement, 9),
	};
}

semel_status semel_sqlite_waits_each(semel_store *store, struct semel_text scope,
				     semel_wait_visitor seen, void *user, semel_error *error)
{
	static const struct semel_sqlite_query *const queries[] = {
		[SEMEL_WAIT_PARKED] = &parked_waits,
		[SEMEL_WAIT_HOLD] = &hold_waits,
		[SEMEL_WAIT_REPLAY] = &replay_waits,
		[SEMEL_WAIT_CLAIM] = &claim_waits,
	};
	semel_tx tx = semel_sqlite_tx(store);
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]) && status == SEMEL_OK; i++) {
		sqlite3_stmt *statement = NULL;
		bool row = false;
		status = semel_sqlite_take(tx, queries[i], &statement, error);
		if (status != SEMEL_OK)
			return status;
		semel_sqlite_bind_text(statement, 1, scope);
		do {
			status = semel_sqlite_step(tx, queries[i], statement, &row, error);
			if (status != SEMEL_OK || !row)
				break;
			struct semel_wait wait = wait_of((enum semel_wait_kind)i, statement);
			status = seen(&wait, user);
		} while (status == SEMEL_OK);
		semel_sqlite_give(tx, queries[i], statement);
	}
	return status;
}

semel_status semel_sqlite_inbox_has_topic(semel_store *store, struct semel_text topic,
					  bool *has_out, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	*has_out = false;
	semel_status status = semel_sqlite_take(tx, &any_of_topic, &statement, error);
	if (status != SEMEL_OK)
		return status;
	semel_sqlite_bind_text(statement, 1, topic);
	status = semel_sqlite_step(tx, &any_of_topic, statement, has_out, error);
	semel_sqlite_give(tx, &any_of_topic, statement);
	return status;
}

semel_status semel_sqlite_outbox_routing_each(semel_store *store, semel_routing_visitor seen,
					      void *user, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &each_routing, &statement, error);
	if (status != SEMEL_OK)
		return status;
	do {
		status = semel_sqlite_step(tx, &each_routing, statement, &row, error);
		if (status == SEMEL_OK && row)
			status = seen(peek(statement, 0), peek(statement, 1), user);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &each_routing, statement);
	return status;
}

semel_status semel_sqlite_outbox_topics_each(semel_store *store, semel_text_visitor seen,
					     void *user, semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *statement = NULL;
	bool row = false;
	semel_status status = semel_sqlite_take(tx, &newest_topics, &statement, error);
	if (status != SEMEL_OK)
		return status;
	do {
		status = semel_sqlite_step(tx, &newest_topics, statement, &row, error);
		if (status == SEMEL_OK && row)
			seen(peek(statement, 0), user);
	} while (status == SEMEL_OK && row);
	semel_sqlite_give(tx, &newest_topics, statement);
	return status;
}
