/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of src/broker/broker.h as tests, the same for every driver. A driver's test program
 * fills in a factory and calls broker_suite_run. */
#ifndef SEMEL_TESTS_BROKER_SUITE_H
#define SEMEL_TESTS_BROKER_SUITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BROKER_SUITE_URL_SIZE 512

struct broker_suite_factory {
	const char *name;
	/* The URL of an empty broker; called before each test. */
	void (*make)(char url_out[BROKER_SUITE_URL_SIZE]);
	/* Removes what make made; after each test. */
	void (*drop)(void);
	/* A payload of this many bytes is refused as too large; 0: there is no such bound. */
	size_t refused_payload_size;
	/* The driver's time is that of semel_env, so that tests may let it pass without waiting. */
	bool follows_env;
	/* A consumer that is silent for lease_ms loses its assignments. */
	bool has_leases;
	/* Nothing is kept for a subscription that is not there yet, so those that a test reads
	 * later are made before it. */
	bool forgets_unread;
	/* What another consumer had in its hands comes as if it were new. */
	bool forgets_deliveries;
	/* A topic is one assignment: one consumer of a scope works, the others stand by. */
	bool stands_by;
};

/* Runs all tests; the number of those that failed. */
int broker_suite_run(const struct broker_suite_factory *factory);
/* The same for the function remove, of drivers that have it. */
int broker_remove_suite_run(const struct broker_suite_factory *factory);

#endif
