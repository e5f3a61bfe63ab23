/* SPDX-License-Identifier: Apache-2.0 */
/* A queue that is a stream: a log that keeps what is acked, and keeps no offsets for its readers.
 *
 * - The offset store says which consumer reads it and from where; an ack only lets the broker send
 *   more.
 * - A stream that was deleted and declared again begins at 0, and the broker would skip everything
 *   before the offset that we ask for. So reading starts at the beginning if the offset is beyond
 *   the end, or if the event before it is not the one that the offset store remembers.
 * - What was acked ahead of others arrives again when the stream is opened again, and is skipped.
 *
 * A probe reads a stream without consuming it, on a channel of its own that is closed afterwards:
 * no reader's offset moves. The broker does not say where a stream ends; its count of messages is
 * some seconds old. But a reader that has got a delivery can find out: an ack makes the broker read
 * on at once, and everything that is there is sent before the broker's next answer on that channel.
 * So the probe starts where something is sure to arrive, and acks until nothing more does.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <stdlib.h>
#include <string.h>

#define PREFETCH        1000
#define SHORT_MS        2000
#define LONG_MS         30000
#define WAIT_MS         50
#define RETRY_MS        500
#define COUNT_MAX       1000 /* messages that are counted one by one */
#define IDLE_HEARTBEATS 3
#define IDLE_MS         30000 /* if there are no heartbeats */

/* ---- a probe --------------------------------------------------------------------------------- */

static void record_message(struct semel_rabbit_probe *probe,
			   const amqp_basic_properties_t *properties, uint64_t body_size)
{
	int64_t offset = semel_rabbit_offset_of(properties);
	/* As in a delivery, an empty id counts as none. */
	bool named =
		properties->_flags & AMQP_BASIC_MESSAGE_ID_FLAG && properties->message_id.len > 0;
	if (probe->first < 0) {
		probe->first = offset;
		probe->first_has_id = named;
		probe->first_hash =
			named ? semel_event_hash_id(semel_rabbit_text(properties->message_id)) : 0;
	}
	probe->last = offset;
	if (offset < probe->count_from || semel_rabbit_is_marker(properties, body_size))
		return;
	probe->count++;
	if (probe->event_id.data && named &&
	    semel_text_equal(semel_rabbit_text(properties->message_id), probe->event_id))
		probe->found = true;
}

void semel_rabbit_probe_frame(struct semel_rabbit *rabbit, const amqp_frame_t *frame)
{
	struct semel_rabbit_probe *probe = rabbit->probe;
	if (frame->frame_type == AMQP_FRAME_HEADER) {
		if (probe && probe->expects_header)
			record_message(probe, frame->payload.properties.decoded,
				       frame->payload.properties.body_size);
		if (probe)
			probe->expects_header = false;
		return;
	}
	if (frame->frame_type != AMQP_FRAME_METHOD)
		return;
	const amqp_method_t *method = &frame->payload.method;
	if (method->id == AMQP_BASIC_DELIVER_METHOD && probe) {
		const amqp_basic_deliver_t *deliver = method->decoded;
		probe->tag = deliver->delivery_tag;
		probe->expects_header = true;
	} else if (method->id == AMQP_BASIC_CANCEL_METHOD && probe) {
		probe->cancelled = true;
	} else if (method->id == AMQP_CHANNEL_CLOSE_METHOD) {
		(void)semel_rabbit_channel_closed(rabbit, SEMEL_RABBIT_PROBE, method->decoded,
						  NULL);
		if (probe)
			probe->cancelled = true;
	}
}

/* ---- one run --------------------------------------------------------------------------------- */

static semel_status begin_probe(struct semel_rabbit *rabbit, const char *queue, int64_t from,
				semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	amqp_table_entry_t offset = { .key = semel_rabbit_string("x-stream-offset"),
				      .value = semel_rabbit_stream_offset(from) };
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_PROBE, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_qos(rabbit->connection, SEMEL_RABBIT_PROBE, 0, PREFETCH, 0);
	status = semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, SEMEL_RABBIT_PROBE, semel_rabbit_string(queue),
			       SEMEL_RABBIT_NO_BYTES, 0, 0, 0,
			       (amqp_table_t){ .num_entries = 1, .entries = &offset });
	return semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
}

