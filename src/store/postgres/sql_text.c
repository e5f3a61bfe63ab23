/* SPDX-License-Identifier: Apache-2.0 */
/* Scans only as much of PostgreSQL's SQL as is needed to find statements and parameters. */
#include "store/postgres/sql_text.h"

#include "base/error.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static const char *const parameter_names[SEMEL_PG_P_COUNT] = {
	[SEMEL_PG_P_ID] = ":id",
	[SEMEL_PG_P_TYPE] = ":type",
	[SEMEL_PG_P_AGGREGATE_TYPE] = ":aggregate_type",
	[SEMEL_PG_P_AGGREGATE_ID] = ":aggregate_id",
	[SEMEL_PG_P_TOPIC] = ":topic",
	[SEMEL_PG_P_PAYLOAD] = ":payload",
	[SEMEL_PG_P_HEADERS] = ":headers",
	[SEMEL_PG_P_TIME] = ":time",
	[SEMEL_PG_P_ATTEMPT] = ":attempt",
	[SEMEL_PG_P_FLOW] = ":flow",
};

/* COPY would take over the connection; the other statements are reserved for Semel. */
static const char *const refused[] = { "BEGIN", "START",     "COMMIT",  "END",     "ROLLBACK",
				       "ABORT", "SAVEPOINT", "RELEASE", "PREPARE", "COPY" };

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

/* ---- skipped tokens; each function returns where one ends ------------------------------------ */

static const char *skip_line(const char *at)
{
	return at + strcspn(at, "\r\n");
}

static const char *skip_comment(const char *at)
{
	int depth = 0;
	do {
		bool opens = at[0] == '/' && at[1] == '*', closes = at[0] == '*' && at[1] == '/';
		depth += opens ? 1 : closes ? -1 : 0;
		at += opens || closes ? 2 : 1;
	} while (*at != '\0' && depth > 0);
	return at;
}

/* A doubled quote ends the string and begins the next one at once, so it needs no special case. */
static const char *skip_quoted(const char *at, bool escapes)
{
	char quote = *at++;
	while (*at != '\0' && *at != quote)
		at += escapes && at[0] == '\\' && at[1] != '\0' ? 2 : 1;
	return *at == '\0' ? at : at + 1;
}

/* The quote that continues a string on another line, or NULL: there may be white space with a line
 * break, and line comments, in between. */
static const char *find_continuation(const char *at)
{
	bool broken = false;
	for (;;) {
		size_t space = strspn(at, " \t\f\r\n");
		broken = broken || strcspn(at, "\r\n") < space;
		at += space;
		if (at[0] != '-' || at[1] != '-')
			return broken && *at == '\'' ? at : NULL;
		at = skip_line(at);
	}
}

/* E'…' and its continuation on other lines, where a backslash escapes, too. */
static const char *skip_escaped(const char *at)
{
	const char *end = skip_quoted(at, true), *more = at;
	while ((more = *end == '\'' ? end : find_continuation(end)) != NULL)
		end = skip_quoted(more, true);
	return end;
}

/* The end of "$tag$ … $tag$"; `at` itself if there is none. */
static const char *skip_dollars(const char *at)
{
	const char *end = at + 1;
	while (is_word(*end))
		end++;
	if (*end != '$' || isdigit((unsigned char)at[1]))
		return at;
	size_t length = (size_t)(end - at) + 1;
	for (end++; *end != '\0'; end++)
		if (strncmp(end, at, length) == 0)
			return end + length;
	return end;
}

/* ---- reading --------------------------------------------------------------------------------- */

