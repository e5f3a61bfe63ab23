/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of src/guard/guard.h as tests, the same for every driver. A driver's test program
 * fills in a factory and calls guard_suite_run. */
#ifndef SEMEL_TESTS_GUARD_SUITE_H
#define SEMEL_TESTS_GUARD_SUITE_H

#include "guard/guard.h"

struct guard_suite_factory {
	const char *name;
	/* A guard that knows nothing yet; called before each test. Closed by the suite. */
	struct semel_guard *(*make)(void);
	/* Removes what make made, after each test. */
	void (*drop)(void);
	/* The store whose transaction the claims join; NULL where the guard does not join. */
	semel_store *(*store)(void);
};

/* Runs all tests; the number of those that failed. */
int guard_suite_run(const struct guard_suite_factory *factory);

#endif
