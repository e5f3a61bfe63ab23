/* SPDX-License-Identifier: Apache-2.0 */
/* A queue that is a stream: a log which forgets nothing when it is acked, and keeps no place for
 * its readers.
 *
 * - The offset store says who reads it and from where; an ack is only leave to send more.
 * - A stream that was deleted and made anew begins at 0 again, and the broker would pass over what
 *   lies before the place that we ask for. So a place beyond the end means the beginning; and so
 *   does one behind an event that is not the one which the offset store remembers there.
 * - What was acked ahead of others comes again when the stream is opened again, and is dropped.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

#define ASK_AGAIN_MS 500
#define COUNT_MAX    1000 /* one by one */
#define STILL_BEATS  3
#define STILL_MS     30000 /* where there are no heartbeats */

enum { UNACKED, ACKED_NOW }; /* as in share.c */

/* ---- who reads, and from where --------------------------------------------------------------- */

static uint32_t count_open(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		count += rabbit->shares[i].open;
	return count;
}

static void tell(const struct semel_rabbit_share *share, const char *what)
{
	semel_log(SEMEL_LOG_WARN, what, &(struct semel_log_fields){ .queue = share->queue });
}

/* The event before the place has to be there, unless it was given up to the stream's retention. */
static semel_status check_place(struct semel_rabbit *rabbit, const struct semel_rabbit_share *share,
				int64_t *from, semel_error *error)
{
	const struct semel_offset_store *offset_store = rabbit->offset_store;
	struct semel_anchor anchor =
		offset_store->anchor(offset_store->user, share->topic, share->partition);
	struct semel_rabbit_probe probe = { .from = anchor.offset >= 0 ? anchor.offset : *from - 1,
					    .limit = 1,
					    .may_be_empty = true };
	semel_status status = semel_rabbit_probe_run(rabbit, share->queue, &probe, error);
	bool there = probe.first == probe.from, known = anchor.offset >= 0 && probe.first_named;
	if (status != SEMEL_OK || (there && (!known || probe.first_hash == anchor.hash)))
		return status;
	if (!there && probe.first >= *from) {
		tell(share, "the stream has forgotten events that this scope had not read: its "
			    "retention is too short");
		return SEMEL_OK;
	}
	tell(share, there ? "the stream has another event where this scope has read: it was made "
			    "anew, or has lost its end, and is read from its beginning"
			  : "the stream ends before the place where this scope stands: it was made "
			    "anew, and is read from its beginning");
	*from = SEMEL_RABBIT_FIRST;
	return SEMEL_OK;
}

semel_status semel_rabbit_stream_take(struct semel_rabbit *rabbit, uint32_t at, bool *mine_out,
				      int64_t *from_out, semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	const struct semel_offset_store *offset_store = rabbit->offset_store;
	int64_t next = -1;
	*mine_out = false;
	share->log.ask_at_ms = semel_steady_ms(rabbit->env) + ASK_AGAIN_MS;
	if (rabbit->part > 0 && count_open(rabbit) >= rabbit->part)
		return SEMEL_OK;
	semel_status status = offset_store->acquire(offset_store->user, share->topic,
						    share->partition, false, &next, error);
	if (status == SEMEL_LEASE_LOST)
		return SEMEL_OK;
	*from_out = next > 0 ? next : SEMEL_RABBIT_FIRST;
	if (status == SEMEL_OK && next > 0 && share->log.next < 0)
		status = check_place(rabbit, share, from_out, error);
	if (status != SEMEL_OK)
		return status;
	*mine_out = true;
	share->log.ask_at_ms = 0;
	if (share->log.next < 0 || *from_out < share->log.next)
		share->log.next = *from_out > 0 ? *from_out : 0;
	return SEMEL_OK;
}

void semel_rabbit_stream_release(struct semel_rabbit *rabbit, uint32_t at)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	share->log.next = share->log.seen = -1;
	share->log.settled_count = 0;
	if (rabbit->offset_store)
		rabbit->offset_store->release(rabbit->offset_store->user, share->topic,
					      share->partition);
}

