/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks of PostgreSQL. Each check is a statement of its own, so that one that
 * this role may not run does not affect the others. Queries of other sessions are never shown:
 * their text may contain payloads. */
#include "store/postgres/changes.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_SIZE 1024
#define MIB       20

struct examiner {
	PGconn *connection;
	const struct semel_examination *examination;
};

static void fine(const struct examiner *examiner, enum semel_check check, const char *text)
{
	semel_examination_report(examiner->examination, check, SEMEL_SEVERITY_FINE, text, NULL);
}

static void problem(const struct examiner *examiner, enum semel_check check, const char *text,
		    const char *remedy)
{
	semel_examination_report(examiner->examination, check, SEMEL_SEVERITY_PROBLEM, text,
				 remedy);
}

static void advise(const struct examiner *examiner, enum semel_check check, const char *text,
		   const char *remedy)
{
	semel_examination_report(examiner->examination, check, SEMEL_SEVERITY_ADVICE, text, remedy);
}

/* NULL: the statement failed, and that was reported. */
static PGresult *ask(const struct examiner *examiner, enum semel_check check, const char *sql,
		     const char *value)
{
	const char *values[] = { value };
	semel_error error = { .status = SEMEL_OK };
	PGresult *result = semel_libpq.execParams(examiner->connection, sql, value != NULL, NULL,
						  values, NULL, NULL, 0);
	if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
		return result;
	(void)semel_pg_error(examiner->connection, result, "query the server", &error);
	semel_examination_failed(examiner->examination, check, &error);
	semel_pg_clear(result);
	return NULL;
}

/* ---- rights ---------------------------------------------------------------------------------- */

/* The same privileges as in docs/postgresql.md. */
static const char missing_rights[] =
	"SELECT part, string_agg(rights || ' on ' || name, ', ' ORDER BY name),"
	" string_agg('GRANT ' || rights || ' ON ' || name || ' TO ' || quote_ident(current_user),"
	" '; ' ORDER BY name) FROM (SELECT part, name, string_agg(r, ', ' ORDER BY r) AS rights"
	" FROM (VALUES"
	" ('relay', 'semel_outbox_seq', '{SELECT}'),"
	" ('relay', 'semel_outbox', '{SELECT,UPDATE}'),"
	" ('relay', 'semel_lease', '{SELECT,UPDATE}'),"
	" ('relay', 'semel_outbox_exception', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('relay', 'semel_relay', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('relay', 'semel_dead_letter', '{SELECT,INSERT,UPDATE}'),"
	" ('relay', 'semel_hold', '{SELECT}'),"
	" ('consume', 'semel_inbox', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_inbox_key', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_hold', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_dead_letter', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_subscription', '{SELECT,INSERT,UPDATE}'),"
	" ('consume', 'semel_subscription_topic', '{SELECT,INSERT,UPDATE}'),"
	" ('consume', 'semel_consumer', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_running', '{SELECT,INSERT,UPDATE,DELETE}'),"
	" ('consume', 'semel_position', '{SELECT,INSERT,UPDATE}')"
	") AS need (part, name, rights), unnest(rights::text[]) AS r"
	" WHERE to_regclass(name) IS NOT NULL AND NOT has_table_privilege(name, r)"
	" GROUP BY part, name UNION ALL SELECT 'consume', 'FUNCTION semel_inbox_prepare()',"
	" 'EXECUTE' WHERE NOT has_function_privilege('semel_inbox_prepare()', 'EXECUTE')"
	") AS lacking GROUP BY part ORDER BY part";

static bool is_wanted(const struct examiner *examiner, const char *part)
{
	return strcmp(part, "relay") == 0 ? examiner->examination->relays
					  : examiner->examination->consumes;
}

