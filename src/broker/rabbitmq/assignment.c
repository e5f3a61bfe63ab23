/* SPDX-License-Identifier: Apache-2.0 */
/* One queue that we consume, on a channel of its own.
 *
 * - Acks of adjacent tags are sent as one: everything up to the first unacked tag with one
 *   "multiple", the rest one by one. The tag of a "multiple" is one that was not acked before,
 *   because the broker would not know any other.
 * - To release a queue, the channel is closed: unacked deliveries go back to the head of the queue,
 *   in order. (If the consumer were only cancelled, the next consumer would overtake them.)
 * - An opening has a number; what was delivered under an earlier one is not ours to ack.
 * - The broker's channel passes on at most 32 acks that a quorum queue has not applied; it holds
 *   the next ones, and drops them when it is closed. So the queue is made to answer before the
 *   channel is closed.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

#define PREFETCH_MAX     UINT16_MAX
#define BALANCE_MS       500
#define ACKS_AT_ONCE_MAX 31 /* acks that a channel passes on at once */

static uint16_t channel_of(uint32_t at)
{
	return (uint16_t)(SEMEL_RABBIT_ASSIGNMENTS + at);
}

/* ---- acks ------------------------------------------------------------------------------------ */

static void compact(struct semel_rabbit_assignment *assignment)
{
	if (assignment->start == 0)
		return;
	memmove(assignment->acked, assignment->acked + assignment->start, assignment->length);
	memmove(assignment->log.offsets, assignment->log.offsets + assignment->start,
		assignment->length * sizeof(assignment->log.offsets[0]));
	memmove(assignment->unacked, assignment->unacked + assignment->start,
		assignment->length * sizeof(assignment->unacked[0]));
	assignment->start = 0;
}

bool semel_rabbit_assignment_add_tag(struct semel_rabbit_assignment *assignment, uint64_t tag)
{
	if (assignment->length == 0) {
		assignment->first = tag;
		assignment->start = 0;
	}
	if (assignment->start + assignment->length == assignment->capacity)
		compact(assignment);
	if (assignment->length == assignment->capacity) {
		size_t capacity = assignment->capacity ? assignment->capacity * 2 : 256;
		uint8_t *acked = realloc(assignment->acked, capacity);
		if (acked)
			assignment->acked = acked;
		int64_t *offsets = realloc(assignment->log.offsets, capacity * sizeof(offsets[0]));
		if (offsets)
			assignment->log.offsets = offsets;
		struct semel_rabbit_unacked **unacked =
			realloc(assignment->unacked, capacity * sizeof(unacked[0]));
		if (unacked)
			assignment->unacked = unacked;
		if (!acked || !offsets || !unacked)
			return false;
		assignment->capacity = capacity;
	}
	assignment->log.offsets[assignment->start + assignment->length] = -1;
	assignment->unacked[assignment->start + assignment->length] = NULL;
	assignment->acked[assignment->start + assignment->length++] = SEMEL_RABBIT_UNACKED;
	return true;
}

/* The delivery that arrives has the last tag. */
void semel_rabbit_assignment_add_unacked(struct semel_rabbit_assignment *assignment,
					 struct semel_rabbit_unacked *unacked)
{
	assignment->unacked[assignment->start + assignment->length - 1] = unacked;
}

void semel_rabbit_assignment_ack(struct semel_rabbit *rabbit, uint32_t at, uint64_t tag)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	if (tag < assignment->first || tag - assignment->first >= assignment->length)
		return;
	size_t index = assignment->start + (size_t)(tag - assignment->first);
	if (assignment->acked[index] != SEMEL_RABBIT_UNACKED)
		return;
	assignment->acked[index] = SEMEL_RABBIT_ACKED_NOW;
	if (assignment->unacked[index]) {
		assignment->fetched -= assignment->unacked[index]->fetched;
		semel_rabbit_unacked_list_remove(rabbit, assignment->unacked[index]);
		assignment->unacked[index] = NULL;
	}
}

/* How many deliveries from the start are acked. last_out: the highest tag among them whose ack was
 * not sent; 0: none. */
static size_t acked_run(const struct semel_rabbit_assignment *assignment, uint64_t *last_out)
{
	size_t run = 0;
	*last_out = 0;
	while (run < assignment->length &&
	       assignment->acked[assignment->start + run] != SEMEL_RABBIT_UNACKED) {
		if (assignment->acked[assignment->start + run] == SEMEL_RABBIT_ACKED_NOW)
			*last_out = assignment->first + run;
		run++;
	}
	return run;
}

static void remove_first(struct semel_rabbit_assignment *assignment, size_t count)
{
	assignment->start += count;
	assignment->first += count;
	assignment->length -= count;
}

