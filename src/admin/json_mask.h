/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a JSON text replaced by "[hidden]", by path. One pass over the text, without a tree:
 * what is not hidden keeps its own bytes, every member counts where a name stands twice, and names
 * are compared by what they mean, also when they are written with escapes. */
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
	bool deep;  /* "..": also further down */
	bool index; /* "[3]", whose number is */
	size_t at;
	const char *name; /* else; in the path's own text */
};

/* Not to be copied: steps point into the text. */
struct semel_mask_path {
	char text[SEMEL_MASK_PATH_SIZE];
	struct semel_mask_step steps[SEMEL_MASK_STEPS_MAX];
	size_t count; /* 0: all of it */
	bool caseless;
};

struct semel_mask {
	struct semel_mask_path paths[SEMEL_MASK_PATHS_MAX];
	size_t count;
};

/* "$.a.b", "$['a b'][0]", "$[*]", "$..name", "$". False: it is none. */
bool semel_mask_path_read(const char *text, struct semel_mask_path *path_out);
/* One member of the outermost object, letters of either case. False: the name is too long. */
bool semel_mask_path_name(const char *name, struct semel_mask_path *path_out);

enum semel_hidden_kind { SEMEL_HIDDEN_TEXT, SEMEL_HIDDEN_NUMBER };

/* A hidden text (without its escapes), number (as it is written), literal or, inside of what is
 * hidden, a name. It lives until the call returns. */
typedef void (*semel_hidden_callback)(struct semel_text value, enum semel_hidden_kind kind,
				      void *user);

/* json must be valid (semel_json_is_valid); the result is appended to out. False: no memory, and
 * out is not to be used. */
bool semel_mask_apply(const struct semel_mask *mask, struct semel_text json,
		      semel_hidden_callback seen, void *user, struct semel_buffer *out);

#endif
