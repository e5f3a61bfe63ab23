/* SPDX-License-Identifier: Apache-2.0 */
/* How far a scope has read a log, written in the transaction of the effects. Every new reader draws
 * a higher epoch; whoever still holds an older one cannot write any more, and its transaction must
 * not be committed. */
#include "store/postgres/postgres.h"

#include "store/rules.h"

#define POSITION_COLUMNS                                                                           \
	"next_offset, epoch, owner, " SEMEL_PG_MS("expires_at") ", anchor_offset, anchor_hash"
#define THE_POSITION " WHERE scope = $1 AND topic = $2 AND \"partition\" = $3"

static const struct semel_pg_query get_position = { "look up a position",
						    "SELECT " POSITION_COLUMNS
						    " FROM semel_position" THE_POSITION };
static const struct semel_pg_query take_position = {
	"take a position",
	"INSERT INTO semel_position AS p (scope, topic, \"partition\", epoch, owner, expires_at)"
	" VALUES ($1, $2, $3, 1, $5, $6::timestamptz)"
	" ON CONFLICT (scope, topic, \"partition\") DO UPDATE SET owner = excluded.owner,"
	" epoch = p.epoch + 1, expires_at = excluded.expires_at WHERE p.epoch = $4"
	" RETURNING " POSITION_COLUMNS
};
static const struct semel_pg_query put_position = {
	"write a position",
	"UPDATE semel_position SET next_offset = $6, expires_at = $7::timestamptz,"
	" anchor_offset = $8, anchor_hash = $9" THE_POSITION " AND epoch = $4 AND owner = $5"
};
static const struct semel_pg_query release_position = {
	"release a position", "UPDATE semel_position SET owner = '', expires_at = NULL" THE_POSITION
			      " AND epoch = $4 AND owner = $5"
};

static void add_key(struct semel_pg_params *params, const struct semel_position *position)
{
	semel_pg_add_text(params, position->scope);
	semel_pg_add_text(params, position->topic);
	semel_pg_add_int(params, position->partition);
}

static void read_position(semel_tx tx, const PGresult *result, struct semel_position *position)
{
	position->next = semel_pg_int(result, 0, 0);
	position->epoch = semel_pg_int(result, 0, 1);
	semel_pg_copy(result, 0, 2, position->owner, sizeof(position->owner));
	position->expires_at_ms = semel_pg_clock_to_local(tx, semel_pg_int(result, 0, 3));
	position->anchor.offset = semel_pg_int(result, 0, 4);
	position->anchor.hash = (uint64_t)semel_pg_int(result, 0, 5);
}

semel_status semel_pg_position_get(semel_store *store, struct semel_position *position,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	position->next = -1;
	position->epoch = position->expires_at_ms = 0;
	position->anchor = SEMEL_ANCHOR_NONE;
	position->owner[0] = '\0';
	add_key(&params, position);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &get_position, &params, &result, error);
	if (status == SEMEL_OK && semel_pg_rows(result) > 0)
		read_position(semel_pg_tx(store), result, position);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_position_take(semel_store *store, struct semel_position *position,
				    const char *owner, int64_t expires_at_ms, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	add_key(&params, position);
	semel_pg_add_int(&params, position->epoch);
	semel_pg_add_string(&params, owner);
	semel_pg_add_time(&params, semel_pg_clock_to_server(semel_pg_tx(store), expires_at_ms));
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &take_position, &params, &result, error);
	if (status == SEMEL_OK && semel_pg_rows(result) == 0)
		status = semel_position_lease_lost(position, error);
	else if (status == SEMEL_OK)
		read_position(semel_pg_tx(store), result, position);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_position_put(semel_tx tx, const struct semel_position *position,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t changes = 0;
	add_key(&params, position);
	semel_pg_add_int(&params, position->epoch);
	semel_pg_add_string(&params, position->owner);
	semel_pg_add_int(&params, position->next);
	semel_pg_add_time(&params, semel_pg_clock_to_server(tx, position->expires_at_ms));
	semel_pg_add_int(&params, position->anchor.offset);
	semel_pg_add_int(&params, (int64_t)position->anchor.hash);
	semel_status status = semel_pg_change(tx, &put_position, &params, &changes, error);
	return status == SEMEL_OK && changes == 0 ? semel_position_lease_lost(position, error)
						  : status;
}

/* What is not released runs out. */
void semel_pg_position_release(semel_store *store, const struct semel_position *position)
{
	struct semel_pg_params params = { 0 };
	add_key(&params, position);
	semel_pg_add_int(&params, position->epoch);
	semel_pg_add_string(&params, position->owner);
	(void)semel_pg_run(semel_pg_tx(store), &release_position, &params, NULL, NULL);
}
