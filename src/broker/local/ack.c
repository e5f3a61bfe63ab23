/* SPDX-License-Identifier: Apache-2.0 */
/* Deliveries that are not acked, per assignment; and acking them.
 *
 * - Log entries are in the order in which they were read. A cursor moves over acked entries only,
 *   and never over a gap: what is acked out of order waits in memory, and is redelivered if this
 *   consumer dies before the gap is closed.
 * - All cursors of one call move in one transaction, each checked against the assignment's owner
 *   and epoch. A lost assignment is ended, its deliveries are redelivered elsewhere, and the call
 *   answers LEASE_LOST; the others are acked nevertheless.
 * - The state in memory changes after the commit. When the commit fails, the acks stay recorded,
 *   and ack may be called again.
 */
#include "base/error.h"
#include "broker/local/local.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

static bool grow(void **array, uint32_t *capacity, size_t size)
{
	uint32_t grown_capacity = *capacity == 0 ? FIRST_CAPACITY : *capacity * 2;
	void *grown = realloc(*array, grown_capacity * size);
	if (grown == NULL)
		return false;
	*array = grown;
	*capacity = grown_capacity;
	return true;
}

bool semel_local_unacked_add(struct semel_local_assignment *assignment, int64_t offset,
			     uint64_t bytes)
{
	uint32_t end = assignment->unacked_first + assignment->unacked_count;
	if (end == assignment->unacked_capacity && assignment->unacked_first > 0) {
		memmove(assignment->unacked, assignment->unacked + assignment->unacked_first,
			assignment->unacked_count * sizeof(assignment->unacked[0]));
		assignment->unacked_first = 0;
		end = assignment->unacked_count;
	}
	void *unacked = assignment->unacked;
	if (end == assignment->unacked_capacity &&
	    !grow(&unacked, &assignment->unacked_capacity, sizeof(assignment->unacked[0])))
		return false;
	assignment->unacked = unacked;
	assert(assignment->unacked_count == 0 || assignment->unacked[end - 1].offset < offset);
	assignment->unacked[end] = (struct semel_local_unacked){ .offset = offset, .bytes = bytes };
	assignment->unacked_count++;
	return true;
}

