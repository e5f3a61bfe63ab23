/* SPDX-License-Identifier: Apache-2.0 */
/* What the tables have of a batch of events when it is admitted: one statement for all of them. */
#include "store/postgres/postgres.h"

#include "base/error.h"

static const struct semel_sql_statement read_states = {
	.what = "read holds and dead letters",
	.often = true,
	.in_transaction = true,
	.text = { [SEMEL_SQL_POSTGRES] = "SELECT number, " SEMEL_SQL_HOLD_COLUMNS(
			  SEMEL_SQL_POSTGRES) ", letter, replay_count, settled"
					      " FROM semel_states_look(?1, ?2::text[], "
					      "?3::text[], ?4::text[])" }
};

semel_status semel_pg_states_read(semel_tx tx, struct semel_text scope,
				  struct semel_state_batch *batch, semel_error *error)
{
	struct semel_sql_query query;
	struct semel_buffer ids = { 0 }, types = { 0 }, keys = { 0 };
	semel_sql_prepare(&query, tx, &read_states, error);
	for (size_t i = 0; i < batch->count; i++) {
		semel_pg_array_text(&ids, batch->queries[i].event_id);
		semel_pg_array_text(&types, batch->queries[i].key.type);
		semel_pg_array_text(&keys, batch->queries[i].key.id);
	}
	semel_sql_bind_text(&query, scope);
	semel_sql_bind_text(&query, semel_pg_array_end(&ids));
	semel_sql_bind_text(&query, semel_pg_array_end(&types));
	semel_sql_bind_text(&query, semel_pg_array_end(&keys));
	if (ids.failed || types.failed || keys.failed)
		semel_sql_stop(&query,
			       semel_error_set(error, SEMEL_INTERNAL, "out of memory for a batch"));
	semel_sql_states_clear(batch);
	while (semel_sql_next(&query)) {
		int64_t number = semel_sql_int(&query, 0);
		semel_sql_state_read(&query, 1, batch->arena, &batch->results[number - 1]);
	}
	semel_status status = semel_sql_finish(&query);
	semel_buffer_free(&ids);
	semel_buffer_free(&types);
	semel_buffer_free(&keys);
	return status;
}
