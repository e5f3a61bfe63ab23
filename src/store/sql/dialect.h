/* SPDX-License-Identifier: Apache-2.0 */
/* What the dialects of SQL spell differently. The macros of a dialect begin with its name, so that
 * TEXT(D) of SEMEL_SQL_EACH, which is expanded once for each dialect D, writes D##_MS("due_at").
 *
 * A dialect is added with its value of the enum, its line in SEMEL_SQL_WITH_EACH, and a block of
 * these macros; the compiler names those that are missing. The statements that are not made from
 * one text then need one for it: semel_sql_prepare asserts that they have it.
 *
 * To change here: spellings that statements of this folder need. What only one driver needs is
 * written there.
 */
#ifndef SEMEL_STORE_SQL_DIALECT_H
#define SEMEL_STORE_SQL_DIALECT_H

enum semel_sql_dialect { SEMEL_SQL_SQLITE, SEMEL_SQL_POSTGRES, SEMEL_SQL_DIALECTS };

#define SEMEL_SQL_WITH_EACH(TEXT, argument)                                                        \
	{                                                                                          \
		[SEMEL_SQL_SQLITE] = TEXT(SEMEL_SQL_SQLITE, argument),                             \
		[SEMEL_SQL_POSTGRES] = TEXT(SEMEL_SQL_POSTGRES, argument),                         \
	}

/* A text for each dialect: TEXT(D), or the same text, in SQL that all of them understand. That
 * means: no alias for the table of an INSERT or DELETE; a parameter is cast where its use does not
 * tell its type; an UPDATE sets a column after those whose new value is made from its old one. */
#define SEMEL_SQL_EACH(TEXT)             SEMEL_SQL_WITH_EACH(SEMEL_SQL_TEXT_OF, TEXT)
#define SEMEL_SQL_SAME(same)             SEMEL_SQL_WITH_EACH(SEMEL_SQL_TEXT_ITSELF, same)
#define SEMEL_SQL_TEXT_OF(D, TEXT)       TEXT(D)
#define SEMEL_SQL_TEXT_ITSELF(D, itself) (itself)

/* What every dialect has:
 *
 * MS(column)         a time, to be read with semel_sql_time
 * EARLIER(a, b)      the earlier of two times; b may be NULL
 * NAME(name)         a column whose name is a reserved word
 * AS_TEXT(value)     the value as a text, or a parameter that is one
 * LENGTH(text)       in characters
 * CONCAT(…)          two to eight texts or numbers as one text; NULL if one of them is NULL
 * LOCK, SKIP_LOCKED  at the end of a SELECT: locks its rows, those of others are waited for or left
 *                    out; empty where a transaction locks the database
 * INDEXED_BY(index)  after a table: the index that the planner would not choose
 * ON_CONFLICT(keys)  after an INSERT: what follows is what an existing row with the keys is set to,
 *                    where NEW(column) is the value of the INSERT, and the table's name before the
 *                    column that of the row
 * IGNORE(keys)       after an INSERT: an existing row with the keys, or with any if they are
 *                    empty, is left as it is
 * PAGE(text)         what only an engine with page_rows needs; in it, the dialect of such an engine
 *                    has AS_INT(value)
 * COMMITTED_AT(row)  when a row of the outbox was committed
 * OLD_CLAIM          true for a row of the inbox that is older than ?1, a Monday as a week_start
 */

/* Times are texts in the form of ISO 8601. */
#define SEMEL_SQL_SQLITE_MS(column)        column
#define SEMEL_SQL_SQLITE_EARLIER(a, b)     "min(" a ", coalesce(" b ", " a "))"
#define SEMEL_SQL_SQLITE_NAME(name)        "\"" name "\""
#define SEMEL_SQL_SQLITE_AS_TEXT(value)    "CAST(" value " AS text)"
#define SEMEL_SQL_SQLITE_LENGTH(text)      "length(" text ")"
#define SEMEL_SQL_SQLITE_CONCAT(...)       SEMEL_SQL_JOIN(" || ", __VA_ARGS__)
#define SEMEL_SQL_SQLITE_LOCK              ""
#define SEMEL_SQL_SQLITE_SKIP_LOCKED       ""
#define SEMEL_SQL_SQLITE_INDEXED_BY(index) " INDEXED BY " index
#define SEMEL_SQL_SQLITE_ON_CONFLICT(keys) " ON CONFLICT " keys " DO UPDATE SET "
#define SEMEL_SQL_SQLITE_NEW(column)       "excluded." column
#define SEMEL_SQL_SQLITE_IGNORE(keys)      " ON CONFLICT " keys " DO NOTHING"
#define SEMEL_SQL_SQLITE_PAGE(text)        ""
#define SEMEL_SQL_SQLITE_COMMITTED_AT(row) row ".committed_at"
/* A time of that day or later sorts after it. */
#define SEMEL_SQL_SQLITE_OLD_CLAIM "status <> 'CLAIMED' AND week_start < ?1 AND first_seen_at < ?1"

