/* SPDX-License-Identifier: Apache-2.0 */
/* One queue that we consume, on a channel of its own.
 *
 * - Acks go out as one where the tags are next to each other: everything up to the first unacked
 *   tag with one "multiple", the rest one by one. The tag of a "multiple" is one that was not acked
 *   before, or the broker would not know it.
 * - To let a queue go, the channel is closed: what is unacked goes back to its head, in order. (To
 *   cancel only would let the next consumer overtake what is unacked.)
 * - An opening has a number; what was delivered under an earlier one is not ours to ack.
 * - The broker's channel passes on 32 acks to a quorum queue that has not settled them; the next
 *   ones it keeps, and forgets when it is closed. So before it is closed the queue is made to
 * answer.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

#define PREFETCH_MAX UINT16_MAX
#define BALANCE_MS   500
#define TOLD_MAX     31 /* acks that a channel passes on at once */

enum { UNACKED, ACKED_NOW, ACKED };

static uint16_t channel_of(uint32_t at)
{
	return (uint16_t)(SEMEL_RABBIT_SHARES + at);
}

/* ---- acks ------------------------------------------------------------------------------------ */

static void compact(struct semel_rabbit_share *share)
{
	if (share->start == 0)
		return;
	memmove(share->acked, share->acked + share->start, share->length);
	memmove(share->log.offsets, share->log.offsets + share->start,
		share->length * sizeof(share->log.offsets[0]));
	memmove(share->parcels, share->parcels + share->start,
		share->length * sizeof(share->parcels[0]));
	share->start = 0;
}

bool semel_rabbit_share_note(struct semel_rabbit_share *share, uint64_t tag)
{
	if (share->length == 0) {
		share->first = tag;
		share->start = 0;
	}
	if (share->start + share->length == share->capacity)
		compact(share);
	if (share->length == share->capacity) {
		size_t capacity = share->capacity ? share->capacity * 2 : 256;
		uint8_t *acked = realloc(share->acked, capacity);
		if (acked)
			share->acked = acked;
		int64_t *offsets = realloc(share->log.offsets, capacity * sizeof(offsets[0]));
		if (offsets)
			share->log.offsets = offsets;
		struct semel_rabbit_parcel **parcels =
			realloc(share->parcels, capacity * sizeof(parcels[0]));
		if (parcels)
			share->parcels = parcels;
		if (!acked || !offsets || !parcels)
			return false;
		share->capacity = capacity;
	}
	share->log.offsets[share->start + share->length] = -1;
	share->parcels[share->start + share->length] = NULL;
	share->acked[share->start + share->length++] = UNACKED;
	return true;
}

/* What arrives is the last that was noted. */
void semel_rabbit_share_keep(struct semel_rabbit_share *share, struct semel_rabbit_parcel *parcel)
{
	share->parcels[share->start + share->length - 1] = parcel;
}

void semel_rabbit_share_ack(struct semel_rabbit *rabbit, uint32_t at, uint64_t tag)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	if (tag < share->first || tag - share->first >= share->length)
		return;
	size_t index = share->start + (size_t)(tag - share->first);
	if (share->acked[index] != UNACKED)
		return;
	share->acked[index] = ACKED_NOW;
	if (share->parcels[index]) {
		share->handed -= share->parcels[index]->out;
		semel_rabbit_stage_remove(rabbit, share->parcels[index]);
		share->parcels[index] = NULL;
	}
}

/* How many from the start are acked; last_out: the highest of them that the broker does not know
 * of, 0 when there is none. */
static size_t acked_run(const struct semel_rabbit_share *share, uint64_t *last_out)
{
	size_t run = 0;
	*last_out = 0;
	while (run < share->length && share->acked[share->start + run] != UNACKED) {
		if (share->acked[share->start + run] == ACKED_NOW)
			*last_out = share->first + run;
		run++;
	}
	return run;
}

semel_status semel_rabbit_share_send_acks(struct semel_rabbit *rabbit, uint32_t at,
					  semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	uint64_t last = 0;
	size_t run = acked_run(share, &last);
	semel_status status = SEMEL_OK;
	share->told += last > 0;
	if (last > 0)
		status = semel_rabbit_send_ack(rabbit, channel_of(at), last, true, error);
	share->start += run;
	share->first += run;
	share->length -= run;
	for (size_t i = 0; i < share->length && status == SEMEL_OK; i++) {
		if (share->acked[share->start + i] != ACKED_NOW)
			continue;
		share->acked[share->start + i] = ACKED;
		share->told++;
		status = semel_rabbit_send_ack(rabbit, channel_of(at), share->first + i, false,
					       error);
	}
	return status;
}

