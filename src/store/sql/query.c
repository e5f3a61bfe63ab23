/* SPDX-License-Identifier: Apache-2.0 */
/* A query: values in, rows out, one status for all of it; and large tables, which an engine that
 * gets all rows at once reads page by page along a key, so that neither memory nor an open snapshot
 * grows with the table. */
#include "store/sql/sql.h"

#include "base/error.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

void semel_sql_prepare(struct semel_sql_query *query, semel_tx tx,
		       const struct semel_sql_statement *statement, semel_error *error)
{
	assert(statement->text[tx.driver->sql->dialect] != NULL);
	query->engine = tx.driver->sql;
	query->rows = (struct semel_sql_rows){ .tx = tx, .statement = statement };
	query->count = 0;
	query->running = false;
	query->status = SEMEL_OK;
	query->error = error;
	if (statement->in_transaction)
		query->status = query->engine->require_transaction(tx, statement->what, error);
}

void semel_sql_translate(struct semel_buffer *buffer, const char *sql, char mark)
{
	while (*sql != '\0') {
		size_t length = strcspn(sql, "?'\"`");
		semel_buffer_append(buffer, sql, length);
		sql += length;
		if (*sql == '?') {
			bool numbered = isdigit((unsigned char)sql[1]);
			semel_buffer_append(buffer, numbered ? &mark : sql, 1);
			sql++;
		} else if (*sql != '\0') {
			const char *end = strchr(sql + 1, *sql);
			length = end != NULL ? (size_t)(end - sql) + 1 : strlen(sql);
			semel_buffer_append(buffer, sql, length);
			sql += length;
		}
	}
}

static struct semel_sql_value *add(struct semel_sql_query *query, enum semel_sql_type type)
{
	assert(query->count < SEMEL_SQL_VALUES_MAX && !query->running);
	struct semel_sql_value *value = &query->values[query->count++];
	*value = (struct semel_sql_value){ .type = type };
	return value;
}

void semel_sql_bind_text(struct semel_sql_query *query, struct semel_text text)
{
	add(query, SEMEL_SQL_TEXT)->text = text;
}

void semel_sql_bind_any_text(struct semel_sql_query *query, struct semel_text text)
{
	add(query, SEMEL_SQL_ANY_TEXT)->text = text;
}

void semel_sql_bind_bytes(struct semel_sql_query *query, struct semel_text bytes)
{
	add(query, SEMEL_SQL_BYTES)->text = bytes;
}

void semel_sql_bind_string(struct semel_sql_query *query, const char *string)
{
	add(query, SEMEL_SQL_TEXT)->text = semel_text_of(string);
}

void semel_sql_bind_int(struct semel_sql_query *query, int64_t number)
{
	add(query, SEMEL_SQL_INT)->number = number;
}

void semel_sql_bind_bool(struct semel_sql_query *query, bool value)
{
	add(query, SEMEL_SQL_BOOL)->number = value;
}

void semel_sql_bind_time(struct semel_sql_query *query, int64_t time_ms)
{
	add(query, SEMEL_SQL_TIME)->number = time_ms;
}

void semel_sql_bind_lease(struct semel_sql_query *query, int64_t time_ms)
{
	bool converts = query->engine->to_server_ms != NULL;
	add(query, SEMEL_SQL_TIME)->number =
		converts ? query->engine->to_server_ms(query->rows.tx, time_ms) : time_ms;
}

static void run(struct semel_sql_query *query)
{
	if (query->status != SEMEL_OK || query->running)
		return;
	query->running = true;
	query->status = query->engine->run(&query->rows, query->values, query->count, query->error);
}

bool semel_sql_next(struct semel_sql_query *query)
{
	bool row = false;
	run(query);
	if (query->status != SEMEL_OK)
		return false;
	query->status = query->engine->next(&query->rows, &row, query->error);
	return row;
}

void semel_sql_stop(struct semel_sql_query *query, semel_status status)
{
	if (query->status != SEMEL_OK)
		return;
	query->status = status;
}

semel_status semel_sql_finish(struct semel_sql_query *query)
{
	run(query);
	if (!query->running)
		return query->status;
	bool failed = query->status != SEMEL_OK;
	semel_status status = query->engine->finish(&query->rows, failed ? NULL : query->error);
	query->running = false;
	return failed ? query->status : status;
}

uint64_t semel_sql_changes(const struct semel_sql_query *query)
{
	return query->rows.changes;
}

bool semel_sql_is_null(const struct semel_sql_query *query, int column)
{
	return query->engine->is_null(&query->rows, column);
}

struct semel_text semel_sql_peek(const struct semel_sql_query *query, int column)
{
	return query->engine->peek(&query->rows, column);
}

struct semel_text semel_sql_text(const struct semel_sql_query *query, int column,
				 struct semel_arena *arena)
{
	return query->engine->text(&query->rows, column, arena);
}

struct semel_text semel_sql_bytes(const struct semel_sql_query *query, int column, int raw,
				  struct semel_arena *arena)
{
	return query->engine->bytes ? query->engine->bytes(&query->rows, column, raw, arena)
				    : query->engine->text(&query->rows, column, arena);
}