#define SEMEL_SQL_POSTGRES_MS(column)        "(date_part('epoch', " column ") * 1000)::bigint"
#define SEMEL_SQL_POSTGRES_EARLIER(a, b)     "least(" a ", " b ")"
#define SEMEL_SQL_POSTGRES_NAME(name)        "\"" name "\""
#define SEMEL_SQL_POSTGRES_AS_TEXT(value)    "CAST(" value " AS text)"
#define SEMEL_SQL_POSTGRES_AS_INT(value)     "CAST(" value " AS bigint)"
#define SEMEL_SQL_POSTGRES_LENGTH(text)      "length(" text ")"
#define SEMEL_SQL_POSTGRES_CONCAT(...)       SEMEL_SQL_JOIN(" || ", __VA_ARGS__)
#define SEMEL_SQL_POSTGRES_LOCK              " FOR UPDATE"
#define SEMEL_SQL_POSTGRES_SKIP_LOCKED       " FOR UPDATE SKIP LOCKED"
#define SEMEL_SQL_POSTGRES_INDEXED_BY(index) ""
#define SEMEL_SQL_POSTGRES_ON_CONFLICT(keys) " ON CONFLICT " keys " DO UPDATE SET "
#define SEMEL_SQL_POSTGRES_NEW(column)       "excluded." column
#define SEMEL_SQL_POSTGRES_IGNORE(keys)      " ON CONFLICT " keys " DO NOTHING"
#define SEMEL_SQL_POSTGRES_PAGE(text)        text
/* For a row older than the column: its own time, but not later than when the column was added. */
#define SEMEL_SQL_POSTGRES_COMMITTED_AT(row)                                                       \
	"coalesce(" row ".committed_at, least(" row ".created_at, (SELECT applied_at"              \
	" FROM semel_schema WHERE version = 6)))"
#define SEMEL_SQL_POSTGRES_WEEK "(?1::date::timestamp AT TIME ZONE 'UTC')"
#define SEMEL_SQL_POSTGRES_OLD_CLAIM                                                               \
	"status <> 'CLAIMED' AND week_start < ?1::date"                                            \
	" AND first_seen_at < " SEMEL_SQL_POSTGRES_WEEK

/* ---- for all dialects ------------------------------------------------------------------------ */

/* A text that is cut to so many characters. */
#define SEMEL_SQL_CUT(D, text, size)                                                               \
	"CASE WHEN " D##_LENGTH(text) " > " size " THEN " D##_CONCAT(                              \
		"substr(" text ", 1, " size ")", "'…'") " ELSE " text " END"

/* Two to eight texts with another between them. */

// clang-format off
#define SEMEL_SQL_JOIN(with, ...)                                                                  \
	SEMEL_SQL_NINTH(__VA_ARGS__, SEMEL_SQL_JOIN8, SEMEL_SQL_JOIN7, SEMEL_SQL_JOIN6,            \
			SEMEL_SQL_JOIN5, SEMEL_SQL_JOIN4, SEMEL_SQL_JOIN3, SEMEL_SQL_JOIN2, )      \
	(with, __VA_ARGS__)
#define SEMEL_SQL_NINTH(a, b, c, d, e, f, g, h, ninth, ...) ninth
#define SEMEL_SQL_JOIN2(with, a, b)   a with b
#define SEMEL_SQL_JOIN3(with, a, ...) a with SEMEL_SQL_JOIN2(with, __VA_ARGS__)
#define SEMEL_SQL_JOIN4(with, a, ...) a with SEMEL_SQL_JOIN3(with, __VA_ARGS__)
#define SEMEL_SQL_JOIN5(with, a, ...) a with SEMEL_SQL_JOIN4(with, __VA_ARGS__)
#define SEMEL_SQL_JOIN6(with, a, ...) a with SEMEL_SQL_JOIN5(with, __VA_ARGS__)
#define SEMEL_SQL_JOIN7(with, a, ...) a with SEMEL_SQL_JOIN6(with, __VA_ARGS__)
#define SEMEL_SQL_JOIN8(with, a, ...) a with SEMEL_SQL_JOIN7(with, __VA_ARGS__)
// clang-format on

#endif
