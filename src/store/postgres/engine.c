/* SPDX-License-Identifier: Apache-2.0 */
/* How statements are bound, run and read, on our own and on borrowed connections; this is also the
 * engine of the statement layer. All rows of a statement arrive at once, so tables that may be
 * large are read in pages. Leases use the server's clock. */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_ROWS 5000

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct {
	const char *state; /* the beginning of an SQLSTATE; the first match counts */
	semel_status status;
} classes[] = {
	{ "53100", SEMEL_STORAGE_FULL }, /* disk full */
	{ "53", SEMEL_OUTAGE },          /* out of memory, too many connections */
	{ "57014", SEMEL_BUSY },         /* our statement time-out */
	{ "57", SEMEL_OUTAGE },          /* shut down, cannot connect now */
	{ "58", SEMEL_OUTAGE },          /* I/O */
	{ "08", SEMEL_OUTAGE },          /* the connection */
	{ "40", SEMEL_OUTAGE },          /* serialization, deadlock: rolled back, try again */
	{ "55P03", SEMEL_BUSY },         /* lock time-out */
	{ "25006", SEMEL_OUTAGE },       /* read-only: a standby that is not promoted yet */
	{ "25P", SEMEL_OUTAGE },         /* failed or idle for too long in a transaction */
	{ "26000", SEMEL_CONFIG },       /* a missing prepared statement: a pooler */
	{ "42P05", SEMEL_CONFIG },       /* a duplicate one: likewise */
	{ "22", SEMEL_INVALID },         /* a value that does not fit its type */
	{ "54", SEMEL_INVALID },         /* a value that is too large, as for an index */
	{ "23", SEMEL_INVALID },         /* a constraint */
	{ "42P01", SEMEL_NO_SCHEMA },    /* no such table */
	{ "42883", SEMEL_NO_SCHEMA },    /* no such function */
	{ "42501", SEMEL_CONFIG },       /* not allowed */
	{ "3F000", SEMEL_CONFIG },       /* no schema of the search_path exists */
};

static semel_status status_of(const char *state)
{
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
		if (strncmp(state, classes[i].state, strlen(classes[i].state)) == 0)
			return classes[i].status;
	return SEMEL_INTERNAL;
}

/* The tables of a prepared statement have changed: it works again on the next connection. No other
 * error with this SQLSTATE is transient. */
static bool is_stale_plan(const PGresult *result, const char *state)
{
	const char *where = semel_libpq.resultErrorField(result, PG_DIAG_SOURCE_FUNCTION);
	return strcmp(state, "0A000") == 0 && where != NULL &&
	       strcmp(where, "RevalidateCachedQuery") == 0;
}

/* The partition for all other weeks was dropped: not a problem of the event. */
static bool is_without_partition(const char *state, const char *message)
{
	return strcmp(state, "23514") == 0 && strstr(message, "no partition of relation") &&
	       strstr(message, "semel_inbox");
}

/* A publication of updates has a row filter or a column list that does not suit the table's key:
 * the server refuses every mark. */
static bool is_forbidden_by_publication(const char *message)
{
	static const char update[] = "cannot update table \"semel_";
	static const char remove[] = "cannot delete from table \"semel_";
	return strncmp(message, update, strlen(update)) == 0 ||
	       strncmp(message, remove, strlen(remove)) == 0;
}

bool semel_pg_was_cancelled(const PGresult *result)
{
	const char *state = semel_libpq.resultErrorField(result, PG_DIAG_SQLSTATE);
	return state != NULL && strcmp(state, "57014") == 0;
}

static const char *advice_for(semel_status status, const char *state, const char *message)
{
	if (strcmp(state, "26000") == 0 || strcmp(state, "42P05") == 0)
		return " (if the connection goes through a pooler, use session pooling, or connect "
		       "to PostgreSQL directly)";
	if (strcmp(state, "3F000") == 0)
		return " (no schema in search_path exists: CREATE SCHEMA, or set another "
		       "search_path)";
	if (is_without_partition(state, message))
		return " (CREATE TABLE semel_inbox_other PARTITION OF semel_inbox DEFAULT)";
	if (is_forbidden_by_publication(message))
		return " (a publication of updates with a row filter or a column list forbids it: "
		       "semel --store URL init --cdc repairs that of the change stream; "
		       "pg_publication_tables lists others)";
	switch (status) {
	case SEMEL_NO_SCHEMA: /* the missing table may be the user's own */
		return strstr(message, "semel_") == NULL
			       ? ""
			       : " (create Semel's tables with: semel --store URL init)";
	case SEMEL_CONFIG:
		return " (docs/postgresql.md lists the privileges that are needed)";
	case SEMEL_BUSY:
		return " (see pg_stat_activity for the session that holds the lock)";
	default:
		return "";
	}
}

