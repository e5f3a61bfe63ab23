/* SPDX-License-Identifier: Apache-2.0 */
/* A trial on PostgreSQL is a schema. Its lock is an advisory lock of the session, so it ends with
 * the connection, however its owner dies. The comment on the schema distinguishes it from one that
 * the user may have created under such a name. */
#include "store/trial.h"

#include "base/buffer.h"
#include "base/error.h"
#include "store/postgres/postgres.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK_CLASS "1936026980" /* of advisory locks; used for nothing else in Semel */
#define COMMENT    "made by semel drill"
#define NAME_SIZE  32

struct semel_trial_session {
	PGconn *connection;
};

static void name_of(uint64_t id, char name_out[NAME_SIZE])
{
	snprintf(name_out, NAME_SIZE, "semel_drill_%016" PRIx64, id);
}

static semel_status open_session(const char *url, struct semel_trial_session **session_out,
				 semel_error *error)
{
	*session_out = NULL;
	semel_status status = semel_libpq_load(error);
	if (status != SEMEL_OK)
		return status;
	struct semel_trial_session *session = calloc(1, sizeof *session);
	if (!session)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	status = semel_pg_connect(url, &session->connection, error);
	if (status != SEMEL_OK) {
		free(session);
		return status;
	}
	*session_out = session;
	return SEMEL_OK;
}

static void close_session(struct semel_trial_session *session)
{
	if (!session)
		return;
	semel_libpq.finish(session->connection);
	free(session);
}

/* The first column of the only row; 0 when it is NULL. */
static semel_status query_number(struct semel_trial_session *session, const char *sql,
				 const char *parameter, int64_t *number_out, semel_error *error)
{
	const char *const values[] = { parameter };
	PGresult *result =
		semel_libpq.execParams(session->connection, sql, 1, NULL, values, NULL, NULL, 0);
	semel_status status = SEMEL_OK;
	*number_out = 0;
	if (semel_libpq.resultStatus(result) != PGRES_TUPLES_OK)
		status = semel_pg_error(session->connection, result, "find trials", error);
	else if (semel_pg_rows(result) > 0 && !semel_pg_is_null(result, 0, 0))
		*number_out = strtoll(semel_libpq.getvalue(result, 0, 0), NULL, 10);
	semel_libpq.clear(result);
	return status;
}

/* The lock is taken before there is anything to lock. */
static semel_status lock(struct semel_trial_session *session, uint64_t id, bool *locked_out,
			 semel_error *error)
{
	char number[16];
	int64_t locked = 0;
	snprintf(number, sizeof number, "%" PRIu32, (uint32_t)(id >> 32));
	semel_status status =
		query_number(session, "SELECT pg_try_advisory_lock(" LOCK_CLASS ", $1::int)::int",
			     number, &locked, error);
	*locked_out = locked != 0;
	return status;
}

static semel_status create(struct semel_trial_session *session, uint64_t id, semel_error *error)
{
	char name[NAME_SIZE], sql[256];
	semel_error cause = { 0 };
	name_of(id, name);
	snprintf(sql, sizeof sql,
		 "BEGIN; CREATE SCHEMA %s; COMMENT ON SCHEMA %s IS '" COMMENT "'; COMMIT", name,
		 name);
	if (semel_pg_execute_plain(session->connection, sql, "create a schema", &cause) == SEMEL_OK)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "cannot create a schema for the drill: %.200s (grant the user of "
			       "--store CREATE on the database)",
			       cause.text);
}

static semel_status drop(struct semel_trial_session *session, uint64_t id, semel_error *error)
{
	char name[NAME_SIZE], sql[192];
	name_of(id, name);
	snprintf(sql, sizeof sql,
		 "SET client_min_messages = warning; SET lock_timeout = '60s'; DROP SCHEMA IF "
		 "EXISTS %s CASCADE",
		 name);
	return semel_pg_execute_plain(session->connection, sql, "drop a schema", error);
}

static semel_status next(struct semel_trial_session *session, uint64_t after, uint64_t *id_out,
			 semel_error *error)
{
	static const char sql[] =
		"SELECT min(id) FROM (SELECT ('x' || substr(nspname, 13))::bit(64)::bigint AS id"
		" FROM pg_namespace WHERE nspname ~ '^semel_drill_[0-9a-f]{16}$'"
		" AND obj_description(oid, 'pg_namespace') = '" COMMENT "') AS drills"
		" WHERE id > $1::bigint";
	char number[32];
	int64_t id = 0;
	snprintf(number, sizeof number, "%" PRId64, (int64_t)after);
	semel_status status = query_number(session, sql, number, &id, error);
	*id_out = (uint64_t)id;
	return status;
}

/* ---- the URL --------------------------------------------------------------------------------- */

static bool is_unreserved(char letter)
{
	return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
	       (letter >= '0' && letter <= '9') || strchr("-._~", letter) != NULL;
}

static void append_encoded(struct semel_buffer *buffer, const char *text)
{
	for (; *text; text++)
		if (is_unreserved(*text))
			semel_buffer_append(buffer, text, 1);
		else
			semel_buffer_printf(buffer, "%%%02X", (unsigned char)*text);
}

/* The URL with this schema as the only one in the search path. Of two parameters with the same name
 * libpq takes the last, so ours repeats the options that the user has set. */
static const char *url_in_schema(const struct semel_url *url, uint64_t id,
				 struct semel_arena *arena)
{
	struct semel_buffer buffer = { 0 };
	char name[NAME_SIZE];
	const char *set = semel_url_param(url, "options");
	name_of(id, name);
	if (!set)
		set = getenv("PGOPTIONS");
	semel_buffer_printf(&buffer, "%s%coptions=", url->text, strchr(url->text, '?') ? '&' : '?');
	if (set && set[0]) {
		append_encoded(&buffer, set);
		append_encoded(&buffer, " ");
	}
	append_encoded(&buffer, "-csearch_path=");
	append_encoded(&buffer, name);
	const char *whole = buffer.failed ? NULL : semel_arena_printf(arena, "%s", buffer.data);
	semel_buffer_free(&buffer);
	return whole;
}

const struct semel_trial_functions semel_pg_trial = {
	.open = open_session,
	.close = close_session,
	.lock = lock,
	.create = create,
	.remove = drop,
	.next = next,
	.url = url_in_schema,
};
