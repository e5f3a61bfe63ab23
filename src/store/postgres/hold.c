/* SPDX-License-Identifier: Apache-2.0 */
/* Holds: aggregates whose events must wait, per scope. They are few, and most batches find none:
 * one look into an index tells. */
#include "store/postgres/postgres.h"

#include "store/rules.h"

#define HOLD_NAMES "aggregate_type, aggregate_id, state, head_id, attempts, due_at, blocks"
#define THE_HOLD   " WHERE scope = $1 AND aggregate_type = $2 AND aggregate_id = $3"

static const struct semel_pg_query any_hold = {
	"look for holds", "SELECT EXISTS (SELECT 1 FROM semel_hold WHERE scope = $1)"
};
static const struct semel_pg_query topic_hold = {
	"look for holds",
	"SELECT EXISTS (SELECT 1 FROM semel_hold WHERE scope = $1 AND aggregate_type = '')"
};
static const struct semel_pg_query aggregate_hold = {
	"look for holds",
	"SELECT EXISTS (SELECT 1 FROM semel_hold WHERE scope = $1 AND aggregate_type > '')"
};
static const struct semel_pg_query get_hold = { "look up a hold",
						"SELECT " SEMEL_PG_HOLD_COLUMNS
						" FROM semel_hold" THE_HOLD " FOR UPDATE" };
static const struct semel_pg_query put_hold = {
	"hold an aggregate",
	"INSERT INTO semel_hold (scope, " HOLD_NAMES ") VALUES ($1, $2, $3, $4, $5, $6,"
	" $7::timestamptz, $8) ON CONFLICT (scope, aggregate_type, aggregate_id) DO UPDATE SET"
	" state = excluded.state, head_id = excluded.head_id, attempts = excluded.attempts,"
	" due_at = excluded.due_at, blocks = excluded.blocks"
};
/* Waits for another one who is about to hold the key, and then leaves it to him. */
static const struct semel_pg_query add_hold = {
	"hold an aggregate",
	"INSERT INTO semel_hold (scope, " HOLD_NAMES ") VALUES ($1, $2, $3, $4,"
	" $5, $6, $7::timestamptz, $8) ON CONFLICT DO NOTHING"
};
static const struct semel_pg_query remove_hold = { "remove a hold",
						   "DELETE FROM semel_hold" THE_HOLD };
/* Locked for this transaction; those of others are left to them. */
static const struct semel_pg_query ready_holds = {
	"look for aggregates that may go on",
	"SELECT " SEMEL_PG_HOLD_COLUMNS " FROM semel_hold WHERE scope = $1"
	" AND state IN ('released', 'gap') AND (due_at IS NULL OR due_at <= $2::timestamptz)"
	" LIMIT $3 FOR UPDATE SKIP LOCKED"
};
static const struct semel_pg_query first_due = {
	"look when a hold is due",
	"SELECT " SEMEL_PG_MS("min(due_at)") " FROM semel_hold"
					     " WHERE scope = $1 AND state IN ('released', 'gap')"
};
/* A gap's head is parked like its followers; a hold without any counts for itself. */
static const struct semel_pg_query count_holds = {
	"count what is held",
	"SELECT h.state, h.blocks, " SEMEL_PG_MS(
		"h.due_at") ", CASE WHEN h.aggregate_type = ''"
			    " THEN (SELECT count(*) FROM semel_dead_letter d WHERE d.scope = "
			    "h.scope"
			    " AND d.topic = h.aggregate_id AND d.parked_behind IS NOT NULL)"
			    " ELSE (SELECT count(*) FROM semel_dead_letter d WHERE d.scope = "
			    "h.scope"
			    " AND d.aggregate_type = h.aggregate_type AND d.aggregate_id = "
			    "h.aggregate_id"
			    " AND d.parked_behind IS NOT NULL) END"
			    " FROM semel_hold h WHERE h.scope = $1"
};

void semel_pg_hold_read(const PGresult *result, int row, int first, struct semel_arena *arena,
			struct semel_hold *hold)
{
	hold->aggregate_type = semel_pg_text(result, row, first, arena);
	hold->aggregate_id = semel_pg_text(result, row, first + 1, arena);
	hold->state = semel_hold_state_of(semel_pg_value(result, row, first + 2));
	hold->head_id = semel_pg_text(result, row, first + 3, arena);
	hold->attempts = (uint32_t)semel_pg_int(result, row, first + 4);
	hold->due_ms = semel_pg_int(result, row, first + 5);
	hold->blocks = semel_pg_bool(result, row, first + 6);
}