/* Puts the server's message on one line. The primary message has no ERROR prefix. */
static void first_line(const char *message, char *out, size_t size)
{
	size_t length = 0;
	for (const char *at = message; *at != '\0' && length + 1 < size; at++)
		out[length++] = *at == '\n' ? ' ' : *at;
	while (length > 0 && out[length - 1] == ' ')
		length--;
	out[length] = '\0';
}

semel_status semel_pg_error(PGconn *connection, const PGresult *result, const char *what,
			    semel_error *error)
{
	char message[512];
	const char *state =
		result == NULL ? NULL : semel_libpq.resultErrorField(result, PG_DIAG_SQLSTATE);
	const char *primary =
		result == NULL ? NULL
			       : semel_libpq.resultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	first_line(primary != NULL ? primary : semel_libpq.errorMessage(connection), message,
		   sizeof(message));
	if (semel_libpq.status(connection) != CONNECTION_OK || state == NULL)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "cannot %s: the connection to PostgreSQL was lost: %s", what,
				       message);
	semel_status status = is_stale_plan(result, state) ? SEMEL_OUTAGE : status_of(state);
	if (is_without_partition(state, message))
		status = SEMEL_NO_SCHEMA;
	if (is_forbidden_by_publication(message))
		status = SEMEL_CONFIG;
	return semel_error_set(error, status, "cannot %s: %s [%s]%s", what, message, state,
			       advice_for(status, state, message));
}

/* ---- values ---------------------------------------------------------------------------------- */

static void add_value(struct semel_pg_params *params, const char *value, int length, int format)
{
	assert(params->count < SEMEL_PG_PARAMS_MAX);
	int at = params->count++;
	params->values[at] = value;
	params->lengths[at] = length;
	params->formats[at] = format;
	params->owned[at] = NULL;
}

static bool is_text(struct semel_text text)
{
	return memchr(text.data, '\0', text.length) == NULL && semel_text_is_utf8(text);
}

/* Every byte that cannot be text becomes U+FFFD. NULL: out of memory. */
static char *replace_invalid(struct semel_text text)
{
	char *replaced = calloc(text.length * 3 + 1, 1);
	size_t length = 0, at = 0;
	while (replaced != NULL && at < text.length) {
		const unsigned char *byte = (const unsigned char *)semel_text_chars(text) + at;
		size_t step = *byte == '\0' ? 0 : semel_utf8_length(byte, text.length - at);
		memcpy(replaced + length, step == 0 ? "\xef\xbf\xbd" : (const void *)byte,
		       step == 0 ? 3 : step);
		length += step == 0 ? 3 : step;
		at += step == 0 ? 1 : step;
	}
	if (replaced != NULL)
		replaced[length] = '\0';
	return replaced;
}

void semel_pg_add_text(struct semel_pg_params *params, struct semel_text text)
{
	if (text.data == NULL || is_text(text)) {
		add_value(params, semel_text_chars(text), (int)text.length, 0);
		return;
	}
	char *replaced = replace_invalid(text);
	add_value(params, replaced, 0, 0);
	params->owned[params->count - 1] = replaced;
}

void semel_pg_add_string(struct semel_pg_params *params, const char *string)
{
	semel_pg_add_text(params, semel_text_of(string));
}

void semel_pg_add_bytes(struct semel_pg_params *params, struct semel_text text)
{
	bool as_text = text.data == NULL || is_text(text);
	add_value(params, as_text ? semel_text_chars(text) : NULL, (int)text.length, 0);
	add_value(params, as_text ? NULL : semel_text_chars(text), (int)text.length, 1);
}

/* Room for the text of the next value. */
static char *scratch_of(struct semel_pg_params *params)
{
	assert(params->count < SEMEL_PG_PARAMS_MAX);
	return params->scratch[params->count];
}

void semel_pg_add_int(struct semel_pg_params *params, int64_t number)
{
	char *scratch = scratch_of(params);
	snprintf(scratch, SEMEL_TIME_SIZE, "%lld", (long long)number);
	add_value(params, scratch, 0, 0);
}

void semel_pg_add_bool(struct semel_pg_params *params, bool value)
{
	add_value(params, value ? "t" : "f", 1, 0);
}

void semel_pg_add_time(struct semel_pg_params *params, int64_t time_ms)
{
	char *scratch = scratch_of(params);
	if (time_ms != 0)
		semel_time_format(time_ms, scratch);
	add_value(params, time_ms == 0 ? NULL : scratch, 0, 0);
}

