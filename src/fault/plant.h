/* SPDX-License-Identifier: Apache-2.0 */
/* Planted bugs, for testing the checker. In every build that is shipped SEMEL_PLANTED is the
 * constant false and the compiler drops the code that depends on it; only the test program
 * `semel-planted` and the model are compiled with SEMEL_PLANT_BUGS. SEMEL_PLANT names those that
 * are active, separated by commas; tests/chaos or tests/model has to find each of them. */
#ifndef SEMEL_FAULT_PLANT_H
#define SEMEL_FAULT_PLANT_H

#include <stdbool.h>

#ifdef SEMEL_PLANT_BUGS
#include <stdlib.h>
#include <string.h>

static inline bool semel_planted(const char *bug)
{
	const char *at = getenv("SEMEL_PLANT");
	size_t bug_length = strlen(bug);
	while (at && *at) {
		size_t length = strcspn(at, ",");
		if (length == bug_length && memcmp(at, bug, length) == 0)
			return true;
		at += length;
		at += *at == ',';
	}
	return false;
}

#define SEMEL_PLANTED(bug) semel_planted(bug)
#else
#define SEMEL_PLANTED(bug) false
#endif

#endif