static void examine_rights(const struct examiner *examiner)
{
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_RIGHTS, missing_rights, NULL);
	bool lacking = false;
	for (int i = 0; i < semel_pg_rows(result); i++) {
		char text[TEXT_SIZE];
		const char *part = semel_pg_value(result, i, 0);
		if (!is_wanted(examiner, part))
			continue;
		snprintf(text, sizeof(text), "this role cannot %s: it has no %.800s", part,
			 semel_pg_value(result, i, 1));
		problem(examiner, SEMEL_CHECK_STORE_RIGHTS, text, semel_pg_value(result, i, 2));
		lacking = true;
	}
	if (result != NULL && !lacking)
		fine(examiner, SEMEL_CHECK_STORE_RIGHTS, "this role may use the tables");
	semel_pg_clear(result);
}

/* A role that may create objects in the schema can make other roles run its functions; see
 * 008_security.sql. Each row: whether it is a problem, what is wrong, and what to do. */
static const char wrong_rights[] =
	"WITH place AS (SELECT n.*, quote_ident(n.nspname) AS name, c.relowner AS owner"
	" FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
	" WHERE c.oid = 'semel_outbox'::regclass),"
	" who AS (SELECT p.name AS place, a.grantee = 0 AS everybody, CASE WHEN a.grantee = 0"
	" THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS name FROM place p,"
	" aclexplode(p.nspacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee"
	" WHERE a.privilege_type = 'CREATE' AND a.grantee NOT IN (p.nspowner, p.owner)"
	" AND NOT coalesce(r.rolsuper, false)),"
	" ours AS (SELECT f.*, pg_has_role(f.proowner, p.owner, 'MEMBER') AS owned,"
	" f.proname ~ '^semel_(inbox|states|publish|try|adopt)' AND strpos(f.prosrc, p.name ||"
	" '.semel_') = 0 AND strpos(f.prosrc, quote_literal(p.name)) = 0 AS lost, f.proname ~"
	" '^semel_(uuid7|lane|outbox_complete|outbox_ring)$' AS hot, f.proname ~"
	" '^semel_(inbox_prepare|inbox_drop|adopt_[0-9a-f]{12})$' AS mighty,"
	" coalesce('search_path=pg_catalog, pg_temp' = ANY (f.proconfig), false) AS closed"
	" FROM place p JOIN pg_proc f ON f.pronamespace = p.oid WHERE f.proname ~"
	" '^semel_(uuid7|lane|outbox_(complete|refuse_change|ring)|inbox_(prepare|drop|claim_new)"
	"|refuse_truncate|put_lanes_back|states_look|publish|try_claim|adopt(_[0-9a-f]{12})?)$'),"
	" open AS (SELECT p.name AS place, c.relname AS name, string_agg(a.privilege_type, ', '"
	" ORDER BY a.privilege_type) AS rights FROM place p JOIN pg_class c"
	" ON c.relnamespace = p.oid, aclexplode(c.relacl) a WHERE a.grantee = 0"
	" AND c.relname ~ '^semel_' GROUP BY p.name, c.relname),"
	" parts AS (SELECT 'pg_trigger'::regclass AS kind, oid, tgrelid AS place"
	" FROM pg_trigger"
	" UNION ALL SELECT 'pg_attrdef'::regclass, oid, adrelid FROM pg_attrdef"
	" UNION ALL SELECT 'pg_constraint'::regclass, oid, conrelid FROM pg_constraint),"
	" alien AS (SELECT pg_describe_object(t.kind, t.oid, 0) AS name, f.oid::regprocedure AS"
	" function, r.rolname AS owner FROM place p JOIN pg_class c ON c.relnamespace = p.oid"
	" AND c.relname ~ '^semel_' JOIN parts t ON t.place = c.oid JOIN pg_depend d"
	" ON d.classid = t.kind AND d.objid = t.oid AND d.refclassid = 'pg_proc'::regclass"
	" JOIN pg_proc f ON f.oid = d.refobjid JOIN pg_roles r ON r.oid = f.proowner"
	" WHERE f.proowner <> p.owner AND NOT r.rolsuper)"
	" SELECT bool_or(everybody), 'roles other than the owner may create functions in the"
	" schema of the tables, which relay, consumers and operators may run: ' || "
	"string_agg(name, ', "
	"'"
	" ORDER BY name), string_agg('REVOKE CREATE ON SCHEMA ' || place || ' FROM ' || name,"
	" '; ' ORDER BY name) FROM who HAVING count(*) > 0"
	" UNION ALL SELECT true, 'functions differ from those that semel init creates: ' ||"
	" string_agg(DISTINCT proname::text, ', '), 'find out who changed them; then, as the"
	" owner of the tables: semel --store URL init' FROM ours WHERE NOT owned OR lost"
	" OR hot = closed OR prosecdef <> mighty OR (prosecdef AND "
	"has_function_privilege('public', oid,"
	" 'EXECUTE')) HAVING count(*) > 0"
	" UNION ALL SELECT false, 'functions of other roles run with the rights of the writers of"
	" the tables: ' || string_agg(DISTINCT name || ' calls ' || function::text || ' of ' ||"
	" owner, ', '), 'check what they do; revoke TRIGGER on the tables from all roles' FROM "
	"alien"
	" HAVING count(*) > 0"
	" UNION ALL SELECT false, 'PUBLIC has privileges on the tables: ' ||"
	" string_agg(rights || ' on ' || name, ', ' ORDER BY name), string_agg('REVOKE ALL ON '"
	" || place || '.' || name || ' FROM PUBLIC', '; ' ORDER BY name) FROM open"
	" HAVING count(*) > 0";

