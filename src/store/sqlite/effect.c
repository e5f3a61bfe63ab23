/* SPDX-License-Identifier: Apache-2.0 */
/* The user's SQL: the business change of a publish, SQL handlers, upcasters.
 *
 * - They run inside a transaction that Semel ends: a statement that begins, ends or nests one, or
 *   attaches another file, is refused when it is prepared.
 * - An error about the values (a constraint, a type) concerns this event: reject. An error of the
 *   file is an outage. Any other error may be transient: retry.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* ---- parameters ------------------------------------------------------------------------------ */

static const char *const parameter_names[] = { ":id",           ":type",  ":aggregate_type",
					       ":aggregate_id", ":topic", ":payload",
					       ":headers",      ":time",  ":attempt",
					       ":flow" };

enum parameter {
	P_ID,
	P_TYPE,
	P_AGGREGATE_TYPE,
	P_AGGREGATE_ID,
	P_TOPIC,
	P_PAYLOAD,
	P_HEADERS,
	P_TIME,
	P_ATTEMPT,
	P_FLOW,
	P_COUNT
};

/* A prepared statement, and the position of each parameter in it (0: not used). */
struct effect {
	sqlite3_stmt *prepared;
	int placeholders[P_COUNT];
};

struct semel_sqlite_effects {
	struct effect *list;
	size_t count, capacity;
	struct semel_arena *arena; /* for :flow; reset by each run */
};

/* The values of one event for the parameters. */
struct values {
	const struct semel_event *event;
	uint32_t attempt;
	struct semel_arena *arena;
	char time[SEMEL_TIME_SIZE];
};

static semel_status find_placeholders(struct effect *effect, semel_error *error)
{
	int count = sqlite3_bind_parameter_count(effect->prepared);
	for (int at = 1; at <= count; at++) {
		const char *name = sqlite3_bind_parameter_name(effect->prepared, at);
		int found = 0;
		while (name != NULL && found < P_COUNT && strcmp(name, parameter_names[found]) != 0)
			found++;
		if (name == NULL || found == P_COUNT) {
			const char *shown = name == NULL ? "?" : name;
			const char *near = semel_text_nearest(shown, parameter_names, P_COUNT);
			return semel_error_set(error, SEMEL_INVALID,
					       "unknown parameter %s in SQL (did you mean %s? "
					       "there are :id :type :aggregate_type :aggregate_id "
					       ":topic :payload :headers :time :attempt :flow)",
					       shown, near == NULL ? ":id" : near);
		}
		effect->placeholders[found] = at;
	}
	return SEMEL_OK;
}

static void bind_values(const struct effect *effect, struct values *values)
{
	const struct semel_event *event = values->event;
	const int *placeholders = effect->placeholders;
	const struct {
		int at;
		struct semel_text text;
	} texts[] = { { placeholders[P_ID], event->id },
		      { placeholders[P_TYPE], event->type },
		      { placeholders[P_AGGREGATE_TYPE], event->aggregate_type },
		      { placeholders[P_AGGREGATE_ID], event->aggregate_id },
		      { placeholders[P_TOPIC], event->topic },
		      { placeholders[P_PAYLOAD], event->payload },
		      { placeholders[P_HEADERS], event->headers } };
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].at != 0)
			semel_sqlite_bind_bytes(effect->prepared, texts[i].at, texts[i].text);
	if (placeholders[P_TIME] != 0) {
		semel_time_format(event->time_ms, values->time);
		semel_sqlite_bind_string(effect->prepared, placeholders[P_TIME], values->time);
	}
	if (placeholders[P_ATTEMPT] != 0)
		sqlite3_bind_int64(effect->prepared, placeholders[P_ATTEMPT], values->attempt);
	if (placeholders[P_FLOW] != 0)
		semel_sqlite_bind_text(effect->prepared, placeholders[P_FLOW],
				       semel_event_flow_headers(event, values->arena));
}

/* ---- what may be prepared -------------------------------------------------------------------- */

static bool is_harmless_pragma(const char *name, const char *value)
{
	/* SQLite's own virtual tables read these while a statement is prepared. */
	return value == NULL && name != NULL &&
	       (strcmp(name, "page_size") == 0 || strcmp(name, "data_version") == 0);
}

static int refuse_control(void *refused, int action, const char *first, const char *second,
			  const char *database, const char *trigger)
{
	(void)database;
	(void)trigger;
	bool control = action == SQLITE_TRANSACTION || action == SQLITE_SAVEPOINT ||
		       action == SQLITE_ATTACH || action == SQLITE_DETACH ||
		       (action == SQLITE_PRAGMA && !is_harmless_pragma(first, second));
	if (!control)
		return SQLITE_OK;
	*(bool *)refused = true;
	return SQLITE_DENY;
}

/* Prepares the first statement of sql; *tail_out is what follows. A comment or blank rest yields
 * no statement. */
