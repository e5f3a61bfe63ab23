/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the tables with statements of its own: nothing here uses the library that is tested. */
#include "model/world.h"

#include "model/disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum query {
	Q_CLAIM,
	Q_LETTER,
	Q_PARKED,
	Q_EFFECTS,
	Q_PENDING,
	Q_DUE,
	Q_WAITING,
	Q_BLOCKED,
	Q_VERSION,
	Q_ROW,
	Q_HELD,
	Q_COUNT
};

#define MS(column) "CAST(round((julianday(" column ") - 2440587.5) * 86400000) AS INTEGER)"

static const char *const texts[Q_COUNT] = {
	[Q_CLAIM] = "SELECT status FROM semel_inbox WHERE scope = ?1 AND event_id = ?2"
		    " ORDER BY status DESC",
	[Q_LETTER] = "SELECT status, replay_count, settled_at IS NOT NULL FROM semel_dead_letter"
		     " WHERE scope = ?1 AND event_id = ?2 AND parked_behind IS NULL",
	[Q_PARKED] = "SELECT EXISTS (SELECT 1 FROM semel_hold AS h JOIN semel_dead_letter AS d"
		     " ON d.scope = h.scope AND d.event_id = h.head_id AND d.parked_behind IS NULL"
		     " WHERE h.scope = p.scope AND h.state = 'dead' AND d.status = 'PENDING' AND"
		     " (h.aggregate_type = p.aggregate_type AND h.aggregate_id = p.aggregate_id"
		     " OR h.aggregate_type = '' AND h.aggregate_id = p.topic))"
		     " FROM semel_dead_letter AS p WHERE p.scope = ?1 AND p.event_id = ?2"
		     " AND p.parked_behind IS NOT NULL",
	[Q_EFFECTS] = "SELECT count(*), min(number) FROM effect WHERE scope = ?1 AND event = ?2",
	[Q_PENDING] = "SELECT entry_id, scope, event_id FROM semel_dead_letter"
		      " WHERE parked_behind IS NULL AND status = 'PENDING' ORDER BY position"
		      " LIMIT 1 OFFSET ?1",
	/* Leases are not included, except those of claims: live parties renew theirs, and quiesce()
	 * waits for those of dead ones. */
	[Q_DUE] =
		"SELECT min(due) FROM (SELECT due_at AS due FROM b.semel_delayed UNION ALL"
		" SELECT " MS("due_at") " FROM semel_hold WHERE due_at IS NOT NULL UNION ALL"
					" SELECT " MS(
						"due_at") " FROM semel_outbox_exception WHERE "
							  "due_at IS NOT NULL"
							  " UNION ALL SELECT " MS(
								  "lease_until") " FROM semel_inbox"
										 " WHERE status = "
										 "'CLAIMED') WHERE "
										 "due > ?1",
	[Q_WAITING] =
		"SELECT (SELECT count(*) FROM b.semel_delayed AS d JOIN b.semel_subscription AS s"
		" ON s.number = d.subscription WHERE s.scope = ?1 AND d.id = ?2) +"
		" (SELECT count(*) FROM b.semel_log AS l, b.semel_subscription AS s"
		" JOIN b.semel_share AS h ON h.subscription = s.number WHERE s.scope = ?1"
		" AND l.id = ?2 AND h.partition = l.position >> 44 & 63"
		" AND s.topic = l.position >> 50"
		" AND (l.position & 17592186044415) > h.cursor)",
	[Q_BLOCKED] = "SELECT count(*) FROM semel_hold AS h JOIN semel_dead_letter AS d"
		      " ON d.scope = h.scope AND d.event_id = h.head_id"
		      " AND d.parked_behind IS NULL WHERE h.scope = ?1 AND h.aggregate_type = ''"
		      " AND h.state = 'dead' AND d.status = 'PENDING'",
	[Q_VERSION] = "PRAGMA main.data_version",
	[Q_HELD] = "SELECT count(*) FROM semel_hold WHERE scope = ?1 AND aggregate_type = ''"
		   " AND head_id <> ?2",
	[Q_ROW] = "SELECT o.status, (SELECT d.status FROM semel_dead_letter AS d WHERE"
		  " d.scope = 'relay' AND d.event_id = o.id AND d.parked_behind IS NULL),"
		  " o.status = 'NEW' AND EXISTS (SELECT 1 FROM semel_outbox_exception AS x"
		  " JOIN semel_outbox_exception AS h ON h.aggregate_type = x.aggregate_type"
		  " AND h.aggregate_id = x.aggregate_id AND h.seq < x.seq AND h.state = 'failed'"
		  " JOIN semel_outbox AS f ON f.seq = h.seq JOIN semel_dead_letter AS d"
		  " ON d.event_id = f.id AND d.scope = 'relay' AND d.status = 'PENDING'"
		  " WHERE x.seq = o.seq) FROM semel_outbox AS o WHERE o.id = ?2",
};

