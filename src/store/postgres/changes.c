/* SPDX-License-Identifier: Apache-2.0 */
/* The slot of the change stream and the publication of the outbox: how they are inspected, created,
 * repaired and dropped, and what is recorded of them.
 *
 * - The slot is created asynchronously: the server waits for every open transaction, and the relay
 *   keeps polling meanwhile.
 * - A new slot does not deliver what was committed before it. So the highest number drawn is
 *   recorded with the slot, after its creation: rows up to that number are polled.
 * - Rows that a publication leaves out are missing in the stream permanently, even if the
 *   publication is repaired afterwards. So it is identified by its rows in the catalogues, oid and
 *   xmin: any change writes a new row version, even a change that was undone.
 * - A publication of the whole schema is not accepted: not all servers show its changes in the
 *   catalogues.
 */
#include "store/postgres/changes.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the publication ------------------------------------------------------------------------- */

#define RUN_INIT " (run: semel --store URL init --cdc)"

/* Columns of PostgreSQL 15 are read in a way that older servers accept. If all tables are
 * published, an outbox that was unlogged for a while is recognised by its new file. */
const char semel_pg_publication_sql[] =
	"SELECT CASE WHEN p.oid IS NULL THEN 1"
	" WHEN NOT p.puballtables AND r.oid IS NULL THEN 2"
	" WHEN coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL THEN 3"
	" WHEN NOT p.pubinsert THEN 4 WHEN c.relpersistence <> 'p' THEN 5"
	" WHEN c.relkind = 'p' AND NOT p.pubviaroot THEN 6 ELSE 0 END,"
	" concat_ws('/', c.oid, p.oid, p.xmin, r.oid, r.xmin,"
	" CASE WHEN p.puballtables THEN c.relfilenode END)"
	" FROM pg_class c LEFT JOIN pg_publication p ON p.pubname = '" SEMEL_PG_PUBLICATION "'"
	" LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid"
	" WHERE c.oid = 'semel_outbox'::regclass";

