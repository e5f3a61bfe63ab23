/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer. A failed allocation is remembered in `failed`, so that a chain of appends
 * is checked once at its end. The data is always NUL-terminated. */
#ifndef SEMEL_BASE_BUFFER_H
#define SEMEL_BASE_BUFFER_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

struct semel_buffer {
	char *data;
	size_t length, capacity;
	bool failed;
};

void semel_buffer_append(struct semel_buffer *buffer, const void *data, size_t length);
void semel_buffer_string(struct semel_buffer *buffer, const char *string);
void semel_buffer_printf(struct semel_buffer *buffer, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* As a quoted JSON string; bytes that are not UTF-8 become U+FFFD. */
void semel_buffer_json(struct semel_buffer *buffer, struct semel_text text);
/* As a quoted JSON string, or null when there is no text. */
void semel_buffer_json_or_null(struct semel_buffer *buffer, struct semel_text text);
/* For a terminal: control characters except line breaks and tabs, and those that change the
 * direction of writing, become \uXXXX; bytes that are not UTF-8 become U+FFFD. JSON stays the same
 * JSON, since it has such characters in strings only. */
void semel_buffer_visible(struct semel_buffer *buffer, struct semel_text text);
void semel_buffer_base64(struct semel_buffer *buffer, const void *data, size_t length);
struct semel_text semel_buffer_text(const struct semel_buffer *buffer);
/* Empties the buffer, and keeps its memory. */
void semel_buffer_clear(struct semel_buffer *buffer);
void semel_buffer_free(struct semel_buffer *buffer);

/* The value of a Base64 character (RFC 4648, section 4); -1: it is not one. */
static inline int semel_base64_digit(unsigned char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

#endif
