/* SPDX-License-Identifier: Apache-2.0 */
/* The user's SQL: the business change of a publish, SQL handlers, upcasters.
 *
 * - They run inside a transaction that Semel ends: a statement that begins, ends or nests one is
 *   refused when it is read.
 * - An error about the values (a constraint, a type) concerns this event: reject. An error of the
 *   server (gone, full, locked, deadlock) is an outage. Any other error may be transient: retry.
 *   That includes a statement that took too long; otherwise one event could hold up the others
 *   forever.
 * - Effects of a batch are sent without waiting for answers; the next statement reads them. After a
 *   savepoint, each answer is read at once.
 */
#include "store/postgres/postgres.h"
#include "store/postgres/sql_text.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---------------------------------------------------------------------------------- */

/* The values of one event for the parameters. */
struct values {
	const struct semel_event *event;
	uint32_t attempt;
	struct semel_arena *arena;
};

/* A payload that is not text is given as bytes, for a column that takes them. */
static void add_payload(struct semel_pg_params *params, struct semel_text payload)
{
	struct semel_pg_params both = { 0 };
	semel_pg_add_bytes(&both, payload);
	int which = both.values[0] != NULL ? 0 : 1;
	int at = params->count++;
	params->values[at] = both.values[which];
	params->lengths[at] = both.lengths[which];
	params->formats[at] = both.formats[which];
	params->owned[at] = NULL;
}

static void add_value(struct semel_pg_params *params, enum semel_pg_parameter parameter,
		      const struct values *values)
{
	const struct semel_event *event = values->event;
	switch (parameter) {
	case SEMEL_PG_P_ID:
		semel_pg_add_text(params, event->id);
		return;
	case SEMEL_PG_P_TYPE:
		semel_pg_add_text(params, event->type);
		return;
	case SEMEL_PG_P_AGGREGATE_TYPE:
		semel_pg_add_text(params, event->aggregate_type);
		return;
	case SEMEL_PG_P_AGGREGATE_ID:
		semel_pg_add_text(params, event->aggregate_id);
		return;
	case SEMEL_PG_P_TOPIC:
		semel_pg_add_text(params, event->topic);
		return;
	case SEMEL_PG_P_PAYLOAD:
		add_payload(params, event->payload);
		return;
	case SEMEL_PG_P_HEADERS:
		semel_pg_add_text(params, event->headers);
		return;
	case SEMEL_PG_P_TIME:
		semel_time_format(event->time_ms, params->scratch[params->count]);
		semel_pg_add_string(params, params->scratch[params->count]);
		return;
	case SEMEL_PG_P_ATTEMPT:
		semel_pg_add_int(params, values->attempt);
		return;
	case SEMEL_PG_P_FLOW:
	case SEMEL_PG_P_COUNT:
		break;
	}
	semel_pg_add_text(params, semel_event_flow_headers(event, values->arena));
}