void semel_pg_params_free(struct semel_pg_params *params)
{
	for (int i = 0; params != NULL && i < params->count; i++)
		free(params->owned[i]);
	if (params != NULL)
		params->count = 0;
}

static void begin_item(struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, buffer->length == 0 ? "{" : ",");
}

void semel_pg_array_int(struct semel_buffer *buffer, int64_t number)
{
	begin_item(buffer);
	semel_buffer_printf(buffer, "%lld", (long long)number);
}

void semel_pg_array_text(struct semel_buffer *buffer, struct semel_text text)
{
	begin_item(buffer);
	if (text.data == NULL) {
		semel_buffer_string(buffer, "NULL");
		return;
	}
	char *replaced = is_text(text) ? NULL : replace_invalid(text);
	const char *data = replaced != NULL ? replaced : semel_text_chars(text);
	size_t length = replaced != NULL ? strlen(replaced) : text.length;
	semel_buffer_string(buffer, "\"");
	for (size_t start = 0, at = 0; at <= length; at++) {
		if (at < length && data[at] != '"' && data[at] != '\\')
			continue;
		semel_buffer_append(buffer, data + start, at - start);
		if (at < length)
			semel_buffer_string(buffer, "\\");
		start = at;
	}
	semel_buffer_string(buffer, "\"");
	free(replaced);
}

struct semel_text semel_pg_array_end(struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, buffer->length == 0 ? "{}" : "}");
	return semel_buffer_text(buffer);
}

void semel_pg_add_array(struct semel_pg_params *params, struct semel_buffer *buffer)
{
	struct semel_text array = semel_pg_array_end(buffer);
	add_value(params, buffer->failed ? NULL : semel_text_chars(array), (int)array.length, 0);
}

/* ---- running --------------------------------------------------------------------------------- */