static void examine_overloads(const struct examiner *examiner)
{
	char text[TEXT_SIZE];
	PGresult *result =
		ask(examiner, SEMEL_CHECK_STORE_SCHEMA_RIGHTS, semel_pg_overloads_sql, NULL);
	for (int i = 0; i < semel_pg_rows(result); i++) {
		snprintf(text, sizeof(text),
			 "the %.200s of %.64s may run instead of PostgreSQL's own",
			 semel_pg_value(result, i, 0), semel_pg_value(result, i, 1));
		advise(examiner, SEMEL_CHECK_STORE_SCHEMA_RIGHTS, text,
		       "check what it does; drop it, or give it to the owner of the schema");
	}
	semel_pg_clear(result);
}

static void examine_schema_rights(const struct examiner *examiner)
{
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_SCHEMA_RIGHTS, wrong_rights, NULL);
	for (int i = 0; i < semel_pg_rows(result); i++)
		(semel_pg_bool(result, i, 0) ? problem : advise)(
			examiner, SEMEL_CHECK_STORE_SCHEMA_RIGHTS, semel_pg_value(result, i, 1),
			semel_pg_value(result, i, 2));
	if (result != NULL && semel_pg_rows(result) == 0)
		fine(examiner, SEMEL_CHECK_STORE_SCHEMA_RIGHTS,
		     "only the owner may create objects in the schema of the tables");
	semel_pg_clear(result);
}

/* ---- settings -------------------------------------------------------------------------------- */