semel_status semel_rabbit_assignment_send_acks(struct semel_rabbit *rabbit, uint32_t at,
					       semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	uint64_t last = 0;
	remove_first(assignment, acked_run(assignment, &last));
	if (last > 0) {
		assignment->acks_sent++;
		semel_status status =
			semel_rabbit_write_ack(rabbit, channel_of(at), last, true, error);
		if (status != SEMEL_OK)
			return status;
	}
	for (size_t i = 0; i < assignment->length; i++) {
		if (assignment->acked[assignment->start + i] != SEMEL_RABBIT_ACKED_NOW)
			continue;
		assignment->acked[assignment->start + i] = SEMEL_RABBIT_ACKED;
		assignment->acks_sent++;
		semel_status status = semel_rabbit_write_ack(rabbit, channel_of(at),
							     assignment->first + i, false, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

uint64_t semel_rabbit_assignment_count_unacked(const struct semel_rabbit_assignment *assignment)
{
	uint64_t count = 0;
	for (size_t i = 0; i < assignment->length; i++)
		count += assignment->acked[assignment->start + i] == SEMEL_RABBIT_UNACKED;
	return count;
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* The broker limits the number of deliveries, not their bytes. So the number follows from the size
 * of the deliveries that arrived before the queue was opened; any excess then stays unread. */
static uint16_t window_for(const struct semel_rabbit *rabbit)
{
	size_t window = rabbit->average_size > 0 ? rabbit->budget / rabbit->average_size : SIZE_MAX;
	if (window > rabbit->prefetch)
		window = rabbit->prefetch;
	if (window > PREFETCH_MAX)
		window = PREFETCH_MAX;
	return window > 0 ? (uint16_t)window : 1;
}

/* from: where reading begins in a stream. */
static semel_status start_consuming(struct semel_rabbit *rabbit, uint32_t at, int64_t from,
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
			       semel_rabbit_string(rabbit->assignments[at].queue),
			       SEMEL_RABBIT_NO_BYTES, 0, 0, 0, arguments);
	return semel_rabbit_call_end(rabbit, channel, NULL, error);
}

semel_status semel_rabbit_assignment_open(struct semel_rabbit *rabbit, uint32_t at,
					  semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	bool mine = true;
	int64_t from = SEMEL_RABBIT_FIRST;
	semel_status status = SEMEL_OK;
	if (rabbit->settings.stream)
		status = semel_rabbit_stream_acquire(rabbit, at, &mine, &from, error);
	if (status != SEMEL_OK || !mine)
		return status;
	assignment->open = assignment->releasing = assignment->active = false;
	status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	status = start_consuming(rabbit, at, from, error);
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "queue %s not found on %s",
				       assignment->queue, rabbit->address);
	if (status != SEMEL_OK)
		return status;
	assignment->open = true;
	assignment->active = rabbit->settings.stream;
	return SEMEL_OK;
}

static semel_status declare_passively(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	(void)rabbit->library->queue_declare(rabbit->connection, channel_of(at),
					     semel_rabbit_string(rabbit->assignments[at].queue), 1,
					     0, 0, 0, SEMEL_RABBIT_NO_TABLE);
	return semel_rabbit_call_end(rabbit, channel_of(at), NULL, error);
}

/* Waits until the queue has handled all earlier commands: it answers the command that adds a
 * consumer after those before it, and the command that removes the consumer likewise. (Beside a
 * single active consumer the added one gets no message; otherwise at most one.) */
static semel_status await_queue(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const amqp_bytes_t tag = semel_rabbit_string("semel.await");
	uint16_t channel = channel_of(at);
	library->basic_qos(rabbit->connection, channel, 0, 1, 0);
	semel_status status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, channel,
			       semel_rabbit_string(rabbit->assignments[at].queue), tag, 0, 0, 0,
			       SEMEL_RABBIT_NO_TABLE);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_cancel(rabbit->connection, channel, tag);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return declare_passively(rabbit, at, error);
}

/* After the first round the queue has applied the acks that had been passed on to it, and the
 * channel learns that and passes on the rest; after the second round the queue has applied these,
 * too. */
semel_status semel_rabbit_assignment_await_acks(struct semel_rabbit *rabbit, uint32_t at,
						semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	if (!assignment->open || assignment->acks_sent <= ACKS_AT_ONCE_MAX ||
	    strcmp(rabbit->settings.queue_type, "quorum") != 0)
		return SEMEL_OK;
	assignment->acks_sent = 0;
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	for (int round = 0; round < 2; round++) {
		status = await_queue(rabbit, at, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

void semel_rabbit_assignment_reset(struct semel_rabbit *rabbit, uint32_t at)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	if (rabbit->settings.stream)
		semel_rabbit_stream_remember_acked(assignment);
	assignment->open = assignment->releasing = assignment->active =
		assignment->log.has_skipped = false;
	assignment->epoch++;
	assignment->fetched = assignment->acks_sent = assignment->counts_pending = 0;
	assignment->start = assignment->length = 0;
	if (assignment->assembly.unacked)
		semel_rabbit_unacked_free(rabbit, assignment->assembly.unacked);
	assignment->assembly = (struct semel_rabbit_assembly){ 0 };
	semel_rabbit_unacked_list_drop(rabbit, at);
}

/* Everything unacked goes back to the head of the queue, in order. */
static semel_status close_assignment(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		goto reset;
	status = semel_rabbit_assignment_await_acks(rabbit, at, error);
	if (status != SEMEL_OK)
		goto reset;
	status = semel_rabbit_close_channel(rabbit, channel_of(at), error);
reset:
	semel_rabbit_assignment_reset(rabbit, at);
	return status;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* The channel answers before it passes on what the queue had sent to it earlier; when it answers a
 * second time, it has passed that on. */
static semel_status request_twice(struct semel_rabbit *rabbit, uint32_t at, uint64_t *ready_out,
				  semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	for (int round = 0; round < 2 && assignment->open; round++) {
		semel_status status = semel_rabbit_request_count(rabbit, channel_of(at),
								 assignment->queue, error);
		if (status != SEMEL_OK)
			return status;
		if (round == 0)
			*ready_out = rabbit->count_request.ready;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_assignment_count_ready(struct semel_rabbit *rabbit, uint32_t at,
						 uint64_t *ready_out, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	*ready_out = 0;
	semel_status status = request_twice(rabbit, at, ready_out, error);
	/* Perhaps a consumer time-out closed it: the next fetch opens it again. */
	if (!assignment->open && (status == SEMEL_OK || status == SEMEL_CONFIG))
		status = semel_rabbit_count(rabbit, assignment->queue, ready_out, NULL, error);
	return status == SEMEL_BUSY ? SEMEL_OK : status; /* the unacked list is full */
}

/* ---- balancing with other consumers ---------------------------------------------------------- */

static uint32_t count_active(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		count += rabbit->assignments[i].active && !rabbit->assignments[i].releasing;
	return count;
}

/* Counts the consumers of the subscription, including this one. A quorum queue does not report its
 * standby consumers, so all of them also consume a classic queue to which nothing is published. */
static semel_status count_consumers(struct semel_rabbit *rabbit, uint32_t *count_out,
				    semel_error *error)
{
	uint64_t ready;
	if (!rabbit->open_channels[SEMEL_RABBIT_MEMBERS]) {
		semel_status status = semel_rabbit_join(rabbit, rabbit->members, error);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_rabbit_count(rabbit, rabbit->members, &ready, count_out, error);
}

static void release_surplus(struct semel_rabbit *rabbit, uint32_t excess)
{
	for (uint32_t i = rabbit->assignment_count; i-- > 0 && excess > 0;) {
		struct semel_rabbit_assignment *assignment = &rabbit->assignments[i];
		if (!assignment->active || assignment->releasing)
			continue;
		assignment->releasing = true;
		excess--;
		semel_log(SEMEL_LOG_DEBUG, "releasing queue to another consumer",
			  &(struct semel_log_fields){ .queue = assignment->queue });
	}
}

/* Even if the channel could not be closed, the assignment is no longer ours. */
static semel_status release(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	semel_status status = close_assignment(rabbit, at, error);
	if (rabbit->settings.stream)
		semel_rabbit_stream_release(rabbit, at);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_assignment_open(rabbit, at, error);
}

static semel_status release_idle(struct semel_rabbit *rabbit, semel_error *error)
{
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		if (!rabbit->assignments[i].releasing || rabbit->assignments[i].fetched > 0)
			continue;
		semel_status status = release(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* The broker makes the consumer that came first the active one of every queue. So a consumer that
 * is active on more queues than its quota releases some, and becomes the last standby of these. For
 * streams, no consumer takes more than its quota. */
semel_status semel_rabbit_balance(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	uint32_t consumers = 1;
	if (!rabbit->members[0])
		return SEMEL_OK;
	semel_status status = release_idle(rabbit, error);
	if (status != SEMEL_OK || now_ms < rabbit->balance_at_ms)
		return status;
	rabbit->balance_at_ms = now_ms + BALANCE_MS;
	status = count_consumers(rabbit, &consumers, error);
	if (status != SEMEL_OK)
		return status == SEMEL_BUSY ? SEMEL_OK : status;
	if (consumers == 0)
		consumers = 1;
	rabbit->quota = (rabbit->assignment_count + consumers - 1) / consumers;
	uint32_t active = count_active(rabbit);
	if (active > rabbit->quota)
		release_surplus(rabbit, active - rabbit->quota);
	return SEMEL_OK;
}