static semel_status prepare_user_sql(sqlite3 *db, const char *sql, sqlite3_stmt **prepared_out,
				     const char **tail_out, semel_error *error)
{
	bool refused = false;
	*prepared_out = NULL;
	sqlite3_set_authorizer(db, refuse_control, &refused);
	int code = sqlite3_prepare_v2(db, sql, -1, prepared_out, tail_out);
	sqlite3_set_authorizer(db, NULL, NULL);
	if (code == SQLITE_OK)
		return SEMEL_OK;
	if (refused)
		return semel_error_set(error, SEMEL_INVALID,
				       "BEGIN, COMMIT, ROLLBACK, SAVEPOINT, ATTACH and PRAGMA are "
				       "not allowed here (Semel begins and ends the transaction): "
				       "%s",
				       sql);
	int primary = code & 0xff;
	if (primary == SQLITE_ERROR || primary == SQLITE_TOOBIG || primary == SQLITE_RANGE)
		return semel_error_set(error, SEMEL_INVALID, "%s: %s", sqlite3_errmsg(db), sql);
	return semel_sqlite_error(db, code, "prepare SQL", error);
}

/* ---- the business change ----------------------------------------------------------------------
 */

static semel_status execute_one(sqlite3 *db, sqlite3_stmt *prepared, semel_error *error)
{
	if (sqlite3_bind_parameter_count(prepared) > 0)
		return semel_error_set(
			error, SEMEL_INVALID,
			"parameters are not supported here (write the value into the "
			"SQL): %s",
			sqlite3_sql(prepared));
	int code = SQLITE_ROW;
	while (code == SQLITE_ROW)
		code = sqlite3_step(prepared);
	if (code == SQLITE_DONE)
		return SEMEL_OK;
	code = sqlite3_extended_errcode(db);
	semel_status status = semel_sqlite_error(db, code, "run SQL", error);
	if (status == SEMEL_INTERNAL && (code & 0xff) != SQLITE_NOMEM)
		return semel_error_set(error, SEMEL_INVALID, "%s: %s", sqlite3_errmsg(db),
				       sqlite3_sql(prepared));
	return status;
}

