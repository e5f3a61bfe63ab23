/* SPDX-License-Identifier: Apache-2.0 */
/* Retention of the log: what every subscription of a topic has acked is removed once it is old
 * enough. In a topic without a subscription, age alone decides. In short transactions, so that
 * publishers and consumers are hardly delayed. */
#include "base/error.h"
#include "broker/local/local.h"

#define CHUNK 2000

/* A partition with the range that may be removed: above after, up to floor. */
struct range {
	int64_t topic, partition; /* the last one; 0, -1 at first */
	int64_t after, floor;     /* entry keys */
};

static semel_status next_range(struct semel_local *local, struct range *range, bool *found,
			       semel_error *error)
{
	const enum semel_local_sql row = SEMEL_LOCAL_PARTITION_FLOORS;
	semel_status status = semel_local_bind(
		local, row, SEMEL_LOCAL_INTS(range->topic, range->partition), error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_next(local, row, found, error);
	if (status != SEMEL_OK || !*found)
		return status;
	range->topic = semel_local_int(local, row, 0);
	range->partition = semel_local_int(local, row, 1);
	bool subscribed = sqlite3_column_type(local->statements[row], 2) != SQLITE_NULL;
	int64_t floor = subscribed ? semel_local_int(local, row, 2) : SEMEL_LOCAL_OFFSET_MAX;
	semel_local_reset(local, row);
	uint32_t partition = (uint32_t)range->partition;
	range->after = semel_local_entry_key(range->topic, partition, 0);
	range->floor = semel_local_entry_key(range->topic, partition, floor);
	return SEMEL_OK;
}

static semel_status count_range(struct semel_local *local, const struct range *range,
				int64_t before_ms, uint64_t *count, semel_error *error)
{
	int64_t old = 0;
	semel_status status = semel_local_get_ints(
		local, SEMEL_LOCAL_LOG_OLD, SEMEL_LOCAL_INTS(range->after, range->floor, before_ms),
		&old, error);
	*count += (uint64_t)old;
	return status;
}

/* The floor as it is now: a subscription may have been created since it was read. */
static semel_status refresh_floor(struct semel_local *local, struct range *range,
				  semel_error *error)
{
	struct range again = { .topic = range->topic, .partition = range->partition - 1 };
	bool found = false;
	semel_status status = next_range(local, &again, &found, error);
	range->floor = found ? again.floor : range->after;
	return status;
}

/* In an open write transaction; advances range->after. */
static semel_status remove_chunk(struct semel_local *local, struct range *range, int64_t before_ms,
				 int64_t *removed_out, semel_error *error)
{
	int64_t last = 0;
	*removed_out = 0;
	semel_status status = refresh_floor(local, range, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_get_ints(local, SEMEL_LOCAL_LOG_CHUNK,
				      SEMEL_LOCAL_INTS(range->after, range->floor, CHUNK), &last,
				      error);
	if (status != SEMEL_OK || last == 0)
		return status;
	status = semel_local_run_ints(local, SEMEL_LOCAL_LOG_REMOVE,
				      SEMEL_LOCAL_INTS(range->after, last, before_ms), error);
	if (status != SEMEL_OK)
		return status;
	*removed_out = sqlite3_changes64(local->db);
	range->after = last;
	return semel_local_run_ints(local, SEMEL_LOCAL_PARTITION_REMOVED,
				    SEMEL_LOCAL_INTS(range->topic, range->partition, *removed_out),
				    error);
}

/* Entries are appended in the order of time, so the first chunk with nothing old is the last. */
static semel_status remove_range(struct semel_local *local, struct range *range, int64_t before_ms,
				 uint64_t *count, semel_error *error)
{
	int64_t removed = 1;
	while (removed > 0) {
		semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
		if (status != SEMEL_OK)
			return status;
		status = remove_chunk(local, range, before_ms, &removed, error);
		if (status != SEMEL_OK || removed == 0) {
			semel_local_rollback(local);
			return status;
		}
		status = semel_local_commit(local, error);
		if (status != SEMEL_OK)
			return status;
		*count += (uint64_t)removed;
	}
	return SEMEL_OK;
}

semel_status semel_local_prune(struct semel_broker *broker, int64_t before_ms, bool dry_run,
			       uint64_t *count_out, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	struct range range = { .topic = 0, .partition = -1 };
	bool found = true;
	*count_out = 0;
	for (;;) {
		semel_status status = next_range(local, &range, &found, error);
		if (status != SEMEL_OK || !found)
			return status;
		status = dry_run ? count_range(local, &range, before_ms, count_out, error)
				 : remove_range(local, &range, before_ms, count_out, error);
		if (status != SEMEL_OK)
			return status;
	}
}