static void examine_settings(const struct examiner *examiner)
{
	static const char sql[] = "SELECT current_setting('fsync') = 'off',"
				  " current_setting('full_page_writes') = 'off',"
				  " current_setting('synchronous_commit') = 'off',"
				  " pg_is_in_recovery(), current_setting('transaction_read_only')"
				  " = 'on'";
	enum { FSYNC, PAGES, COMMIT, STANDBY, READ_ONLY };
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_SETTINGS, sql, NULL);
	if (result == NULL)
		return;
	bool unsafe = semel_pg_bool(result, 0, FSYNC) || semel_pg_bool(result, 0, PAGES);
	bool closed = semel_pg_bool(result, 0, STANDBY) || semel_pg_bool(result, 0, READ_ONLY);
	if (unsafe)
		problem(examiner, SEMEL_CHECK_STORE_SETTINGS,
			"fsync or full_page_writes is off: a crash of the machine can lose "
			"committed events, or the whole database",
			"set both to on in postgresql.conf, then reload");
	if (closed)
		problem(examiner, SEMEL_CHECK_STORE_SETTINGS,
			"the database is a standby or read-only: nothing can be marked or claimed",
			"use the address of the primary: both hosts and "
			"target_session_attrs=read-write in the URL find it");
	if (semel_pg_bool(result, 0, COMMIT))
		advise(examiner, SEMEL_CHECK_STORE_SETTINGS,
		       "synchronous_commit is off: a crash loses the last commits, with their "
		       "events",
		       "set it to on for the roles whose commits must survive a crash");
	else if (!unsafe && !closed)
		fine(examiner, SEMEL_CHECK_STORE_SETTINGS, "commits are written to the disk");
	semel_pg_clear(result);
}

static void examine_clock(const struct examiner *examiner)
{
	char text[TEXT_SIZE];
	int64_t asked_ms = semel_now_ms(examiner->examination->env);
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_CLOCK,
			       "SELECT " SEMEL_PG_MS("clock_timestamp()"), NULL);
	int64_t heard_ms = semel_now_ms(examiner->examination->env);
	if (result == NULL)
		return;
	int64_t ahead_ms = semel_pg_int(result, 0, 0) - (asked_ms + heard_ms) / 2;
	semel_pg_clear(result);
	snprintf(text, sizeof(text), "the server's clock is %lld.%03lld s %s this machine's",
		 (long long)(llabs(ahead_ms) / 1000), (long long)(llabs(ahead_ms) % 1000),
		 ahead_ms >= 0 ? "ahead of" : "behind");
	enum semel_severity severity = semel_clock_skew_severity(ahead_ms);
	semel_examination_report(examiner->examination, SEMEL_CHECK_STORE_CLOCK, severity, text,
				 severity == SEMEL_SEVERITY_FINE
					 ? NULL
					 : "synchronise both machines (chrony, systemd-timesyncd)");
}

/* ---- transactions ---------------------------------------------------------------------------- */

/* A transaction that has written to the outbox holds back the low mark of all lanes; any other only
 * blocks vacuum. */
static const char open_transactions[] =
	"SELECT CASE WHEN gid IS NULL THEN 'pid ' || pid || ', user ' || coalesce(who, 'unknown')"
	" || ', application ' || coalesce(application, 'unknown') ELSE 'prepared as ' || gid ||"
	" ', user ' || coalesce(who, 'unknown') END, extract(epoch FROM clock_timestamp() -"
	" since)::bigint, CASE WHEN gid IS NULL THEN 'SELECT pg_terminate_backend(' || pid || ')'"
	" ELSE 'ROLLBACK PREPARED ' || quote_literal(gid) END,"
	" gid IS NOT NULL OR EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = o.pid"
	" AND l.relation = to_regclass('semel_outbox') AND l.mode = 'RowExclusiveLock')"
	" FROM (SELECT pid, usename::text AS who, application_name AS application, NULL AS gid,"
	" xact_start AS since FROM pg_stat_activity WHERE datname = current_database()"
	" AND pid <> pg_backend_pid() UNION ALL SELECT NULL, owner::text, NULL, gid, prepared"
	" FROM pg_prepared_xacts WHERE database = current_database()) AS o"
	" WHERE since < clock_timestamp() - $1::bigint * interval '1 millisecond'"
	" ORDER BY since LIMIT 10";

