/* SPDX-License-Identifier: Apache-2.0 */
/* SQL that an operator wrote: parameters are found where PostgreSQL sees code, and nowhere else;
 * what begins or ends a transaction is refused however it is written. A second reader, made from
 * PostgreSQL's lexical rules token by token, has to agree. */
#include "base/buffer.h"
#include "store/postgres/sql_text.h"

#include "fuzz.h"

#include <ctype.h>

enum kind { SPACE, COMMENT, QUOTED, WORD, PARAMETER, SEMICOLON, OTHER };

static bool is_letter(char c)
{
	return isalpha((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

static bool goes_on(char c)
{
	return is_letter(c) || isdigit((unsigned char)c);
}

static size_t string_length(const char *text, size_t at, bool escapes);

/* A string that is followed by white space with a line break in it, and by another quote,
 * continues there by the same rules; line comments may stand between. */
static size_t continuation(const char *text, size_t at, bool escapes)
{
	size_t end = at;
	bool broken = false;
	for (;;) {
		if (text[end] != '\0' && strchr(" \t\f\n\r", text[end])) {
			broken = broken || text[end] == '\n' || text[end] == '\r';
			end++;
		} else if (text[end] == '-' && text[end + 1] == '-') {
			end += strcspn(text + end, "\n\r");
		} else {
			break;
		}
	}
	return broken && text[end] == '\'' ? string_length(text, end + 1, escapes) : at;
}

/* Where the string ends whose opening quote is just before at. */
static size_t string_length(const char *text, size_t at, bool escapes)
{
	while (text[at] != '\0') {
		if (escapes && text[at] == '\\' && text[at + 1] != '\0')
			at += 2;
		else if (text[at] == '\'' && text[at + 1] == '\'')
			at += 2;
		else if (text[at] == '\'')
			return escapes ? continuation(text, at + 1, escapes) : at + 1;
		else
			at++;
	}
	return at;
}

static size_t comment_length(const char *text)
{
	size_t at = 2, depth = 1;
	while (text[at] != '\0' && depth > 0) {
		if (strncmp(text + at, "/*", 2) == 0) {
			depth++;
			at += 2;
		} else if (strncmp(text + at, "*/", 2) == 0) {
			depth--;
			at += 2;
		} else {
			at++;
		}
	}
	return at;
}

/* 0: no dollar quote begins here. */
static size_t dollar_length(const char *text)
{
	size_t tag = 1;
	if (text[tag] != '$' && !is_letter(text[tag]))
		return 0;
	while (goes_on(text[tag]))
		tag++;
	if (text[tag] != '$')
		return 0;
	char *quote = strndup(text, tag + 1);
	PROMISE(quote);
	const char *end = strstr(text + tag + 1, quote);
	free(quote);
	return end ? (size_t)(end - text) + tag + 1 : strlen(text);
}

static size_t word_length(const char *text)
{
	size_t length = 0;
	while (goes_on(text[length]) || (length > 0 && text[length] == '$'))
		length++;
	return length;
}

static size_t next_token(const char *text, enum kind *kind_out)
{
	static const char spaces[] = " \t\n\r\f\v";
	*kind_out = SPACE;
	if (strspn(text, spaces) > 0)
		return strspn(text, spaces);
	*kind_out = COMMENT;
	if (strncmp(text, "--", 2) == 0)
		return strcspn(text, "\n\r");
	if (strncmp(text, "/*", 2) == 0)
		return comment_length(text);
	*kind_out = QUOTED;
	if (text[0] == '\'')
		return string_length(text, 1, false);
	if ((text[0] == 'e' || text[0] == 'E') && text[1] == '\'')
		return string_length(text, 2, true);
	if (text[0] == '"')
		return 1 + strcspn(text + 1, "\"") + (strchr(text + 1, '"') ? 1 : 0);
	if (text[0] == '$' && dollar_length(text) > 0)
		return dollar_length(text);
	*kind_out = WORD;
	if (goes_on(text[0]))
		return word_length(text);
	*kind_out = OTHER;
	if (strncmp(text, "::", 2) == 0 || strncmp(text, ":=", 2) == 0)
		return 2;
	*kind_out = text[0] == ';' ? SEMICOLON : PARAMETER;
	if (text[0] == ':' && is_letter(text[1]))
		return 1 + word_length(text + 1);
	*kind_out = text[0] == ';' ? SEMICOLON : OTHER;
	return 1;
}

/* What the first statement has to become, its first word in capitals, and where the next begins. */
static size_t expect(const char *text, struct semel_buffer *wanted, char word_out[16], int *count)
{
	size_t at = 0;
	bool begun = false;
	enum kind kind = SPACE;
	while (text[at] != '\0') {
		size_t length = next_token(text + at, &kind);
		PROMISE(length > 0);
		if (kind == SEMICOLON)
			return at + 1;
		if (kind == COMMENT)
			semel_buffer_string(wanted, " ");
		else if (kind == PARAMETER)
			semel_buffer_printf(wanted, "$%d", ++*count);
		else
			semel_buffer_append(wanted, text + at, length);
		if (!begun && kind != SPACE && kind != COMMENT) {
			begun = true;
			for (size_t i = 0; kind == WORD && i < length && i < 15; i++)
				word_out[i] = (char)toupper((unsigned char)text[at + i]);
		}
		at += length;
	}
	return at;
}

static bool is_control(const char *word)
{
	static const char *const words[] = { "BEGIN", "START",   "COMMIT",  "END",  "ROLLBACK",
					     "ABORT", "RELEASE", "PREPARE", "COPY", "SAVEPOINT" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(words[i], word) == 0)
			return true;
	return false;
}

static void try_statement(const char *text, const char **next_out)
{
	struct semel_pg_user_statement statement;
	struct semel_buffer wanted = { 0 };
	semel_error error = { 0 };
	char word[16] = "";
	int count = 0;
	const char *rest = NULL;
	size_t next = expect(text, &wanted, word, &count);
	semel_status status = semel_pg_user_statement_read(text, &statement, &rest, &error);
	if (is_control(word))
		PROMISE(status == SEMEL_INVALID);
	if (status == SEMEL_OK) {
		PROMISE(rest == text + next);
		PROMISE(statement.placeholder_count == count);
		PROMISE(semel_text_equal(semel_buffer_text(&statement.sql),
					 semel_buffer_text(&wanted)));
	} else {
		PROMISE(status == SEMEL_INVALID && error.text[0] != '\0');
	}
	semel_pg_user_statement_free(&statement);
	semel_buffer_free(&wanted);
	*next_out = text + next;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = fuzz_copy(data, size);
	for (const char *at = copy; *at != '\0';)
		try_statement(at, &at);
	free(copy);
	return 0;
}
