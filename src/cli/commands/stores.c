/* SPDX-License-Identifier: Apache-2.0 */
/* The stores that replay, trace, verify and repair open. */
#include "cli/commands/stores.h"

#include "base/error.h"
#include "base/time.h"

#include <string.h>

static semel_status open_next(struct semel_stores *stores, const char *url, semel_error *error)
{
	semel_status status = semel_store_open(url, &stores->all[stores->count], error);
	if (status == SEMEL_OK)
		stores->count++;
	return status;
}

semel_status semel_stores_open(struct semel_invocation *invocation, struct semel_stores *stores_out)
{
	semel_error *error = &invocation->error;
	size_t count = 0;
	const char *const *urls = semel_args_list(invocation->args, "consumer-store", &count);
	*stores_out = (struct semel_stores){ 0 };
	if (count >= SEMEL_STORES_MAX)
		return semel_error_set(error, SEMEL_USAGE, "too many --consumer-store (at most %d)",
				       SEMEL_STORES_MAX - 1);

	semel_status status = open_next(stores_out, invocation->store, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		if (strcmp(urls[i], invocation->store) != 0)
			status = open_next(stores_out, urls[i], error);
	return status;
}

void semel_stores_close(struct semel_stores *stores)
{
	for (size_t i = 0; i < stores->count; i++)
		semel_store_close(stores->all[i]);
	stores->count = 0;
}

semel_status semel_args_time_ms(const struct semel_args *args, const char *name,
				int64_t *time_ms_out, semel_error *error)
{
	const char *text = semel_args_text(args, name);
	*time_ms_out = 0;
	if (!text || semel_time_parse(text, time_ms_out))
		return SEMEL_OK;
	return semel_error_set(
		error, SEMEL_USAGE,
		"invalid value \"%s\" for --%s (expected a time such as 2026-11-15 or "
		"2026-11-15T12:00:00Z)",
		text, name);
}