static void examine_transactions(const struct examiner *examiner)
{
	char bound[24], text[TEXT_SIZE];
	snprintf(bound, sizeof(bound), "%lld", (long long)examiner->examination->open_max_ms);
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_TRANSACTIONS, open_transactions, bound);
	if (result == NULL)
		return;
	for (int i = 0; i < semel_pg_rows(result); i++) {
		bool writes = semel_pg_bool(result, i, 3);
		snprintf(text, sizeof(text), "a transaction has been open for %lld s%s: %.500s",
			 (long long)semel_pg_int(result, i, 1),
			 writes ? " and holds back the low mark of the outbox"
				: " and blocks vacuum",
			 semel_pg_value(result, i, 0));
		semel_examination_report(examiner->examination, SEMEL_CHECK_STORE_TRANSACTIONS,
					 writes ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE,
					 text, semel_pg_value(result, i, 2));
	}
	if (semel_pg_rows(result) == 0)
		fine(examiner, SEMEL_CHECK_STORE_TRANSACTIONS, "no long-running transaction");
	semel_pg_clear(result);
}

/* Such commits are in the WAL, but not visible: neither polling nor the change stream reads their
 * events. */
static void examine_standbys(const struct examiner *examiner)
{
	static const char sql[] =
		"SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() -"
		" query_start)), 0)::bigint FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
		" AND datname = current_database()"
		" AND query_start < clock_timestamp() - interval '1 second'";
	char text[TEXT_SIZE];
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_TRANSACTIONS, sql, NULL);
	if (result != NULL && semel_pg_int(result, 0, 0) > 0) {
		snprintf(text, sizeof(text),
			 "commits wait for a synchronous standby, and their events with them: "
			 "%lld, for up to %lld s",
			 (long long)semel_pg_int(result, 0, 0),
			 (long long)semel_pg_int(result, 0, 1));
		problem(examiner, SEMEL_CHECK_STORE_TRANSACTIONS, text,
			"start the standby (see pg_stat_replication), or remove it from "
			"synchronous_standby_names and reload");
	}
	semel_pg_clear(result);
}

/* Only if the server is on this machine, and this role may read the name of its folder. */
static void examine_disk(const struct examiner *examiner)
{
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_DISK,
			       "SELECT setting FROM pg_settings WHERE name = 'data_directory' AND"
			       " (inet_server_addr() IS NULL OR inet_server_addr() ="
			       " inet_client_addr())",
			       NULL);
	if (semel_pg_rows(result) == 1)
		semel_examination_disk(examiner->examination, SEMEL_CHECK_STORE_DISK,
				       semel_pg_value(result, 0, 0));
	else if (result != NULL)
		fine(examiner, SEMEL_CHECK_STORE_DISK,
		     "the server's disk cannot be checked from this machine");
	semel_pg_clear(result);
}

/* ---- the slot -------------------------------------------------------------------------------- */

/* Slots belong to the server: a slot of another database must not be monitored or dropped. */
static const struct semel_pg_statement select_slot = {
	"inspect the slot",
	"SELECT coalesce(s.plugin = 'pgoutput' AND s.database = current_database(), false),"
	" coalesce(s.plugin, 'physical') || ' of database ' || coalesce(s.database, '-'),"
	" coalesce(s.wal_status, '') = 'lost', coalesce(s.active, false), coalesce(pg_wal_lsn_diff("
	"CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE "
	"pg_current_wal_insert_lsn() END, s.restart_lsn), "
	"0)::bigint,"
	" (SELECT CASE WHEN setting::bigint < 0 THEN -1 ELSE setting::bigint * 1048576 END FROM"
	" pg_settings WHERE name = 'max_slot_wal_keep_size'), current_setting('wal_level'),"
	" s.slot_name IS NOT NULL"
	" FROM (SELECT $1::text AS name) AS n LEFT JOIN pg_replication_slots s ON s.slot_name ="
	" n.name"
};
enum { OURS, WHOSE, LOST, ACTIVE, RETAINED, LIMIT, WAL_LEVEL, TAKEN };

