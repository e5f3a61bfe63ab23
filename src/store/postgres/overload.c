/* SPDX-License-Identifier: Apache-2.0 */
/* Functions and operators of other roles in our search_path that have names of PostgreSQL's own.
 *
 * - An overload that fits the argument types of a call better is run instead, whichever schema it
 * is in, with the rights of the caller. schema/008_security.sql has the rules that protect our own
 *   functions; statements of a session are not protected.
 * - Trusted are superusers, the owners of database, schema and tables, and the current user.
 *   Overloads for types of their own fit no call of ours.
 * - This query itself is written so that no overload fits it.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

/* Each overload, its owner, and whether statements of init could run it; those that could come
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

semel_status semel_pg_refuse_overloads(PGconn *connection, semel_error *error)
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
