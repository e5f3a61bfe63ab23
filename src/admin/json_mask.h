/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces members of a JSON text by "[hidden]", by path. One pass over the text, without a tree:
 * what is not hidden keeps its bytes, all members with a repeated name are replaced, and names are
 * compared without their escapes. */
#ifndef SEMEL_ADMIN_JSON_MASK_H
#define SEMEL_ADMIN_JSON_MASK_H

#include "base/buffer.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

#define SEMEL_MASK_STEPS_MAX 16
#define SEMEL_MASK_PATHS_MAX 64
#define SEMEL_MASK_PATH_SIZE 256

struct semel_mask_step {
	bool any;   /* "*" */
	bool deep;  /* "..": at any depth */
	bool index; /* "[3]": the element with the number at */
	size_t at;
	const char *name; /* otherwise the name, in the text of the path */
};

/* Must not be copied: the steps point into its text. */
struct semel_mask_path {
	char text[SEMEL_MASK_PATH_SIZE];
	struct semel_mask_step steps[SEMEL_MASK_STEPS_MAX];
	size_t count; /* 0: the whole text */
	bool caseless;
};

struct semel_mask {
	struct semel_mask_path paths[SEMEL_MASK_PATHS_MAX];
	size_t count;
};

/* Parses "$.a.b", "$['a b'][0]", "$[*]", "$..name", "$". False: not valid. */
bool semel_mask_path_read(const char *text, struct semel_mask_path *path_out);
/* The path of one member of the outermost object, ignoring case. False: the name is empty or too
 * long. */
bool semel_mask_path_name(const char *name, struct semel_mask_path *path_out);

enum semel_hidden_kind { SEMEL_HIDDEN_TEXT, SEMEL_HIDDEN_NUMBER };

/* Called with each hidden string (without its escapes), number (as written) and literal, and with
 * each name inside a hidden value. The value is valid until the call returns. */
typedef void (*semel_hidden_callback)(struct semel_text value, enum semel_hidden_kind kind,
				      void *user);

/* json must be valid (semel_json_is_valid); the result is appended to out. False: out of memory;
 * out must not be used. */
bool semel_mask_apply(const struct semel_mask *mask, struct semel_text json,
		      semel_hidden_callback callback, void *user, struct semel_buffer *out);

#endif
