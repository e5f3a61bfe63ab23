/* SPDX-License-Identifier: Apache-2.0 */
/* From the log to the consumer.
 *
 * - Only owned assignments are read, each from where the last fetch stopped, so a partition is read
 *   in order and no entry is delivered twice before a rewind.
 * - Due delayed entries come first; then every assignment gets an equal part of the free count, and
 *   the remainder goes to those that have more entries.
 * - A delivery is unacked only when it was read completely. When reading fails in the middle, what
 *   was read is delivered, and the failure is left to the next call.
 */
#include "base/error.h"
#include "broker/local/local.h"

#define FETCH_BYTES_MAX ((size_t)4 * 1024 * 1024) /* one delivery may exceed it */
#define UNACKED_MAX     65536                     /* of an assignment, after an unacked one */

/* One call of fetch. */
struct reading {
	struct semel_local *local;
	struct semel_arena *arena;
	struct semel_delivery *deliveries;
	uint32_t count, count_max;
	size_t arena_start;
};

static bool is_full(const struct reading *reading)
{
	const struct semel_local *local = reading->local;
	return reading->count == reading->count_max ||
	       semel_arena_used(reading->arena) - reading->arena_start >= FETCH_BYTES_MAX ||
	       (local->unacked_count > 0 && local->unacked_bytes >= local->prefetch_bytes);
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for deliveries");
}

/* The next element, with what all deliveries of a partition have in common. */
static struct semel_delivery *next_delivery(struct reading *reading,
					    const struct semel_local_subscription *subscription,
					    uint32_t partition, int64_t offset)
{
	struct semel_delivery *delivery = &reading->deliveries[reading->count];
	*delivery = (struct semel_delivery){
		.partition = (int32_t)partition,
		.offset = offset,
		.tag = (uint64_t)semel_local_entry_key(subscription->topic->number, partition,
						       offset),
	};
	return delivery;
}

/* ---- delayed entries ------------------------------------------------------------------------ */

static semel_status read_delayed_row(struct reading *reading,
				     struct semel_local_subscription *subscription,
				     struct semel_text topic, semel_error *error)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_DELAYED_READ;
	struct semel_local *local = reading->local;
	int64_t number = semel_local_int(local, rows, 0);
	int64_t partition = semel_local_int(local, rows, 1);
	if (partition < 0 || partition >= subscription->topic->partitions)
		return SEMEL_OK;
	struct semel_local_assignment *assignment = &subscription->assignments[partition];
	if (!assignment->owned || assignment->releasing ||
	    semel_local_delayed_has(assignment, number))
		return SEMEL_OK;

	struct semel_delivery *delivery =
		next_delivery(reading, subscription, (uint32_t)partition, number);
	delivery->tag |= SEMEL_LOCAL_TAG_DELAYED;
	semel_status status =
		semel_local_event_read(local, rows, 3, reading->arena, delivery, error);
	if (status != SEMEL_OK)
		return status;
	delivery->event.topic = topic;
	delivery->redelivered =
		semel_local_int(local, rows, 2) <= assignment->delayed_redelivered_to_ms;
	if (!semel_local_delayed_add(assignment, number))
		return no_memory(error);
	reading->count++;
	local->unacked_count++;
	return SEMEL_OK;
}

static semel_status read_delayed(struct reading *reading,
				 struct semel_local_subscription *subscription, semel_error *error)
{
	struct semel_local *local = reading->local;
	struct semel_text topic = { NULL, 0 };
	bool row = false;
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_DELAYED_READ,
		SEMEL_LOCAL_INTS(subscription->number, semel_now_ms(local->env)), error);
	if (status != SEMEL_OK)
		return status;
	while (!is_full(reading)) {
		status = semel_local_next(local, SEMEL_LOCAL_DELAYED_READ, &row, error);
		if (status != SEMEL_OK || !row)
			return status;
		if (topic.data == NULL) {
			struct semel_text name = semel_text_of(subscription->topic->name);
			topic = semel_arena_text(reading->arena, name.data, name.length);
		}
		status = topic.data == NULL ? no_memory(error)
					    : read_delayed_row(reading, subscription, topic, error);
		if (status != SEMEL_OK)
			break;
	}
	semel_local_reset(local, SEMEL_LOCAL_DELAYED_READ);
	return status;
}