int64_t semel_sql_int(const struct semel_sql_query *query, int column)
{
	return query->engine->integer(&query->rows, column);
}

bool semel_sql_bool(const struct semel_sql_query *query, int column)
{
	return query->engine->boolean(&query->rows, column);
}

int64_t semel_sql_time(const struct semel_sql_query *query, int column)
{
	return query->engine->time(&query->rows, column);
}

int64_t semel_sql_lease(const struct semel_sql_query *query, int column)
{
	int64_t time_ms = semel_sql_time(query, column);
	return query->engine->to_local_ms ? query->engine->to_local_ms(query->rows.tx, time_ms)
					  : time_ms;
}

void semel_sql_copy(const struct semel_sql_query *query, int column, char *out, size_t size)
{
	struct semel_text text = semel_sql_peek(query, column);
	snprintf(out, size, "%s", text.data == NULL ? "" : semel_text_shown(text));
}

semel_status semel_sql_exists(struct semel_sql_query *query, bool *exists_out)
{
	*exists_out = semel_sql_next(query);
	return semel_sql_finish(query);
}

uint64_t semel_sql_payload_size(struct semel_sql_query *query, int column)
{
	return query->engine->payload_size ? query->engine->payload_size(&query->rows, column)
					   : (uint64_t)semel_sql_int(query, column);
}

semel_status semel_sql_enter(semel_store *store, bool *entered_out, semel_error *error)
{
	*entered_out = false;
	if (store->driver->in_transaction(store->driver->tx(store)))
		return SEMEL_OK;
	semel_status status = store->driver->begin(store, error);
	*entered_out = status == SEMEL_OK;
	return status;
}

semel_status semel_sql_leave(semel_store *store, bool entered, semel_status status,
			     semel_error *error)
{
	if (!entered)
		return status;
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	return store->driver->commit(store, error);
}

/* ---- pages ----------------------------------------------------------------------------------- */

void semel_sql_page_start(struct semel_sql_page *page)
{
	*page = (struct semel_sql_page){ 0 };
}

/* Empty, not NULL, at the start. */
static struct semel_text key_of(const struct semel_buffer *key)
{
	return key->data == NULL ? SEMEL_TEXT("") : semel_buffer_text(key);
}

void semel_sql_page_bind(struct semel_sql_query *query, struct semel_sql_page *page)
{
	page->rows = 0;
	if (query->engine->page_rows == 0)
		return;
	semel_sql_bind_text(query, key_of(&page->key));
	semel_sql_bind_text(query, key_of(&page->second_key));
	semel_sql_bind_int(query, query->engine->page_rows);
}

static void keep_key(struct semel_buffer *key, struct semel_text text)
{
	semel_buffer_clear(key);
	semel_buffer_append(key, semel_text_chars(text), text.length);
}

bool semel_sql_page_next(struct semel_sql_query *query, struct semel_sql_page *page, int key_column)
{
	if (!semel_sql_next(query))
		return false;
	if (++page->rows != query->engine->page_rows)
		return true;
	keep_key(&page->key, semel_sql_peek(query, key_column));
	keep_key(&page->second_key, semel_sql_peek(query, key_column + 1));
	if (page->key.failed || page->second_key.failed)
		semel_sql_stop(query, semel_error_set(query->error, SEMEL_INTERNAL,
						      "out of memory for a table"));
	return query->status == SEMEL_OK;
}

bool semel_sql_page_is_full(const struct semel_sql_query *query, const struct semel_sql_page *page)
{
	return query->engine->page_rows != 0 && page->rows == query->engine->page_rows;
}

void semel_sql_page_end(struct semel_sql_page *page)
{
	semel_buffer_free(&page->key);
	semel_buffer_free(&page->second_key);
}

/* Passes the rows on directly: nothing is copied, since there may be millions. */
static semel_status visit_page(struct semel_sql_query *query, struct semel_sql_page *page,
			       semel_id_visitor visit, void *user)
{
	while (semel_sql_page_next(query, page, 4))
		semel_sql_stop(query,
			       visit(semel_sql_peek(query, 0),
				     semel_text_string(semel_sql_peek(query, 1)),
				     semel_sql_peek(query, 2), semel_sql_time(query, 3), user));
	return semel_sql_finish(query);
}

semel_status semel_sql_ids_each(semel_store *store, const struct semel_sql_statement *statement,
				struct semel_text scope, semel_id_visitor visit, void *user,
				semel_error *error)
{
	struct semel_sql_query query;
	struct semel_sql_page page;
	semel_status status = SEMEL_OK;
	semel_sql_page_start(&page);
	do {
		semel_sql_prepare(&query, store->driver->tx(store), statement, error);
		if (scope.data != NULL || query.engine->page_rows != 0)
			semel_sql_bind_text(&query, scope);
		semel_sql_page_bind(&query, &page);
		status = visit_page(&query, &page, visit, user);
	} while (status == SEMEL_OK && semel_sql_page_is_full(&query, &page));
	semel_sql_page_end(&page);
	return status;
}
