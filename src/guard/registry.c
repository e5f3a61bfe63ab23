/* SPDX-License-Identifier: Apache-2.0 */
/* The guards that are built in: one line each. */
#include "guard/guard.h"

#include "base/error.h"

#include <string.h>

extern const struct semel_guard_driver semel_guard_inbox;

static const struct semel_guard_driver *const drivers[] = {
	&semel_guard_inbox,
	NULL,
};

#define DRIVER_COUNT (sizeof(drivers) / sizeof(drivers[0]) - 1)

static semel_status find_driver(const char *scheme, const struct semel_guard_driver **driver_out,
				semel_error *error)
{
	struct semel_url_form forms[DRIVER_COUNT + 1];

	for (size_t i = 0; i < DRIVER_COUNT; i++) {
		forms[i] = (struct semel_url_form){ drivers[i]->scheme, drivers[i]->form };
		if (strcmp(scheme, drivers[i]->scheme) == 0) {
			*driver_out = drivers[i];
			return SEMEL_OK;
		}
	}
	return semel_url_error_scheme("guard", scheme, forms, DRIVER_COUNT, error);
}

semel_status semel_guard_open(const char *url, semel_store *store, struct semel_guard **guard_out,
			      semel_error *error)
{
	const struct semel_guard_driver *driver = NULL;
	struct semel_url parsed = { 0 };

	*guard_out = NULL;
	semel_status status = semel_url_parse(url, &parsed, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = find_driver(parsed.scheme, &driver, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = driver->open(&parsed, store, guard_out, error);

free_url:
	semel_url_free(&parsed);
	return status;
}

semel_status semel_guard_open_default(semel_store *store, struct semel_guard **guard_out,
				      semel_error *error)
{
	return semel_guard_open("inbox:", store, guard_out, error);
}

semel_status semel_guard_check_joins(const struct semel_guard *guard, const char *action,
				     semel_error *error)
{
	if (guard->driver->joins)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "%s needs a guard whose claims are part of the store's transaction "
			       "(inbox:), and those of %s are not",
			       action, guard->driver->form);
}

void semel_guard_close(struct semel_guard *guard)
{
	if (guard)
		guard->driver->close(guard);
}
