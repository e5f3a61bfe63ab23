/* SPDX-License-Identifier: Apache-2.0 */
/* One partition that is assigned to us.
 *
 * - Its unacked records are those that were read, in the order of their offsets, from the first one
 *   that is not acked. A record is kept until it is acked, so that it can be delivered again.
 * - The position moves over acked records only; so all that is committed was acked.
 * - Assignments are numbered; what was fetched in an earlier one can no longer be acked.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANCHOR_EVERY 64 /* records, where more are read than are acked */

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

/* Its records go to a queue of their own, so that they are read on demand. This has to be set
 * before the partition is assigned. */
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

static bool make_room(struct semel_kafka_assignment *assignment)
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

bool semel_kafka_assignment_add(struct semel_kafka_assignment *assignment,
				rd_kafka_message_t *message, int64_t offset)
{
	if (!make_room(assignment))
		return false;
	assignment->unacked[assignment->start + assignment->length++] =
		(struct semel_kafka_unacked){ .offset = offset,
					      .message = message,
					      .redelivered = offset < assignment->redelivered_to };
	assignment->next_offset = offset + 1;
	return true;
}

void semel_kafka_assignment_advance(struct semel_kafka_assignment *assignment)
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

uint64_t semel_kafka_unacked_bytes(const struct semel_kafka_unacked *unacked)
{
	return unacked->message->len + unacked->message->key_len + sizeof(struct semel_delivery);
}

bool semel_kafka_assignment_ack(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment, int64_t offset)
{
	struct semel_kafka_unacked *unacked = unacked_at(assignment, offset);
	if (!unacked || !unacked->fetched)
		return false;
	assignment->fetched_bytes -= semel_kafka_unacked_bytes(unacked);
	if (unacked == &assignment->unacked[assignment->start + assignment->length - 1] ||
	    offset % ANCHOR_EVERY == 0)
		semel_kafka_anchor_record(kafka, assignment, unacked->message);
	kafka->library->message_destroy(unacked->message);
	unacked->message = NULL;
	unacked->fetched = false;
	assignment->fetched_count--;
	return true;
}

void semel_kafka_assignment_rewind(struct semel_kafka_assignment *assignment)
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
