/* SPDX-License-Identifier: Apache-2.0 */
/* Adopted outboxes: a trigger (schema/functions.sql) copies the rows of another outbox table into
 * ours. The comment on its function stores the mapping that it was generated from. */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <string.h>

static const struct semel_pg_query take_turns = { "wait for another init",
						  "SELECT pg_advisory_xact_lock(1936026988)" };
static const struct semel_pg_query adopt_table = { "adopt the outbox",
						   "SELECT semel_adopt(to_regclass($1::text), $1,"
						   " $2::json, $3)" };
static const struct semel_pg_query adopted_mapping = {
	"inspect the adopted outbox",
	"SELECT obj_description(tgfoid, 'pg_proc') FROM pg_trigger"
	" WHERE tgrelid = to_regclass($1) AND tgname = 'semel_adopt' AND tgenabled <> 'D'"
};

static semel_status adopt(semel_store *store, const struct semel_adoption *adoption,
			  bool *fresh_out, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_status status = semel_pg_run(tx, &take_turns, NULL, NULL, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_string(&params, adoption->table);
	semel_pg_add_string(&params, adoption->mapping);
	semel_pg_add_bool(&params, adoption->existing);
	status = semel_pg_run(tx, &adopt_table, &params, &result, error);
	if (status == SEMEL_INVALID) /* the mapping does not fit the table */
		return error->status = SEMEL_CONFIG;
	if (status != SEMEL_OK)
		return status;
	*fresh_out = semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	return SEMEL_OK;
}

semel_status semel_pg_adopt(semel_store *store, const struct semel_adoption *adoption,
			    bool *fresh_out, semel_error *error)
{
	semel_status status = semel_pg_begin(store, error);
	if (status != SEMEL_OK)
		return status;
	status = adopt(store, adoption, fresh_out, error);
	if (status != SEMEL_OK)
		goto roll_back;
	return semel_pg_commit(store, error);

roll_back:
	semel_pg_rollback(store);
	return status;
}

semel_status semel_pg_check_adoption(semel_store *store, const struct semel_adoption *adoption,
				     semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_string(&params, adoption->table);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &adopted_mapping, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_rows(result) == 0)
		status = semel_error_set(error, SEMEL_CONFIG,
					 "the table %.100s is not adopted: its rows do not become "
					 "events (run: semel --config FILE init)",
					 adoption->table);
	else if (strcmp(semel_pg_value(result, 0, 0), adoption->mapping) != 0)
		status = semel_error_set(
			error, SEMEL_CONFIG,
			"the table %.100s is adopted with other settings than those "
			"of the config file (run: semel --config FILE init)",
			adoption->table);
	semel_pg_clear(result);
	return status;
}