static void read_slot(const PGresult *result, struct semel_slot_status *slot)
{
	*slot = (struct semel_slot_status){
		.limit = semel_pg_is_null(result, 0, LIMIT) ? -1 : semel_pg_int(result, 0, LIMIT),
	};
	if (!semel_pg_bool(result, 0, OURS))
		return;
	slot->exists = true;
	slot->lost = semel_pg_bool(result, 0, LOST);
	slot->active = semel_pg_bool(result, 0, ACTIVE);
	slot->retained = (uint64_t)semel_pg_int(result, 0, RETAINED);
}

semel_status semel_pg_check_schema(semel_store *store, semel_error *error)
{
	semel_status status = semel_pg_effects_collect(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_check_version(semel_pg_of(store)->connection, error);
}

semel_status semel_pg_slot_read(semel_store *store, const char *slot,
				struct semel_slot_status *status_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	*status_out = (struct semel_slot_status){ .limit = -1 };
	semel_pg_add_string(&params, slot);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &select_slot, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	read_slot(result, status_out);
	semel_pg_clear(result);
	return status;
}

static void judge_slot(const struct examiner *examiner, const struct semel_slot_status *slot)
{
	const struct semel_examination *examination = examiner->examination;
	char text[TEXT_SIZE], remedy[TEXT_SIZE];
	snprintf(remedy, sizeof(remedy),
		 "start semel relay --source cdc; or, if it is no longer wanted: SELECT "
		 "pg_drop_replication_slot('%.64s')",
		 examination->slot);
	snprintf(text, sizeof(text), "the slot %.64s retains %llu MB of WAL%s", examination->slot,
		 (unsigned long long)(slot->retained >> MIB),
		 slot->active ? "" : ", and has no reader");
	if (slot->lost)
		problem(examiner, SEMEL_CHECK_SLOT,
			"the slot is lost: the server has removed WAL that it needs",
			"none while a relay runs: it polls, and creates a new slot; otherwise run: "
			"semel relay --source cdc");
	else if (slot->retained > examination->slot_budget)
		problem(examiner, SEMEL_CHECK_SLOT, text, remedy);
	else if (!slot->active)
		semel_examination_report(examination, SEMEL_CHECK_SLOT,
					 examination->slot_required ? SEMEL_SEVERITY_PROBLEM
								    : SEMEL_SEVERITY_ADVICE,
					 text, remedy);
	else
		fine(examiner, SEMEL_CHECK_SLOT, text);
	if (slot->limit < 0)
		advise(examiner, SEMEL_CHECK_SLOT_LIMIT,
		       "max_slot_wal_keep_size is not set: while no relay runs, the slot can fill "
		       "the disk",
		       "ALTER SYSTEM SET max_slot_wal_keep_size = '8GB'; SELECT pg_reload_conf()");
	else
		semel_examination_fine(examination, SEMEL_CHECK_SLOT_LIMIT,
				       "the server keeps at most %lld MB for a slot",
				       (long long)(slot->limit >> MIB));
}

/* Does the slot exist, and is it ours? */
static bool examine_slot(const struct examiner *examiner)
{
	const struct semel_examination *examination = examiner->examination;
	PGresult *result = ask(examiner, SEMEL_CHECK_SLOT, select_slot.sql, examination->slot);
	struct semel_slot_status slot;
	char text[TEXT_SIZE];
	if (result == NULL)
		return false;
	read_slot(result, &slot);
	const char *level = semel_pg_value(result, 0, WAL_LEVEL);
	if (examination->slot_required && strcmp(level, "logical") != 0) {
		snprintf(text, sizeof(text), "wal_level is %.20s: no change stream is possible",
			 level);
		problem(examiner, SEMEL_CHECK_SLOT, text,
			"set wal_level = logical in postgresql.conf and restart the server");
	} else if (slot.exists) {
		judge_slot(examiner, &slot);
	} else if (examination->slot_required && semel_pg_bool(result, 0, TAKEN)) {
		snprintf(text, sizeof(text),
			 "the slot %.64s belongs to another plugin or database: %.100s; the relay "
			 "polls the outbox",
			 examination->slot, semel_pg_value(result, 0, WHOSE));
		problem(examiner, SEMEL_CHECK_SLOT, text,
			"give the relay a slot of its own: the key slot of the section relay, or "
			"--slot NAME, and semel init --cdc --slot NAME");
	} else if (examination->slot_required) {
		snprintf(text, sizeof(text), "the slot %.64s does not exist: the relay polls",
			 examination->slot);
		problem(examiner, SEMEL_CHECK_SLOT, text, "semel --store URL init --cdc");
	}
	semel_pg_clear(result);
	return slot.exists;
}

/* A problem has what to do in brackets. Where both slot and publication are missing, the missing
 * slot was reported, with the command that creates both. */
static void examine_publication(const struct examiner *examiner, bool slot_exists)
{
	static const char before_remedy[] = " (run: ";
	char text[TEXT_SIZE], remedy[TEXT_SIZE];
	PGresult *result = ask(examiner, SEMEL_CHECK_SLOT, semel_pg_publication_sql, NULL);
	int64_t number = result == NULL ? SEMEL_PG_PUBLICATION_OK : semel_pg_int(result, 0, 0);
	bool reported = number == SEMEL_PG_PUBLICATION_MISSING && !slot_exists;
	const char *text_found = reported ? NULL : semel_pg_publication_problem(number);
	const char *bracket = text_found == NULL ? NULL : strstr(text_found, before_remedy);
	if (bracket != NULL) {
		snprintf(text, sizeof(text), "%.*s: the relay polls", (int)(bracket - text_found),
			 text_found);
		snprintf(remedy, sizeof(remedy), "%s", bracket + strlen(before_remedy));
		remedy[strcspn(remedy, ")")] = '\0';
		problem(examiner, SEMEL_CHECK_SLOT, text, remedy);
	}
	semel_pg_clear(result);
}

/* Slots that a relay of this outbox has used under an earlier name. */
static const char old_slots[] =
	"SELECT s.slot_name, coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN"
	" pg_last_wal_receive_lsn() ELSE pg_current_wal_insert_lsn() END, s.restart_lsn),"
	" 0)::bigint FROM semel_slot m JOIN pg_replication_slots s ON s.slot_name = m.name"
	" WHERE s.database = current_database() AND s.slot_name <> $1 AND NOT s.active"
	" ORDER BY s.slot_name";

static void examine_old_slots(const struct examiner *examiner)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];
	PGresult *result = ask(examiner, SEMEL_CHECK_SLOT,
			       "SELECT has_table_privilege('semel_slot', 'SELECT')", NULL);
	bool may = result != NULL && semel_pg_bool(result, 0, 0);
	semel_pg_clear(result);
	if (!may)
		return;
	result = ask(examiner, SEMEL_CHECK_SLOT, old_slots, examiner->examination->slot);
	for (int i = 0; i < semel_pg_rows(result); i++) {
		const char *name = semel_pg_value(result, i, 0);
		snprintf(text, sizeof(text),
			 "the slot %.64s, which the settings do not name, retains %llu MB of WAL, "
			 "and has no reader",
			 name, (unsigned long long)semel_pg_int(result, i, 1) >> MIB);
		snprintf(remedy, sizeof(remedy),
			 "if no relay uses it: SELECT "
			 "pg_drop_replication_slot('%.64s')",
			 name);
		semel_examination_report(examiner->examination, SEMEL_CHECK_SLOT,
					 examiner->examination->slot_required
						 ? SEMEL_SEVERITY_PROBLEM
						 : SEMEL_SEVERITY_ADVICE,
					 text, remedy);
	}
	semel_pg_clear(result);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Counts the aggregates with an event, among the newest, that was published long after a later one:
 * only the later one was visible before. Retries do not count. */
