/* SPDX-License-Identifier: Apache-2.0 */
/* Text with a length. The data is always followed by a NUL that does not count; a text may contain
 * bytes of any value, and a text from outside may contain a NUL. data NULL: there is no text.
 *
 * The bytes are unsigned, so that the compiler does not accept a text as a C string: strcmp,
 * strncmp, strstr, strlen and similar functions would stop at the first NUL, and are refused
 * (-Werror=pointer-sign). Compare with semel_text_equal and semel_text_equals_string, search with
 * semel_text_find; a conversion says which type is needed: semel_text_chars (with the length),
 * semel_text_string (our own words), semel_text_to_string (from outside), semel_text_shown (in a
 * message). scripts/check-texts checks this.
 *
 * This is the lowest room: base includes base only, and knows nothing of events, stores or brokers.
 * To change here: anything that is useful without those words. Time and randomness are read
 * here (env.h) and nowhere else. */
#ifndef SEMEL_BASE_TEXT_H
#define SEMEL_BASE_TEXT_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The check finds C strings where the compiler is lenient (an argument for %s):
 * scripts/check-texts. */
#ifdef SEMEL_CHECK_TEXTS
typedef short semel_byte;
#else
typedef unsigned char semel_byte;
#endif

struct semel_text {
	const semel_byte *data;
	size_t length;
};

#define SEMEL_TEXT(literal) ((struct semel_text)SEMEL_TEXT_CONST(literal))

/* The same where a constant is required. */
#define SEMEL_TEXT_CONST(literal)                                                                  \
	{                                                                                          \
		(const semel_byte *)("" literal), sizeof(literal) - 1                              \
	}

/* length bytes at data, in place; data NULL: no text. The caller guarantees the NUL after them. */
static inline struct semel_text semel_text_from(const void *data, size_t length)
{
	return (struct semel_text){ data, length };
}

/* string may be NULL. */
static inline struct semel_text semel_text_of(const char *string)
{
	return semel_text_from(string, string ? strlen(string) : 0);
}

/* The bytes for an interface that takes them with their length (libpq, SQLite, jansson, "%.*s").
 * Never for a C string function. */
static inline const char *semel_text_chars(struct semel_text text)
{
	return (const char *)text.data;
}

/* True if the text contains a NUL, so that it would be cut as a C string. */
static inline bool semel_text_has_nul(struct semel_text text)
{
	return text.data && text.length > 0 && memchr(text.data, '\0', text.length) != NULL;
}

/* The C string of a text that is known to contain no NUL: one of our own, or one that was checked
 * before (as semel_event_check does with an event's names). */
static inline const char *semel_text_string(struct semel_text text)
{
	assert(!semel_text_has_nul(text));
	return (const char *)text.data;
}

/* The C string of a text from outside. NULL: there is no text, or it contains a NUL; the caller
 * refuses it with an error. */
static inline const char *semel_text_to_string(struct semel_text text)
{
	return semel_text_has_nul(text) ? NULL : (const char *)text.data;
}

/* The C string for a message or a log line: cut at a NUL, so it must not be compared. data NULL
 * stays NULL. */
static inline const char *semel_text_shown(struct semel_text text)
{
	return (const char *)text.data;
}

static inline const char *semel_text_shown_or(struct semel_text text, const char *instead)
{
	return text.data ? (const char *)text.data : instead;
}

/* Two missing texts (data NULL) are equal. */
static inline bool semel_text_equal(struct semel_text left, struct semel_text right)
{
	if (!left.data || !right.data)
		return left.data == right.data;
	return left.length == right.length && memcmp(left.data, right.data, left.length) == 0;
}

/* string is one of our own, often a literal; a missing text equals no string. */
static inline bool semel_text_equals_string(struct semel_text text, const char *string)
{
	return text.data && text.length == strlen(string) &&
	       memcmp(text.data, string, text.length) == 0;
}

static inline bool semel_text_starts_with(struct semel_text text, const char *prefix)
{
	size_t length = strlen(prefix);
	return text.data && text.length >= length && memcmp(text.data, prefix, length) == 0;
}

/* ASCII letters of either case are the same. */
bool semel_text_equals_caseless(struct semel_text text, const char *string);
/* Where the needle begins, or NULL; an empty needle is never found. */
static inline const semel_byte *semel_text_find(struct semel_text text, struct semel_text needle)
{
	if (!text.data || !needle.data || needle.length == 0)
		return NULL;
	return memmem(text.data, text.length, needle.data, needle.length);
}

/* NULL, empty, or nothing but white space. */
bool semel_text_is_blank(struct semel_text text);
bool semel_string_is_blank(const char *string);
/* Strict UTF-8 (no surrogates, no overlong forms); NUL bytes are allowed. */
bool semel_text_is_utf8(struct semel_text text);
/* The length of the UTF-8 character at the start of left bytes; 0 if they do not start with one. */
size_t semel_utf8_length(const unsigned char *at, size_t left);
/* At least one control character (below 0x20, or 0x7f). */
bool semel_text_has_control(struct semel_text text);
/* An HTTP token: what a header's name may be. */
bool semel_text_is_token(struct semel_text text);
/* The candidate nearest to word by edit distance, or NULL when none is near. */
const char *semel_text_nearest(const char *word, const char *const *candidates, size_t count);
/* True if the string at this index also occurs at an earlier index. */
bool semel_string_is_repeated(const char *const *strings, size_t at);
/* The whole string is a decimal number within the bounds. */
bool semel_text_to_int64(const char *string, long long min, long long max, long long *number_out);

#endif
