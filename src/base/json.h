/* SPDX-License-Identifier: Apache-2.0 */
/* JSON without trees (for those there is jansson), because these functions run for every event. */
#ifndef SEMEL_BASE_JSON_H
#define SEMEL_BASE_JSON_H

#include "base/arena.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* True for exactly one JSON value (RFC 8259) in strict UTF-8, nested 512 levels at most. Agrees
 * with jansson (JSON_DECODE_ANY | JSON_ALLOW_NUL), which a test checks, except for numbers too big
 * for a C type, which are left to the payload's reader. */
bool semel_json_is_valid(struct semel_text text);
/* Where semel_json_is_valid stopped: the offset of the first invalid byte. */
size_t semel_json_error_at(struct semel_text text);

/* The first character of the value, which is valid JSON: '{' of an object, '[' of an array. */
char semel_json_first(struct semel_text json);

/* The members of an object, in place and in order. object must be valid JSON; anything but an
 * object has no members. name and value are the raw tokens, with quotes and escapes; no NUL
 * follows. */
struct semel_json_walk {
	const char *at, *end;
};
struct semel_json_walk semel_json_walk(struct semel_text object);
bool semel_json_next(struct semel_json_walk *walk, struct semel_text *name_out,
		     struct semel_text *value_out);
/* A raw string token, unescaped, in the arena. Data NULL: out of memory. */
struct semel_text semel_json_unquote(struct semel_text token, struct semel_arena *arena);

/* A string of a jansson tree, in place and with its length: it may contain a NUL if the tree was
 * read with JSON_ALLOW_NUL. Data NULL: value is not a string. */
static inline struct semel_text semel_json_string(const json_t *value)
{
	return semel_text_from(json_string_value(value), json_string_length(value));
}

/* A member of an object of texts, unescaped into the arena; data NULL when absent or not a text. If
 * a name occurs twice, the last one counts. object must be valid JSON. */
struct semel_text semel_json_member(struct semel_text object, const char *name,
				    struct semel_arena *arena);
/* The object with one member set or replaced, or removed if value's data is NULL. Data NULL: no
 * memory. */
struct semel_text semel_json_with(struct semel_text object, const char *name,
				  struct semel_text value, struct semel_arena *arena);

#endif