static const char crossed[] =
	"SELECT current_setting('track_commit_timestamp') = 'on', (SELECT count(DISTINCT"
	" (n.aggregate_type, n.aggregate_id)) FROM (SELECT o.aggregate_type, o.aggregate_id,"
	" o.published_at, o.attempts, min(o.published_at) FILTER (WHERE o.attempts = 0) OVER"
	" (PARTITION BY o.aggregate_type, o.aggregate_id ORDER BY o.seq ROWS BETWEEN 1 FOLLOWING"
	" AND UNBOUNDED FOLLOWING) AS later FROM generate_series(0, 15) AS l (lane), LATERAL"
	" (SELECT * FROM semel_outbox w WHERE w.lane = l.lane AND w.status = 'PUBLISHED'"
	" ORDER BY w.lane DESC, w.seq DESC LIMIT 1000) AS o) AS n"
	" WHERE n.attempts = 0 AND n.later < n.published_at - interval '500 ms')";

static void examine_order(const struct examiner *examiner)
{
	char text[TEXT_SIZE];
	if (!examiner->examination->relays)
		return;
	if (examiner->examination->slot_required) {
		fine(examiner, SEMEL_CHECK_STORE_ORDER, "in commit order (change stream)");
		return;
	}
	PGresult *result = ask(examiner, SEMEL_CHECK_STORE_ORDER, crossed, NULL);
	if (result == NULL)
		return;
	int64_t count = semel_pg_int(result, 0, 1);
	snprintf(text, sizeof(text),
		 "transactions write events of an aggregate before they lock it (%lld aggregates "
		 "recently): polling keeps sequence order, not commit order",
		 (long long)count);
	if (semel_pg_bool(result, 0, 0))
		fine(examiner, SEMEL_CHECK_STORE_ORDER, "in commit order (track_commit_timestamp)");
	else if (count > 0)
		advise(examiner, SEMEL_CHECK_STORE_ORDER, text,
		       "lock the aggregate's row before you publish; or set track_commit_timestamp "
		       "= on and restart the server; or run the relay with --source cdc");
	else
		fine(examiner, SEMEL_CHECK_STORE_ORDER,
		     "in sequence order: no commits out of that order recently");
	semel_pg_clear(result);
}

