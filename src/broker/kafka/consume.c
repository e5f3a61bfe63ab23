/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the partitions that are assigned to us: fetched, acked, delivered again.
 *
 * - The unacked records of a partition are those that were read, in the order of their offsets,
 *   from the first one that is not acked. A record stays in memory until it is acked, so that it
 *   can be delivered again.
 * - The position moves over acked records only; so everything that is committed was acked.
 * - Assignments are numbered; what was fetched in an earlier one can no longer be acked.
 * - The caller has at most prefetch deliveries. What librdkafka has read ahead waits in its queues,
 *   which are bounded; it stops reading when they are full.
 * - A record of a retry topic is held back until it is due, and so are all records after it.
 * - A delivery's tag has the number of its assignment (32 bits) and its epoch (32).
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANCHOR_EVERY 64 /* offsets, when more records are read than acked */
#define CHUNK        256

/* ---- finding and making ---------------------------------------------------------------------- */

struct semel_kafka_assignment *semel_kafka_assignment_find(struct semel_kafka *kafka,
							   const char *topic, int32_t partition)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].partition == partition &&
		    strcmp(kafka->assignments[i].topic, topic) == 0)
			return &kafka->assignments[i];
	return NULL;
}

static struct semel_kafka_assignment *make_assignment(struct semel_kafka *kafka, const char *topic,
						      int32_t partition)
{
	size_t length;
	const char *own = semel_kafka_own_name(kafka, topic);
	uint32_t tier = semel_kafka_tier_of(kafka, own, &length);
	struct semel_kafka_assignment *assignments = realloc(
		kafka->assignments, (kafka->assignment_count + 1) * sizeof(kafka->assignments[0]));
	if (!assignments)
		return NULL;
	kafka->assignments = assignments;
	struct semel_kafka_assignment *assignment = &assignments[kafka->assignment_count];
	*assignment = (struct semel_kafka_assignment){ .topic = strdup(topic),
						       .event_topic = strndup(own, length),
						       .tier = tier,
						       .partition = partition };
	if (assignment->topic && assignment->event_topic) {
		kafka->assignment_count++;
		return assignment;
	}
	free(assignment->topic);
	free(assignment->event_topic);
	return NULL;
}

/* The partition's records go to a queue of their own, so that they are read on demand. This has to
 * be set before the partition is assigned. */
struct semel_kafka_assignment *semel_kafka_assignment_start(struct semel_kafka *kafka,
							    const rd_kafka_topic_partition_t *entry,
							    int64_t redelivered_to)
{
	struct semel_kafka_assignment *assignment =
		semel_kafka_assignment_find(kafka, entry->topic, entry->partition);
	if (!assignment)
		assignment = make_assignment(kafka, entry->topic, entry->partition);
	rd_kafka_queue_t *queue =
		assignment ? kafka->library->queue_get_partition(kafka->consumer, entry->topic,
								 entry->partition)
			   : NULL;
	if (!queue)
		return NULL;
	kafka->library->queue_forward(queue, NULL);
	if (kafka->wake)
		semel_kafka_notify_on(kafka, queue);
	assignment->queue = queue;
	assignment->owned = true;
	assignment->releasing = false;
	assignment->epoch++;
	assignment->position = assignment->next_offset = entry->offset;
	assignment->committed = redelivered_to >= 0 ? entry->offset : -1;
	assignment->fetched_to = assignment->redelivered_to =
		redelivered_to >= 0 ? redelivered_to : 0;
	assignment->due_ms = 0;
	assignment->committed_ms = semel_steady_ms(kafka->env);
	assignment->last_acked = assignment->verified = assignment->candidate = SEMEL_ANCHOR_NONE;
	assignment->expected_count = 0;
	assignment->requested = assignment->unverified = false;
	return assignment;
}

void semel_kafka_assignment_clear(struct semel_kafka *kafka,
				  struct semel_kafka_assignment *assignment)
{
	for (size_t i = 0; i < assignment->length; i++)
		if (assignment->unacked[assignment->start + i].message)
			kafka->library->message_destroy(
				assignment->unacked[assignment->start + i].message);
	assignment->epoch++;
	assignment->start = assignment->length = assignment->next = 0;
	assignment->fetched_count = 0;
	assignment->fetched_bytes = 0;
	assignment->due_ms = 0;
	assignment->expected_count = 0;
	assignment->requested = assignment->unverified = false;
}

void semel_kafka_assignment_end(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment)
{
	semel_kafka_assignment_clear(kafka, assignment);
	if (assignment->queue) {
		semel_kafka_notify_off(kafka, assignment->queue);
		kafka->library->queue_destroy(assignment->queue);
	}
	if (assignment->owned && assignment->tier == 0 && kafka->offset_store)
		kafka->offset_store->release(kafka->offset_store->user, assignment->event_topic,
					     assignment->partition);
	assignment->queue = NULL;
	assignment->owned = assignment->releasing = false;
}

