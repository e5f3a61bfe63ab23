/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of a YAML text, checked event by event before a tree is built: libyaml's time grows
 * with the square of the nesting and of the number of anchors. */
#ifndef SEMEL_CLI_ARGUMENTS_YAML_BOUNDS_H
#define SEMEL_CLI_ARGUMENTS_YAML_BOUNDS_H

#include "base/text.h"

#include <stdbool.h>

#define SEMEL_YAML_SIZE_MAX    ((size_t)1024 * 1024)
#define SEMEL_YAML_DEPTH_MAX   32
#define SEMEL_YAML_NODES_MAX   20000  /* values, lists, maps, aliases */
#define SEMEL_YAML_ANCHORS_MAX 500    /* anchors and aliases */
#define SEMEL_YAML_VALUE_MAX   65536u /* bytes of one value */

struct semel_yaml_problem {
	const char *what; /* NULL: no problem; otherwise a constant, ours or libyaml's */
	int line;         /* from 1 */
	bool is_bound;    /* true: a bound is exceeded, the text may still be YAML */
};

/* Finds the first place in the text, in any of its documents, that is not YAML or exceeds a
 * bound. */
struct semel_yaml_problem semel_yaml_check(struct semel_text text);

#endif
