/* SPDX-License-Identifier: Apache-2.0 */
/* Walking whole tables id by id, for those who compare them. Page by page along a key, so that
 * neither memory nor an open snapshot grows with the table. */
#include "store/postgres/postgres.h"

#include "base/error.h"

#define PAGE_ROWS 5000

/* $1 the scope, $2 and $3 where the last page ended, $4 rows. The last column breaks ties. */
static const struct semel_pg_query each_outbox = {
	"read the outbox",
	"SELECT id, status, coalesce(topic, aggregate_type || '.events'), " SEMEL_PG_MS(
		"created_at") ", 0 FROM semel_outbox"
			      " WHERE $1::text IS NULL AND id > $2 AND $3::bigint IS NOT NULL "
			      "ORDER BY id LIMIT $4"
};
static const struct semel_pg_query each_inbox = {
	"read the inbox", "SELECT event_id, status, topic, " SEMEL_PG_MS(
				  "week_start") ", week_start - DATE '1970-01-01' FROM semel_inbox"
						" WHERE scope = $1 AND (event_id, week_start) > "
						"($2, DATE '1970-01-01' + $3::int)"
						" ORDER BY event_id, week_start LIMIT $4"
};
static const struct semel_pg_query each_dead = {
	"read the dead letters",
	"SELECT event_id, CASE WHEN parked_behind IS NULL THEN status ELSE 'PARKED' END, "
	"topic, " SEMEL_PG_MS("event_time") ", position FROM semel_dead_letter"
					    " WHERE scope = $1 AND event_id IS NOT NULL AND "
					    "(event_id, position) > ($2, $3::bigint)"
					    " ORDER BY event_id, position LIMIT $4"
};

struct walk {
	const struct semel_pg_query *query;
	struct semel_text scope;
	semel_id_visitor seen;
	void *user;
};

/* Straight from the row, NUL-ended: nothing is copied, since there may be millions. */
static struct semel_text peek(const PGresult *result, int row, int column)
{
	return semel_text_from(semel_pg_value(result, row, column),
			       (size_t)semel_libpq.getlength(result, row, column));
}

static semel_status show(const struct walk *walk, const PGresult *page)
{
	semel_status status = SEMEL_OK;
	for (int row = 0; row < semel_pg_rows(page) && status == SEMEL_OK; row++)
		status = walk->seen(peek(page, row, 0), semel_pg_value(page, row, 1),
				    peek(page, row, 2), semel_pg_int(page, row, 3), walk->user);
	return status;
}

/* Reads the page behind the last one, which it clears. */
static semel_status turn(semel_tx tx, const struct walk *walk, PGresult **page, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *last = *page;
	int end = semel_pg_rows(last) - 1;
	semel_pg_add_text(&params, walk->scope);
	semel_pg_add_text(&params, last == NULL ? SEMEL_TEXT("") : peek(last, end, 0));
	semel_pg_add_int(&params, last == NULL ? -1 : semel_pg_int(last, end, 4));
	semel_pg_add_int(&params, PAGE_ROWS);
	semel_status status = semel_pg_run(tx, walk->query, &params, page, error);
	semel_pg_clear(last);
	return status;
}

static semel_status walk_rows(semel_store *store, const struct walk *walk, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	PGresult *page = NULL;
	semel_status status = SEMEL_OK;
	do {
		status = turn(tx, walk, &page, error);
		if (status == SEMEL_OK)
			status = show(walk, page);
	} while (status == SEMEL_OK && semel_pg_rows(page) == PAGE_ROWS);
	semel_pg_clear(page);
	return status;
}

semel_status semel_pg_outbox_each(semel_store *store, semel_id_visitor seen, void *user,
				  semel_error *error)
{
	const struct walk walk = { &each_outbox, { NULL, 0 }, seen, user };
	return walk_rows(store, &walk, error);
}

semel_status semel_pg_inbox_each(semel_store *store, struct semel_text scope, semel_id_visitor seen,
				 void *user, semel_error *error)
{
	const struct walk walk = { &each_inbox, scope, seen, user };
	return walk_rows(store, &walk, error);
}

semel_status semel_pg_dead_each(semel_store *store, struct semel_text scope, semel_id_visitor seen,
				void *user, semel_error *error)
{
	const struct walk walk = { &each_dead, scope, seen, user };
	return walk_rows(store, &walk, error);
}