void semel_kafka_assignments_free(struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		free(kafka->assignments[i].topic);
		free(kafka->assignments[i].event_topic);
		free(kafka->assignments[i].unacked);
	}
	free(kafka->assignments);
}

/* ---- unacked --------------------------------------------------------------------------------- */

static bool reserve_unacked(struct semel_kafka_assignment *assignment)
{
	if (assignment->start + assignment->length < assignment->capacity)
		return true;
	if (assignment->start > assignment->capacity / 2) {
		memmove(assignment->unacked, assignment->unacked + assignment->start,
			assignment->length * sizeof(assignment->unacked[0]));
		assignment->start = 0;
		return true;
	}
	size_t capacity = assignment->capacity ? assignment->capacity * 2 : 64;
	struct semel_kafka_unacked *unacked =
		realloc(assignment->unacked, capacity * sizeof(unacked[0]));
	if (!unacked)
		return false;
	assignment->unacked = unacked;
	assignment->capacity = capacity;
	return true;
}

/* A record (message NULL: something that needs no ack) was read. False: out of memory. */
static bool add_unacked(struct semel_kafka_assignment *assignment, rd_kafka_message_t *message,
			int64_t offset)
{
	if (!reserve_unacked(assignment))
		return false;
	assignment->unacked[assignment->start + assignment->length++] =
		(struct semel_kafka_unacked){ .offset = offset,
					      .message = message,
					      .redelivered = offset < assignment->redelivered_to };
	assignment->next_offset = offset + 1;
	return true;
}

/* Moves the position over the acked records. */
static void advance_position(struct semel_kafka_assignment *assignment)
{
	while (assignment->length > 0 && !assignment->unacked[assignment->start].message) {
		assignment->position = assignment->unacked[assignment->start].offset + 1;
		assignment->start++;
		assignment->length--;
		if (assignment->next > 0)
			assignment->next--;
	}
	if (assignment->length == 0)
		assignment->start = assignment->next = 0;
}

