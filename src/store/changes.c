/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and opens the change stream of a store; its driver says whether there is one. */
#include "store/changes.h"

#include "base/error.h"

semel_status semel_changes_find(const char *store_url,
				const struct semel_changes_driver **driver_out, semel_error *error)
{
	struct semel_url url = { 0 };
	const struct semel_store_driver *store = NULL;
	semel_status status = semel_url_parse(store_url, &url, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = semel_store_driver_find(url.scheme, &store, error);
	if (status != SEMEL_OK)
		goto free_url;
	if (store->changes == NULL)
		status = semel_error_set(error, SEMEL_CONFIG,
					 "the store %s has no change stream (use postgres://, or "
					 "--source poll)",
					 url.scheme);
	else
		*driver_out = store->changes;
free_url:
	semel_url_free(&url);
	return status;
}

semel_status semel_changes_open(const char *store_url, const char *slot,
				const struct semel_env *env, struct semel_changes **changes_out,
				semel_error *error)
{
	const struct semel_changes_driver *driver = NULL;
	*changes_out = NULL;
	semel_status status = semel_changes_find(store_url, &driver, error);
	if (status != SEMEL_OK)
		return status;
	status = driver->open(store_url, slot, changes_out, error);
	if (status != SEMEL_OK)
		return status;
	(*changes_out)->env = env;
	return SEMEL_OK;
}
