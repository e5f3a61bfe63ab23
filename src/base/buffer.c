/* SPDX-License-Identifier: Apache-2.0 */
/* A growing byte buffer, and the encodings that are written into it. */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `more` bytes and the NUL. */
static bool reserve(struct semel_buffer *buffer, size_t more)
{
	if (buffer->failed)
		return false;
	if (more < SIZE_MAX - buffer->length && buffer->length + more < buffer->capacity)
		return true;
	size_t capacity = buffer->capacity ? buffer->capacity : 128;
	while (more >= SIZE_MAX / 2 - buffer->length || capacity <= buffer->length + more) {
		if (more >= SIZE_MAX / 2 - buffer->length || capacity > SIZE_MAX / 2) {
			buffer->failed = true;
			return false;
		}
		capacity *= 2;
	}
	char *data = realloc(buffer->data, capacity);
	if (!data) {
		buffer->failed = true;
		return false;
	}
	buffer->data = data;
	buffer->capacity = capacity;
	return true;
}

void semel_buffer_append(struct semel_buffer *buffer, const void *data, size_t length)
{
	if (!reserve(buffer, length))
		return;
	if (length > 0)
		memcpy(buffer->data + buffer->length, data, length);
	buffer->length += length;
	buffer->data[buffer->length] = '\0';
}

void semel_buffer_string(struct semel_buffer *buffer, const char *string)
{
	semel_buffer_append(buffer, string, strlen(string));
}

void semel_buffer_printf(struct semel_buffer *buffer, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	if (length < 0) {
		buffer->failed = true;
		return;
	}
	if (!reserve(buffer, (size_t)length))
		return;
	va_start(arguments, format);
	vsnprintf(buffer->data + buffer->length, (size_t)length + 1, format, arguments);
	va_end(arguments);
	buffer->length += (size_t)length;
}

/* The two-character escape of c, or NULL when it has none. */
static const char *short_escape(unsigned char c)
{
	switch (c) {
	case '"':
		return "\\\"";
	case '\\':
		return "\\\\";
	case '\b':
		return "\\b";
	case '\f':
		return "\\f";
	case '\n':
		return "\\n";
	case '\r':
		return "\\r";
	case '\t':
		return "\\t";
	default:
		return NULL;
	}
}

static void append_escaped(struct semel_buffer *buffer, unsigned char c)
{
	const char *escape = short_escape(c);
	if (escape)
		semel_buffer_append(buffer, escape, 2);
	else if (c < 0x20)
		semel_buffer_printf(buffer, "\\u%04x", (unsigned)c);
	else
		semel_buffer_string(buffer, "\xEF\xBF\xBD"); /* U+FFFD for an invalid byte */
}

void semel_buffer_json(struct semel_buffer *buffer, struct semel_text text)
{
	const unsigned char *bytes = (const unsigned char *)text.data;
	size_t plain_from = 0, at = 0;
	semel_buffer_append(buffer, "\"", 1);
	while (at < text.length) {
		unsigned char c = bytes[at];
		size_t length = c >= 0x20 && c != '"' && c != '\\'
					? semel_utf8_length(bytes + at, text.length - at)
					: 0;
		if (length > 0) {
			at += length;
			continue;
		}
		semel_buffer_append(buffer, bytes + plain_from, at - plain_from);
		append_escaped(buffer, c);
		plain_from = ++at;
	}
	if (text.length > plain_from)
		semel_buffer_append(buffer, bytes + plain_from, text.length - plain_from);
	semel_buffer_append(buffer, "\"", 1);
}

/* The code point of a character of `length` bytes, or 0 if it may be shown. C1 control characters
 * have two bytes, bidirectional controls three. */
static unsigned hidden_character(const unsigned char *at, size_t length)
{
	unsigned character = at[0];
	if (length == 2)
		character = (at[0] & 0x1FU) << 6 | (at[1] & 0x3FU);
	else if (length == 3)
		character = (at[0] & 0x0FU) << 12 | (at[1] & 0x3FU) << 6 | (at[2] & 0x3FU);
	else if (length > 3)
		return 0;
	bool control = character < 0x20 ? character != '\n' && character != '\t'
					: character >= 0x7F && character <= 0x9F;
	bool turns = (character >= 0x202A && character <= 0x202E) ||
		     (character >= 0x2066 && character <= 0x2069);
	return control || turns ? character : 0;
}

void semel_buffer_visible(struct semel_buffer *buffer, struct semel_text text)
{
	size_t plain_from = 0, at = 0;
	while (at < text.length) {
		size_t length = semel_utf8_length(text.data + at, text.length - at);
		/* For a NUL, hidden is 0 as well, so a NUL is checked separately. */
		unsigned hidden = length > 0 ? hidden_character(text.data + at, length) : 0;
		if (length > 0 && hidden == 0 && text.data[at] != '\0') {
			at += length;
			continue;
		}
		semel_buffer_append(buffer, text.data + plain_from, at - plain_from);
		if (length > 0)
			semel_buffer_printf(buffer, "\\u%04x", hidden);
		else
			semel_buffer_string(buffer, "\xEF\xBF\xBD");
		at += length > 0 ? length : 1;
		plain_from = at;
	}
	if (text.length > plain_from)
		semel_buffer_append(buffer, text.data + plain_from, text.length - plain_from);
}

void semel_buffer_json_or_null(struct semel_buffer *buffer, struct semel_text text)
{
	if (text.data)
		semel_buffer_json(buffer, text);
	else
		semel_buffer_append(buffer, "null", 4);
}

void semel_buffer_base64(struct semel_buffer *buffer, const void *data, size_t length)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *bytes = data;
	if (length > SIZE_MAX / 2 || !reserve(buffer, length / 3 * 4 + 4)) {
		buffer->failed = true;
		return;
	}
	char *to = buffer->data + buffer->length;
	for (size_t at = 0; at < length; at += 3) {
		size_t left = length - at;
		uint32_t group = (uint32_t)bytes[at] << 16;
		if (left > 1)
			group |= (uint32_t)bytes[at + 1] << 8;
		if (left > 2)
			group |= bytes[at + 2];
		*to++ = digits[group >> 18];
		*to++ = digits[group >> 12 & 63];
		*to++ = left > 1 ? digits[group >> 6 & 63] : '=';
		*to++ = left > 2 ? digits[group & 63] : '=';
	}
	*to = '\0';
	buffer->length = (size_t)(to - buffer->data);
}

struct semel_text semel_buffer_text(const struct semel_buffer *buffer)
{
	return semel_text_from(buffer->data ? buffer->data : "", buffer->length);
}

void semel_buffer_clear(struct semel_buffer *buffer)
{
	buffer->length = 0;
	buffer->failed = false;
	if (buffer->data)
		buffer->data[0] = '\0';
}

void semel_buffer_free(struct semel_buffer *buffer)
{
	free(buffer->data);
	*buffer = (struct semel_buffer){ 0 };
}