/* ---- the driver's examine -------------------------------------------------------------------- */

static semel_status examine_schema(const struct examiner *examiner)
{
	semel_error error = { .status = SEMEL_OK };
	semel_status status = semel_pg_check_version(examiner->connection, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examiner->examination, SEMEL_CHECK_STORE_SCHEMA, &error);
		return status;
	}
	semel_examination_fine(examiner->examination, SEMEL_CHECK_STORE_SCHEMA, "version %d",
			       SEMEL_PG_SCHEMA);
	return SEMEL_OK;
}

semel_status semel_pg_store_examine(const struct semel_url *url,
				    const struct semel_examination *examination)
{
	struct examiner examiner = { .examination = examination };
	semel_error error = { .status = SEMEL_OK };
	semel_status status = semel_pg_connect(url->text, &examiner.connection, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_STORE_REACHED, &error);
		return status;
	}
	const char *version = semel_libpq.parameterStatus(examiner.connection, "server_version");
	fine(&examiner, SEMEL_CHECK_STORE_REACHED, "PostgreSQL answers");
	semel_examination_fine(examination, SEMEL_CHECK_STORE_VERSION, "PostgreSQL %.60s",
			       version != NULL ? version : "of an unknown version");
	status = examine_schema(&examiner);
	bool current = status == SEMEL_OK;
	if (current) {
		examine_rights(&examiner);
		examine_schema_rights(&examiner);
		examine_overloads(&examiner);
	}
	examine_settings(&examiner);
	examine_clock(&examiner);
	examine_transactions(&examiner);
	examine_standbys(&examiner);
	examine_disk(&examiner);
	bool slot_exists = examine_slot(&examiner);
	if (current && examination->slot_required)
		examine_publication(&examiner, slot_exists);
	if (current) {
		examine_old_slots(&examiner);
		examine_order(&examiner);
	}
	semel_libpq.finish(examiner.connection);
	return status;
}
