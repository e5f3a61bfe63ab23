/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of src/store/store.h as tests, the same for every driver. A driver's test program
 * fills in a factory and calls store_suite_run. */
#ifndef SEMEL_TESTS_STORE_SUITE_H
#define SEMEL_TESTS_STORE_SUITE_H

#define STORE_SUITE_URL_SIZE 512

struct store_suite_factory {
	const char *name;
	/* The URL of a database without tables of ours; called before each test. */
	void (*make)(char url_out[STORE_SUITE_URL_SIZE]);
	/* Removes what make made; after each test. */
	void (*drop)(void);
};

/* Runs all tests; the number of those that failed. */
int store_suite_run(const struct store_suite_factory *factory);

#endif
