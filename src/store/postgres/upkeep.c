/* SPDX-License-Identifier: Apache-2.0 */
/* Subscriptions: a consumer that registers has the next weekly partitions of the inbox created. */
#include "store/postgres/postgres.h"

#include "observe/log.h"

static const struct semel_pg_statement prepare_inbox = { .what = "create the inbox's partitions",
							 .sql = "SELECT semel_inbox_prepare()" };

/* Nothing depends on these partitions: a role that may not create them works without them. */
static semel_status make_weeks(semel_store *store, semel_error *error)
{
	semel_error refused = { .status = SEMEL_OK };
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &prepare_inbox, NULL, NULL, &refused);
	if (status == SEMEL_CONFIG) {
		semel_log(SEMEL_LOG_WARN, "cannot create the weekly partitions of the inbox",
			  &(struct semel_log_fields){ .error = refused.text });
		return SEMEL_OK;
	}
	if (status != SEMEL_OK && error != NULL)
		*error = refused;
	return status;
}

semel_status semel_pg_subscription_put(semel_store *store, const struct semel_subscription_row *row,
				       int64_t now_ms, semel_error *error)
{
	semel_status status = semel_sql_subscription_put(store, row, now_ms, error);
	if (status != SEMEL_OK || semel_pg_in_transaction(semel_pg_tx(store)))
		return status;
	return make_weeks(store, error);
}
