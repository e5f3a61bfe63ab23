/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log: what operators did. */
#include "store/sql/sql.h"

#define CUT(text)                                                                                  \
	"CASE WHEN length(" text ") > " SEMEL_AUDIT_TEXT " THEN substr(" text                      \
	", 1, " SEMEL_AUDIT_TEXT ") || '…' ELSE " text " END"

static const struct semel_sql_statement add_row = {
	.what = "write to the audit log",
	.text = SEMEL_SQL_SAME("INSERT INTO semel_audit (at, who, what, target, detail, outcome)"
			       " VALUES (?1, ?2, ?3, " CUT("CAST(?4 AS text)") ", " CUT(
				       "CAST(?5 AS text)") ", ?6) RETURNING number")
};
static const struct semel_sql_statement finish_row = {
	.what = "write an outcome to the audit log",
	.text = SEMEL_SQL_SAME("UPDATE semel_audit SET outcome = ?2 WHERE number = ?1")
};
#define LIST_ROWS(ms, for_update)                                                                  \
	"SELECT " ms("at") ", who, what, " CUT("target") ", " CUT(                                 \
		"detail") ", outcome"                                                              \
			  " FROM semel_audit ORDER BY number DESC LIMIT ?1"
static const struct semel_sql_statement list_rows = { .what = "read the audit log",
						      .text = SEMEL_SQL_EACH(LIST_ROWS) };

semel_status semel_sql_audit_add(semel_store *store, const struct semel_audit_row *row,
				 int64_t *number_out, semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &add_row, error);
	semel_sql_bind_time(&query, row->at_ms);
	semel_sql_bind_text(&query, row->who);
	semel_sql_bind_text(&query, row->what);
	semel_sql_bind_text(&query, row->target);
	semel_sql_bind_text(&query, row->detail);
	semel_sql_bind_text(&query, row->outcome);
	if (semel_sql_next(&query) && number_out != NULL)
		*number_out = semel_sql_int(&query, 0);
	return semel_sql_finish(&query);
}

semel_status semel_sql_audit_finish(semel_store *store, int64_t number, const char *outcome,
				    semel_error *error)
{
	struct semel_sql_query query;
	semel_sql_prepare(&query, store->driver->tx(store), &finish_row, error);
	semel_sql_bind_int(&query, number);
	semel_sql_bind_string(&query, outcome);
	return semel_sql_finish(&query);
}

semel_status semel_sql_audit_list(semel_store *store, struct semel_arena *arena,
				  struct semel_audit_row *rows_out, uint32_t limit,
				  uint32_t *count_out, semel_error *error)
{
	struct semel_sql_query query;
	*count_out = 0;
	semel_sql_prepare(&query, store->driver->tx(store), &list_rows, error);
	semel_sql_bind_int(&query, limit);
	while (semel_sql_next(&query))
		rows_out[(*count_out)++] = (struct semel_audit_row){
			.at_ms = semel_sql_time(&query, 0),
			.who = semel_sql_text(&query, 1, arena),
			.what = semel_sql_text(&query, 2, arena),
			.target = semel_sql_text(&query, 3, arena),
			.detail = semel_sql_text(&query, 4, arena),
			.outcome = semel_sql_text(&query, 5, arena),
		};
	return semel_sql_finish(&query);
}
