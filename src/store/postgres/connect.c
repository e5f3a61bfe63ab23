/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to the application's database, with a session of our own.
 *
 * - Any libpq URI is accepted. Messages contain nothing of it except what libpq itself shows (host,
 *   port, user, database): it may contain a password.
 * - Our time-outs apply unless the user or the server has set others.
 * - A session that may belong to another client in the next transaction is refused before anything
 *   is set or prepared in it: the next client would inherit that.
 * - libpq is loaded, never linked (base/dynamic.h).
 */
#include "store/postgres/postgres.h"

#include "base/dynamic.h"
#include "base/error.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX     64
#define OLDEST_SERVER   130000
#define SESSION_WAIT_MS 10000
#define BRIEF_WAIT_MS   2000
#define ROUNDS          2
#define SECOND_WAIT_MS  200

/* ---- libpq ----------------------------------------------------------------------------------- */

#define ROW(name, result, parameters) { "PQ" #name, offsetof(struct semel_libpq, name) },

static const struct semel_dynamic_symbol symbols[] = { SEMEL_LIBPQ_FUNCTIONS(ROW) };

static const char *const file_names[] = { "libpq.so.5", "libpq.so", NULL };

static const struct semel_dynamic_library library = {
	.names = file_names,
	.needed_for = "a PostgreSQL store",
	.package = "libpq5",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

struct semel_libpq semel_libpq;

static bool loaded;

semel_status semel_libpq_load(semel_error *error)
{
	return semel_dynamic_load_once(&library, &semel_libpq, &loaded, error);
}

/* ---- is there a pooler that gives every transaction another session? ------------------------- */

/* A pooler gives its clients cancel keys of its own, so there is a pooler if the backend has
 * another process id than the connection reports. Without a pooler this costs one round trip. A
 * second connection distinguishes the two kinds: with session pooling, two connections never see
 * the same backend, and each always sees the same one. If a connection has to wait for a session
 * while the first one is answered, sessions are not swapped either. */

static const char which_backend[] = "SELECT pg_backend_pid()";

/* 0: there is no answer yet, or an error. */
static int read_backend(PGconn *connection, int wait_ms)
{
	struct pollfd answer = { .fd = semel_libpq.socket(connection), .events = POLLIN };
	int number = 0;
	while (semel_libpq.isBusy(connection)) {
		int ready = poll(&answer, 1, wait_ms);
		bool interrupted = ready < 0 && errno == EINTR;
		if (!interrupted && (ready <= 0 || semel_libpq.consumeInput(connection) == 0))
			return 0;
	}
	for (PGresult *result = NULL; (result = semel_libpq.getResult(connection)) != NULL;) {
		if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
			number = (int)semel_pg_int(result, 0, 0);
		semel_pg_clear(result);
	}
	return number;
}

static int query_backend(PGconn *connection, int wait_ms)
{
	return semel_libpq.sendQuery(connection, which_backend) == 0
		       ? 0
		       : read_backend(connection, wait_ms);
}

static semel_status find_pooler(PGconn *connection, int wait_ms, bool *found_out,
				semel_error *error)
{
	int backend = query_backend(connection, wait_ms);
	*found_out = backend != semel_libpq.backendPID(connection);
	if (backend != 0)
		return SEMEL_OK;
	if (semel_libpq.status(connection) != CONNECTION_OK || !semel_libpq.isBusy(connection))
		return semel_pg_error(connection, NULL, "connect", error);
	return semel_error_set(error, SEMEL_OUTAGE,
			       "PostgreSQL does not answer within %d s (is a pooler out of "
			       "sessions? a relay needs two of them, every other command one)",
			       wait_ms / 1000);
}

/* True if both are known and differ. */
static bool differ(int one, int other)
{
	return one != 0 && other != 0 && one != other;
}

static bool is_swapped(PGconn *first, PGconn *second, int wait_ms)
{
	int ours = query_backend(first, wait_ms);
	for (int round = 0; ours != 0 && round < ROUNDS; round++) {
		int others = query_backend(second, SECOND_WAIT_MS);
		if (others == ours ||
		    (others != 0 && differ(others, query_backend(second, SECOND_WAIT_MS))))
			return true;
		if (differ(ours, query_backend(first, wait_ms)))
			return true;
		if (others == 0)
			return read_backend(second, SECOND_WAIT_MS) == ours;
	}
	return false;
}

static semel_status refuse_pooler(semel_error *error)
{
	return semel_error_set(error, SEMEL_CONFIG,
			       "the connection pooler uses transaction pooling, and semel needs "
			       "session pooling (set pool_mode = session for this database in "
			       "PgBouncer, or connect to PostgreSQL directly)");
}

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
	char message[512] = "out of memory";
	if (connection != NULL)
		snprintf(message, sizeof(message), "%s", semel_libpq.errorMessage(connection));
	message[strcspn(message, "\n")] = '\0';
	return semel_error_set(error, SEMEL_OUTAGE,
			       "cannot reach PostgreSQL: %s (is it running? are host, database, "
			       "user, password and TLS settings of the URL right?)",
			       message);
}

/* Used where neither the URL nor the environment sets a value. Kerberos encryption has to be
 * requested explicitly: trying it costs memory and a round trip. */
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
	semel_status status = find_pooler(connection, wait_ms, &pooled, error);
	if (status != SEMEL_OK || !pooled)
		return status;
	PGconn *second = connect_with(options, false);
	bool swapped = second != NULL && semel_libpq.status(second) == CONNECTION_OK &&
		       is_swapped(connection, second, wait_ms);
	semel_libpq.finish(second);
	return swapped ? refuse_pooler(error) : SEMEL_OK;
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
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the database encoding is %s, which cannot store every event (keep "
			"Semel's tables in one created with ENCODING 'UTF8')",
			encoding);
	return semel_pg_execute_plain(connection, our_settings, "set the time-outs", error);
}

/* wait_ms: how long to wait for a session of a pooler; 0: connects for the change stream, which
 * always has its own session. */
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

/* ---- the store ------------------------------------------------------------------------------- */

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
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory");
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