amqp_field_value_t semel_rabbit_stream_offset(int64_t from)
{
	if (from >= 0)
		return (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_I64, .value.i64 = from };
	return (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_UTF8,
				     .value.bytes = semel_rabbit_string(
					     from == SEMEL_RABBIT_FIRST ? "first" : "last") };
}

/* ---- what comes ------------------------------------------------------------------------------ */

bool semel_rabbit_stream_remember(struct semel_rabbit_share *share)
{
	int64_t *settled =
		malloc((share->length + share->log.settled_count + 1) * sizeof(settled[0]));
	size_t count = 0;
	if (!settled)
		share->log.settled_count = 0;
	for (size_t i = share->start; settled && i < share->start + share->length; i++)
		if (share->acked[i] != UNACKED && share->log.offsets[i] >= 0)
			settled[count++] = share->log.offsets[i];
	for (size_t i = 0; settled && i < share->log.settled_count; i++)
		if (share->log.settled[i] >= share->log.next)
			settled[count++] = share->log.settled[i];
	free(share->log.settled);
	share->log.settled = settled;
	share->log.settled_count = count;
	if (share->log.seen < share->log.next)
		share->log.seen = share->log.next;
	return settled != NULL;
}

static int compare_offsets(const void *left, const void *right)
{
	const int64_t *a = left, *b = right;
	return (*a > *b) - (*a < *b);
}

static bool was_settled(const struct semel_rabbit_share *share, int64_t offset)
{
	return share->log.settled_count > 0 &&
	       bsearch(&offset, share->log.settled, share->log.settled_count,
		       sizeof(share->log.settled[0]), compare_offsets) != NULL;
}

void semel_rabbit_stream_seen(struct semel_rabbit_share *share, struct semel_rabbit_parcel *parcel,
			      bool marked)
{
	int64_t offset = parcel->delivery.offset;
	size_t last = share->start + share->length - 1; /* it was noted when its method came */
	share->log.offsets[last] = offset;
	share->log.next = offset + 1;
	parcel->delivery.redelivered = offset < share->log.seen;
	parcel->needless = marked || was_settled(share, offset);
	if (!parcel->needless)
		return;
	share->acked[last] = ACKED_NOW;
	share->log.needless = true;
}

/* ---- the mark -------------------------------------------------------------------------------- */

semel_status semel_rabbit_stream_mark(struct semel_rabbit *rabbit, const char *queue,
				      semel_error *error)
{
	const struct semel_event mark = { .type = SEMEL_TEXT(SEMEL_RABBIT_MARK),
					  .headers = SEMEL_TEXT("{}"),
					  .payload = SEMEL_TEXT("") };
	const struct semel_publish_metadata metadata = { 0 };
	const struct semel_rabbit_post post = { .channel = SEMEL_RABBIT_REQUEUE,
						.exchange = SEMEL_TEXT(""),
						.key = semel_text_of(queue),
						.event = &mark,
						.metadata = &metadata };
	uint64_t ready = 0;
	semel_status status = semel_rabbit_count(rabbit, queue, &ready, NULL, error);
	if (status != SEMEL_OK || ready > 0)
		return status;
	status = semel_rabbit_send_confirmed(rabbit, &post, error);
	return status == SEMEL_BUSY ? SEMEL_OK : status; /* an alarm: the next one makes it */
}

/* ---- looking --------------------------------------------------------------------------------- */

/* A few are counted, without the marks; of many the offsets tell. */
static semel_status count_behind(struct semel_rabbit *rabbit, const char *queue,
				 struct semel_rabbit_probe *probe, semel_error *error)
{
	struct semel_rabbit_probe end = { .from = SEMEL_RABBIT_LAST, .limit = UINT64_MAX };
	probe->limit = COUNT_MAX;
	semel_status status = semel_rabbit_probe_run(rabbit, queue, probe, error);
	if (status != SEMEL_OK || probe->count < COUNT_MAX)
		return status;
	status = semel_rabbit_probe_run(rabbit, queue, &end, error);
	probe->last = end.last;
	probe->count = (uint64_t)(end.last + 1 - probe->count_from);
	return status;
}