static sqlite3 *inspector_of(struct world *world)
{
	char sql[160];

	if (world->inspector)
		return world->inspector;
	snprintf(sql, sizeof sql, "%s/store.db", world->folder);
	if (sqlite3_open_v2(sql, &world->inspector, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
		abort();
	snprintf(sql, sizeof sql, "ATTACH '%s/broker.db' AS b", world->folder);
	if (sqlite3_exec(world->inspector, sql, NULL, NULL, NULL) != SQLITE_OK)
		abort();
	sqlite3_exec(world->inspector, "PRAGMA wal_autocheckpoint = 0", NULL, NULL, NULL);
	return world->inspector;
}

void inspect_close(struct world *world)
{
	for (int i = 0; i < Q_COUNT; i++) {
		sqlite3_finalize(world->queries[i]);
		world->queries[i] = NULL;
	}
	sqlite3_close(world->inspector);
	world->inspector = NULL;
	world->version = -1;
}

static void complain(struct world *world, const char *sql)
{
	fprintf(stderr, "%s: %s\n", sqlite3_errmsg(world->inspector), sql);
	abort();
}

static sqlite3_stmt *ask(struct world *world, enum query query)
{
	sqlite3 *db = inspector_of(world);

	if (!world->queries[query] &&
	    sqlite3_prepare_v3(db, texts[query], -1, SQLITE_PREPARE_PERSISTENT,
			       &world->queries[query], NULL) != SQLITE_OK)
		complain(world, texts[query]);
	sqlite3_reset(world->queries[query]);
	return world->queries[query];
}

static sqlite3_stmt *ask_event(struct world *world, enum query query, int scope, int event)
{
	sqlite3_stmt *statement = ask(world, query);

	sqlite3_bind_text(statement, 1, world->scope_options[scope].scope, -1, SQLITE_STATIC);
	sqlite3_bind_text(statement, 2, world->reference.events[event].id, -1, SQLITE_STATIC);
	return statement;
}

bool inspect_changed(struct world *world)
{
	sqlite3_stmt *statement = ask(world, Q_VERSION);
	int64_t version =
		sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
	bool changed = version != world->version;

	sqlite3_reset(statement);
	world->version = version;
	return changed;
}

static const char *text_at(sqlite3_stmt *statement, int column)
{
	const char *text = (const char *)sqlite3_column_text(statement, column);
	return text ? text : "";
}

static enum claim claim_of(const char *status)
{
	if (strcmp(status, "PROCESSED") == 0)
		return CLAIM_DONE;
	return strcmp(status, "FAILED") == 0 ? CLAIM_FAILED : CLAIM_OPEN;
}

static enum letter letter_of(const char *status)
{
	if (strcmp(status, "PENDING") == 0)
		return LETTER_PENDING;
	return strcmp(status, "DISCARDED") == 0 ? LETTER_DISCARDED : LETTER_REPLAYED;
}

static enum row row_of(const char *status)
{
	if (strcmp(status, "NEW") == 0)
		return ROW_NEW;
	return strcmp(status, "FAILED") == 0 ? ROW_FAILED : ROW_PUBLISHED;
}

struct seen inspect_event(struct world *world, int scope, int event)
{
	struct seen seen = { 0 };
	sqlite3_stmt *statement = ask_event(world, Q_CLAIM, scope, event);

	if (sqlite3_step(statement) == SQLITE_ROW)
		seen.claim = claim_of(text_at(statement, 0));
	sqlite3_reset(statement);
	statement = ask_event(world, Q_LETTER, scope, event);
	if (sqlite3_step(statement) == SQLITE_ROW) {
		seen.letter = letter_of(text_at(statement, 0));
		seen.replays = (unsigned)sqlite3_column_int(statement, 1);
		seen.settled = sqlite3_column_int(statement, 2) != 0;
	}
	sqlite3_reset(statement);
	statement = ask_event(world, Q_PARKED, scope, event);
	if (sqlite3_step(statement) == SQLITE_ROW) {
		seen.parked = true;
		seen.behind_pending = sqlite3_column_int(statement, 0) != 0;
	}
	sqlite3_reset(statement);
	statement = ask_event(world, Q_ROW, scope, event);
	if (sqlite3_step(statement) == SQLITE_ROW) {
		seen.row = row_of(text_at(statement, 0));
		if (sqlite3_column_type(statement, 1) != SQLITE_NULL)
			seen.refused = letter_of(text_at(statement, 1));
		seen.behind_refused = sqlite3_column_int(statement, 2) != 0;
	}
	sqlite3_reset(statement);
	statement = ask_event(world, Q_EFFECTS, scope, event);
	sqlite3_bind_int(statement, 2, event);
	if (sqlite3_step(statement) == SQLITE_ROW) {
		seen.effects = (unsigned)sqlite3_column_int(statement, 0);
		seen.first = sqlite3_column_int64(statement, 1);
	}
	sqlite3_reset(statement);
	return seen;
}

void inspect_all(struct world *world, int scope, struct seen seen[EVENTS_MAX])
{
	for (int i = 0; i < world->reference.count; i++)
		seen[i] = inspect_event(world, scope, i);
}

bool inspect_letter(struct world *world, int nth, char entry_id_out[40], int *scope_out,
		    int *event_out)
{
	sqlite3_stmt *statement = ask(world, Q_PENDING);

	*scope_out = *event_out = -1;
	sqlite3_bind_int(statement, 1, nth);
	bool found = sqlite3_step(statement) == SQLITE_ROW;
	if (found) {
		snprintf(entry_id_out, 40, "%s", text_at(statement, 0));
		for (int i = 0; i < SCOPES; i++)
			if (strcmp(text_at(statement, 1), world->scope_options[i].scope) == 0)
				*scope_out = i;
		for (int i = 0; i < world->reference.count; i++)
			if (strcmp(text_at(statement, 2), world->reference.events[i].id) == 0)
				*event_out = i;
	}
	sqlite3_reset(statement);
	return found;
}

int64_t inspect_due(struct world *world)
{
	sqlite3_stmt *statement = ask(world, Q_DUE);

	sqlite3_bind_int64(statement, 1, disk_clock_ms);
	int64_t due_ms =
		sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
	sqlite3_reset(statement);
	return due_ms;
}

int inspect_waiting(struct world *world, int scope, int event)
{
	sqlite3_stmt *statement = ask_event(world, Q_WAITING, scope, event);
	int count = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int(statement, 0) : 0;

	sqlite3_reset(statement);
	return count;
}

bool inspect_held(struct world *world, int scope, int event)
{
	sqlite3_stmt *statement = ask_event(world, Q_HELD, scope, event);
	bool held = sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_int(statement, 0) > 0;

	sqlite3_reset(statement);
	return held;
}

bool inspect_blocked(struct world *world, int scope)
{
	sqlite3_stmt *statement = ask(world, Q_BLOCKED);

	sqlite3_bind_text(statement, 1, world->scope_options[scope].scope, -1, SQLITE_STATIC);
	bool blocked =
		sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_int(statement, 0) > 0;
	sqlite3_reset(statement);
	return blocked;
}

int64_t inspect_number(struct world *world, const char *sql, int64_t first, int64_t second)
{
	sqlite3_stmt *statement = NULL;

	if (sqlite3_prepare_v2(inspector_of(world), sql, -1, &statement, NULL) != SQLITE_OK)
		complain(world, sql);
	sqlite3_bind_int64(statement, 1, first);
	sqlite3_bind_int64(statement, 2, second);
	int64_t number =
		sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
	sqlite3_finalize(statement);
	return number;
}

int inspect_execute(struct world *world, const char *sql, int64_t first, int64_t second)
{
	int before = sqlite3_total_changes(inspector_of(world));

	(void)inspect_number(world, sql, first, second);
	return sqlite3_total_changes(world->inspector) - before;
}

/* ---- the digest ------------------------------------------------------------------------------ */

#define NUMBER_OF(id)  "(SELECT payload FROM semel_outbox AS o WHERE o.id = " id ")"
#define BUCKET_OF(due) "(" due " > ?1) + (" due " > ?1 + 2500) + (" due " > ?1 + 45000)"

/* Rows that are equal in equal states, in an order that is equal too. */
static const char *const digests[] = {
	"SELECT payload, aggregate_id, status FROM semel_outbox ORDER BY seq",
	"SELECT seq, state, " BUCKET_OF(MS("coalesce(due_at, 0)")) " FROM semel_outbox_exception"
								   " ORDER BY seq",
	"SELECT scope, " NUMBER_OF("event_id") ", status, replay, " BUCKET_OF(
		MS("coalesce(lease_until, 0)")) " FROM semel_inbox ORDER BY 1, 2",
	"SELECT scope, payload, status, replay_count, settled_at IS NULL, parked_behind IS NULL,"
	" " MS("failed_at") " < ?1 - 3600000 FROM semel_dead_letter ORDER BY position",
	"SELECT scope, aggregate_id, state, " NUMBER_OF("head_id") ", attempts, " BUCKET_OF(
		MS("coalesce(due_at, 0)")) " FROM semel_hold ORDER BY 1, 2",
	"SELECT s.scope, l.payload, l.attempt, l.replay FROM b.semel_log AS l,"
	" b.semel_subscription AS s JOIN b.semel_share AS h ON h.subscription = s.number"
	" WHERE h.partition = l.position >> 44 & 63 AND s.topic = l.position >> 50"
	" AND (l.position & 17592186044415) > h.cursor"
	" ORDER BY s.scope, l.position",
	"SELECT s.scope, d.payload, d.attempt, d.replay, " BUCKET_OF(
		"d.due_at") " FROM b.semel_delayed AS d JOIN b.semel_subscription AS s ON s.number "
			    "= d.subscription"
			    " ORDER BY s.scope, d.due_at, d.number",
	"SELECT scope, event, count(*) FROM effect GROUP BY 1, 2 ORDER BY min(number)",
};

static uint64_t mix(uint64_t digest, const void *bytes, size_t size)
{
	const unsigned char *at = bytes;

	for (size_t i = 0; i < size; i++)
		digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
	return digest;
}

uint64_t inspect_digest(struct world *world)
{
	uint64_t digest = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < sizeof digests / sizeof digests[0]; i++) {
		sqlite3_stmt *statement = NULL;
		if (sqlite3_prepare_v2(inspector_of(world), digests[i], -1, &statement, NULL) !=
		    SQLITE_OK)
			complain(world, digests[i]);
		sqlite3_bind_int64(statement, 1, disk_clock_ms);
		while (sqlite3_step(statement) == SQLITE_ROW)
			for (int column = 0; column < sqlite3_column_count(statement); column++) {
				const char *text = text_at(statement, column);
				digest = mix(digest, text, strlen(text) + 1);
			}
		digest = mix(digest, &i, sizeof i);
		sqlite3_finalize(statement);
	}
	digest = mix(digest, world->behaviours, sizeof world->behaviours);
	for (int scope = 0; scope < SCOPES; scope++)
		for (int i = 0; i < world->reference.count; i++) {
			const struct asked *asked = &world->reference.asked[scope][i];
			unsigned facts[] = { asked->replays, asked->again, asked->given_up,
					     asked->excused, asked->runs > 2 ? 2 : asked->runs };
			digest = mix(digest, facts, sizeof facts);
		}
	digest = mix(digest, &world->relay_options, sizeof world->relay_options);
	for (int scope = 0; scope < SCOPES; scope++)
		digest = mix(digest, &world->scope_options[scope],
			     sizeof world->scope_options[scope]);
	return mix(digest, &world->lossy, sizeof world->lossy);
}
