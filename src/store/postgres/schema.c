/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and upgrades our tables in the application's database, and adopts outboxes of the
 * application.
 *
 * - An upgrade is one transaction under an advisory lock, so if two run at once, only one does the
 *   work.
 * - An adopted outbox: a trigger (schema/functions.sql) copies its rows into ours. The comment on
 *   the trigger's function stores the mapping that it was generated from.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

extern const char semel_sql_store_postgres_001_spine[], semel_sql_store_postgres_002_slot[],
	semel_sql_store_postgres_003_claim[], semel_sql_store_postgres_004_anchor[],
	semel_sql_store_postgres_005_young_claims[], semel_sql_store_postgres_006_states[],
	semel_sql_store_postgres_007_changes[], semel_sql_store_postgres_008_security[],
	semel_sql_store_postgres_009_unused[], semel_sql_store_postgres_functions[];

static const char *const versions[SEMEL_PG_SCHEMA] = {
	semel_sql_store_postgres_001_spine,        semel_sql_store_postgres_002_slot,
	semel_sql_store_postgres_003_claim,        semel_sql_store_postgres_004_anchor,
	semel_sql_store_postgres_005_young_claims, semel_sql_store_postgres_006_states,
	semel_sql_store_postgres_007_changes,      semel_sql_store_postgres_008_security,
	semel_sql_store_postgres_009_unused
};

/* ---- versions -------------------------------------------------------------------------------- */

static semel_status read_number(PGconn *connection, const char *sql, int64_t *number_out,
				semel_error *error)
{
	PGresult *result = semel_libpq.exec(connection, sql);
	semel_status status = SEMEL_OK;
	if (semel_libpq.resultStatus(result) != PGRES_TUPLES_OK)
		status = semel_pg_error(connection, result, "find Semel's tables", error);
	else
		*number_out = semel_pg_int(result, 0, 0);
	semel_libpq.clear(result);
	return status;
}

/* 0: our tables do not exist. */
static semel_status read_version(PGconn *connection, int64_t *version_out, semel_error *error)
{
	int64_t tables = 0;
	*version_out = 0;
	semel_status status =
		read_number(connection, "SELECT (to_regclass('semel_schema') IS NOT NULL)::int",
			    &tables, error);
	if (status != SEMEL_OK || tables == 0)
		return status;
	return read_number(connection, "SELECT coalesce(max(version), 0) FROM semel_schema",
			   version_out, error);
}

static semel_status refuse_newer(int64_t version, semel_error *error)
{
	if (version <= SEMEL_PG_SCHEMA)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_SCHEMA_NEWER,
			       "the tables have version %lld, this version of Semel supports "
			       "versions up to %d (upgrade Semel)",
			       (long long)version, SEMEL_PG_SCHEMA);
}

semel_status semel_pg_check_version(PGconn *connection, semel_error *error)
{
	int64_t version = 0;
	semel_status status = read_version(connection, &version, error);
	if (status != SEMEL_OK)
		return status;
	if (version == 0)
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "Semel's tables are not in this database and search_path "
				       "(run: semel --store URL init)");
	if (version < SEMEL_PG_SCHEMA)
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "the tables have version %lld, this program needs %d (run: "
				       "semel --store URL init)",
				       (long long)version, SEMEL_PG_SCHEMA);
	return refuse_newer(version, error);
}

/* ---- overloads ------------------------------------------------------------------------------- */

/* Functions and operators of other roles in our search_path with the names of PostgreSQL's own.
 *
 * - An overload that fits the argument types of a call better is run instead, whatever its schema,
 *   with the rights of the caller. schema/008_security.sql has the rules that protect our own
 *   functions; statements of a session are not protected.
 * - Superusers, the owners of database, schema and tables, and the current user are trusted.
 *   Overloads for other roles' own types fit none of our calls.
 * - This query itself is written so that no overload fits it.
 */

/* Each overload with its owner, and whether statements of init could run it; those that could come
 * first. */
const char semel_pg_overloads_sql[] =
	"SELECT pg_catalog.concat(o.kind, ' ', n.nspname, '.', o.name), r.rolname,"
	" o.name OPERATOR(pg_catalog.=) ANY (ARRAY['format', 'current_schema', 'to_regclass',"
	" 'generate_series', 'nextval', 'pg_current_xact_id', 'clock_timestamp', 'now', 'btrim',"
	" 'max', 'jsonb_array_elements_text', 'pg_relation_filenode', 'json_each_text', '=', '<>',"
	" '<', '>', '+', '-', '*', '||', '&', '~', '->>']::pg_catalog.name[])"
	" FROM (SELECT 'function' AS kind, p.pronamespace AS place, p.proname AS name,"
	" p.proowner AS owner, p.proargtypes::pg_catalog.oid[] AS types"
	" FROM pg_catalog.pg_proc AS p UNION ALL SELECT 'operator', p.oprnamespace, p.oprname,"
	" p.oprowner, ARRAY[p.oprleft, p.oprright] FROM pg_catalog.pg_operator AS p) AS o"
	" JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) o.place"
	" JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) o.owner"
	" WHERE n.nspname OPERATOR(pg_catalog.=) ANY (pg_catalog.current_schemas(false))"
	" AND n.nspname OPERATOR(pg_catalog.<>) 'pg_catalog' AND NOT r.rolsuper"
	" AND o.owner OPERATOR(pg_catalog.<>) n.nspowner"
	" AND r.rolname OPERATOR(pg_catalog.<>) current_user"
	" AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_database AS d WHERE d.datname"
	" OPERATOR(pg_catalog.=) pg_catalog.current_database()"
	" AND d.datdba OPERATOR(pg_catalog.=) o.owner)"
	" AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class AS c WHERE c.relname"
	" OPERATOR(pg_catalog.=) 'semel_schema' AND c.relnamespace OPERATOR(pg_catalog.=) o.place"
	" AND c.relowner OPERATOR(pg_catalog.=) o.owner)"
	" AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_type AS t WHERE t.oid"
	" OPERATOR(pg_catalog.=) ANY (o.types) AND t.typnamespace OPERATOR(pg_catalog.<>) 11)"
	" AND (EXISTS (SELECT 1 FROM pg_catalog.pg_proc AS b WHERE b.proname"
	" OPERATOR(pg_catalog.=) o.name AND b.pronamespace OPERATOR(pg_catalog.=) 11)"
	" OR EXISTS (SELECT 1 FROM pg_catalog.pg_operator AS b WHERE b.oprname"
	" OPERATOR(pg_catalog.=) o.name AND b.oprnamespace OPERATOR(pg_catalog.=) 11))"
	" ORDER BY 3 DESC LIMIT 10";