static bool is_fine(const PGresult *result)
{
	ExecStatusType status =
		result == NULL ? PGRES_FATAL_ERROR : semel_libpq.resultStatus(result);
	return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

void semel_pg_name(PGconn *connection, const char *kind, size_t number,
		   char name_out[SEMEL_PG_NAME_SIZE])
{
	snprintf(name_out, SEMEL_PG_NAME_SIZE, "%s_%x_%zu", kind,
		 (unsigned)semel_libpq.backendPID(connection), number);
}

/* A statement as it is sent: the driver's own, or one of the statement layer. */
struct source {
	const void *key; /* identifies the prepared statement */
	const char *what, *sql;
	bool shared; /* its parameters are ?1, ?2, … */
};

static struct source source_of(const struct semel_pg_statement *statement)
{
	return (struct source){ .key = statement, .what = statement->what, .sql = statement->sql };
}

/* The text in PostgreSQL's syntax; a translated text is in the buffer. NULL: out of memory. */
static const char *text_of(const struct source *source, struct semel_buffer *buffer,
			   semel_error *error)
{
	if (!source->shared)
		return source->sql;
	semel_sql_translate(buffer, source->sql, '$');
	if (!buffer->failed)
		return buffer->data;
	(void)semel_error_set(error, SEMEL_INTERNAL, "out of memory for a statement");
	return NULL;
}

/* The name of the statement on this connection, where it is prepared when it is first used; empty:
 * no more statements are prepared, and this one is sent as a text. */
static semel_status prepare(struct semel_pg_store *store, const struct source *source,
			    char name_out[SEMEL_PG_NAME_SIZE], semel_error *error)
{
	size_t at = 0;
	while (at < store->prepared_count && store->prepared[at] != source->key)
		at++;
	name_out[0] = '\0';
	if (at == SEMEL_PG_PREPARED_MAX)
		return SEMEL_OK;
	semel_pg_name(store->connection, "semel", at, name_out);
	if (at < store->prepared_count)
		return SEMEL_OK;
	struct semel_buffer buffer = { 0 };
	const char *text = text_of(source, &buffer, error);
	if (text == NULL)
		return SEMEL_INTERNAL;
	PGresult *result = semel_libpq.prepare(store->connection, name_out, text, 0, NULL);
	semel_buffer_free(&buffer);
	semel_status status = SEMEL_OK;
	if (is_fine(result))
		store->prepared[store->prepared_count++] = source->key;
	else
		status = semel_pg_error(store->connection, result, source->what, error);
	semel_libpq.clear(result);
	return status;
}

semel_status semel_pg_send(struct semel_pg_store *store, const struct semel_pg_statement *statement,
			   struct semel_pg_params *params, semel_error *error)
{
	const struct source source = source_of(statement);
	PGconn *connection = store->connection;
	char name[SEMEL_PG_NAME_SIZE];
	semel_status status = prepare(store, &source, name, error);
	if (status != SEMEL_OK)
		goto free_params;
	int sent = name[0] == '\0'
			   ? semel_libpq.sendQueryParams(connection, source.sql, params->count,
							 NULL, params->values, params->lengths,
							 params->formats, 0)
			   : semel_libpq.sendQueryPrepared(connection, name, params->count,
							   params->values, params->lengths,
							   params->formats, 0);
	if (sent == 0)
		status = semel_pg_error(connection, NULL, source.what, error);

free_params:
	semel_pg_params_free(params);
	return status;
}

/* Where nothing is prepared: on a borrowed connection, or when no more statements are. */
static semel_status execute_text(PGconn *connection, const struct source *source,
				 const struct semel_pg_params *params, PGresult **result_out,
				 semel_error *error)
{
	struct semel_buffer buffer = { 0 };
	const char *text = text_of(source, &buffer, error);
	if (text == NULL)
		return SEMEL_INTERNAL;
	*result_out = semel_libpq.execParams(connection, text, params->count, NULL, params->values,
					     params->lengths, params->formats, 0);
	semel_buffer_free(&buffer);
	return SEMEL_OK;
}

static semel_status execute(semel_tx tx, const struct source *source,
			    const struct semel_pg_params *params, PGresult **result_out,
			    semel_error *error)
{
	char name[SEMEL_PG_NAME_SIZE];
	if (tx.store == NULL)
		return execute_text(tx.native, source, params, result_out, error);
	semel_status status = semel_pg_effects_collect(semel_pg_of(tx.store), error);
	if (status != SEMEL_OK)
		return status;
	status = prepare(semel_pg_of(tx.store), source, name, error);
	if (status != SEMEL_OK)
		return status;
	if (name[0] == '\0')
		return execute_text(tx.native, source, params, result_out, error);
	*result_out = semel_libpq.execPrepared(tx.native, name, params->count, params->values,
					       params->lengths, params->formats, 0);
	return SEMEL_OK;
}

static semel_status run_source(semel_tx tx, const struct source *source,
			       struct semel_pg_params *params, PGresult **result_out,
			       semel_error *error)
{
	static const struct semel_pg_params none = { 0 };
	PGresult *result = NULL;
	semel_status status = execute(tx, source, params == NULL ? &none : params, &result, error);
	semel_pg_params_free(params);
	if (result_out != NULL)
		*result_out = NULL;
	if (status != SEMEL_OK)
		return status;
	if (!is_fine(result))
		status = semel_pg_error(tx.native, result, source->what, error);
	if (status == SEMEL_OK && result_out != NULL)
		*result_out = result;
	else
		semel_libpq.clear(result);
	return status;
}

semel_status semel_pg_run(semel_tx tx, const struct semel_pg_statement *statement,
			  struct semel_pg_params *params, PGresult **result_out, semel_error *error)
{
	const struct source source = source_of(statement);
	return run_source(tx, &source, params, result_out, error);
}

semel_status semel_pg_change(semel_tx tx, const struct semel_pg_statement *statement,
			     struct semel_pg_params *params, uint64_t *changes_out,
			     semel_error *error)
{
	PGresult *result = NULL;
	semel_status status = semel_pg_run(tx, statement, params, &result, error);
	if (status != SEMEL_OK)
		return status;
	if (changes_out != NULL)
		*changes_out = strtoull(semel_libpq.cmdTuples(result), NULL, 10);
	semel_pg_clear(result);
	return SEMEL_OK;
}

semel_status semel_pg_execute_plain(PGconn *connection, const char *sql, const char *what,
				    semel_error *error)
{
	PGresult *result = semel_libpq.exec(connection, sql);
	semel_status status =
		is_fine(result) ? SEMEL_OK : semel_pg_error(connection, result, what, error);
	semel_libpq.clear(result);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

int semel_pg_rows(const PGresult *result)
{
	return result == NULL ? 0 : semel_libpq.ntuples(result);
}

bool semel_pg_is_null(const PGresult *result, int row, int column)
{
	return semel_libpq.getisnull(result, row, column) != 0;
}

const char *semel_pg_value(const PGresult *result, int row, int column)
{
	return semel_libpq.getvalue(result, row, column);
}

int64_t semel_pg_int(const PGresult *result, int row, int column)
{
	return strtoll(semel_pg_value(result, row, column), NULL, 10);
}

bool semel_pg_bool(const PGresult *result, int row, int column)
{
	return *semel_pg_value(result, row, column) == 't';
}

void semel_pg_copy(const PGresult *result, int row, int column, char *out, size_t size)
{
	snprintf(out, size, "%s", semel_pg_value(result, row, column));
}

struct semel_text semel_pg_text(const PGresult *result, int row, int column,
				struct semel_arena *arena)
{
	if (semel_pg_is_null(result, row, column))
		return (struct semel_text){ NULL, 0 };
	return semel_arena_text(arena, semel_pg_value(result, row, column),
				(size_t)semel_libpq.getlength(result, row, column));
}

static struct semel_text bytes_of(const PGresult *result, int row, int column, int raw,
				  struct semel_arena *arena)
{
	size_t length = 0;
	if (!semel_pg_is_null(result, row, column) || semel_pg_is_null(result, row, raw))
		return semel_pg_text(result, row, column, arena);
	unsigned char *data = semel_libpq.unescapeBytea(
		(const unsigned char *)semel_pg_value(result, row, raw), &length);
	struct semel_text copy = semel_arena_text(arena, data, length);
	semel_libpq.freemem(data);
	return copy;
}

struct semel_text semel_pg_bytes(const PGresult *result, int row, int column,
				 struct semel_arena *arena)
{
	return bytes_of(result, row, column, column + 1, arena);
}

void semel_pg_clear(PGresult *result)
{
	if (result != NULL)
		semel_libpq.clear(result);
}

/* ---- the engine of the statement layer ------------------------------------------------------- */

static void bind(struct semel_pg_params *params, const struct semel_sql_value *value)
{
	switch (value->type) {
	case SEMEL_SQL_TEXT:
	case SEMEL_SQL_ANY_TEXT:
		semel_pg_add_text(params, value->text);
		return;
	case SEMEL_SQL_BYTES:
		semel_pg_add_bytes(params, value->text);
		return;
	case SEMEL_SQL_INT:
		semel_pg_add_int(params, value->number);
		return;
	case SEMEL_SQL_BOOL:
		semel_pg_add_bool(params, value->number != 0);
		return;
	case SEMEL_SQL_TIME:
		semel_pg_add_time(params, value->number);
	}
}

static semel_status run(struct semel_sql_rows *rows, const struct semel_sql_value *values,
			size_t count, semel_error *error)
{
	const struct source source = { .key = rows->statement,
				       .what = rows->statement->what,
				       .sql = rows->statement->text[SEMEL_SQL_POSTGRES],
				       .shared = true };
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++)
		bind(&params, &values[i]);
	semel_status status = run_source(rows->tx, &source, &params, &result, error);
	rows->native = result;
	rows->row = -1;
	return status;
}

static semel_status next(struct semel_sql_rows *rows, bool *row_out, semel_error *error)
{
	(void)error;
	*row_out = ++rows->row < semel_pg_rows(rows->native);
	return SEMEL_OK;
}

static semel_status finish(struct semel_sql_rows *rows, semel_error *error)
{
	(void)error;
	if (rows->native != NULL)
		rows->changes = strtoull(semel_libpq.cmdTuples(rows->native), NULL, 10);
	semel_pg_clear(rows->native);
	return SEMEL_OK;
}

static bool is_null(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_is_null(rows->native, rows->row, column);
}

static struct semel_text peek(const struct semel_sql_rows *rows, int column)
{
	if (is_null(rows, column))
		return (struct semel_text){ NULL, 0 };
	return semel_text_from(semel_pg_value(rows->native, rows->row, column),
			       (size_t)semel_libpq.getlength(rows->native, rows->row, column));
}

static struct semel_text text(const struct semel_sql_rows *rows, int column,
			      struct semel_arena *arena)
{
	return semel_pg_text(rows->native, rows->row, column, arena);
}

static int64_t integer(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_int(rows->native, rows->row, column);
}

static bool boolean(const struct semel_sql_rows *rows, int column)
{
	return semel_pg_bool(rows->native, rows->row, column);
}

static struct semel_text bytes(const struct semel_sql_rows *rows, int column, int raw,
			       struct semel_arena *arena)
{
	return bytes_of(rows->native, rows->row, column, raw, arena);
}

const struct semel_sql_engine semel_pg_engine = {
	.dialect = SEMEL_SQL_POSTGRES,
	.page_rows = PAGE_ROWS,
	.require_transaction = semel_pg_require_transaction,
	.run = run,
	.next = next,
	.finish = finish,
	.is_null = is_null,
	.peek = peek,
	.text = text,
	.integer = integer,
	.boolean = boolean,
	.time = integer, /* every statement selects it in milliseconds */
	.bytes = bytes,
	.to_server_ms = semel_pg_clock_to_server,
	.to_local_ms = semel_pg_clock_to_local,
};