semel_status semel_rabbit_stream_look(struct semel_rabbit *rabbit,
				      const struct semel_rabbit_home *home, uint32_t number,
				      struct semel_rabbit_probe *probe, semel_error *error)
{
	const struct semel_offset_store *offset_store = rabbit->offset_store;
	char queue[SEMEL_RABBIT_NAME_SIZE];
	int64_t next = -1;
	semel_status status =
		semel_rabbit_queue_name(home, home->partitions > 1 ? number : 0, queue, error);
	if (status == SEMEL_OK && offset_store)
		status = offset_store->get(offset_store->user, home->scope, home->topic,
					   (int32_t)number - 1, &next, error);
	if (status != SEMEL_OK)
		return status;
	probe->from = next > 0 ? next - 1 : SEMEL_RABBIT_FIRST;
	probe->count_from = next > 0 ? next : 0;
	probe->may_be_empty = true;
	return probe->wanted.data ? semel_rabbit_probe_run(rabbit, queue, probe, error)
				  : count_behind(rabbit, queue, probe, error);
}

semel_status semel_rabbit_stream_waiting(struct semel_rabbit *rabbit, uint32_t at,
					 uint64_t *waiting_out, semel_error *error)
{
	const struct semel_rabbit_share *share = &rabbit->shares[at];
	struct semel_rabbit_probe probe = { 0 };
	semel_status status = SEMEL_OK;
	if (semel_rabbit_stage_is_full(rabbit)) {
		probe.last = -1; /* there is enough in hand */
	} else if (share->open) {
		probe.from = share->log.next > 0 ? share->log.next - 1 : SEMEL_RABBIT_FIRST;
		probe.count_from = share->log.next;
		status = count_behind(rabbit, share->queue, &probe, error);
	} else {
		struct semel_rabbit_home home = { .scope = rabbit->scope,
						  .topic = share->topic,
						  .partitions = rabbit->partitions };
		status = semel_rabbit_stream_look(rabbit, &home, (uint32_t)share->partition + 1,
						  &probe, error);
	}
	/* What has come here meanwhile is in hand, and need not be counted twice. */
	int64_t behind = probe.last + 1 - share->log.next;
	if (share->open && behind < (int64_t)probe.count)
		probe.count = behind > 0 ? (uint64_t)behind : 0;
	*waiting_out = probe.count + semel_rabbit_share_unacked(share);
	return status;
}

/* ---- a reader that stands still -------------------------------------------------------------- */

static int64_t patience_ms(const struct semel_rabbit *rabbit)
{
	return rabbit->settings.heartbeat_s > 0 ? rabbit->settings.heartbeat_s * STILL_BEATS * 1000
						: STILL_MS;
}

/* Nobody tells a reader that the replica of its node was removed, or did not come back: nothing
 * arrives any more, and the connection is well. After a silence of some heartbeats another reader
 * looks: it is refused, or it finds what does not come here. What it finds may just have been on
 * its way, so it looks twice. */
semel_status semel_rabbit_stream_check(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	int64_t now_ms = semel_steady_ms(rabbit->env);
	uint64_t waiting = 0;
	bool moved = share->log.next != share->log.still_at;
	if (!share->open || moved || semel_rabbit_share_unacked(share) > 0) {
		share->log.still_at = share->log.next;
		share->log.still_ms = now_ms;
		share->log.behind = false;
		return SEMEL_OK;
	}
	if (now_ms - share->log.still_ms < patience_ms(rabbit))
		return SEMEL_OK;
	share->log.still_ms = now_ms;
	semel_status status = semel_rabbit_stream_waiting(rabbit, at, &waiting, error);
	if (status != SEMEL_OK)
		return status;
	bool was_behind = share->log.behind;
	share->log.behind = waiting > 0 && share->log.next == share->log.still_at;
	if (!was_behind || !share->log.behind)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "%s brings nothing of the stream %s, where %llu wait", rabbit->place,
			       share->queue, (unsigned long long)waiting);
}