static struct semel_kafka_unacked *unacked_at(struct semel_kafka_assignment *assignment,
					      int64_t offset)
{
	size_t low = 0, high = assignment->length;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (assignment->unacked[assignment->start + middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == assignment->length ||
	    assignment->unacked[assignment->start + low].offset != offset)
		return NULL;
	return &assignment->unacked[assignment->start + low];
}

/* The size of a record as counted against prefetch_bytes. */
static uint64_t bytes_of(const struct semel_kafka_unacked *unacked)
{
	return unacked->message->len + unacked->message->key_len + sizeof(struct semel_delivery);
}

/* False: the caller does not have the record. */
static bool ack_record(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment,
		       int64_t offset)
{
	struct semel_kafka_unacked *unacked = unacked_at(assignment, offset);
	if (!unacked || !unacked->fetched)
		return false;
	assignment->fetched_bytes -= bytes_of(unacked);
	if (unacked == &assignment->unacked[assignment->start + assignment->length - 1] ||
	    offset % ANCHOR_EVERY == 0)
		semel_kafka_anchor_record(kafka, assignment, unacked->message);
	kafka->library->message_destroy(unacked->message);
	unacked->message = NULL;
	unacked->fetched = false;
	assignment->fetched_count--;
	return true;
}

static void rewind_assignment(struct semel_kafka_assignment *assignment)
{
	for (size_t i = 0; i < assignment->length; i++) {
		struct semel_kafka_unacked *unacked = &assignment->unacked[assignment->start + i];
		unacked->redelivered = unacked->redelivered || unacked->fetched;
		unacked->fetched = false;
	}
	assignment->fetched_count = 0;
	assignment->fetched_bytes = 0;
	assignment->next = 0;
}

uint64_t semel_kafka_assignment_acked_ahead(const struct semel_kafka_assignment *assignment)
{
	uint64_t count = 0;
	for (size_t i = 0; i < assignment->length; i++)
		count += assignment->unacked[assignment->start + i].message == NULL;
	return count;
}

static uint64_t make_tag(uint32_t at, uint32_t epoch)
{
	return (uint64_t)at << 32 | epoch;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The end of a partition may come after control records, which are not delivered. */
static bool advance_to_end(struct semel_kafka_assignment *assignment, int64_t offset)
{
	if (offset <= assignment->next_offset)
		return true;
	if (!add_unacked(assignment, NULL, offset - 1))
		return false;
	advance_position(assignment);
	return true;
}

/* The retry topics of two subscriptions may have the same name (a.b and c, a and b.c); a record
 * names its scope. */
static bool is_of_another_scope(const struct semel_kafka *kafka,
				const struct semel_kafka_assignment *assignment,
				const rd_kafka_message_t *message)
{
	struct semel_text scope = { NULL, 0 };
	if (assignment->tier > 0)
		scope = semel_kafka_header(kafka, message, "semel-retry-scope");
	return scope.data && !semel_text_equal(scope, semel_text_of(kafka->scope));
}

/* librdkafka goes back to the beginning when the log ends before the offset that it reads at: the
 * log was created again, or was truncated. */
static bool is_log_reset(const struct semel_kafka_assignment *assignment,
			 const rd_kafka_message_t *message)
{
	return (!message->err || message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) &&
	       message->offset < assignment->next_offset;
}

static semel_status take_message(struct semel_kafka *kafka,
				 struct semel_kafka_assignment *assignment,
				 rd_kafka_message_t *message, semel_error *error)
{
	rd_kafka_resp_err_t err = message->err;
	bool added = true;
	if (is_log_reset(assignment, message)) {
		kafka->library->message_destroy(message);
		return semel_kafka_log_replaced(
			kafka, assignment,
			"topic ends before the offset of this scope, reading "
			"from its beginning",
			error);
	}
	if (!err && is_of_another_scope(kafka, assignment, message)) {
		added = advance_to_end(assignment, message->offset + 1);
	} else if (!err) {
		added = add_unacked(assignment, message, message->offset);
		if (added)
			return SEMEL_OK;
	} else if (err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
		added = advance_to_end(assignment, message->offset);
	} else {
		semel_kafka_anchor_recheck(kafka);
		semel_log(SEMEL_LOG_DEBUG, "partition reported an error",
			  &(struct semel_log_fields){
				  .topic = assignment->event_topic,
				  .partition = assignment->partition,
				  .offset = -1,
				  .has_position = true,
				  .error = kafka->library->message_errstr(message) });
	}
	kafka->library->message_destroy(message);
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return semel_kafka_call_failed(kafka, err, "read a topic", error);
	return added ? SEMEL_OK
		     : semel_error_set(error, SEMEL_INTERNAL, "out of memory for a delivery");
}

/* Reads up to count more records of the assignment. */
static semel_status read_more(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment,
			      uint32_t count, semel_error *error)
{
	rd_kafka_message_t *messages[CHUNK];
	semel_status status = SEMEL_OK;
	ssize_t got = kafka->library->consume_batch_queue(assignment->queue, 0, messages,
							  count < CHUNK ? count : CHUNK);
	ssize_t taken = 0;
	while (taken < got && status == SEMEL_OK)
		status = take_message(kafka, assignment, messages[taken++], error);
	while (taken < got)
		kafka->library->message_destroy(messages[taken++]);
	return status;
}

/* The next record to deliver; NULL: none. */
static struct semel_kafka_unacked *next_unfetched(struct semel_kafka_assignment *assignment)
{
	while (assignment->next < assignment->length) {
		struct semel_kafka_unacked *unacked =
			&assignment->unacked[assignment->start + assignment->next];
		if (unacked->message && !unacked->fetched)
			return unacked;
		assignment->next++;
	}
	return NULL;
}

static bool is_due(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment,
		   const struct semel_kafka_unacked *unacked)
{
	if (assignment->tier == 0)
		return true;
	assignment->due_ms = semel_kafka_due_of(kafka, unacked->message);
	return assignment->due_ms <= semel_now_ms(kafka->env);
}

/* ---- fetching -------------------------------------------------------------------------------- */

struct batch {
	struct semel_arena *arena;
	struct semel_delivery *deliveries;
	uint32_t count, max;
	uint64_t bytes_left; /* the first one may exceed it */
};

static semel_status fetch_ready(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment, struct batch *batch,
				semel_error *error)
{
	struct semel_kafka_unacked *unacked;
	while (batch->count < batch->max && batch->bytes_left > 0 &&
	       (unacked = next_unfetched(assignment)) != NULL &&
	       is_due(kafka, assignment, unacked)) {
		struct semel_delivery *delivery = &batch->deliveries[batch->count];
		if (!semel_kafka_read_record(kafka, assignment, unacked->message, batch->arena,
					     delivery))
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a delivery");
		delivery->redelivered = unacked->redelivered;
		delivery->offset_in_store = kafka->offset_store && assignment->tier == 0;
		delivery->tag =
			make_tag((uint32_t)(assignment - kafka->assignments), assignment->epoch);
		unacked->fetched = true;
		assignment->fetched_count++;
		assignment->next++;
		assignment->due_ms = 0;
		uint64_t bytes = bytes_of(unacked);
		assignment->fetched_bytes += bytes;
		batch->count++;
		batch->bytes_left -= bytes < batch->bytes_left ? bytes : batch->bytes_left;
	}
	return SEMEL_OK;
}

/* From a retry topic, reads one record at a time: what is not due stays at the broker. */
static semel_status fetch_assignment(struct semel_kafka *kafka,
				     struct semel_kafka_assignment *assignment, struct batch *batch,
				     semel_error *error)
{
	semel_status status = fetch_ready(kafka, assignment, batch, error);
	if (status != SEMEL_OK || batch->count == batch->max || batch->bytes_left == 0 ||
	    next_unfetched(assignment))
		return status;
	status = read_more(kafka, assignment, assignment->tier > 0 ? 1 : batch->max - batch->count,
			   error);
	if (status != SEMEL_OK)
		return status;
	return fetch_ready(kafka, assignment, batch, error);
}

static uint32_t count_fetched(const struct semel_kafka *kafka, uint64_t *bytes_out)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		count += kafka->assignments[i].fetched_count;
		*bytes_out += kafka->assignments[i].fetched_bytes;
	}
	return count;
}

