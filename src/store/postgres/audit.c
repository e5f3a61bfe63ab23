/* SPDX-License-Identifier: Apache-2.0 */
/* What people did, for those who ask later. */
#include "store/postgres/postgres.h"

#define CUT(text)                                                                                  \
	"CASE WHEN length(" text ") > " SEMEL_AUDIT_TEXT " THEN left(" text ", " SEMEL_AUDIT_TEXT  \
	") || '…' ELSE " text " END"

static const struct semel_pg_query add_row = {
	"write down what was done",
	"INSERT INTO semel_audit (at, who, what, target, detail, outcome)"
	" VALUES ($1::timestamptz, $2, $3, " CUT("$4::text") ", " CUT(
		"$5::text") ", $6)"
			    " RETURNING number"
};
static const struct semel_pg_query finish_row = {
	"write down how it ended", "UPDATE semel_audit SET outcome = $2 WHERE number = $1::bigint"
};
static const struct semel_pg_query list_rows = {
	"list what was done", "SELECT " SEMEL_PG_MS("at") ", who, what, " CUT("target") ", " CUT(
				      "detail") ", outcome"
						" FROM semel_audit ORDER BY number DESC LIMIT $1"
};

semel_status semel_pg_audit_add(semel_store *store, const struct semel_audit_row *row,
				int64_t *number_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_time(&params, row->at_ms);
	semel_pg_add_text(&params, row->who);
	semel_pg_add_text(&params, row->what);
	semel_pg_add_text(&params, row->target);
	semel_pg_add_text(&params, row->detail);
	semel_pg_add_text(&params, row->outcome);
	semel_status status = semel_pg_run(semel_pg_tx(store), &add_row, &params, &result, error);
	if (status == SEMEL_OK && number_out)
		*number_out = semel_pg_int(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_audit_finish(semel_store *store, int64_t number, const char *outcome,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_int(&params, number);
	semel_pg_add_string(&params, outcome);
	return semel_pg_run(semel_pg_tx(store), &finish_row, &params, NULL, error);
}

semel_status semel_pg_audit_list(semel_store *store, struct semel_arena *arena,
				 struct semel_audit_row *rows_out, uint32_t limit,
				 uint32_t *count_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, limit);
	semel_status status = semel_pg_run(semel_pg_tx(store), &list_rows, &params, &result, error);
	*count_out = (uint32_t)semel_pg_rows(result);
	for (int row = 0; row < semel_pg_rows(result); row++)
		rows_out[row] = (struct semel_audit_row){
			.at_ms = semel_pg_int(result, row, 0),
			.who = semel_pg_text(result, row, 1, arena),
			.what = semel_pg_text(result, row, 2, arena),
			.target = semel_pg_text(result, row, 3, arena),
			.detail = semel_pg_text(result, row, 4, arena),
			.outcome = semel_pg_text(result, row, 5, arena),
		};
	semel_pg_clear(result);
	return status;
}