static semel_status refuse_overloads(PGconn *connection, semel_error *error)
{
	PGresult *result = semel_libpq.exec(connection, semel_pg_overloads_sql);
	semel_status status = SEMEL_OK;
	if (semel_libpq.resultStatus(result) != PGRES_TUPLES_OK)
		status = semel_pg_error(connection, result, "check the search_path", error);
	else if (semel_pg_rows(result) > 0 && semel_pg_bool(result, 0, 2))
		status = semel_error_set(
			error, SEMEL_CONFIG,
			"the %.200s of %.64s could be run instead of PostgreSQL's own, with the "
			"rights of this user (drop it, and REVOKE CREATE ON SCHEMA; or name "
			"another search_path in the URL)",
			semel_pg_value(result, 0, 0), semel_pg_value(result, 0, 1));
	semel_libpq.clear(result);
	return status;
}

/* ---- init ------------------------------------------------------------------------------------ */

static semel_status upgrade(PGconn *connection, semel_error *error)
{
	int64_t version = 0;
	semel_status status = read_version(connection, &version, error);
	if (status != SEMEL_OK)
		return status;
	status = refuse_newer(version, error);
	if (status != SEMEL_OK)
		return status;
	for (; version < SEMEL_PG_SCHEMA; version++) {
		char record[128];
		snprintf(record, sizeof(record), "INSERT INTO semel_schema VALUES (%lld, now())",
			 (long long)version + 1);
		status = semel_pg_execute_plain(connection, versions[version],
						"create Semel's tables", error);
		if (status != SEMEL_OK)
			return status;
		status = semel_pg_execute_plain(connection, record, "create Semel's tables", error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* A copy that came without the sequence (logical replication copies none) would give out numbers
 * that its rows have already. */
static const char raise_sequence[] =
	"SELECT pg_catalog.setval('semel_outbox_seq'::pg_catalog.regclass, highest) FROM (SELECT"
	" pg_catalog.max(greatest(l.low_seq, o.seq)) AS highest FROM semel_lease l LEFT JOIN "
	"LATERAL"
	" (SELECT seq FROM semel_outbox w WHERE w.lane OPERATOR(pg_catalog.=) l.lane"
	" ORDER BY w.lane DESC, w.seq DESC LIMIT 1) AS o ON true) AS numbers,"
	" semel_outbox_seq s WHERE highest OPERATOR(pg_catalog.>) s.last_value";

/* A role that is not the owner finds everything created, and may lack the privilege for this. */
static semel_status create_partitions(PGconn *connection, semel_error *error)
{
	semel_error refused = { .status = SEMEL_OK };
	semel_status status = semel_pg_execute_plain(connection, "SELECT semel_inbox_prepare()",
						     "create the inbox's partitions", &refused);
	if (status == SEMEL_OK || status == SEMEL_CONFIG)
		return SEMEL_OK;
	if (error != NULL)
		*error = refused;
	return status;
}

semel_status semel_pg_store_init(const struct semel_url *url, semel_error *error)
{
	static const char begin[] = "BEGIN; SET LOCAL lock_timeout = '60s';"
				    " SET LOCAL statement_timeout = 0;"
				    " SELECT pg_catalog.pg_advisory_xact_lock(1936026988)";
	PGconn *connection = NULL;
	semel_status status = semel_pg_connect(url->text, &connection, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_execute_plain(connection, begin, "begin", error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = refuse_overloads(connection, error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = upgrade(connection, error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = semel_pg_execute_plain(connection, raise_sequence, "raise the outbox's sequence",
					error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = semel_pg_execute_plain(connection, semel_sql_store_postgres_functions,
					"create Semel's functions", error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = semel_pg_execute_plain(connection, "COMMIT", "create Semel's tables", error);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = create_partitions(connection, error);

finish_connection:
	semel_libpq.finish(connection);
	return status;
}

/* ---- adopted outboxes ------------------------------------------------------------------------ */

static const struct semel_pg_statement take_turns = { "wait for another init",
						      "SELECT pg_advisory_xact_lock(1936026988)" };
static const struct semel_pg_statement adopt_table = {
	"adopt the outbox", "SELECT semel_adopt(to_regclass($1::text), $1,"
			    " $2::json, $3)"
};
static const struct semel_pg_statement adopted_mapping = {
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
