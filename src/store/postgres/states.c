/* SPDX-License-Identifier: Apache-2.0 */
/* What the tables say of a batch of events at a scope, in one round trip. */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "store/rules.h"

enum { NUMBER, HOLD, LETTER = HOLD + SEMEL_PG_HOLD_WIDTH, REPLAY_COUNT, SETTLED };

static const struct semel_pg_query any_state = {
	"look for holds and dead letters",
	"SELECT EXISTS (SELECT 1 FROM semel_hold WHERE scope = $1)"
	" OR EXISTS (SELECT 1 FROM semel_dead_letter WHERE scope = $1 AND parked_behind IS NULL"
	" AND event_id IS NOT NULL)"
};
static const struct semel_pg_query look_at_states = {
	"look up holds and dead letters",
	"SELECT number, " SEMEL_PG_HOLD_COLUMNS ", letter, replay_count, settled"
	" FROM semel_states_look($1, $2::text[], $3::text[], $4::text[])"
};

semel_status semel_pg_states_exist(semel_tx tx, struct semel_text scope, bool *any_out,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_text(&params, scope);
	semel_status status = semel_pg_run(tx, &any_state, &params, &result, error);
	*any_out = status == SEMEL_OK && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

static void read_answers(const PGresult *result, struct semel_state_batch *batch)
{
	for (size_t i = 0; i < batch->count; i++)
		batch->results[i] = (struct semel_state_result){
			.hold = { .aggregate_type = batch->queries[i].key.type,
				  .aggregate_id = batch->queries[i].key.id },
			.letter = SEMEL_DEAD_ANY,
		};
	for (int row = 0; row < semel_pg_rows(result); row++) {
		struct semel_state_result *answer =
			&batch->results[semel_pg_int(result, row, NUMBER) - 1];
		if (!semel_pg_is_null(result, row, HOLD))
			semel_pg_hold_read(result, row, HOLD, batch->arena, &answer->hold);
		if (semel_pg_is_null(result, row, LETTER))
			continue;
		answer->letter = semel_dead_status_of(semel_pg_value(result, row, LETTER));
		answer->replay_count = (uint32_t)semel_pg_int(result, row, REPLAY_COUNT);
		answer->settled = semel_pg_bool(result, row, SETTLED);
	}
}

semel_status semel_pg_states_read(semel_tx tx, struct semel_text scope,
				  struct semel_state_batch *batch, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer ids = { 0 }, types = { 0 }, keys = { 0 };
	PGresult *result = NULL;
	semel_status status = semel_pg_demand_transaction(tx, look_at_states.what, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < batch->count; i++) {
		semel_pg_array_text(&ids, batch->queries[i].event_id);
		semel_pg_array_text(&types, batch->queries[i].key.type);
		semel_pg_array_text(&keys, batch->queries[i].key.id);
	}
	semel_pg_add_text(&params, scope);
	semel_pg_add_array(&params, &ids);
	semel_pg_add_array(&params, &types);
	semel_pg_add_array(&params, &keys);
	if (ids.failed || types.failed || keys.failed)
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
	else
		status = semel_pg_run(tx, &look_at_states, &params, &result, error);
	if (status == SEMEL_OK)
		read_answers(result, batch);
	semel_pg_clear(result);
	semel_buffer_free(&ids);
	semel_buffer_free(&types);
	semel_buffer_free(&keys);
	return status;
}
