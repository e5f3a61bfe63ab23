/* SPDX-License-Identifier: Apache-2.0 */
/* Reading SQL that a user wrote: where a statement ends, what it begins with, and where it names a
 * parameter. Quotes, comments, dollar quotes and casts are left alone. */
#ifndef SEMEL_STORE_POSTGRES_SQL_TEXT_H
#define SEMEL_STORE_POSTGRES_SQL_TEXT_H

#include "base/buffer.h"

#include <semel/status.h>

#define SEMEL_PG_PLACEHOLDERS_MAX 24

enum semel_pg_parameter {
	SEMEL_PG_P_ID,
	SEMEL_PG_P_TYPE,
	SEMEL_PG_P_AGGREGATE_TYPE,
	SEMEL_PG_P_AGGREGATE_ID,
	SEMEL_PG_P_TOPIC,
	SEMEL_PG_P_PAYLOAD,
	SEMEL_PG_P_HEADERS,
	SEMEL_PG_P_TIME,
	SEMEL_PG_P_ATTEMPT,
	SEMEL_PG_P_FLOW,
	SEMEL_PG_P_COUNT
};

/* One statement with $1, $2, … in place of :id, …; each occurrence has its own number, so that the
 * server infers its type separately. */
struct semel_pg_user_statement {
	struct semel_buffer sql;
	char keyword[16]; /* the first word, in upper case; empty: there is no statement */
	enum semel_pg_parameter placeholders[SEMEL_PG_PLACEHOLDERS_MAX];
	int placeholder_count;
};

/* Reads the first statement of sql; *rest_out is what follows its semicolon. INVALID for an unknown
 * parameter, naming the nearest known one, and for statements that would end or begin a
 * transaction. Free the statement also after a failure. */
semel_status semel_pg_user_statement_read(const char *sql,
					  struct semel_pg_user_statement *statement_out,
					  const char **rest_out, semel_error *error);
void semel_pg_user_statement_free(struct semel_pg_user_statement *statement);

#endif
