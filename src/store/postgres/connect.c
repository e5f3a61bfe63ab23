/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to the application's database, and making or upgrading the tables in it.
 *
 * - Any libpq URI will do. Nothing of it but what libpq itself shows (host, port, user, database)
 *   appears in a message: it may hold a password.
 * - An upgrade is one transaction behind an advisory lock, so two at once do it once.
 * - Time-outs are ours unless the user or the server has set some.
 * - A session that may be another's in the next transaction is refused, before anything is set in
 * it.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX     64
#define OLDEST_SERVER   130000
#define SESSION_WAIT_MS 10000
#define BRIEF_WAIT_MS   2000

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

/* ---- the connection -------------------------------------------------------------------------- */

static const char our_settings[] =
	"SET standard_conforming_strings = on; SET array_nulls = on;"
	" SELECT set_config(name, value, false) FROM (VALUES ('statement_timeout', '60s'),"
	" ('lock_timeout', '5s'), ('idle_in_transaction_session_timeout', '60s'))"
	" AS ours (name, value) WHERE current_setting(name) IN ('0', '')";

/* The server's notices ("relation exists, skipping") are of no interest to our users. */
static void ignore_notice(void *user, const char *message)
{
	(void)user;
	(void)message;
}

/* Only a mistyped parameter's name is safe to show: other messages may repeat the password. */
static semel_status error_of_url(const char *message, semel_error *error)
{
	static const char known[] = "invalid URI query parameter";
	if (message != NULL && strncmp(message, known, strlen(known)) == 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the postgres: URL has an %.*s (libpq's documentation lists "
				       "the parameters)",
				       (int)strcspn(message, "\n"), message);
	return semel_error_set(error, SEMEL_CONFIG,
			       "the postgres: URL cannot be read (write "
			       "postgres://user@host:port/database?sslmode=verify-full)");
}

static semel_status error_of_connection(PGconn *connection, semel_error *error)
{
	char message[512] = "no memory";
	if (connection != NULL)
		snprintf(message, sizeof(message), "%s", semel_libpq.errorMessage(connection));
	message[strcspn(message, "\n")] = '\0';
	return semel_error_set(error, SEMEL_OUTAGE,
			       "cannot reach PostgreSQL: %s (is it running? are host, database, "
			       "user, password and TLS settings of the URL right?)",
			       message);
}

/* What neither the URL nor the environment says. Encryption by Kerberos has to be asked for: to try
 * it costs memory and a round trip. */
static const struct {
	const char *keyword, *value, *variable;
} defaults[] = { { "fallback_application_name", "semel", NULL },
		 { "connect_timeout", "10", "PGCONNECT_TIMEOUT" },
		 { "keepalives_idle", "30", NULL },
		 { "keepalives_interval", "5", NULL },
		 { "keepalives_count", "3", NULL },
		 { "tcp_user_timeout", "20000", NULL },
		 { "gssencmode", "disable", "PGGSSENCMODE" } };

static PGconn *connect_with(const PQconninfoOption *options, bool stream)
{
	const char *keywords[OPTIONS_MAX + 1] = { NULL }, *values[OPTIONS_MAX + 1] = { NULL };
	int count = 0;
	for (size_t i = 0; i < sizeof(defaults) / sizeof(defaults[0]); i++) {
		if (defaults[i].variable != NULL && getenv(defaults[i].variable) != NULL)
			continue;
		keywords[count] = defaults[i].keyword;
		values[count++] = defaults[i].value;
	}
	keywords[count] = "client_encoding";
	values[count++] = "UTF8";
	if (stream) {
		keywords[count] = "replication";
		values[count++] = "database";
	}
	for (const PQconninfoOption *option = options; option->keyword != NULL; option++)
		if (option->val != NULL && count < OPTIONS_MAX &&
		    strcmp(option->keyword, "client_encoding") != 0) {
			keywords[count] = option->keyword;
			values[count++] = option->val;
		}
	return semel_libpq.connectdbParams(keywords, values, 0);
}

/* Without a second connection the check is skipped: a swapped session fails at its first prepared
 * statement. */
static semel_status require_session(PGconn *connection, const PQconninfoOption *options,
				    int wait_ms, semel_error *error)
{
	bool pooled = false;
	semel_status status = semel_pg_find_pooler(connection, wait_ms, &pooled, error);
	if (status != SEMEL_OK || !pooled)
		return status;
	PGconn *second = connect_with(options, false);
	bool swapped = second != NULL && semel_libpq.status(second) == CONNECTION_OK &&
		       semel_pg_is_swapped(connection, second, wait_ms);
	semel_libpq.finish(second);
	return swapped ? semel_pg_refuse_pooler(error) : SEMEL_OK;
}

static semel_status set_up_session(PGconn *connection, semel_error *error)
{
	semel_libpq.setNoticeProcessor(connection, ignore_notice, NULL);
	int version = semel_libpq.serverVersion(connection);
	if (version < OLDEST_SERVER)
		return semel_error_set(error, SEMEL_CONFIG,
				       "PostgreSQL %d is too old: 13 or newer is needed",
				       version / 10000);
	const char *encoding = semel_libpq.parameterStatus(connection, "server_encoding");
	if (encoding != NULL && strcmp(encoding, "UTF8") != 0 && strcmp(encoding, "SQL_ASCII") != 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the database is in %s, which cannot hold every event (keep "
				       "Semel's tables in one created with ENCODING 'UTF8')",
				       encoding);
	return semel_pg_execute_plain(connection, our_settings, "set the time-outs", error);
}

/* wait_ms: for a session, where poolers have them; 0: for the change stream, which has its own. */
static semel_status connect_to(const char *url, int wait_ms, PGconn **connection_out,
			       semel_error *error)
{
	char *message = NULL;
	semel_status status = semel_libpq_load(error);
	if (status != SEMEL_OK)
		return status;
	PQconninfoOption *options = semel_libpq.conninfoParse(url, &message);
	if (options == NULL) {
		status = error_of_url(message, error);
		semel_libpq.freemem(message);
		return status;
	}
	PGconn *connection = connect_with(options, wait_ms == 0);
	if (connection == NULL || semel_libpq.status(connection) != CONNECTION_OK)
		status = error_of_connection(connection, error);
	else if (wait_ms != 0)
		status = require_session(connection, options, wait_ms, error);
	semel_libpq.conninfoFree(options);
	if (status != SEMEL_OK)
		goto finish_connection;
	status = set_up_session(connection, error);
	if (status != SEMEL_OK)
		goto finish_connection;
	*connection_out = connection;
	return SEMEL_OK;

finish_connection:
	semel_libpq.finish(connection);
	return status;
}

semel_status semel_pg_connect(const char *url, PGconn **connection_out, semel_error *error)
{
	return connect_to(url, SESSION_WAIT_MS, connection_out, error);
}

semel_status semel_pg_connect_briefly(const char *url, PGconn **connection_out, semel_error *error)
{
	return connect_to(url, BRIEF_WAIT_MS, connection_out, error);
}

semel_status semel_pg_connect_stream(const char *url, PGconn **connection_out, semel_error *error)
{
	return connect_to(url, 0, connection_out, error);
}

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

/* 0: no tables of ours. */
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
			       "the tables have version %lld, this program knows up to %d (upgrade "
			       "semel)",
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
	status = semel_pg_refuse_overloads(connection, error);
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

/* ---- open ------------------------------------------------------------------------------------ */

semel_status semel_pg_store_open(const struct semel_url *url, semel_store **store_out,
				 semel_error *error)
{
	PGconn *connection = NULL;
	semel_status status = semel_pg_connect(url->text, &connection, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_check_version(connection, error);
	if (status != SEMEL_OK)
		goto finish_connection;
	struct semel_pg_store *store = calloc(1, sizeof(*store));
	char *text = strdup(url->text);
	if (store == NULL || text == NULL) {
		free(store);
		free(text);
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory");
		goto finish_connection;
	}
	store->base.driver = &semel_store_postgres;
	store->connection = connection;
	store->url = text;
	status = semel_pg_clock_compare(store, error);
	if (status != SEMEL_OK) {
		semel_pg_store_close(&store->base);
		return status;
	}
	*store_out = &store->base;
	return SEMEL_OK;

finish_connection:
	semel_libpq.finish(connection);
	return status;
}

void semel_pg_store_close(semel_store *base)
{
	struct semel_pg_store *store = semel_pg_of(base);
	semel_pg_wakeup_free(store->wakeup);
	semel_pg_previous_free(store->previous);
	semel_pg_effects_free(store->effects);
	semel_libpq.finish(store->connection);
	free(store->watermark.writers);
	free(store->url);
	free(store);
}