static semel_status await_first(struct semel_rabbit *rabbit, int64_t timeout_ms, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	int64_t until_ms = semel_steady_ms(rabbit->env) + timeout_ms;
	while (probe->first < 0 && !probe->cancelled && semel_steady_ms(rabbit->env) < until_ms) {
		semel_status status = semel_rabbit_pump_all(rabbit, WAIT_MS, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status count_messages(struct semel_rabbit *rabbit, const char *queue,
				   uint64_t *count_out, semel_error *error)
{
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	const amqp_queue_declare_ok_t *ok = rabbit->library->queue_declare(
		rabbit->connection, SEMEL_RABBIT_PROBE, semel_rabbit_string(queue), 1, 0, 0, 0,
		SEMEL_RABBIT_NO_TABLE);
	if (ok)
		*count_out = ok->message_count;
	status = semel_rabbit_call_end(rabbit, SEMEL_RABBIT_PROBE, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_pump_all(rabbit, 0, error);
}

static semel_status read_on(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	uint64_t acked = 0, count = 0;
	while (probe->tag > acked && probe->count < probe->limit && !probe->found &&
	       !probe->cancelled) {
		acked = probe->tag;
		semel_status status =
			semel_rabbit_write_ack(rabbit, SEMEL_RABBIT_PROBE, acked, true, error);
		if (status != SEMEL_OK)
			return status;
		status = count_messages(rabbit, queue, &count, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status read_stream(struct semel_rabbit *rabbit, const char *queue, int64_t timeout_ms,
				uint64_t *messages_out, semel_error *error)
{
	const struct semel_rabbit_probe *probe = rabbit->probe;
	semel_status status = begin_probe(rabbit, queue, probe->from, error);
	if (status != SEMEL_OK)
		return status;
	status = await_first(rabbit, timeout_ms, error);
	if (status != SEMEL_OK || probe->cancelled)
		return status;
	return probe->first < 0 ? count_messages(rabbit, queue, messages_out, error)
				: read_on(rabbit, queue, error);
}

static semel_status end_probe(struct semel_rabbit *rabbit, semel_error *error)
{
	if (rabbit->lost || !rabbit->open_channels[SEMEL_RABBIT_PROBE])
		return SEMEL_OK;
	rabbit->open_channels[SEMEL_RABBIT_PROBE] = false;
	return semel_rabbit_close_channel(rabbit, SEMEL_RABBIT_PROBE, error);
}

/* messages_out: as the broker counts them. */
static semel_status run_once(struct semel_rabbit *rabbit, const char *queue,
			     struct semel_rabbit_probe *probe, int64_t timeout_ms,
			     uint64_t *messages_out, semel_error *error)
{
	probe->first = probe->last = -1;
	probe->tag = probe->count = 0;
	probe->expects_header = probe->cancelled = false;
	rabbit->probe = probe;
	semel_status status = read_stream(rabbit, queue, timeout_ms, messages_out, error);
	rabbit->probe = NULL;
	semel_status ended = end_probe(rabbit, status == SEMEL_OK ? error : NULL);
	semel_rabbit_signal_ready(rabbit);
	if (status != SEMEL_OK)
		return status;
	if (probe->cancelled)
		return semel_error_set(error, SEMEL_OUTAGE, "queue %s not found on %s", queue,
				       rabbit->address);
	return ended;
}

/* An offset beyond the end of the stream: nothing will arrive. */
static semel_status is_beyond(struct semel_rabbit *rabbit, const char *queue, int64_t offset,
			      bool *beyond_out, semel_error *error)
{
	struct semel_rabbit_probe probe = { .from = SEMEL_RABBIT_LAST, .limit = UINT64_MAX };
	uint64_t messages = 0;
	semel_status status = run_once(rabbit, queue, &probe, LONG_MS, &messages, error);
	*beyond_out = probe.last < offset;
	return status;
}

static semel_status run_probe(struct semel_rabbit *rabbit, const char *queue,
			      struct semel_rabbit_probe *probe, semel_error *error)
{
	uint64_t messages = 0;
	semel_status status = run_once(rabbit, queue, probe, SHORT_MS, &messages, error);
	if (status != SEMEL_OK || probe->first >= 0 || (probe->may_be_empty && messages == 0))
		return status;
	if (probe->from >= 0) {
		bool beyond = false;
		status = is_beyond(rabbit, queue, probe->from, &beyond, error);
		if (status != SEMEL_OK || beyond)
			return status;
	}
	status = run_once(rabbit, queue, probe, LONG_MS, &messages, error);
	if (status != SEMEL_OK || probe->first >= 0)
		return status;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "%s does not let us read the stream %s (does this node have a "
			       "replica of it?)",
			       rabbit->address, queue);
}

/* ---- who reads, and from where --------------------------------------------------------------- */

static uint32_t count_open(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		count += rabbit->assignments[i].open;
	return count;
}

static void warn(const struct semel_rabbit_assignment *assignment, const char *message)
{
	semel_log(SEMEL_LOG_WARN, message,
		  &(struct semel_log_fields){ .queue = assignment->queue });
}

/* The event before the position has to be there, unless the stream's retention has removed it. */
static semel_status check_position(struct semel_rabbit *rabbit,
				   const struct semel_rabbit_assignment *assignment, int64_t *from,
				   semel_error *error)
{
	const struct semel_offset_store *store = rabbit->offset_store;
	struct semel_anchor anchor =
		store->anchor(store->user, assignment->topic, assignment->partition);
	struct semel_rabbit_probe probe = { .from = anchor.offset >= 0 ? anchor.offset : *from - 1,
					    .limit = 1,
					    .may_be_empty = true };
	semel_status status = run_probe(rabbit, assignment->queue, &probe, error);
	if (status != SEMEL_OK)
		return status;
	bool exists = probe.first == probe.from;
	bool can_compare = anchor.offset >= 0 && probe.first_has_id;
	if (exists && (!can_compare || probe.first_hash == anchor.hash))
		return SEMEL_OK;
	if (!exists && probe.first >= *from) {
		warn(assignment, "stream deleted events before this scope read them (its "
				 "retention is too short)");
		return SEMEL_OK;
	}
	warn(assignment, exists ? "stream has another event at this scope's position (it was "
				  "declared again, or truncated); reading from its beginning"
				: "stream ends before this scope's position (it was declared "
				  "again); reading from its beginning");
	*from = SEMEL_RABBIT_FIRST;
	return SEMEL_OK;
}

semel_status semel_rabbit_stream_acquire(struct semel_rabbit *rabbit, uint32_t at, bool *mine_out,
					 int64_t *from_out, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	const struct semel_offset_store *store = rabbit->offset_store;
	int64_t next = -1;
	*mine_out = false;
	assignment->log.retry_at_ms = semel_steady_ms(rabbit->env) + RETRY_MS;
	if (rabbit->quota > 0 && count_open(rabbit) >= rabbit->quota)
		return SEMEL_OK;
	semel_status status = store->acquire(store->user, assignment->topic, assignment->partition,
					     false, &next, error);
	if (status != SEMEL_OK)
		return status == SEMEL_LEASE_LOST ? SEMEL_OK : status;
	*from_out = next > 0 ? next : SEMEL_RABBIT_FIRST;
	if (next > 0 && assignment->log.next < 0) {
		status = check_position(rabbit, assignment, from_out, error);
		if (status != SEMEL_OK)
			return status;
	}
	*mine_out = true;
	assignment->log.retry_at_ms = 0;
	if (assignment->log.next < 0 || *from_out < assignment->log.next)
		assignment->log.next = *from_out > 0 ? *from_out : 0;
	return SEMEL_OK;
}

void semel_rabbit_stream_release(struct semel_rabbit *rabbit, uint32_t at)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	assignment->log.next = assignment->log.redelivered_to = -1;
	assignment->log.acked_ahead_count = 0;
	if (rabbit->offset_store)
		rabbit->offset_store->release(rabbit->offset_store->user, assignment->topic,
					      assignment->partition);
}

amqp_field_value_t semel_rabbit_stream_offset(int64_t from)
{
	if (from >= 0)
		return (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_I64, .value.i64 = from };
	return (amqp_field_value_t){ .kind = AMQP_FIELD_KIND_UTF8,
				     .value.bytes = semel_rabbit_string(
					     from == SEMEL_RABBIT_FIRST ? "first" : "last") };
}

/* ---- what arrives ---------------------------------------------------------------------------- */

/* Without memory for their offsets, they are delivered once more. */
void semel_rabbit_stream_remember_acked(struct semel_rabbit_assignment *assignment)
{
	const size_t known = assignment->log.acked_ahead_count;
	int64_t *ahead = malloc((assignment->length + known + 1) * sizeof(ahead[0]));
	size_t count = 0;
	for (size_t i = 0; ahead && i < assignment->length; i++) {
		size_t index = assignment->start + i;
		if (assignment->acked[index] != SEMEL_RABBIT_UNACKED &&
		    assignment->log.offsets[index] >= 0)
			ahead[count++] = assignment->log.offsets[index];
	}
	for (size_t i = 0; ahead && i < known; i++)
		if (assignment->log.acked_ahead[i] >= assignment->log.next)
			ahead[count++] = assignment->log.acked_ahead[i];
	free(assignment->log.acked_ahead);
	assignment->log.acked_ahead = ahead;
	assignment->log.acked_ahead_count = count;
	if (assignment->log.redelivered_to < assignment->log.next)
		assignment->log.redelivered_to = assignment->log.next;
}

static int compare_offsets(const void *left, const void *right)
{
	const int64_t *a = left, *b = right;
	return (*a > *b) - (*a < *b);
}

static bool was_acked(const struct semel_rabbit_assignment *assignment, int64_t offset)
{
	return assignment->log.acked_ahead_count > 0 &&
	       bsearch(&offset, assignment->log.acked_ahead, assignment->log.acked_ahead_count,
		       sizeof(assignment->log.acked_ahead[0]), compare_offsets) != NULL;
}

void semel_rabbit_stream_received(struct semel_rabbit_assignment *assignment,
				  struct semel_rabbit_unacked *unacked, bool is_marker)
{
	int64_t offset = unacked->delivery.offset;
	size_t last = assignment->start + assignment->length - 1; /* added with its method frame */
	assignment->log.offsets[last] = offset;
	assignment->log.next = offset + 1;
	unacked->delivery.redelivered = offset < assignment->log.redelivered_to;
	unacked->skip = is_marker || was_acked(assignment, offset);
	if (!unacked->skip)
		return;
	assignment->acked[last] = SEMEL_RABBIT_ACKED_NOW;
	assignment->log.has_skipped = true;
}

/* ---- the marker ------------------------------------------------------------------------------ */

semel_status semel_rabbit_stream_write_marker(struct semel_rabbit *rabbit, const char *queue,
					      semel_error *error)
{
	const struct semel_event marker = { .type = SEMEL_TEXT(SEMEL_RABBIT_MARKER),
					    .headers = SEMEL_TEXT("{}"),
					    .payload = SEMEL_TEXT("") };
	const struct semel_publish_metadata metadata = { 0 };
	const struct semel_rabbit_outgoing outgoing = { .channel = SEMEL_RABBIT_REQUEUE,
							.exchange = SEMEL_TEXT(""),
							.key = semel_text_of(queue),
							.event = &marker,
							.metadata = &metadata };
	uint64_t ready = 0;
	semel_status status = semel_rabbit_count(rabbit, queue, &ready, NULL, error);
	if (status != SEMEL_OK || ready > 0)
		return status;
	status = semel_rabbit_send_confirmed(rabbit, &outgoing, error);
	return status == SEMEL_BUSY ? SEMEL_OK : status; /* an alarm: the next consumer writes it */
}

/* ---- backlog --------------------------------------------------------------------------------- */

/* A few messages are counted, without the markers; for many, the offsets are subtracted. */
static semel_status count_from(struct semel_rabbit *rabbit, const char *queue,
			       struct semel_rabbit_probe *probe, semel_error *error)
{
	struct semel_rabbit_probe end = { .from = SEMEL_RABBIT_LAST, .limit = UINT64_MAX };
	probe->limit = COUNT_MAX;
	semel_status status = run_probe(rabbit, queue, probe, error);
	if (status != SEMEL_OK || probe->count < COUNT_MAX)
		return status;
	status = run_probe(rabbit, queue, &end, error);
	probe->last = end.last;
	probe->count = (uint64_t)(end.last + 1 - probe->count_from);
	return status;
}

semel_status semel_rabbit_stream_probe(struct semel_rabbit *rabbit,
				       const struct semel_rabbit_subscription *subscription,
				       uint32_t number, struct semel_rabbit_probe *probe,
				       semel_error *error)
{
	const struct semel_offset_store *store = rabbit->offset_store;
	char queue[SEMEL_RABBIT_NAME_SIZE];
	int64_t next = -1;
	semel_status status = semel_rabbit_partition_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	if (store) {
		status = store->get(store->user, subscription->scope, subscription->topic,
				    (int32_t)number - 1, &next, error);
		if (status != SEMEL_OK)
			return status;
	}
	probe->from = next > 0 ? next - 1 : SEMEL_RABBIT_FIRST;
	probe->count_from = next > 0 ? next : 0;
	probe->may_be_empty = true;
	return probe->event_id.data ? run_probe(rabbit, queue, probe, error)
				    : count_from(rabbit, queue, probe, error);
}

/* Sets probe->count and ->last. */
static semel_status count_ready(struct semel_rabbit *rabbit,
				const struct semel_rabbit_assignment *assignment,
				struct semel_rabbit_probe *probe, semel_error *error)
{
	if (semel_rabbit_unacked_list_is_full(rabbit)) {
		probe->last = -1; /* the unacked list is full */
		return SEMEL_OK;
	}
	if (assignment->open) {
		probe->from =
			assignment->log.next > 0 ? assignment->log.next - 1 : SEMEL_RABBIT_FIRST;
		probe->count_from = assignment->log.next;
		return count_from(rabbit, assignment->queue, probe, error);
	}
	const struct semel_rabbit_subscription subscription = { .scope = rabbit->scope,
								.topic = assignment->topic,
								.partitions = rabbit->partitions };
	return semel_rabbit_stream_probe(rabbit, &subscription, (uint32_t)assignment->partition + 1,
					 probe, error);
}

semel_status semel_rabbit_stream_backlog(struct semel_rabbit *rabbit, uint32_t at,
					 uint64_t *waiting_out, semel_error *error)
{
	const struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	struct semel_rabbit_probe probe = { 0 };
	semel_status status = count_ready(rabbit, assignment, &probe, error);
	/* Messages that have arrived here meanwhile are unacked, and must not be counted twice. */
	int64_t behind = probe.last + 1 - assignment->log.next;
	if (assignment->open && behind < (int64_t)probe.count)
		probe.count = behind > 0 ? (uint64_t)behind : 0;
	*waiting_out = probe.count + semel_rabbit_assignment_count_unacked(assignment);
	return status;
}

/* ---- an idle reader -------------------------------------------------------------------------- */

static int64_t idle_max_ms(const struct semel_rabbit *rabbit)
{
	return rabbit->settings.heartbeat_s > 0
		       ? rabbit->settings.heartbeat_s * IDLE_HEARTBEATS * 1000
		       : IDLE_MS;
}

/* A reader is not informed when the replica of its node was removed, or did not come back: nothing
 * arrives any more, although the connection works. After a silence of some heartbeats a probe reads
 * the stream: it is refused, or it finds messages that do not arrive here. These may just have been
 * on their way, so it probes twice. */
semel_status semel_rabbit_stream_check(struct semel_rabbit *rabbit, uint32_t at, semel_error *error)
{
	struct semel_rabbit_assignment *assignment = &rabbit->assignments[at];
	int64_t now_ms = semel_steady_ms(rabbit->env);
	uint64_t waiting = 0;
	bool moved = assignment->log.next != assignment->log.idle_next;
	if (!assignment->open || moved || semel_rabbit_assignment_count_unacked(assignment) > 0) {
		assignment->log.idle_next = assignment->log.next;
		assignment->log.idle_since_ms = now_ms;
		assignment->log.had_backlog = false;
		return SEMEL_OK;
	}
	if (now_ms - assignment->log.idle_since_ms < idle_max_ms(rabbit))
		return SEMEL_OK;
	assignment->log.idle_since_ms = now_ms;
	semel_status status = semel_rabbit_stream_backlog(rabbit, at, &waiting, error);
	if (status != SEMEL_OK)
		return status;
	bool had_backlog = assignment->log.had_backlog;
	assignment->log.had_backlog =
		waiting > 0 && assignment->log.next == assignment->log.idle_next;
	if (!had_backlog || !assignment->log.had_backlog)
		return SEMEL_OK;
	return semel_error_set(
		error, SEMEL_OUTAGE,
		"%s delivers nothing from the stream %s, although %llu events wait in it",
		rabbit->address, assignment->queue, (unsigned long long)waiting);
}
