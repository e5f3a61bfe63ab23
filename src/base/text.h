/* SPDX-License-Identifier: Apache-2.0 */
/* Text with a length. The data is always followed by a NUL that does not count, so that it can be
 * handed to C functions; a text may hold bytes of any value. data NULL: there is none. */
#ifndef SEMEL_BASE_TEXT_H
#define SEMEL_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct semel_text {
	const char *data;
	size_t length;
};

#define SEMEL_TEXT(literal) ((struct semel_text){ (literal), sizeof(literal) - 1 })

/* The same where a constant is wanted. */
#define SEMEL_TEXT_CONST(literal)                                                                  \
	{                                                                                          \
		(literal), sizeof(literal) - 1                                                     \
	}

/* string may be NULL. */
struct semel_text semel_text_of(const char *string);
bool semel_text_equal(struct semel_text left, struct semel_text right);
/* NULL, empty, or nothing but white space. */
bool semel_text_is_blank(struct semel_text text);
bool semel_string_is_blank(const char *string);
/* Strict UTF-8 (no surrogates, no overlong forms); zero bytes are allowed. */
bool semel_text_is_utf8(struct semel_text text);
/* The length of the UTF-8 character at the start of left bytes; 0 when it is none. */
size_t semel_utf8_length(const unsigned char *at, size_t left);
/* At least one control character (below 0x20, or 0x7f). */
bool semel_text_has_control(struct semel_text text);
/* An HTTP token: what a header's name may be. */
bool semel_text_is_token(struct semel_text text);
/* The candidate nearest to word by edit distance, or NULL when none is near. */
const char *semel_text_nearest(const char *word, const char *const *candidates, size_t count);
/* The string at this place of the list stands there before, too. */
bool semel_string_is_repeated(const char *const *strings, size_t at);
/* The whole string is a decimal number within the bounds. */
bool semel_text_to_int64(const char *string, long long min, long long max, long long *number_out);

#endif
