/* SPDX-License-Identifier: Apache-2.0 */
/* The stores that are built in: one line each. */
#include "base/error.h"
#include "base/text.h"
#include "store/store.h"

#include <string.h>

extern const struct semel_store_driver semel_store_sqlite;
extern const struct semel_store_driver semel_store_postgres;

static const struct semel_store_driver *const drivers[] = {
	&semel_store_sqlite,
	&semel_store_postgres,
};

#define DRIVER_COUNT (sizeof(drivers) / sizeof(drivers[0]))

semel_status semel_store_driver_find(const char *scheme,
				     const struct semel_store_driver **driver_out,
				     semel_error *error)
{
	const char *schemes[DRIVER_COUNT];
	if (strcmp(scheme, "postgresql") == 0) /* libpq knows it by both names */
		scheme = "postgres";
	for (size_t i = 0; i < DRIVER_COUNT; i++) {
		schemes[i] = drivers[i]->scheme;
		if (strcmp(scheme, schemes[i]) == 0) {
			*driver_out = drivers[i];
			return SEMEL_OK;
		}
	}
	const char *near = semel_text_nearest(scheme, schemes, DRIVER_COUNT);
	return semel_error_set(error, SEMEL_CONFIG,
			       "no store driver for %s: URLs (%s%s%stry: sqlite:PATH or "
			       "postgres://user@host/database)",
			       scheme, near ? "did you mean " : "", near ? near : "",
			       near ? "? " : "");
}
