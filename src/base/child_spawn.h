/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a child: fork, a clean state, exec. Used by child.c only. */
#ifndef SEMEL_BASE_CHILD_SPAWN_H
#define SEMEL_BASE_CHILD_SPAWN_H

#include "base/child.h"

#include <sys/types.h>

/* Our ends, not blocking. */
struct semel_spawned {
	pid_t pid; /* also its process group */
	int input, output, errors;
};

semel_status semel_child_spawn(const struct semel_child_options *plan,
			       struct semel_spawned *spawned_out, semel_error *error);

#endif