/* NULL: the delivery is not unacked. */
static struct semel_local_unacked *find_unacked(struct semel_local_assignment *assignment,
						int64_t offset)
{
	struct semel_local_unacked *unacked = assignment->unacked + assignment->unacked_first;
	uint32_t low = 0, high = assignment->unacked_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (unacked[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < assignment->unacked_count && unacked[low].offset == offset ? &unacked[low]
										: NULL;
}

/* How many at the front are acked, and the offset of the last of them. */
static uint32_t count_acked_front(const struct semel_local_assignment *assignment,
				  int64_t *offset_out)
{
	uint32_t run = 0;
	while (run < assignment->unacked_count &&
	       assignment->unacked[assignment->unacked_first + run].acked)
		*offset_out = assignment->unacked[assignment->unacked_first + run++].offset;
	return run;
}

static void pop_unacked(struct semel_local_assignment *assignment, uint32_t count)
{
	assert(count <= assignment->unacked_count);
	assignment->unacked_count -= count;
	assignment->unacked_first =
		assignment->unacked_count == 0 ? 0 : assignment->unacked_first + count;
}

bool semel_local_delayed_add(struct semel_local_assignment *assignment, int64_t number)
{
	void *delayed = assignment->delayed;
	if (assignment->delayed_count == assignment->delayed_capacity &&
	    !grow(&delayed, &assignment->delayed_capacity, sizeof(assignment->delayed[0])))
		return false;
	assignment->delayed = delayed;
	assignment->delayed[assignment->delayed_count++] = number;
	return true;
}

static uint32_t delayed_at(const struct semel_local_assignment *assignment, int64_t number)
{
	uint32_t at = 0;
	while (at < assignment->delayed_count && assignment->delayed[at] != number)
		at++;
	return at;
}

bool semel_local_delayed_has(const struct semel_local_assignment *assignment, int64_t number)
{
	return delayed_at(assignment, number) < assignment->delayed_count;
}

static void forget_delayed(struct semel_local_assignment *assignment, int64_t number)
{
	uint32_t at = delayed_at(assignment, number);
	if (at < assignment->delayed_count)
		assignment->delayed[at] = assignment->delayed[--assignment->delayed_count];
}

bool semel_local_assignment_is_idle(const struct semel_local_assignment *assignment)
{
	return assignment->unacked_count == 0 && assignment->delayed_count == 0;
}

void semel_local_unacked_clear(struct semel_local *local, struct semel_local_assignment *assignment)
{
	local->unacked_count -= assignment->delayed_count;
	for (uint32_t i = 0; i < assignment->unacked_count; i++) {
		const struct semel_local_unacked *unacked =
			&assignment->unacked[assignment->unacked_first + i];
		if (unacked->acked)
			continue;
		local->unacked_count--;
		local->unacked_bytes -= unacked->bytes;
	}
	assignment->unacked_first = assignment->unacked_count = assignment->delayed_count = 0;
}

void semel_local_assignment_end(struct semel_local *local,
				struct semel_local_assignment *assignment)
{
	semel_local_unacked_clear(local, assignment);
	assignment->owned = assignment->releasing = assignment->backward = assignment->touched =
		false;
}

/* ---- one ack --------------------------------------------------------------------------------- */

static bool is_delayed(const struct semel_delivery *delivery)
{
	return (delivery->tag & SEMEL_LOCAL_TAG_DELAYED) != 0;
}

static struct semel_local_assignment *assignment_of(const struct semel_local *local,
						    const struct semel_delivery *delivery)
{
	int64_t entry_key = (int64_t)(delivery->tag & ~SEMEL_LOCAL_TAG_DELAYED);
	int64_t topic = entry_key >> (SEMEL_LOCAL_OFFSET_BITS + SEMEL_LOCAL_PARTITION_BITS);
	int64_t partition =
		(entry_key >> SEMEL_LOCAL_OFFSET_BITS) & (SEMEL_LOCAL_PARTITIONS_MAX - 1);
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		if (subscription->topic->number == topic)
			return partition < subscription->topic->partitions
				       ? &subscription->assignments[partition]
				       : NULL;
	}
	return NULL;
}

static int64_t offset_of(const struct semel_delivery *delivery)
{
	return (int64_t)(delivery->tag & (uint64_t)SEMEL_LOCAL_OFFSET_MAX);
}

/* False: its assignment is no longer ours. */
static bool record_ack(struct semel_local *local, const struct semel_delivery *delivery)
{
	struct semel_local_assignment *assignment = assignment_of(local, delivery);
	if (assignment == NULL || !assignment->owned)
		return false;
	if (is_delayed(delivery)) {
		bool in_flight = semel_local_delayed_has(assignment, offset_of(delivery));
		assignment->touched = assignment->touched || in_flight;
		return in_flight;
	}
	if (offset_of(delivery) <= assignment->cursor)
		return true; /* acked already */
	struct semel_local_unacked *unacked = find_unacked(assignment, offset_of(delivery));
	if (unacked == NULL)
		return false;
	if (!unacked->acked) {
		local->unacked_count--;
		local->unacked_bytes -= unacked->bytes;
	}
	unacked->acked = true;
	if (assignment->unacked[assignment->unacked_first].acked)
		assignment->touched = true; /* no gap before it: the cursor moves */
	return true;
}

/* ---- the transaction ------------------------------------------------------------------------ */

/* owned_out false: the assignment has a newer owner. */
static semel_status write_cursor(struct semel_local *local,
				 const struct semel_local_subscription *subscription,
				 uint32_t partition, bool *owned_out, semel_error *error)
{
	const struct semel_local_assignment *assignment = &subscription->assignments[partition];
	int64_t cursor = assignment->cursor;
	uint32_t run = count_acked_front(assignment, &cursor);
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_CURSOR_MOVE,
		SEMEL_LOCAL_INTS(subscription->number, partition, assignment->epoch, cursor, run,
				 assignment->read, subscription->topic->number),
		error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_CURSOR_MOVE, 8, semel_text_of(local->owner));
	status = semel_local_run(local, SEMEL_LOCAL_CURSOR_MOVE, error);
	if (status != SEMEL_OK)
		return status;
	*owned_out = sqlite3_changes(local->db) == 1;
	return SEMEL_OK;
}

