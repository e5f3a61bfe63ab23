/* SPDX-License-Identifier: Apache-2.0 */
/* One partition that is assigned to us.
 *
 * - Its flights are the records that were read, in the order of their offsets, from the first one
 *   that is not settled. A record is kept until it is settled, so that it can be handed out again.
 * - The position moves over settled flights only; so what is committed was settled, all of it.
 * - An assignment has a number; what was handed out under an earlier one is not ours to ack.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANCHOR_EVERY 64 /* records, at the most, where more are read than are settled */

/* ---- finding and making ---------------------------------------------------------------------- */

struct semel_kafka_share *semel_kafka_share_of(struct semel_kafka *kafka, const char *topic,
					       int32_t partition)
{
	for (uint32_t i = 0; i < kafka->share_count; i++)
		if (kafka->shares[i].partition == partition &&
		    strcmp(kafka->shares[i].topic, topic) == 0)
			return &kafka->shares[i];
	return NULL;
}

static struct semel_kafka_share *make_share(struct semel_kafka *kafka, const char *topic,
					    int32_t partition)
{
	size_t length;
	const char *own = semel_kafka_own_name(kafka, topic);
	uint32_t tier = semel_kafka_tier_of(kafka, own, &length);
	struct semel_kafka_share *shares =
		realloc(kafka->shares, (kafka->share_count + 1) * sizeof(kafka->shares[0]));
	if (!shares)
		return NULL;
	kafka->shares = shares;
	struct semel_kafka_share *share = &shares[kafka->share_count];
	*share = (struct semel_kafka_share){ .topic = strdup(topic),
					     .event_topic = strndup(own, length),
					     .tier = tier,
					     .partition = partition };
	if (share->topic && share->event_topic) {
		kafka->share_count++;
		return share;
	}
	free(share->topic);
	free(share->event_topic);
	return NULL;
}

/* Its records go to a queue of their own, so that they are read as they are wanted. This has to be
 * said before the partition is assigned. */
struct semel_kafka_share *semel_kafka_share_take(struct semel_kafka *kafka,
						 const rd_kafka_topic_partition_t *entry,
						 int64_t seen_to)
{
	struct semel_kafka_share *share =
		semel_kafka_share_of(kafka, entry->topic, entry->partition);
	if (!share)
		share = make_share(kafka, entry->topic, entry->partition);
	rd_kafka_queue_t *queue = share ? kafka->library->queue_get_partition(
						  kafka->consumer, entry->topic, entry->partition)
					: NULL;
	if (!queue)
		return NULL;
	kafka->library->queue_forward(queue, NULL);
	if (kafka->wake)
		semel_kafka_ring_on(kafka, queue);
	share->queue = queue;
	share->held = true;
	share->leaving = false;
	share->epoch++;
	share->position = share->next_offset = entry->offset;
	share->committed = seen_to >= 0 ? entry->offset : -1;
	share->noted = share->seen_to = seen_to >= 0 ? seen_to : 0;
	share->due_ms = 0;
	share->told_ms = semel_steady_ms(kafka->env);
	share->last = share->proven = share->fresh = SEMEL_ANCHOR_NONE;
	share->wanted_count = 0;
	share->asked = share->unproven = false;
	return share;
}

void semel_kafka_share_drop(struct semel_kafka *kafka, struct semel_kafka_share *share)
{
	for (size_t i = 0; i < share->length; i++)
		if (share->flights[share->start + i].message)
			kafka->library->message_destroy(share->flights[share->start + i].message);
	share->epoch++;
	share->start = share->length = share->next = 0;
	share->out = 0;
	share->out_bytes = 0;
	share->due_ms = 0;
	share->wanted_count = 0;
	share->asked = share->unproven = false;
}

void semel_kafka_share_forget(struct semel_kafka *kafka, struct semel_kafka_share *share)
{
	semel_kafka_share_drop(kafka, share);
	if (share->queue) {
		semel_kafka_ring_off(kafka, share->queue);
		kafka->library->queue_destroy(share->queue);
	}
	if (share->held && share->tier == 0 && kafka->offset_store)
		kafka->offset_store->release(kafka->offset_store->user, share->event_topic,
					     share->partition);
	share->queue = NULL;
	share->held = share->leaving = false;
}

void semel_kafka_shares_free(struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->share_count; i++) {
		free(kafka->shares[i].topic);
		free(kafka->shares[i].event_topic);
		free(kafka->shares[i].flights);
	}
	free(kafka->shares);
}

/* ---- flights --------------------------------------------------------------------------------- */

static bool make_room(struct semel_kafka_share *share)
{
	if (share->start + share->length < share->capacity)
		return true;
	if (share->start > share->capacity / 2) {
		memmove(share->flights, share->flights + share->start,
			share->length * sizeof(share->flights[0]));
		share->start = 0;
		return true;
	}
	size_t capacity = share->capacity ? share->capacity * 2 : 64;
	struct semel_kafka_flight *flights = realloc(share->flights, capacity * sizeof(flights[0]));
	if (!flights)
		return false;
	share->flights = flights;
	share->capacity = capacity;
	return true;
}

bool semel_kafka_share_add(struct semel_kafka_share *share, rd_kafka_message_t *message,
			   int64_t offset)
{
	if (!make_room(share))
		return false;
	share->flights[share->start + share->length++] = (struct semel_kafka_flight){
		.offset = offset, .message = message, .redelivered = offset < share->seen_to
	};
	share->next_offset = offset + 1;
	return true;
}

void semel_kafka_share_advance(struct semel_kafka_share *share)
{
	while (share->length > 0 && !share->flights[share->start].message) {
		share->position = share->flights[share->start].offset + 1;
		share->start++;
		share->length--;
		if (share->next > 0)
			share->next--;
	}
	if (share->length == 0)
		share->start = share->next = 0;
}

static struct semel_kafka_flight *flight_at(struct semel_kafka_share *share, int64_t offset)
{
	size_t low = 0, high = share->length;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (share->flights[share->start + middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == share->length || share->flights[share->start + low].offset != offset)
		return NULL;
	return &share->flights[share->start + low];
}

uint64_t semel_kafka_flight_bytes(const struct semel_kafka_flight *flight)
{
	return flight->message->len + flight->message->key_len + sizeof(struct semel_delivery);
}

bool semel_kafka_share_ack(struct semel_kafka *kafka, struct semel_kafka_share *share,
			   int64_t offset)
{
	struct semel_kafka_flight *flight = flight_at(share, offset);
	if (!flight || !flight->out)
		return false;
	share->out_bytes -= semel_kafka_flight_bytes(flight);
	if (flight == &share->flights[share->start + share->length - 1] ||
	    offset % ANCHOR_EVERY == 0)
		semel_kafka_anchor_note(kafka, share, flight->message);
	kafka->library->message_destroy(flight->message);
	flight->message = NULL;
	flight->out = false;
	share->out--;
	return true;
}

void semel_kafka_share_rewind(struct semel_kafka_share *share)
{
	for (size_t i = 0; i < share->length; i++) {
		struct semel_kafka_flight *flight = &share->flights[share->start + i];
		flight->redelivered = flight->redelivered || flight->out;
		flight->out = false;
	}
	share->out = 0;
	share->out_bytes = 0;
	share->next = 0;
}

uint64_t semel_kafka_share_islands(const struct semel_kafka_share *share)
{
	uint64_t count = 0;
	for (size_t i = 0; i < share->length; i++)
		count += share->flights[share->start + i].message == NULL;
	return count;
}
