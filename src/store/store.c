/* SPDX-License-Identifier: Apache-2.0 */
/* Opens stores and their change streams by URL, for applications and for the rules. Everything here
 * is independent of the drivers. */
#include "store/store.h"

#include "base/error.h"
#include "store/changes.h"

#include <stdlib.h>
#include <string.h>

static semel_status find_driver(const char *text, struct semel_url *url,
				const struct semel_store_driver **driver_out, semel_error *error)
{
	if (semel_string_is_blank(text))
		return semel_error_set(error, SEMEL_INVALID,
				       "no store URL given (for example sqlite:semel.db)");
	semel_status status = semel_url_parse(text, url, error);
	if (status != SEMEL_OK)
		return status;
	return semel_store_driver_find(url->scheme, driver_out, error);
}

const struct semel_env *semel_store_env(const semel_store *store)
{
	return store != NULL && store->env != NULL ? store->env : semel_env_system();
}

const struct semel_env *semel_tx_env(semel_tx tx)
{
	return semel_store_env(tx.store);
}

semel_status semel_store_open(const char *text, semel_store **store_out, semel_error *error)
{
	return semel_store_open_in(semel_env_system(), text, store_out, error);
}

semel_status semel_store_open_in(const struct semel_env *env, const char *text,
				 semel_store **store_out, semel_error *error)
{
	struct semel_url url = { 0 };
	const struct semel_store_driver *driver = NULL;
	if (store_out == NULL)
		return semel_error_set(error, SEMEL_INVALID, "store_out must not be NULL");
	*store_out = NULL;
	semel_status status = find_driver(text, &url, &driver, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = driver->open(&url, store_out, error);
	if (status == SEMEL_OK)
		(*store_out)->env = env;
free_url:
	semel_url_free(&url);
	return status;
}

semel_status semel_store_init(const char *text, semel_error *error)
{
	struct semel_url url = { 0 };
	const struct semel_store_driver *driver = NULL;
	semel_status status = find_driver(text, &url, &driver, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = driver->init(&url, error);

free_url:
	semel_url_free(&url);
	return status;
}

semel_status semel_store_examine(const char *text, const struct semel_examination *examination)
{
	struct semel_url url = { 0 };
	const struct semel_store_driver *driver = NULL;
	semel_error error = { .status = SEMEL_OK };
	semel_status status = find_driver(text, &url, &driver, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_STORE_REACHED, &error);
		goto free_url;
	}
	status = driver->examine(&url, examination);

free_url:
	semel_url_free(&url);
	return status;
}

semel_status semel_store_lanes(semel_store *store, int64_t now_ms,
			       struct semel_lanes_state *state_out, semel_error *error)
{
	int32_t count = store->driver->outbox->lane_count(store);
	struct semel_lease *leases = calloc((size_t)count, sizeof(leases[0]));
	*state_out = (struct semel_lanes_state){ .count = count };
	if (leases == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the leases");
	semel_status status = store->driver->outbox->lease_list(store, leases, error);
	for (int32_t i = 0; i < count && status == SEMEL_OK; i++) {
		state_out->low_sum += leases[i].low_seq;
		/* Every machine reports the same, so by the lease alone, not by
		 * semel_owner_is_gone. */
		if (leases[i].owner[0] == '\0' || leases[i].expires_at_ms <= now_ms)
			state_out->unheld++;
	}
	free(leases);
	return status;
}

semel_status semel_store_set_default_scope(semel_store *store, const char *scope,
					   semel_error *error)
{
	char *copy = NULL;
	if (store == NULL)
		return semel_error_set(error, SEMEL_INVALID, "store must not be NULL");
	if (!semel_string_is_blank(scope)) {
		copy = strdup(scope);
		if (copy == NULL)
			return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a scope");
	}
	free(store->default_scope);
	store->default_scope = copy;
	return SEMEL_OK;
}

void semel_store_close(semel_store *store)
{
	if (store == NULL)
		return;
	free(store->default_scope);
	store->driver->close(store);
}

/* ---- the change stream ----------------------------------------------------------------------- */

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
					 "leave out --cdc and --source cdc)",
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