semel_status semel_pg_hold_has_any(semel_tx tx, struct semel_text scope, bool *any_out,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status = semel_pg_run(tx, &any_hold, &params, &result, error);
	*any_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_hold_has_other_kind(semel_tx tx, struct semel_text scope, bool total,
					  bool *other_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status =
		semel_pg_run(tx, total ? &aggregate_hold : &topic_hold, &params, &result, error);
	*other_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

static void add_key(struct semel_pg_params *params, struct semel_text scope,
		    struct semel_text aggregate_type, struct semel_text aggregate_id)
{
	semel_pg_add_text(params, scope);
	semel_pg_add_text(params, aggregate_type);
	semel_pg_add_text(params, aggregate_id);
}

semel_status semel_pg_hold_get(semel_tx tx, struct semel_text scope,
			       const struct semel_hold_key *key, struct semel_arena *arena,
			       struct semel_hold *hold_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*hold_out = (struct semel_hold){ .aggregate_type = key->type, .aggregate_id = key->id };
	add_key(&params, scope, key->type, key->id);
	semel_status status = semel_pg_run(tx, &get_hold, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		semel_pg_hold_read(result, 0, 0, arena, hold_out);
	semel_pg_clear(result);
	return status;
}

static void add_hold_params(struct semel_pg_params *params, struct semel_text scope,
			    const struct semel_hold *hold)
{
	add_key(params, scope, hold->aggregate_type, hold->aggregate_id);
	semel_pg_add_string(params, semel_hold_state_name(hold->state));
	semel_pg_add_text(params, hold->head_id);
	semel_pg_add_int(params, hold->attempts);
	semel_pg_add_time(params, hold->due_ms);
	semel_pg_add_bool(params, hold->blocks);
}

semel_status semel_pg_hold_put(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			       semel_error *error)
{
	struct semel_pg_params params = { 0 };
	if (hold->state == SEMEL_HOLD_NONE)
		return semel_pg_hold_remove(tx, scope, hold, error);
	semel_status status = semel_pg_demand_transaction(tx, put_hold.what, error);
	if (status != SEMEL_OK)
		return status;
	add_hold_params(&params, scope, hold);
	return semel_pg_run(tx, &put_hold, &params, NULL, error);
}

semel_status semel_pg_hold_add(semel_tx tx, struct semel_text scope, const struct semel_hold *hold,
			       bool *added_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t changes = 0;
	semel_status status = semel_pg_demand_transaction(tx, add_hold.what, error);
	if (status == SEMEL_OK) {
		add_hold_params(&params, scope, hold);
		status = semel_pg_change(tx, &add_hold, &params, &changes, error);
	}
	*added_out = status == SEMEL_OK && changes > 0;
	return status;
}

semel_status semel_pg_hold_remove(semel_tx tx, struct semel_text scope,
				  const struct semel_hold *hold, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_status status = semel_pg_demand_transaction(tx, remove_hold.what, error);
	if (status != SEMEL_OK)
		return status;
	add_key(&params, scope, hold->aggregate_type, hold->aggregate_id);
	return semel_pg_run(tx, &remove_hold, &params, NULL, error);
}

semel_status semel_pg_hold_list_ready(semel_tx tx, struct semel_text scope, int64_t now_ms,
				      struct semel_holds *holds, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_pg_add_time(&params, now_ms);
	semel_pg_add_int(&params, holds->capacity);
	holds->count = 0;
	semel_status status = semel_pg_run(tx, &ready_holds, &params, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++)
		semel_pg_hold_read(result, row, 0, holds->arena, &holds->holds[holds->count++]);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_hold_next_due(semel_store *store, struct semel_text scope,
				    int64_t *due_ms_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*due_ms_out = 0;
	semel_pg_add_text(&params, scope);
	semel_status status = semel_pg_run(semel_pg_tx(store), &first_due, &params, &result, error);
	if (semel_pg_rows(result) > 0)
		*due_ms_out = semel_pg_int(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

static struct semel_hold_summary tally_of(const PGresult *result, int row)
{
	return (struct semel_hold_summary){
		.state = semel_hold_state_of(semel_pg_value(result, row, 0)),
		.blocks = semel_pg_bool(result, row, 1),
		.due_ms = semel_pg_int(result, row, 2),
		.behind = (uint64_t)semel_pg_int(result, row, 3),
	};
}

semel_status semel_pg_hold_count(semel_store *store, struct semel_text scope,
				 struct semel_hold_counts *counts_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*counts_out = (struct semel_hold_counts){ 0 };
	semel_pg_add_text(&params, scope);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &count_holds, &params, &result, error);
	for (int row = 0; row < semel_pg_rows(result); row++)
		semel_hold_counts_add(counts_out, tally_of(result, row));
	semel_pg_clear(result);
	return status;
}
