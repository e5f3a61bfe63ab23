/* SPDX-License-Identifier: Apache-2.0 */
/* The bounds of a YAML text, checked event by event before a tree is made of it: libyaml's time
 * grows with the square of the nesting and of the number of anchors. */
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
	const char *what; /* NULL: there is none; constant, or valid as long as the library is */
	int line;         /* from 1 */
	bool is_bound;    /* it exceeds a bound, and may be YAML */
};

/* The first place that is not YAML, or beyond a bound, in all documents of the text. */
struct semel_yaml_problem semel_yaml_check(struct semel_text text);

#endif
