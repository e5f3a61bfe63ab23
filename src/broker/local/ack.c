/* SPDX-License-Identifier: Apache-2.0 */
/* Settling deliveries.
 *
 * - A cursor moves over acked entries only, and never over a gap: what is acked out of order waits
 *   in memory, and comes again if this consumer dies before the gap is closed.
 * - All cursors of one call move in one transaction, each checked against the share's owner and
 *   epoch. A share that was lost is dropped, its deliveries come again elsewhere, and the call says
 *   LEASE_LOST; the others are settled all the same.
 * - Memory follows after the commit. When it fails, the acks stay noted, and ack may be called
 * again.
 */
#include "base/error.h"
#include "broker/local/local.h"

static bool is_delayed(const struct semel_delivery *delivery)
{
	return (delivery->tag & SEMEL_LOCAL_TAG_DELAYED) != 0;
}

static struct semel_local_share *share_of(const struct semel_local *local,
					  const struct semel_delivery *delivery)
{
	int64_t position = (int64_t)(delivery->tag & ~SEMEL_LOCAL_TAG_DELAYED);
	int64_t topic = position >> (SEMEL_LOCAL_OFFSET_BITS + SEMEL_LOCAL_PARTITION_BITS);
	int64_t partition =
		(position >> SEMEL_LOCAL_OFFSET_BITS) & (SEMEL_LOCAL_PARTITIONS_MAX - 1);
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		if (subscription->topic->number == topic)
			return partition < subscription->topic->partitions
				       ? &subscription->shares[partition]
				       : NULL;
	}
	return NULL;
}

static int64_t offset_of(const struct semel_delivery *delivery)
{
	return (int64_t)(delivery->tag & (uint64_t)SEMEL_LOCAL_OFFSET_MAX);
}

/* False: it is not ours any more. */
static bool note_ack(struct semel_local *local, const struct semel_delivery *delivery)
{
	struct semel_local_share *share = share_of(local, delivery);
	if (share == NULL || !share->held)
		return false;
	if (is_delayed(delivery)) {
		bool in_flight = semel_local_delayed_has(share, offset_of(delivery));
		share->touched = share->touched || in_flight;
		return in_flight;
	}
	if (offset_of(delivery) <= share->cursor)
		return true; /* settled already */
	struct semel_local_flight *flight = semel_local_flight_find(share, offset_of(delivery));
	if (flight == NULL)
		return false;
	if (!flight->acked) {
		local->unacked--;
		local->unacked_bytes -= flight->bytes;
	}
	flight->acked = true;
	if (share->flights[share->flight_first].acked)
		share->touched = true; /* no gap before it: the cursor moves */
	return true;
}

/* ---- the transaction ------------------------------------------------------------------------ */

/* held_out false: the fence has moved on. */
static semel_status settle_share(struct semel_local *local,
				 const struct semel_local_subscription *subscription,
				 uint32_t partition, bool *held_out, semel_error *error)
{
	const struct semel_local_share *share = &subscription->shares[partition];
	int64_t cursor = share->cursor;
	uint32_t run = semel_local_flight_run(share, &cursor);
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_SHARE_SETTLE,
		SEMEL_LOCAL_INTS(subscription->number, partition, share->epoch, cursor, run,
				 share->read, subscription->topic->number),
		error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_SHARE_SETTLE, 8, semel_text_of(local->owner));
	status = semel_local_run(local, SEMEL_LOCAL_SHARE_SETTLE, error);
	*held_out = status == SEMEL_OK && sqlite3_changes(local->db) == 1;
	return status;
}

static semel_status settle_shares(struct semel_local *local, bool *lost, semel_error *error)
{
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			bool held = true;
			if (!subscription->shares[p].touched)
				continue;
			semel_status status = settle_share(local, subscription, p, &held, error);
			if (status != SEMEL_OK)
				return status;
			if (held)
				continue;
			*lost = true;
			semel_local_share_drop(local, &subscription->shares[p]);
		}
	}
	return SEMEL_OK;
}

/* After the shares: what was lost is not touched any more. */
static semel_status settle_delayed(struct semel_local *local,
				   const struct semel_delivery *deliveries, size_t count,
				   semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < count && status == SEMEL_OK; i++) {
		if (!is_delayed(&deliveries[i]))
			continue;
		const struct semel_local_share *share = share_of(local, &deliveries[i]);
		if (share != NULL && share->touched &&
		    semel_local_delayed_has(share, offset_of(&deliveries[i])))
			status = semel_local_run_ints(local, SEMEL_LOCAL_DELAYED_REMOVE,
						      SEMEL_LOCAL_INTS(offset_of(&deliveries[i])),
						      error);
	}
	return status;
}

static semel_status settle(struct semel_local *local, const struct semel_delivery *deliveries,
			   size_t count, bool *lost, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	int64_t now_ms = semel_steady_ms(local->env);
	bool beat = semel_local_beat_is_due(local);
	status = settle_shares(local, lost, error);
	if (status == SEMEL_OK)
		status = settle_delayed(local, deliveries, count, error);
	if (status == SEMEL_OK && beat)
		status = semel_local_beat(local, error);
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		return status;
	}
	status = semel_local_commit(local, error);
	if (status == SEMEL_OK && beat)
		local->beat_at_ms = now_ms;
	return status;
}

/* ---- memory follows ------------------------------------------------------------------------- */

static void forget_settled(struct semel_local *local, const struct semel_delivery *deliveries,
			   size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct semel_local_share *share = share_of(local, &deliveries[i]);
		if (!is_delayed(&deliveries[i]) || share == NULL || !share->touched ||
		    !semel_local_delayed_has(share, offset_of(&deliveries[i])))
			continue;
		semel_local_delayed_remove(share, offset_of(&deliveries[i]));
		local->unacked--;
	}
}

static void move_cursors(struct semel_local *local, bool settled)
{
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			struct semel_local_share *share = &subscription->shares[p];
			if (share->touched && settled)
				semel_local_flight_pop(
					share, semel_local_flight_run(share, &share->cursor));
			share->touched = false;
		}
	}
}

/* An ack behind a gap changes nothing in the file. */
static bool is_anything_to_write(const struct semel_local *local)
{
	bool any = false;
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		const struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0; p < subscription->topic->partitions; p++) {
			const struct semel_local_share *share = &subscription->shares[p];
			any = any || share->touched;
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
		lost = !note_ack(local, &deliveries[i]) || lost;
	semel_status status = SEMEL_OK;
	if (is_anything_to_write(local))
		status = settle(local, deliveries, count, &lost, error);
	if (status == SEMEL_OK)
		forget_settled(local, deliveries, count);
	move_cursors(local, status == SEMEL_OK);
	if (status != SEMEL_OK || !lost)
		return status;
	return semel_error_set(error, SEMEL_LEASE_LOST,
			       "another consumer has taken over a share of this subscription, or "
			       "it was rewound: the deliveries come again");
}
