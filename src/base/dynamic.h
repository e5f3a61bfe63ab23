/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that only some runs need: loaded when first used, so that the others do not carry them
 * in memory. */
#ifndef SEMEL_BASE_DYNAMIC_H
#define SEMEL_BASE_DYNAMIC_H

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>

/* Where in the caller's table of function pointers a symbol belongs. */
struct semel_dynamic_symbol {
	const char *name;
	size_t offset;
};

struct semel_dynamic_library {
	const char *const *names; /* tried in this order; NULL-terminated: "libcurl.so.4", … */
	const char *needed_for;   /* for the message: "an http handler" */
	const char *package;      /* Debian's: "libcurl4" */
	const struct semel_dynamic_symbol *symbols;
	size_t symbol_count;
	/* An initialisation that the library needs first; NULL: none. */
	semel_status (*begin)(void *table, semel_error *error);
};

/* Loads the library and fills the table. CONFIG, naming the package to install, when it is missing
 * or too old; the table is unchanged then. The library stays loaded until the process ends. */
semel_status semel_dynamic_load(const struct semel_dynamic_library *library, void *table,
				semel_error *error);

/* The same, once for all threads: does nothing if *loaded is set, and sets it on success. The table
 * is constant from then on. */
semel_status semel_dynamic_load_once(const struct semel_dynamic_library *library, void *table,
				     bool *loaded, semel_error *error);

#endif