static semel_status add_placeholder(struct semel_pg_user_statement *statement, const char *name,
				    size_t length, semel_error *error)
{
	char shown[64];
	size_t cut = length < sizeof(shown) - 1 ? length : sizeof(shown) - 1;
	memcpy(shown, name, cut);
	shown[cut] = '\0';
	int found = 0;
	while (found < SEMEL_PG_P_COUNT && strcmp(shown, parameter_names[found]) != 0)
		found++;
	if (found == SEMEL_PG_P_COUNT) {
		const char *near = semel_text_nearest(shown, parameter_names, SEMEL_PG_P_COUNT);
		return semel_error_set(
			error, SEMEL_INVALID,
			"unknown parameter %s in SQL (did you mean %s? there are :id "
			":type :aggregate_type :aggregate_id :topic :payload "
			":headers :time :attempt :flow)",
			shown, near == NULL ? ":id" : near);
	}
	if (statement->placeholder_count == SEMEL_PG_PLACEHOLDERS_MAX)
		return semel_error_set(error, SEMEL_INVALID,
				       "more than %d parameters in one SQL statement (split it)",
				       SEMEL_PG_PLACEHOLDERS_MAX);
	statement->placeholders[statement->placeholder_count++] = (enum semel_pg_parameter)found;
	semel_buffer_printf(&statement->sql, "$%d", statement->placeholder_count);
	return SEMEL_OK;
}

static void keep_keyword(struct semel_pg_user_statement *statement, const char *word, size_t length)
{
	if (statement->keyword[0] != '\0')
		return;
	for (size_t i = 0; i < length && i + 1 < sizeof(statement->keyword); i++)
		statement->keyword[i] = (char)toupper((unsigned char)word[i]);
}

static const char *word_end(const char *at)
{
	while (is_word(*at) || *at == '$')
		at++;
	return at;
}

/* The end of the token that begins at `at`; `at` itself: it is a single character. */
static const char *skip_token(const char *at)
{
	if (at[0] == '-' && at[1] == '-')
		return skip_line(at);
	if (at[0] == '/' && at[1] == '*')
		return skip_comment(at);
	if (at[0] == '\'' || at[0] == '"')
		return skip_quoted(at, false);
	if ((at[0] == 'e' || at[0] == 'E') && at[1] == '\'')
		return skip_escaped(at + 1);
	if (at[0] == '$')
		return skip_dollars(at);
	if (at[0] == ':' && (at[1] == ':' || at[1] == '='))
		return at + 2;
	return at;
}

static bool is_statement(char c)
{
	return c != '\0' && c != ';' && !isspace((unsigned char)c);
}

static semel_status scan(const char **at_in_out, struct semel_pg_user_statement *statement,
			 semel_error *error)
{
	const char *at = *at_in_out;
	semel_status status = SEMEL_OK;
	while (*at != '\0' && *at != ';' && status == SEMEL_OK) {
		const char *end = skip_token(at);
		bool comment = end != at && (*at == '-' || *at == '/');
		bool named = end == at && at[0] == ':' && is_word(at[1]) &&
			     !isdigit((unsigned char)at[1]);
		if (end == at)
			end = is_word(*at) || named ? word_end(at + 1) : at + 1;
		if (!comment && is_statement(*at))
			keep_keyword(statement, at, (size_t)(end - at));
		if (named)
			status = add_placeholder(statement, at, (size_t)(end - at), error);
		else if (comment)
			semel_buffer_string(&statement->sql, " ");
		else
			semel_buffer_append(&statement->sql, at, (size_t)(end - at));
		at = end;
	}
	*at_in_out = *at == ';' ? at + 1 : at;
	return status;
}

static semel_status refuse_control(const struct semel_pg_user_statement *statement,
				   semel_error *error)
{
	for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (strcmp(statement->keyword, refused[i]) == 0)
			return semel_error_set(error, SEMEL_INVALID,
					       "%s is not allowed here (Semel begins and ends the "
					       "transaction)",
					       refused[i]);
	return SEMEL_OK;
}

semel_status semel_pg_user_statement_read(const char *sql,
					  struct semel_pg_user_statement *statement_out,
					  const char **rest_out, semel_error *error)
{
	*statement_out = (struct semel_pg_user_statement){ 0 };
	*rest_out = sql;
	semel_status status = scan(rest_out, statement_out, error);
	if (status != SEMEL_OK)
		return status;
	if (statement_out->sql.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an SQL statement");
	return refuse_control(statement_out, error);
}

void semel_pg_user_statement_free(struct semel_pg_user_statement *statement)
{
	semel_buffer_free(&statement->sql);
}