static semel_status write_cursors(struct semel_local *local, bool *lost, semel_error *error)
{
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			bool owned = true;
			if (!subscription->assignments[p].touched)
				continue;
			semel_status status = write_cursor(local, subscription, p, &owned, error);
			if (status != SEMEL_OK)
				return status;
			if (owned)
				continue;
			*lost = true;
			semel_local_assignment_end(local, &subscription->assignments[p]);
		}
	}
	return SEMEL_OK;
}

/* Called after the cursors are written: a lost assignment is no longer touched then. */
static semel_status remove_delayed(struct semel_local *local,
				   const struct semel_delivery *deliveries, size_t count,
				   semel_error *error)
{
	for (size_t i = 0; i < count; i++) {
		if (!is_delayed(&deliveries[i]))
			continue;
		const struct semel_local_assignment *assignment =
			assignment_of(local, &deliveries[i]);
		if (assignment == NULL || !assignment->touched ||
		    !semel_local_delayed_has(assignment, offset_of(&deliveries[i])))
			continue;
		semel_status status =
			semel_local_run_ints(local, SEMEL_LOCAL_DELAYED_REMOVE,
					     SEMEL_LOCAL_INTS(offset_of(&deliveries[i])), error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* In an open write transaction. */
static semel_status write_all(struct semel_local *local, const struct semel_delivery *deliveries,
			      size_t count, bool heartbeat, bool *lost, semel_error *error)
{
	semel_status status = write_cursors(local, lost, error);
	if (status != SEMEL_OK)
		return status;
	status = remove_delayed(local, deliveries, count, error);
	if (status != SEMEL_OK || !heartbeat)
		return status;
	return semel_local_heartbeat(local, error);
}

static semel_status write_acks(struct semel_local *local, const struct semel_delivery *deliveries,
			       size_t count, bool *lost, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	int64_t now_ms = semel_steady_ms(local->env);
	bool heartbeat = semel_local_heartbeat_is_due(local);
	status = write_all(local, deliveries, count, heartbeat, lost, error);
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		return status;
	}
	status = semel_local_commit(local, error);
	if (status != SEMEL_OK)
		return status;
	if (heartbeat)
		local->heartbeat_at_ms = now_ms;
	return SEMEL_OK;
}

/* ---- in-memory state, updated after the commit ----------------------------------------------- */

static void forget_acked(struct semel_local *local, const struct semel_delivery *deliveries,
			 size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct semel_local_assignment *assignment = assignment_of(local, &deliveries[i]);
		if (!is_delayed(&deliveries[i]) || assignment == NULL || !assignment->touched ||
		    !semel_local_delayed_has(assignment, offset_of(&deliveries[i])))
			continue;
		forget_delayed(assignment, offset_of(&deliveries[i]));
		local->unacked_count--;
	}
}

/* written: the cursors in the file have moved. */
static void move_cursors(struct semel_local *local, bool written)
{
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			struct semel_local_assignment *assignment = &subscription->assignments[p];
			if (assignment->touched && written)
				pop_unacked(assignment,
					    count_acked_front(assignment, &assignment->cursor));
			assignment->touched = false;
		}
	}
}

/* An ack after a gap changes nothing in the file. */
static bool is_anything_to_write(const struct semel_local *local)
{
	bool any = false;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			const struct semel_local_assignment *assignment =
				&subscription->assignments[p];
			any = any || assignment->touched;
		}
	}
	return any;
}

semel_status semel_local_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			     size_t count, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	bool lost = false;
	for (size_t i = 0; i < count; i++)
		lost = !record_ack(local, &deliveries[i]) || lost;
	semel_status status = SEMEL_OK;
	if (is_anything_to_write(local))
		status = write_acks(local, deliveries, count, &lost, error);
	if (status != SEMEL_OK) {
		move_cursors(local, false);
		return status;
	}
	forget_acked(local, deliveries, count);
	move_cursors(local, true);
	if (!lost)
		return SEMEL_OK;
	return semel_error_set(
		error, SEMEL_LEASE_LOST,
		"another consumer has acquired a partition of this subscription, or it was "
		"rewound: its deliveries are redelivered");
}
