/* SPDX-License-Identifier: Apache-2.0 */
/* What the table knows of rows that come through the change stream: some were published or set
 * aside before, when the stream repeats itself; some wait behind an exception of their aggregate
 * that was committed before them. One that was polled was: polling had come to its end before.
 */
#include "store/postgres/postgres.h"

static const struct semel_pg_query check_rows = {
	"look up events of the change stream",
	"SELECT CASE WHEN o.seq IS NULL THEN r.seq <= l.low_seq"
	" ELSE o.status <> 'NEW' OR x.seq IS NOT NULL END,"
	" EXISTS (SELECT 1 FROM semel_outbox_exception e"
	" WHERE e.aggregate_type = r.aggregate_type"
	" AND e.aggregate_id = r.aggregate_id AND (e.place, e.seq) < (r.place, r.seq))"
	" FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[])"
	" WITH ORDINALITY AS r (lane, seq, aggregate_type, aggregate_id, place, number)"
	" JOIN semel_lease l ON l.lane = r.lane"
	" LEFT JOIN semel_outbox o ON o.lane = r.lane AND o.seq = r.seq"
	" LEFT JOIN semel_outbox_exception x ON x.lane = r.lane AND x.seq = r.seq"
	" ORDER BY r.number"
};
static const struct semel_pg_query list_aggregates = {
	"list aggregates with exceptions",
	"SELECT DISTINCT aggregate_type, aggregate_id FROM semel_outbox_exception"
};

/* A row that is not there was pruned, and so it was published, when it lies below the low mark.
 * Above it, the stream was quicker than its commit: that is in the log before others can see it. */
semel_status semel_pg_outbox_check(semel_store *store, struct semel_outbox_row *rows, size_t count,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer lanes = { 0 }, seqs = { 0 }, types = { 0 }, ids = { 0 }, places = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lanes, rows[i].lane);
		semel_pg_array_int(&seqs, rows[i].seq);
		semel_pg_array_text(&types, rows[i].event.aggregate_type);
		semel_pg_array_text(&ids, rows[i].event.aggregate_id);
		semel_pg_array_int(&places, rows[i].commit_order);
	}
	semel_pg_add_array(&params, &lanes);
	semel_pg_add_array(&params, &seqs);
	semel_pg_add_array(&params, &types);
	semel_pg_add_array(&params, &ids);
	semel_pg_add_array(&params, &places);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &check_rows, &params, &result, error);
	semel_buffer_free(&lanes);
	semel_buffer_free(&seqs);
	semel_buffer_free(&types);
	semel_buffer_free(&ids);
	semel_buffer_free(&places);
	for (int i = 0; i < semel_pg_rows(result); i++) {
		rows[i].marked = semel_pg_bool(result, i, 0);
		rows[i].held = semel_pg_bool(result, i, 1);
	}
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_exceptions_each(semel_store *store, semel_aggregate_visitor seen,
					     void *user, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &list_aggregates, NULL, &result, error);
	for (int i = 0; i < semel_pg_rows(result); i++)
		seen(semel_text_of(semel_pg_value(result, i, 0)),
		     semel_text_of(semel_pg_value(result, i, 1)), user);
	semel_pg_clear(result);
	return status;
}