static void add_values(struct semel_pg_params *params,
		       const struct semel_pg_user_statement *statement, const struct values *values)
{
	for (int i = 0; i < statement->placeholder_count; i++)
		add_value(params, statement->placeholders[i], values);
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool is_fine(const PGresult *result)
{
	ExecStatusType status = semel_libpq.resultStatus(result);
	return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

/* Consumes the result. */
static semel_status answer_of(PGconn *connection, PGresult *result, const char *what,
			      semel_error *error)
{
	semel_status status =
		is_fine(result) ? SEMEL_OK : semel_pg_error(connection, result, what, error);
	semel_libpq.clear(result);
	return status;
}

static semel_status verdict_as(semel_status status, semel_error *error)
{
	if (error != NULL)
		error->status = status;
	return status;
}

/* An error that is neither an outage nor about this event's values may be transient. */
static semel_status verdict_of(semel_status status, semel_error *error)
{
	if (status == SEMEL_OK || semel_status_class(status) == SEMEL_CLASS_OUTAGE)
		return status;
	return verdict_as(status == SEMEL_INVALID ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY,
			  error);
}

static semel_status verdict_on(PGconn *connection, const PGresult *result, semel_error *error)
{
	semel_status status = semel_pg_error(connection, result, "run the SQL handler", error);
	return semel_pg_was_cancelled(result) ? verdict_as(SEMEL_HANDLER_RETRY, error)
					      : verdict_of(status, error);
}

static semel_status explain_sql_error(semel_status status, const char *sql, semel_error *error)
{
	char server_text[SEMEL_ERROR_TEXT_MAX];
	if (status == SEMEL_OK || semel_status_class(status) == SEMEL_CLASS_OUTAGE)
		return status;
	if (error == NULL)
		return SEMEL_INVALID;
	snprintf(server_text, sizeof(server_text), "%s", error->text);
	return semel_error_set(error, SEMEL_INVALID, "%s: %s", server_text, sql);
}

/* ---- the business change ----------------------------------------------------------------------
 */

static semel_status execute_one(PGconn *connection, const struct semel_pg_user_statement *statement,
				semel_error *error)
{
	if (statement->placeholder_count > 0)
		return semel_error_set(
			error, SEMEL_INVALID,
			"parameters are not supported here (write the value into the "
			"SQL): %s",
			statement->sql.data);
	PGresult *result = semel_libpq.execParams(connection, statement->sql.data, 0, NULL, NULL,
						  NULL, NULL, 0);
	return explain_sql_error(answer_of(connection, result, "run SQL", error),
				 statement->sql.data, error);
}

/* Runs the first statement; *sql_in_out is what follows. */
static semel_status execute_next(PGconn *connection, const char **sql_in_out, semel_error *error)
{
	struct semel_pg_user_statement statement;
	semel_status status =
		semel_pg_user_statement_read(*sql_in_out, &statement, sql_in_out, error);
	if (status != SEMEL_OK || statement.keyword[0] == '\0')
		goto free_statement;
	status = execute_one(connection, &statement, error);

free_statement:
	semel_pg_user_statement_free(&statement);
	return status;
}

semel_status semel_pg_execute(semel_store *store, const char *sql, semel_error *error)
{
	PGconn *connection = semel_pg_of(store)->connection;
	semel_status status = semel_pg_require_transaction(semel_pg_tx(store), "run SQL", error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_effects_collect(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		return status;
	/* All statements are checked before the first one runs. */
	for (const char *rest = sql; *rest != '\0';) {
		struct semel_pg_user_statement statement;
		status = semel_pg_user_statement_read(rest, &statement, &rest, error);
		semel_pg_user_statement_free(&statement);
		if (status != SEMEL_OK)
			return status;
	}
	while (*sql != '\0') {
		status = execute_next(connection, &sql, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- handlers -------------------------------------------------------------------------------- */

struct effect {
	struct semel_pg_user_statement statement;
	char name[SEMEL_PG_NAME_SIZE]; /* as it was prepared */
};

struct semel_pg_effects {
	struct effect *list;
	size_t count, capacity;
	struct semel_arena *arena; /* for :flow; reset by each run */
	uint32_t generation;
};

void semel_pg_effects_free(struct semel_pg_effects *effects)
{
	if (effects == NULL)
		return;
	for (size_t i = 0; i < effects->count; i++)
		semel_pg_user_statement_free(&effects->list[i].statement);
	semel_arena_free(effects->arena);
	free(effects->list);
	free(effects);
}

/* The entry for one more effect; NULL: out of memory. */
static struct effect *new_effect(struct semel_pg_effects *effects)
{
	if (effects->count == effects->capacity) {
		size_t capacity = effects->capacity * 2 + 4;
		struct effect *list = realloc(effects->list, capacity * sizeof(*list));
		if (list == NULL)
			return NULL;
		effects->list = list;
		effects->capacity = capacity;
	}
	return &effects->list[effects->count];
}

static semel_status prepare_effect(PGconn *connection, struct semel_pg_effects *effects,
				   struct effect *effect, semel_error *error)
{
	char kind[24];
	snprintf(kind, sizeof(kind), "effect_%u", effects->generation);
	semel_pg_name(connection, kind, effects->count, effect->name);
	PGresult *result =
		semel_libpq.prepare(connection, effect->name, effect->statement.sql.data, 0, NULL);
	return explain_sql_error(answer_of(connection, result, "prepare SQL", error),
				 effect->statement.sql.data, error);
}

/* Prepares the first statement, if there is one; *sql_in_out is what follows. */
static semel_status add_statement(PGconn *connection, struct semel_pg_effects *effects,
				  struct effect *effect, const char **sql_in_out,
				  semel_error *error)
{
	semel_status status =
		semel_pg_user_statement_read(*sql_in_out, &effect->statement, sql_in_out, error);
	if (status != SEMEL_OK || effect->statement.keyword[0] == '\0')
		goto free_statement;
	status = prepare_effect(connection, effects, effect, error);
	if (status != SEMEL_OK)
		goto free_statement;
	effects->count++;
	return SEMEL_OK;

free_statement:
	semel_pg_user_statement_free(&effect->statement);
	return status;
}

static semel_status add_statements(PGconn *connection, struct semel_pg_effects *effects,
				   const char *sql, semel_error *error)
{
	while (*sql != '\0') {
		struct effect *effect = new_effect(effects);
		if (effect == NULL)
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a handler");
		semel_status status = add_statement(connection, effects, effect, &sql, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_pg_effect_prepare(semel_store *base, const char *const *statements, size_t count,
				     semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	struct semel_pg_effects *effects = calloc(1, sizeof(*effects));
	semel_status status = SEMEL_OK;
	if (effects == NULL || (effects->arena = semel_arena_new(4096)) == NULL) {
		semel_pg_effects_free(effects);
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a handler");
	}
	effects->generation = store->effect_generations++;
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = add_statements(store->connection, effects, statements[i], error);
	if (status != SEMEL_OK)
		goto free_effects;
	if (effects->count == 0) {
		status = semel_error_set(error, SEMEL_INVALID,
					 "the SQL handler contains no statement");
		goto free_effects;
	}
	semel_pg_effects_free(store->effects);
	store->effects = effects;
	return SEMEL_OK;

free_effects:
	semel_pg_effects_free(effects);
	return status;
}

/* Reads to the end of the pipeline. Answers arrive in the order of sending; after a failure, the
 * server skips the rest. */
static semel_status read_answers(PGconn *connection, semel_error *error)
{
	semel_status verdict = SEMEL_OK;
	bool more = true;
	while (more) {
		PGresult *result = semel_libpq.getResult(connection);
		ExecStatusType kind =
			result == NULL ? PGRES_COMMAND_OK : semel_libpq.resultStatus(result);
		more = result == NULL ? semel_libpq.status(connection) == CONNECTION_OK
				      : kind != PGRES_PIPELINE_SYNC;
		if (kind == PGRES_FATAL_ERROR && verdict == SEMEL_OK)
			verdict = verdict_on(connection, result, error);
		semel_libpq.clear(result);
	}
	return verdict;
}

semel_status semel_pg_effects_collect(struct semel_pg_store *store, semel_error *error)
{
	PGconn *connection = store->connection;
	semel_status verdict = SEMEL_OK;
	if (store->unread_effects > 0)
		verdict = semel_libpq.pipelineSync(connection) == 1
				  ? read_answers(connection, error)
				  : semel_pg_error(connection, NULL, "run the SQL handler", error);
	store->unread_effects = 0;
	bool has_left = semel_libpq.pipelineStatus(connection) == PQ_PIPELINE_OFF ||
			semel_libpq.exitPipelineMode(connection) != 0;
	if (verdict != SEMEL_OK || has_left)
		return verdict;
	return semel_pg_error(connection, NULL, "run the SQL handler", error);
}

static semel_status send_effect(struct semel_pg_store *store, const struct effect *effect,
				const struct values *values, semel_error *error)
{
	PGconn *connection = store->connection;
	struct semel_pg_params params = { 0 };
	if (store->unread_effects == 0 && semel_libpq.enterPipelineMode(connection) == 0)
		return semel_pg_error(connection, NULL, "run the SQL handler", error);
	add_values(&params, &effect->statement, values);
	int sent = semel_libpq.sendQueryPrepared(connection, effect->name, params.count,
						 params.values, params.lengths, params.formats, 0);
	semel_pg_params_free(&params);
	store->unread_effects++;
	return sent == 1 ? SEMEL_OK
			 : semel_pg_error(connection, NULL, "run the SQL handler", error);
}

/* A deferred constraint would fail only at the commit, for the whole batch. If each event has a
 * savepoint, the constraint is checked while it is known which event violates it. */
static semel_status check_deferred(struct semel_pg_store *store, semel_error *error)
{
	static const char check[] = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED";
	return verdict_of(
		semel_pg_execute_plain(store->connection, check, "run the SQL handler", error),
		error);
}

semel_status semel_pg_effect_run(semel_store *base, const struct semel_event *event,
				 uint32_t attempt, semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	struct semel_pg_effects *effects = store->effects;
	semel_status status =
		semel_pg_require_transaction(semel_pg_tx(base), "run the SQL handler", error);
	if (status != SEMEL_OK)
		return status;
	if (effects == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no SQL handler was prepared");
	const struct values values = { .event = event,
				       .attempt = attempt,
				       .arena = effects->arena };
	for (size_t i = 0; i < effects->count && status == SEMEL_OK; i++)
		status = send_effect(store, &effects->list[i], &values, error);
	semel_arena_reset(effects->arena);
	if (status != SEMEL_OK || !store->savepoint_open)
		return status;
	status = semel_pg_effects_collect(store, error);
	if (status != SEMEL_OK)
		return status;
	return check_deferred(store, error);
}

/* ---- upcasters ------------------------------------------------------------------------------- */

static semel_status evaluate_statement(PGconn *connection,
				       const struct semel_pg_user_statement *statement,
				       const struct values *values, struct semel_text *value_out,
				       semel_error *error)
{
	struct semel_pg_params params = { 0 };
	add_values(&params, statement, values);
	PGresult *result =
		semel_libpq.execParams(connection, statement->sql.data, params.count, NULL,
				       params.values, params.lengths, params.formats, 0);
	semel_pg_params_free(&params);
	if (!is_fine(result))
		return verdict_of(answer_of(connection, result, "evaluate SQL", error), error);
	if (semel_pg_rows(result) > 0)
		*value_out = semel_pg_text(result, 0, 0, values->arena);
	semel_libpq.clear(result);
	return SEMEL_OK;
}

semel_status semel_pg_evaluate(semel_store *store, const char *expression,
			       const struct semel_event *event, struct semel_arena *arena,
			       struct semel_text *value_out, semel_error *error)
{
	const struct values values = { .event = event, .arena = arena };
	struct semel_pg_user_statement statement = { 0 };
	const char *rest = NULL;
	*value_out = (struct semel_text){ NULL, 0 };
	char *sql = semel_arena_printf(arena, "SELECT (%s\n)", expression);
	if (sql == NULL)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for an SQL expression");
	semel_status status = semel_pg_effects_collect(semel_pg_of(store), error);
	if (status != SEMEL_OK)
		goto free_statement;
	status = semel_pg_user_statement_read(sql, &statement, &rest, error);
	if (status != SEMEL_OK)
		goto free_statement;
	if (*rest != '\0')
		status = semel_error_set(error, SEMEL_INVALID,
					 "expected one SQL expression, not a statement: %s",
					 expression);
	if (status != SEMEL_OK)
		goto free_statement;
	status = evaluate_statement(semel_pg_of(store)->connection, &statement, &values, value_out,
				    error);

free_statement:
	semel_pg_user_statement_free(&statement);
	return status;
}