uint64_t semel_rabbit_share_unacked(const struct semel_rabbit_share *share)
{
	uint64_t count = 0;
	for (size_t i = 0; i < share->length; i++)
		count += share->acked[share->start + i] == UNACKED;
	return count;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The broker counts deliveries and not their bytes. So their number follows from the size of those
 * that came before the queue was opened; what is too much then stays unread. */
static uint16_t window_for(const struct semel_rabbit *rabbit)
{
	size_t window = rabbit->usual_size > 0 ? rabbit->budget / rabbit->usual_size : SIZE_MAX;
	if (window > rabbit->prefetch)
		window = rabbit->prefetch;
	if (window > PREFETCH_MAX)
		window = PREFETCH_MAX;
	return window > 0 ? (uint16_t)window : 1;
}

/* from: where in a stream. */
static semel_status consume(struct semel_rabbit *rabbit, uint32_t at, int64_t from,
			    semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	amqp_table_entry_t offset = { .key = semel_rabbit_string("x-stream-offset"),
				      .value = semel_rabbit_stream_offset(from) };
	amqp_table_t arguments = { .num_entries = rabbit->settings.stream, .entries = &offset };
	uint16_t channel = channel_of(at);
	uint16_t prefetch = window_for(rabbit);
	library->channel_open(rabbit->connection, channel);
	semel_status status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_qos(rabbit->connection, channel, 0, prefetch, 0);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, channel,
			       semel_rabbit_string(rabbit->shares[at].queue), SEMEL_RABBIT_NO_BYTES,
			       0, 0, 0, arguments);
	return semel_rabbit_call_end(rabbit, channel, NULL, error);
}

semel_status semel_rabbit_share_open(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	bool mine = true;
	int64_t from = SEMEL_RABBIT_FIRST;
	semel_status status = SEMEL_OK;
	if (rabbit->settings.stream)
		status = semel_rabbit_stream_take(rabbit, at, &mine, &from, error);
	if (status != SEMEL_OK || !mine)
		return status;
	status = semel_rabbit_call_begin(rabbit, error);
	if (status == SEMEL_OK)
		status = consume(rabbit, at, from, error);
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "the queue %s is gone from %s",
				       share->queue, rabbit->place);
	share->open = status == SEMEL_OK;
	share->leaving = false;
	share->active = share->open && rabbit->settings.stream;
	return status;
}

static semel_status ask(struct semel_rabbit *rabbit, uint32_t at, uint64_t *ready_out,
			bool *closed_out, semel_error *error)
{
	const amqp_queue_declare_ok_t *ok = rabbit->library->queue_declare(
		rabbit->connection, channel_of(at), semel_rabbit_string(rabbit->shares[at].queue),
		1, 0, 0, 0, SEMEL_RABBIT_NO_TABLE);
	if (ok)
		*ready_out = ok->message_count;
	return semel_rabbit_call_end(rabbit, channel_of(at), closed_out, error);
}

/* To add a consumer is a command that the queue answers after those before it; to take it away is
 * another. (Behind a single active consumer it gets nothing; without one, a message at most.) */
static semel_status ask_queue(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const amqp_bytes_t tag = semel_rabbit_string("semel.settle");
	uint16_t channel = channel_of(at);
	uint64_t ready = 0;
	library->basic_qos(rabbit->connection, channel, 0, 1, 0);
	semel_status status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, channel,
			       semel_rabbit_string(rabbit->shares[at].queue), tag, 0, 0, 0,
			       SEMEL_RABBIT_NO_TABLE);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_cancel(rabbit->connection, channel, tag);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	return status == SEMEL_OK ? ask(rabbit, at, &ready, NULL, error) : status;
}

/* The first time the queue has settled what had been passed on to it, and the channel hears of
 * that, and passes on the rest; the second time it has settled that too. */
semel_status semel_rabbit_share_settle(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	semel_status status = SEMEL_OK;
	if (!share->open || share->told <= TOLD_MAX ||
	    strcmp(rabbit->settings.queue_type, "quorum") != 0)
		return SEMEL_OK;
	status = semel_rabbit_call_begin(rabbit, error);
	for (int round = 0; round < 2 && status == SEMEL_OK; round++)
		status = ask_queue(rabbit, at, error);
	share->told = 0;
	return status;
}