/* ---- the log -------------------------------------------------------------------------------- */

static bool may_be_redelivered(struct semel_local_assignment *assignment, int64_t offset)
{
	if (assignment->maybe_redelivered > 0) {
		assignment->maybe_redelivered--;
		return true;
	}
	return offset <= assignment->redelivered_to;
}

static semel_status read_log_row(struct reading *reading,
				 struct semel_local_subscription *subscription, uint32_t partition,
				 struct semel_text topic, semel_error *error)
{
	struct semel_local *local = reading->local;
	struct semel_local_assignment *assignment = &subscription->assignments[partition];
	int64_t offset = semel_local_int(local, SEMEL_LOCAL_LOG_READ, 0) & SEMEL_LOCAL_OFFSET_MAX;
	struct semel_delivery *delivery = next_delivery(reading, subscription, partition, offset);
	size_t before = semel_arena_used(reading->arena);
	semel_status status = semel_local_event_read(local, SEMEL_LOCAL_LOG_READ, 1, reading->arena,
						     delivery, error);
	if (status != SEMEL_OK)
		return status;
	delivery->event.topic = topic;
	delivery->redelivered = may_be_redelivered(assignment, offset);
	size_t bytes = semel_arena_used(reading->arena) - before;
	if (!semel_local_unacked_add(assignment, offset, bytes))
		return no_memory(error);
	local->unacked_bytes += bytes;
	assignment->read = offset;
	reading->count++;
	local->unacked_count++;
	return SEMEL_OK;
}

/* Reads at most limit entries of one assignment. */
static semel_status read_log(struct reading *reading, struct semel_local_subscription *subscription,
			     uint32_t partition, uint32_t limit, semel_error *error)
{
	struct semel_local *local = reading->local;
	struct semel_local_assignment *assignment = &subscription->assignments[partition];
	int64_t number = subscription->topic->number;
	struct semel_text topic = { NULL, 0 };
	bool row = false;
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_LOG_READ,
		SEMEL_LOCAL_INTS(semel_local_entry_key(number, partition, assignment->read),
				 semel_local_entry_key(number, partition, SEMEL_LOCAL_OFFSET_MAX),
				 limit),
		error);
	if (status != SEMEL_OK)
		return status;
	while (!is_full(reading)) {
		status = semel_local_next(local, SEMEL_LOCAL_LOG_READ, &row, error);
		if (status != SEMEL_OK)
			return status;
		if (!row) {
			assignment->more = limit == 0;
			return SEMEL_OK;
		}
		if (topic.data == NULL) {
			struct semel_text name = semel_text_of(subscription->topic->name);
			topic = semel_arena_text(reading->arena, name.data, name.length);
		}
		limit--;
		status = topic.data == NULL
				 ? no_memory(error)
				 : read_log_row(reading, subscription, partition, topic, error);
		if (status != SEMEL_OK)
			break;
	}
	semel_local_reset(local, SEMEL_LOCAL_LOG_READ);
	return status;
}

/* A planted bug: the first batch of a new owner is reversed. */
static void reverse_order(struct reading *reading, struct semel_local_assignment *assignment,
			  uint32_t start)
{
	for (uint32_t low = start, high = reading->count; high > low + 1; low++, high--) {
		struct semel_delivery swap = reading->deliveries[low];
		reading->deliveries[low] = reading->deliveries[high - 1];
		reading->deliveries[high - 1] = swap;
	}
	assignment->backward = reading->count - start < 2;
}