semel_status semel_sqlite_execute(semel_store *store, const char *sql, semel_error *error)
{
	sqlite3 *db = semel_sqlite_of(store)->db;
	semel_status status =
		semel_sqlite_require_transaction(semel_sqlite_tx(store), "run SQL", error);
	if (status != SEMEL_OK)
		return status;
	while (*sql != '\0') {
		sqlite3_stmt *prepared = NULL;
		status = prepare_user_sql(db, sql, &prepared, &sql, error);
		if (status != SEMEL_OK)
			return status;
		if (prepared == NULL)
			continue;
		status = execute_one(db, prepared, error);
		sqlite3_finalize(prepared);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- handlers -------------------------------------------------------------------------------- */

void semel_sqlite_effects_free(struct semel_sqlite_effects *effects)
{
	if (effects == NULL)
		return;
	for (size_t i = 0; i < effects->count; i++)
		sqlite3_finalize(effects->list[i].prepared);
	semel_arena_free(effects->arena);
	free(effects->list);
	free(effects);
}

static semel_status add_effect(struct semel_sqlite_effects *effects, sqlite3_stmt *prepared,
			       semel_error *error)
{
	if (effects->count == effects->capacity) {
		size_t capacity = effects->capacity * 2 + 4;
		struct effect *list = realloc(effects->list, capacity * sizeof(*list));
		if (list == NULL) {
			sqlite3_finalize(prepared);
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a handler");
		}
		effects->list = list;
		effects->capacity = capacity;
	}
	struct effect *effect = &effects->list[effects->count++];
	*effect = (struct effect){ .prepared = prepared };
	return find_placeholders(effect, error);
}

static semel_status add_statements(sqlite3 *db, struct semel_sqlite_effects *effects,
				   const char *sql, semel_error *error)
{
	while (*sql != '\0') {
		sqlite3_stmt *prepared = NULL;
		semel_status status = prepare_user_sql(db, sql, &prepared, &sql, error);
		if (status != SEMEL_OK)
			return status;
		if (prepared == NULL)
			continue;
		status = add_effect(effects, prepared, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_sqlite_effect_prepare(semel_store *base, const char *const *statements,
					 size_t count, semel_error *error)
{
	struct semel_sqlite_store *store = semel_sqlite_of(base);
	struct semel_sqlite_effects *effects = calloc(1, sizeof(*effects));
	semel_status status = SEMEL_OK;
	if (effects == NULL || (effects->arena = semel_arena_new(4096)) == NULL) {
		semel_sqlite_effects_free(effects);
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a handler");
	}
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = add_statements(store->db, effects, statements[i], error);
	if (status != SEMEL_OK)
		goto free_effects;
	if (effects->count == 0) {
		status = semel_error_set(error, SEMEL_INVALID,
					 "the SQL handler contains no statement");
		goto free_effects;
	}
	semel_sqlite_effects_free(store->effects);
	store->effects = effects;
	return SEMEL_OK;

free_effects:
	semel_sqlite_effects_free(effects);
	return status;
}

static semel_status verdict_of(sqlite3 *db, int code, semel_error *error)
{
	switch (code & 0xff) {
	case SQLITE_CONSTRAINT:
	case SQLITE_MISMATCH:
	case SQLITE_TOOBIG:
		return semel_error_set(error, SEMEL_HANDLER_REJECT, "%s", sqlite3_errmsg(db));
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
	case SQLITE_IOERR:
	case SQLITE_FULL:
	case SQLITE_READONLY:
	case SQLITE_CANTOPEN:
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_NOMEM:
		return semel_sqlite_error(db, code, "run the SQL handler", error);
	default:
		return semel_error_set(error, SEMEL_HANDLER_RETRY, "%s", sqlite3_errmsg(db));
	}
}

static semel_status run_effect(sqlite3 *db, const struct effect *effect, struct values *values,
			       semel_error *error)
{
	semel_status status = SEMEL_OK;
	bind_values(effect, values);
	int code = SQLITE_ROW;
	while (code == SQLITE_ROW)
		code = sqlite3_step(effect->prepared);
	if (code != SQLITE_DONE)
		status = verdict_of(db, sqlite3_extended_errcode(db), error);
	sqlite3_reset(effect->prepared);
	return status;
}

/* A deferred constraint would fail only at the commit, for the whole batch; so it is checked while
 * it is known which event violates it. */
static semel_status check_deferred(sqlite3 *db, semel_error *error)
{
	int open_constraints = 0, highest = 0;
	sqlite3_db_status(db, SQLITE_DBSTATUS_DEFERRED_FKS, &open_constraints, &highest, 0);
	if (open_constraints == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_HANDLER_REJECT,
			       "FOREIGN KEY constraint failed (a deferred one)");
}

semel_status semel_sqlite_effect_run(semel_store *base, const struct semel_event *event,
				     uint32_t attempt, semel_error *error)
{
	struct semel_sqlite_store *store = semel_sqlite_of(base);
	struct semel_sqlite_effects *effects = store->effects;
	semel_status status = semel_sqlite_require_transaction(semel_sqlite_tx(base),
							       "run the SQL handler", error);
	if (status != SEMEL_OK)
		return status;
	if (effects == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no SQL handler was prepared");
	struct values values = { .event = event, .attempt = attempt, .arena = effects->arena };
	for (size_t i = 0; i < effects->count && status == SEMEL_OK; i++)
		status = run_effect(store->db, &effects->list[i], &values, error);
	semel_arena_reset(effects->arena);
	if (status != SEMEL_OK)
		return status;
	return check_deferred(store->db, error);
}

/* ---- upcasters ------------------------------------------------------------------------------- */

static semel_status prepare_expression(sqlite3 *db, const char *expression, struct effect *effect,
				       semel_error *error)
{
	const char *tail = NULL;
	char *sql = sqlite3_mprintf("SELECT (%s)", expression);
	if (sql == NULL)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for an SQL expression");
	semel_status status = SEMEL_OK;
	int code = sqlite3_prepare_v2(db, sql, -1, &effect->prepared, &tail);
	if (code != SQLITE_OK)
		status = semel_error_set(error, SEMEL_INVALID, "%s: %s", sqlite3_errmsg(db),
					 expression);
	else if (*tail != '\0' || sqlite3_column_count(effect->prepared) != 1)
		status = semel_error_set(error, SEMEL_INVALID,
					 "expected one SQL expression, not a statement: %s",
					 expression);
	sqlite3_free(sql);
	if (status != SEMEL_OK)
		return status;
	return find_placeholders(effect, error);
}

semel_status semel_sqlite_evaluate(semel_store *store, const char *expression,
				   const struct semel_event *event, struct semel_arena *arena,
				   struct semel_text *value_out, semel_error *error)
{
	sqlite3 *db = semel_sqlite_of(store)->db;
	struct effect effect = { 0 };
	struct values values = { .event = event, .arena = arena };
	*value_out = (struct semel_text){ NULL, 0 };
	semel_status status = prepare_expression(db, expression, &effect, error);
	if (status != SEMEL_OK)
		goto finalize;
	bind_values(&effect, &values);
	int code = sqlite3_step(effect.prepared);
	if (code == SQLITE_ROW)
		*value_out = semel_sqlite_text(effect.prepared, 0, arena);
	else
		status = verdict_of(db, sqlite3_extended_errcode(db), error);
finalize:
	sqlite3_finalize(effect.prepared);
	return status;
}
