/* SPDX-License-Identifier: Apache-2.0 */
/* JSON where events need it. Trees are jansson's; these are the short ways that build none, because
 * every event passes them. */
#ifndef SEMEL_BASE_JSON_H
#define SEMEL_BASE_JSON_H

#include "base/arena.h"
#include "base/text.h"

#include <stdbool.h>

/* One JSON value (RFC 8259) in strict UTF-8 and nothing behind it; nesting up to 512. Agrees with
 * jansson (JSON_DECODE_ANY | JSON_ALLOW_NUL), which a test checks. */
bool semel_json_is_valid(struct semel_text text);
/* Where semel_json_is_valid stopped: the offset of the first byte that cannot be right. */
size_t semel_json_error_at(struct semel_text text);
/* A member of an object of texts, unescaped into the arena; data NULL when absent or not a text.
 * object must be valid JSON. */
struct semel_text semel_json_member(struct semel_text object, const char *name,
				    struct semel_arena *arena);
/* The object with one member set or replaced; value data NULL: removed. NULL data: no memory. */
struct semel_text semel_json_with(struct semel_text object, const char *name,
				  struct semel_text value, struct semel_arena *arena);

#endif
