/* SPDX-License-Identifier: Apache-2.0 */
/* JSON without trees (those are jansson's), because these functions run for every event. */
#ifndef SEMEL_BASE_JSON_H
#define SEMEL_BASE_JSON_H

#include "base/arena.h"
#include "base/text.h"

#include <jansson.h>
#include <stdbool.h>

/* One JSON value (RFC 8259) in strict UTF-8 and nothing behind it; nesting up to 512. Agrees with
 * jansson (JSON_DECODE_ANY | JSON_ALLOW_NUL), which a test checks, but for numbers too big for a C
 * type: they are left to the payload's reader. */
bool semel_json_is_valid(struct semel_text text);
/* Where semel_json_is_valid stopped: the offset of the first byte that cannot be right. */
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
/* A raw string token, unescaped, in the arena. Data NULL: no memory. */
struct semel_text semel_json_unquote(struct semel_text token, struct semel_arena *arena);

/* A string of a tree, in place and with its length: read with JSON_ALLOW_NUL it may hold a NUL.
 * Data NULL: it is none. */
static inline struct semel_text semel_json_string(const json_t *value)
{
	return semel_text_from(json_string_value(value), json_string_length(value));
}

/* A member of an object of texts, unescaped into the arena; data NULL when absent or not a text.
 * The last one counts where a name is there twice. object must be valid JSON. */
struct semel_text semel_json_member(struct semel_text object, const char *name,
				    struct semel_arena *arena);
/* The object with one member set or replaced; value data NULL: removed. NULL data: no memory. */
struct semel_text semel_json_with(struct semel_text object, const char *name,
				  struct semel_text value, struct semel_arena *arena);

#endif
