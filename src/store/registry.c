/* SPDX-License-Identifier: Apache-2.0 */
/* The stores that are built in: one line each. */
#include "store/store.h"

#include <string.h>

extern const struct semel_store_driver semel_store_sqlite;
extern const struct semel_store_driver semel_store_postgres;

static const struct semel_store_driver *const drivers[] = {
	&semel_store_sqlite,
	&semel_store_postgres,
	NULL,
};

#define DRIVER_COUNT (sizeof(drivers) / sizeof(drivers[0]) - 1)

semel_status semel_store_driver_find(const char *scheme,
				     const struct semel_store_driver **driver_out,
				     semel_error *error)
{
	struct semel_url_form forms[DRIVER_COUNT + 1];

	if (strcmp(scheme, "postgresql") == 0) /* libpq accepts both names */
		scheme = "postgres";
	for (size_t i = 0; i < DRIVER_COUNT; i++) {
		forms[i] = (struct semel_url_form){ drivers[i]->scheme, drivers[i]->form };
		if (strcmp(scheme, drivers[i]->scheme) == 0) {
			*driver_out = drivers[i];
			return SEMEL_OK;
		}
	}
	return semel_url_error_scheme("store", scheme, forms, DRIVER_COUNT, error);
}