static uint32_t find_readable(struct semel_local *local)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			struct semel_local_assignment *assignment = &subscription->assignments[p];
			assignment->more = assignment->owned && !assignment->releasing &&
					   assignment->unacked_count < UNACKED_MAX;
			count += assignment->more ? 1 : 0;
		}
	}
	return count;
}

static uint32_t count_partitions(const struct semel_local *local)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < local->subscription_count; i++)
		count += local->subscriptions[i].topic->partitions;
	return count;
}

/* The at-th partition over all subscriptions. */
static struct semel_local_subscription *subscription_at(struct semel_local *local, uint32_t *at)
{
	struct semel_local_subscription *subscription = local->subscriptions;
	while (*at >= subscription->topic->partitions) {
		*at -= subscription->topic->partitions;
		subscription++;
	}
	return subscription;
}

/* One round over the assignments that may have more; each gets an equal part of what is left.
 * with_more: how many they are, before and after. */
static semel_status read_round(struct reading *reading, uint32_t *with_more, semel_error *error)
{
	struct semel_local *local = reading->local;
	uint32_t total = count_partitions(local), remaining = *with_more;
	*with_more = 0;
	for (uint32_t i = 0; i < total && remaining > 0; i++) {
		uint32_t at = (local->next_assignment + i) % total;
		struct semel_local_subscription *subscription = subscription_at(local, &at);
		struct semel_local_assignment *assignment = &subscription->assignments[at];
		if (!assignment->more || is_full(reading))
			continue;
		uint32_t start = reading->count;
		uint32_t limit = (reading->count_max - reading->count + remaining - 1) / remaining;
		semel_status status = read_log(reading, subscription, at, limit, error);
		if (assignment->backward)
			reverse_order(reading, assignment, start);
		if (status != SEMEL_OK)
			return status;
		remaining--;
		*with_more += assignment->more ? 1 : 0;
	}
	return SEMEL_OK;
}

static semel_status read_rows(struct reading *reading, semel_error *error)
{
	struct semel_local *local = reading->local;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		semel_status status = read_delayed(reading, &local->subscriptions[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	uint32_t with_more = find_readable(local);
	while (with_more > 0 && !is_full(reading)) {
		semel_status status = read_round(reading, &with_more, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status read_all(struct reading *reading, semel_error *error)
{
	struct semel_local *local = reading->local;
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	status = read_rows(reading, error);
	local->next_assignment++;
	semel_local_rollback(local); /* nothing was written */
	return status;
}

semel_status semel_local_fetch(struct semel_broker *broker, uint32_t max, struct semel_arena *arena,
			       struct semel_delivery *deliveries_out, uint32_t *count_out,
			       semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	*count_out = 0;
	if (local->subscription_count == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "this broker connection has no subscription");
	semel_status status = semel_local_maintain(local, error);
	if (status != SEMEL_OK)
		return status;
	uint32_t count_max =
		local->unacked_count < local->prefetch ? local->prefetch - local->unacked_count : 0;
	bool full = local->unacked_count > 0 && local->unacked_bytes >= local->prefetch_bytes;
	if (max == 0 || count_max == 0 || full)
		return SEMEL_OK;
	struct reading reading = {
		.local = local,
		.arena = arena,
		.deliveries = deliveries_out,
		.count_max = max < count_max ? max : count_max,
		.arena_start = semel_arena_used(arena),
	};
	status = read_all(&reading, error);
	*count_out = reading.count;
	return reading.count > 0 ? SEMEL_OK : status;
}

semel_status semel_local_rewind(struct semel_broker *broker, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	(void)error;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			struct semel_local_assignment *assignment = &subscription->assignments[p];
			if (assignment->delayed_count > 0)
				assignment->delayed_redelivered_to_ms = semel_now_ms(local->env);
			if (assignment->read > assignment->redelivered_to)
				assignment->redelivered_to = assignment->read;
			assignment->read = assignment->cursor;
			semel_local_unacked_clear(local, assignment);
		}
	}
	return SEMEL_OK;
}