static const struct {
	const char *text, *remedy;
} problems[SEMEL_PG_PUBLICATION_PROBLEMS] = {
	[SEMEL_PG_PUBLICATION_MISSING] = { "there is no publication " SEMEL_PG_PUBLICATION
					   " of the outbox" RUN_INIT,
					   "CREATE PUBLICATION " SEMEL_PG_PUBLICATION
					   " FOR TABLE semel_outbox WITH (publish = 'insert')" },
	/* The publication may be that of the outbox of another schema. */
	[SEMEL_PG_PUBLICATION_WITHOUT_OUTBOX] = { "there is no publication " SEMEL_PG_PUBLICATION
						  " of the outbox: the one of this name does not "
						  "list it" RUN_INIT,
						  "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						  " ADD TABLE semel_outbox" },
	[SEMEL_PG_PUBLICATION_FILTERED] = { "the publication " SEMEL_PG_PUBLICATION
					    " has a row filter or a column list, and leaves out "
					    "events" RUN_INIT,
					    "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
					    " DROP TABLE semel_outbox; ALTER "
					    "PUBLICATION " SEMEL_PG_PUBLICATION
					    " ADD TABLE semel_outbox" },
	[SEMEL_PG_PUBLICATION_WITHOUT_INSERTS] = { "the publication " SEMEL_PG_PUBLICATION
						   " does not publish inserts" RUN_INIT,
						   "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						   " SET (publish = 'insert')" },
	[SEMEL_PG_PUBLICATION_UNLOGGED] = { "the outbox is an UNLOGGED table: a crash empties it, "
					    "and no change stream delivers its rows (run: ALTER "
					    "TABLE semel_outbox SET LOGGED)",
					    NULL },
	[SEMEL_PG_PUBLICATION_OF_PARTITIONS] = { "the publication " SEMEL_PG_PUBLICATION
						 " publishes the partitions of the outbox, not "
						 "the outbox itself" RUN_INIT,
						 "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						 " SET (publish_via_partition_root = true)" },
};

const char *semel_pg_publication_problem(int64_t problem)
{
	return problem > 0 && problem < SEMEL_PG_PUBLICATION_PROBLEMS ? problems[problem].text
								      : NULL;
}

/* The statements that repair the problem; NULL: there is none, or an operator has to repair it. */
static const char *publication_remedy(int64_t problem)
{
	return problem > 0 && problem < SEMEL_PG_PUBLICATION_PROBLEMS ? problems[problem].remedy
								      : NULL;
}

/* ---- the slot -------------------------------------------------------------------------------- */

#define IDENTITY_SQL                                                                               \
	"(SELECT system_identifier FROM pg_control_system()) || '/' ||"                            \
	" left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"

enum { STANDBY, WAL_LEVEL, ROLE, MAY, SYNCHRONOUS };

static const struct semel_pg_statement select_settings = {
	"read the server's settings",
	"SELECT pg_is_in_recovery(), current_setting('wal_level'), current_user,"
	" (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),"
	" current_setting('synchronous_standby_names') <> ''"
};

enum {
	EXISTS,
	IS_OURS,
	OWNER,
	STATUS,
	ACTIVE,
	POSITION,
	CURRENT,
	RETAINED,
	IDENTITY,
	RECORDED,
	RECORDED_POSITION,
	RECORDED_IDENTITY,
	POLL_TO,
	RECORDED_PUBLICATION,
	SETTLED
};

/* What a reader of another slot of this outbox has settled need not be read again. */
static const struct semel_pg_statement select_slot = {
	"inspect the slot",
	"WITH now AS (SELECT $1::text AS name, $2::text AS publication, " IDENTITY_SQL
	" AS identity,"
	" pg_current_wal_insert_lsn() AS lsn)"
	" SELECT s.slot_name IS NOT NULL, s.plugin = 'pgoutput' AND s.database ="
	" current_database(),"
	" coalesce(s.plugin, 'physical') || ' of database ' || coalesce(s.database, '-'),"
	" coalesce(s.wal_status, ''), s.active, pg_wal_lsn_diff(s.confirmed_flush_lsn, '0/0'),"
	" pg_wal_lsn_diff(now.lsn, '0/0'), coalesce(pg_wal_lsn_diff(now.lsn, s.restart_lsn), 0),"
	" now.identity, m.name IS NOT NULL, pg_wal_lsn_diff(m.position, '0/0'), m.identity,"
	" m.poll_to, coalesce(m.publication, ''),"
	" coalesce((SELECT max(pg_wal_lsn_diff(o.position, '0/0')) FROM semel_slot o"
	" WHERE o.identity = now.identity AND o.poll_to = 0"
	" AND o.publication = now.publication), 0)"
	" FROM now LEFT JOIN pg_replication_slots s ON s.slot_name = now.name"
	" LEFT JOIN semel_slot m ON m.name = now.name"
};
static const struct semel_pg_statement select_publication = { "inspect the publication",
							      semel_pg_publication_sql };
static const struct semel_pg_statement drawn_numbers = {
	"read the outbox's sequence",
	"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM semel_outbox_seq"
};
static const struct semel_pg_statement record_slot = {
	"record the slot",
	"INSERT INTO semel_slot (name, identity, position, poll_to, publication)"
	" VALUES ($1, " IDENTITY_SQL ", $2::pg_lsn, $3, $4) ON CONFLICT (name) DO UPDATE"
	" SET identity = excluded.identity, position = excluded.position,"
	" poll_to = excluded.poll_to, publication = excluded.publication"
};
static const struct semel_pg_statement terminate_reader = {
	"end the slot's reader", "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
				 " WHERE slot_name = $1 AND active"
};
static const struct semel_pg_statement drop_slot = {
	"drop the slot", "SELECT active, CASE WHEN NOT active THEN"
			 " pg_drop_replication_slot(slot_name) END FROM pg_replication_slots"
			 " WHERE slot_name = $1"
};

/* ---- connections ----------------------------------------------------------------------------- */

void semel_pg_lsn_format(uint64_t position, char text_out[24])
{
	snprintf(text_out, 24, "%X/%X", (unsigned)(position >> 32), (unsigned)position);
}

semel_status semel_pg_changes_failed(struct semel_pg_changes *changes, semel_status status)
{
	if (status != SEMEL_OK && changes->statement_store != NULL &&
	    semel_libpq.status(semel_pg_of(changes->statement_store)->connection) !=
		    CONNECTION_OK) {
		semel_pg_store_close(changes->statement_store);
		changes->statement_store = NULL;
	}
	return status;
}

/* Marks must be durable before the slot is confirmed, unlike those of a polling relay. */
static semel_status open_statement_store(struct semel_pg_changes *changes, semel_error *error)
{
	struct semel_url url = { .text = changes->url };
	semel_status status = semel_pg_store_open(&url, &changes->statement_store, error);
	if (status != SEMEL_OK)
		return status;
	changes->statement_store->env = changes->base.env;
	status = semel_pg_relay_set_up(semel_pg_of(changes->statement_store), error);
	if (status != SEMEL_OK)
		goto close_statement_store;
	status = semel_pg_execute_plain(semel_pg_of(changes->statement_store)->connection,
					"SET synchronous_commit = local",
					"set up the stream's connection", error);
	if (status == SEMEL_OK)
		return SEMEL_OK;

close_statement_store:
	semel_pg_store_close(changes->statement_store);
	changes->statement_store = NULL;
	return status;
}

semel_status semel_pg_changes_statement_tx(struct semel_pg_changes *changes, semel_tx *tx_out,
					   semel_error *error)
{
	semel_status status = SEMEL_OK;
	semel_pg_flush_await(changes);
	if (changes->statement_store == NULL)
		status = open_statement_store(changes, error);
	if (status != SEMEL_OK)
		return status;
	*tx_out = semel_pg_tx(changes->statement_store);
	return SEMEL_OK;
}

static semel_status ask(struct semel_pg_changes *changes,
			const struct semel_pg_statement *statement, struct semel_pg_params *params,
			PGresult **result_out, semel_error *error)
{
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_changes_failed(changes,
				       semel_pg_run(tx, statement, params, result_out, error));
}

static semel_status ask_of_slot(struct semel_pg_changes *changes,
				const struct semel_pg_statement *statement, PGresult **result_out,
				semel_error *error)
{
	struct semel_pg_params params = { 0 };
	semel_pg_add_string(&params, changes->slot);
	return ask(changes, statement, &params, result_out, error);
}

/* ---- inspecting ------------------------------------------------------------------------------ */

static void find_problem(const PGresult *result, struct semel_slot_state *state)
{
	const char *level = semel_pg_value(result, 0, WAL_LEVEL);
	const char *role = semel_pg_value(result, 0, ROLE);
	if (semel_pg_bool(result, 0, STANDBY))
		snprintf(state->problem, sizeof(state->problem),
			 "the database is a standby (use the address of the primary)");
	else if (strcmp(level, "logical") != 0)
		snprintf(state->problem, sizeof(state->problem),
			 "wal_level is %.20s (set wal_level = logical in postgresql.conf and "
			 "restart the server)",
			 level);
	else if (!semel_pg_bool(result, 0, MAY))
		snprintf(state->problem, sizeof(state->problem),
			 "the role %.60s lacks the REPLICATION attribute (run: ALTER ROLE %.60s "
			 "REPLICATION)",
			 role, role);
}

static void read_slot(const PGresult *result, struct semel_slot_state *state)
{
	state->known = true;
	state->exists = semel_pg_bool(result, 0, EXISTS);
	state->foreign = state->exists && !semel_pg_bool(result, 0, IS_OURS);
	state->lost = strcmp(semel_pg_value(result, 0, STATUS), "lost") == 0;
	state->active = semel_pg_bool(result, 0, ACTIVE);
	state->position = (uint64_t)semel_pg_int(result, 0, POSITION);
	state->current = (uint64_t)semel_pg_int(result, 0, CURRENT);
	state->retained = (uint64_t)semel_pg_int(result, 0, RETAINED);
	state->recorded = semel_pg_bool(result, 0, RECORDED);
	state->recorded_position = (uint64_t)semel_pg_int(result, 0, RECORDED_POSITION);
	state->poll_to_seq = semel_pg_int(result, 0, POLL_TO);
	semel_pg_copy(result, 0, IDENTITY, state->identity, sizeof(state->identity));
	semel_pg_copy(result, 0, RECORDED_IDENTITY, state->recorded_identity,
		      sizeof(state->recorded_identity));
	semel_pg_copy(result, 0, RECORDED_PUBLICATION, state->recorded_publication,
		      sizeof(state->recorded_publication));
	state->complete_position = (uint64_t)semel_pg_int(result, 0, SETTLED);
	if (state->foreign)
		snprintf(state->problem, sizeof(state->problem),
			 "a slot of this name belongs to another plugin or database: %.100s "
			 "(choose another name: --slot)",
			 semel_pg_value(result, 0, OWNER));
}

static semel_status read_sequence(struct semel_pg_changes *changes, int64_t *drawn_out,
				  semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = ask(changes, &drawn_numbers, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	*drawn_out = semel_pg_int(result, 0, 0);
	semel_pg_clear(result);
	return status;
}

static semel_status read_publication(struct semel_pg_changes *changes,
				     struct semel_slot_state *state, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = ask(changes, &select_publication, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	const char *problem = semel_pg_publication_problem(semel_pg_int(result, 0, 0));
	if (problem != NULL)
		snprintf(state->problem, sizeof(state->problem), "%s", problem);
	semel_pg_copy(result, 0, 1, state->publication, sizeof(state->publication));
	semel_pg_copy(result, 0, 1, changes->publication, sizeof(changes->publication));
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_changes_check_publication(struct semel_pg_changes *changes,
						semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = ask(changes, &select_publication, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (strcmp(semel_pg_value(result, 0, 1), changes->publication) != 0)
		status = semel_error_set(error, SEMEL_OUTAGE, "the publication was changed");
	semel_pg_clear(result);
	return status;
}

static semel_status read_settings(struct semel_pg_changes *changes, struct semel_slot_state *state,
				  semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = ask(changes, &select_settings, NULL, &result, error);
	if (status != SEMEL_OK)
		return status;
	find_problem(result, state);
	changes->visible.required = semel_pg_bool(result, 0, SYNCHRONOUS);
	semel_pg_clear(result);
	return status;
}

/* First the publication, then the sequence: every row committed before the publication was
 * inspected has a number up to the one read then. */
static semel_status inspect(struct semel_changes *base, struct semel_slot_state *state_out,
			    semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*state_out = (struct semel_slot_state){ .exists = false };
	semel_status status = read_settings(changes, state_out, error);
	if (status != SEMEL_OK || state_out->problem[0] != '\0')
		return status;
	status = read_publication(changes, state_out, error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_add_string(&params, changes->slot);
	semel_pg_add_string(&params, state_out->publication);
	status = ask(changes, &select_slot, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	read_slot(result, state_out);
	semel_pg_clear(result);
	return read_sequence(changes, &state_out->drawn_seq, error);
}

/* ---- creating and removing ---------------------------------------------------------------------
 */

static semel_status repair(struct semel_pg_changes *changes, const char *remedy, semel_error *error)
{
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_execute_plain(semel_pg_of(changes->statement_store)->connection, remedy,
					"create the publication", error);
	return semel_pg_changes_failed(changes, status);
}

/* Several relays or inits may run at once: the first one repairs the publication, and the others
 * find it repaired. There may be more than one problem. */
static semel_status prepare(struct semel_changes *base, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	semel_error refused = { .status = SEMEL_OK };
	semel_status repaired = SEMEL_OK;
	for (int tries = 0; tries <= SEMEL_PG_PUBLICATION_PROBLEMS; tries++) {
		struct semel_slot_state state = { .exists = false };
		PGresult *result = NULL;
		semel_status status = read_settings(changes, &state, error);
		if (status != SEMEL_OK || state.problem[0] != '\0')
			return status;
		status = ask(changes, &select_publication, NULL, &result, error);
		if (status != SEMEL_OK)
			return status;
		int64_t problem = semel_pg_rows(result) > 0 ? semel_pg_int(result, 0, 0) : 0;
		const char *remedy = publication_remedy(problem);
		semel_pg_clear(result);
		if (remedy == NULL)
			return SEMEL_OK;
		repaired = repair(changes, remedy, &refused);
	}
	return semel_error_set(error, repaired == SEMEL_OK ? SEMEL_INTERNAL : repaired, "%s",
			       refused.text);
}

static semel_status begin_creating(struct semel_pg_changes *changes, semel_error *error)
{
	const char *values[] = { changes->slot };
	semel_status status = semel_pg_connect(changes->url, &changes->creating, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_execute_plain(changes->creating,
					"SET statement_timeout = 0; SET lock_timeout = 0",
					"create the slot", error);
	if (status != SEMEL_OK)
		return status;
	if (semel_libpq.sendQueryParams(changes->creating,
					"SELECT pg_create_logical_replication_slot($1, 'pgoutput')",
					1, NULL, values, NULL, NULL, 0) == 0)
		status = semel_pg_error(changes->creating, NULL, "create the slot", error);
	return status;
}

static void end_creating(struct semel_pg_changes *changes)
{
	if (changes->creating != NULL)
		semel_libpq.finish(changes->creating);
	changes->creating = NULL;
}

/* An abandoned creation would finish later, and the slot would retain WAL without a reader. */
static void cancel_creating(struct semel_pg_changes *changes)
{
	static const struct semel_pg_statement cancel = { "cancel the creation of the slot",
							  "SELECT pg_terminate_backend($1)" };
	struct semel_pg_params params = { 0 };
	if (changes->creating == NULL)
		return;
	semel_pg_add_int(&params, semel_libpq.backendPID(changes->creating));
	(void)ask(changes, &cancel, &params, NULL, NULL);
	end_creating(changes);
}

static semel_status poll_creating(struct semel_pg_changes *changes, bool *made_out,
				  semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (semel_libpq.consumeInput(changes->creating) == 0)
		return semel_pg_error(changes->creating, NULL, "create the slot", error);
	if (semel_libpq.isBusy(changes->creating))
		return SEMEL_OK;
	PGresult *result = semel_libpq.getResult(changes->creating);
	if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
		*made_out = true;
	else
		status = semel_pg_error(changes->creating, result, "create the slot", error);
	semel_pg_clear(result);
	return status;
}

static semel_status record(struct semel_changes *base, uint64_t position, int64_t poll_to_seq,
			   const char *publication, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	struct semel_pg_params params = { 0 };
	char text[24];
	semel_pg_lsn_format(position, text);
	semel_pg_add_string(&params, changes->slot);
	semel_pg_add_string(&params, text);
	semel_pg_add_int(&params, poll_to_seq);
	semel_pg_add_string(&params, publication);
	return ask(changes, &record_slot, &params, NULL, error);
}

static semel_status create(struct semel_changes *base, bool *made_out, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	struct semel_slot_state state;
	semel_status status = SEMEL_OK;
	*made_out = false;
	if (changes->creating == NULL)
		status = begin_creating(changes, error);
	else
		status = poll_creating(changes, made_out, error);
	if (status != SEMEL_OK || *made_out)
		end_creating(changes);
	if (status != SEMEL_OK || !*made_out)
		return status;
	status = inspect(base, &state, error);
	if (status != SEMEL_OK)
		return status;
	return record(base, state.position, state.drawn_seq, state.publication, error);
}

void semel_pg_changes_terminate_reader(struct semel_pg_changes *changes)
{
	(void)ask_of_slot(changes, &terminate_reader, NULL, NULL);
}

static semel_status drop(struct semel_changes *base, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	PGresult *result = NULL;
	semel_pg_stream_stop(base);
	cancel_creating(changes);
	semel_pg_changes_terminate_reader(changes);
	semel_status status = ask_of_slot(changes, &drop_slot, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_pg_rows(result) > 0 && semel_pg_bool(result, 0, 0))
		status = semel_error_set(error, SEMEL_BUSY, "slot %s has another reader",
					 changes->slot);
	semel_pg_clear(result);
	return status;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static semel_status check_name(const char *slot, semel_error *error)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
	size_t length = strlen(slot);
	if (length > 0 && length < 64 && strspn(slot, allowed) == length)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "invalid slot name \"%.80s\" (use 1 to 63 of a-z, 0-9 and _)", slot);
}

static void close_changes(struct semel_changes *base)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	semel_pg_stream_stop(base);
	semel_pg_flush_await(changes);
	cancel_creating(changes);
	if (changes->statement_store != NULL)
		semel_pg_store_close(changes->statement_store);
	semel_pg_flush_free(changes);
	semel_pg_previous_free(changes->stream.previous);
	free(changes->visible.snapshot);
	free(changes->url);
	free(changes->slot);
	free(changes);
}

static semel_status open_changes(const char *url, const char *slot,
				 struct semel_changes **changes_out, semel_error *error)
{
	*changes_out = NULL;
	semel_status status = check_name(slot, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_pg_changes *changes = calloc(1, sizeof(*changes));
	if (changes == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	changes->base.driver = &semel_pg_changes_driver;
	changes->url = strdup(url);
	changes->slot = strdup(slot);
	if (changes->url == NULL || changes->slot == NULL) {
		close_changes(&changes->base);
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	}
	*changes_out = &changes->base;
	return SEMEL_OK;
}

const struct semel_changes_driver semel_pg_changes_driver = {
	.open = open_changes,
	.close = close_changes,
	.inspect = inspect,
	.prepare = prepare,
	.create = create,
	.drop = drop,
	.record = record,
	.start = semel_pg_stream_start,
	.read = semel_pg_stream_read,
	.in_transaction = semel_pg_stream_is_in_transaction,
	.visibility_wait_ms = semel_pg_stream_visibility_wait_ms,
	.confirm = semel_pg_stream_confirm,
	.keepalive_timeout_ms = semel_pg_stream_keepalive_timeout_ms,
	.stop = semel_pg_stream_stop,
	.flush_send = semel_pg_flush_send,
	.flush_poll = semel_pg_flush_poll,
};