static uint64_t bytes_allowed(const struct semel_kafka *kafka, uint64_t out)
{
	return out < kafka->prefetch_bytes ? kafka->prefetch_bytes - out : 0;
}

/* Each round begins with another assignment. */
static semel_status fetch_round(struct semel_kafka *kafka, struct batch *batch, semel_error *error)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		uint32_t at = (kafka->assignment_next + i) % kafka->assignment_count;
		struct semel_kafka_assignment *assignment = &kafka->assignments[at];
		if (!assignment->owned || assignment->releasing || assignment->unverified ||
		    batch->count == batch->max)
			continue;
		semel_status status = fetch_assignment(kafka, assignment, batch, error);
		if (status != SEMEL_OK)
			return status;
	}
	kafka->assignment_next++;
	return SEMEL_OK;
}

static semel_status fetch_all(struct semel_kafka *kafka, struct batch *batch, semel_error *error)
{
	uint32_t before;
	do {
		before = batch->count;
		semel_status status = fetch_round(kafka, batch, error);
		if (status != SEMEL_OK)
			return status;
	} while (batch->count > before && batch->count < batch->max && batch->bytes_left > 0);
	return SEMEL_OK;
}

static void clear_event_fd(const struct semel_kafka *kafka)
{
	uint64_t count;
	if (kafka->wake && read(kafka->event_fd, &count, sizeof(count)) < 0)
		return; /* nothing was signalled */
}

semel_status semel_kafka_fetch(struct semel_broker *broker, uint32_t max, struct semel_arena *arena,
			       struct semel_delivery *deliveries_out, uint32_t *count_out,
			       semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	*count_out = 0;
	if (!kafka->consumer_queue)
		return semel_error_set(error, SEMEL_INVALID,
				       "this broker connection has no subscription");
	clear_event_fd(kafka);
	semel_kafka_producer_serve(kafka, 0);
	semel_status status = semel_kafka_group_serve(kafka, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_anchor_check(kafka, error);
	if (status != SEMEL_OK)
		return status;
	uint64_t fetched_bytes = 0;
	uint32_t out = count_fetched(kafka, &fetched_bytes);
	uint32_t free_count = out < kafka->prefetch ? kafka->prefetch - out : 0;
	struct batch batch = { .arena = arena,
			       .deliveries = deliveries_out,
			       .max = free_count < max ? free_count : max,
			       .bytes_left = bytes_allowed(kafka, fetched_bytes) };
	if (batch.max > 0 && batch.bytes_left > 0)
		status = fetch_all(kafka, &batch, error);
	*count_out = status == SEMEL_OK ? batch.count : 0;
	semel_kafka_group_commit(kafka, batch.count == 0);
	return status;
}

/* ---- acking ---------------------------------------------------------------------------------- */

semel_status semel_kafka_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			     size_t count, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	bool late = false;
	for (size_t i = 0; i < count; i++) {
		uint32_t at = (uint32_t)(deliveries[i].tag >> 32);
		if (at < kafka->assignment_count && kafka->assignments[at].owned &&
		    kafka->assignments[at].epoch == (uint32_t)deliveries[i].tag)
			(void)ack_record(kafka, &kafka->assignments[at], deliveries[i].offset);
		else
			late = true;
	}
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].owned)
			advance_position(&kafka->assignments[i]);
	semel_kafka_group_commit(kafka, false);
	if (late)
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "partitions were reassigned before their events were acked; "
				       "these are redelivered elsewhere");
	return SEMEL_OK;
}

semel_status semel_kafka_rewind(struct semel_broker *broker, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	(void)error;
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].owned)
			rewind_assignment(&kafka->assignments[i]);
	return SEMEL_OK;
}