void semel_rabbit_share_forget(struct semel_rabbit *rabbit, uint32_t at)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	if (rabbit->settings.stream)
		(void)semel_rabbit_stream_remember(share); /* or they come once more */
	share->open = share->leaving = share->active = share->log.needless = false;
	share->epoch++;
	share->handed = share->told = share->questions = 0;
	share->start = share->length = 0;
	if (share->assembly.parcel)
		semel_rabbit_parcel_free(rabbit, share->assembly.parcel);
	share->assembly = (struct semel_rabbit_assembly){ 0 };
	semel_rabbit_stage_forget(rabbit, at);
}

semel_status semel_rabbit_share_close(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_share_settle(rabbit, at, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_close_channel(rabbit, channel_of(at), error);
	semel_rabbit_share_forget(rabbit, at);
	return status;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* The channel answers before it passes on what the queue had sent to it earlier; it has passed that
 * on when it answers a second time. */
semel_status semel_rabbit_share_count(struct semel_rabbit *rabbit, uint32_t at, uint64_t *ready_out,
				      semel_error *error)
{
	struct semel_rabbit_share *share = &rabbit->shares[at];
	semel_status status = SEMEL_OK;
	*ready_out = 0;
	for (int round = 0; round < 2 && status == SEMEL_OK && share->open; round++) {
		status = semel_rabbit_ask(rabbit, channel_of(at), share->queue, error);
		if (status == SEMEL_OK && round == 0)
			*ready_out = rabbit->question.ready;
	}
	/* A consumer time-out, perhaps: the next fetch opens it again. */
	if (!share->open && (status == SEMEL_OK || status == SEMEL_CONFIG))
		status = semel_rabbit_count(rabbit, share->queue, ready_out, NULL, error);
	return status == SEMEL_BUSY ? SEMEL_OK : status; /* there is enough in hand */
}

/* ---- sharing with others --------------------------------------------------------------------- */

static uint32_t count_active(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		count += rabbit->shares[i].active && !rabbit->shares[i].leaving;
	return count;
}

/* Consumers of the subscription, us among them. A quorum queue does not tell of those that stand
 * by, so they all are consumers of a classic one that nobody writes to. */
static semel_status count_consumers(struct semel_rabbit *rabbit, uint32_t *count_out,
				    semel_error *error)
{
	uint64_t ready;
	semel_status status = SEMEL_OK;
	if (!rabbit->open_channels[SEMEL_RABBIT_MEMBERS])
		status = semel_rabbit_join(rabbit, rabbit->members, error);
	return status == SEMEL_OK
		       ? semel_rabbit_count(rabbit, rabbit->members, &ready, count_out, error)
		       : status;
}

static void mark_leaving(struct semel_rabbit *rabbit, uint32_t excess)
{
	for (uint32_t i = rabbit->share_count; i-- > 0 && excess > 0;) {
		struct semel_rabbit_share *share = &rabbit->shares[i];
		if (!share->active || share->leaving)
			continue;
		share->leaving = true;
		excess--;
		semel_log(SEMEL_LOG_DEBUG, "the queue goes to another consumer",
			  &(struct semel_log_fields){ .queue = share->queue });
	}
}

static semel_status hand_over(struct semel_rabbit *rabbit, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++) {
		if (!rabbit->shares[i].leaving || rabbit->shares[i].handed > 0)
			continue;
		status = semel_rabbit_share_close(rabbit, i, error);
		if (rabbit->settings.stream)
			semel_rabbit_stream_release(rabbit, i);
		if (status == SEMEL_OK)
			status = semel_rabbit_share_open(rabbit, i, error);
	}
	return status;
}

/* The broker makes the consumer that came first the active one of every queue. So whoever is active
 * in more than its part lets some go, and stands at the end of their line again. Of streams nobody
 * takes more than its part. */
semel_status semel_rabbit_balance(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	uint32_t consumers = 1;
	if (!rabbit->members[0])
		return SEMEL_OK;
	semel_status status = hand_over(rabbit, error);
	if (status != SEMEL_OK || now_ms < rabbit->balance_at_ms)
		return status;
	rabbit->balance_at_ms = now_ms + BALANCE_MS;
	status = count_consumers(rabbit, &consumers, error);
	if (status != SEMEL_OK)
		return status == SEMEL_BUSY ? SEMEL_OK : status;
	uint32_t part = (rabbit->share_count + consumers - 1) / (consumers > 0 ? consumers : 1);
	uint32_t active = count_active(rabbit);
	rabbit->part = part;
	if (active > part)
		mark_leaving(rabbit, active - part);
	return SEMEL_OK;
}
