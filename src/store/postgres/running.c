/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that a crash may end; only after one was noticed. */
#include "store/postgres/postgres.h"

static const struct semel_pg_query forget_old = {
	"forget runs of long ago",
	"DELETE FROM semel_running WHERE scope = $1 AND begun_at < $2::timestamptz"
};
static const struct semel_pg_query begin_run = {
	"write down that an event runs",
	"INSERT INTO semel_running AS r (scope, event_id, owner, runs, begun_at)"
	" VALUES ($1, $2, $3, 1, $4::timestamptz)"
	" ON CONFLICT (scope, event_id) DO UPDATE"
	" SET runs = r.runs + (r.owner <> excluded.owner)::integer, owner = excluded.owner,"
	" begun_at = excluded.begun_at RETURNING runs"
};
static const struct semel_pg_query end_run = {
	"write down that an event has run",
	"DELETE FROM semel_running WHERE scope = $1 AND event_id = $2"
};

semel_status semel_pg_running_begin(semel_tx tx, const struct semel_running *running,
				    uint32_t *runs_out, semel_error *error)
{
	struct semel_pg_params old = { 0 }, params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&old, running->scope);
	semel_pg_add_time(&old, running->forget_ms);
	semel_status status = semel_pg_run(tx, &forget_old, &old, NULL, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_text(&params, running->scope);
	semel_pg_add_text(&params, running->event_id);
	semel_pg_add_string(&params, running->owner);
	semel_pg_add_time(&params, running->now_ms);
	status = semel_pg_run(tx, &begin_run, &params, &result, error);
	*runs_out = semel_pg_rows(result) > 0 ? (uint32_t)semel_pg_int(result, 0, 0) : 0;
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_running_end(semel_tx tx, struct semel_text scope, struct semel_text event_id,
				  semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_text(&params, scope);
	semel_pg_add_text(&params, event_id);
	return semel_pg_run(tx, &end_run, &params, NULL, error);
}
