/* SPDX-License-Identifier: Apache-2.0 */
/* At every partition one event goes first, and introduces the producer.
 *
 * - A broker takes the batches of a producer that it knows in their order: when it has refused one,
 *   it refuses those behind it. Of one that it does not know it takes any batch as the first, also
 *   the second after it has refused the first, which librdkafka sends all the same.
 * - So as long as a partition has taken nothing of this producer, one event of it is on its way;
 * the others wait here, in their order, until it was taken. Were it refused, nothing has passed it.
 * - A broker forgets who was silent for long (producer.id.expiration.ms). We forget sooner.
 * - The partition is reckoned as librdkafka does. When there are more partitions than we knew, a
 *   report says so; whoever adds some moves aggregates, and has no order at that moment anyway.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdlib.h>
#include <string.h>

#define FORGET_MS 60000

/* ---- which partition ------------------------------------------------------------------------- */

/* NULL: they are random, so there is no order to keep. */
static semel_kafka_partitioner *partitioner_of(const struct semel_kafka *kafka)
{
	const struct semel_kafka_library *library = kafka->library;
	const struct {
		const char *name;
		semel_kafka_partitioner *function;
	} known[] = {
		{ "murmur2_random", library->msg_partitioner_murmur2 },
		{ "murmur2", library->msg_partitioner_murmur2 },
		{ "consistent_random", library->msg_partitioner_consistent },
		{ "consistent", library->msg_partitioner_consistent },
		{ "fnv1a_random", library->msg_partitioner_fnv1a },
		{ "fnv1a", library->msg_partitioner_fnv1a },
	};
	const char *name = known[0].name;
	for (size_t i = 0; i < kafka->settings.passed_count; i++)
		if (strcmp(kafka->settings.passed[i].name, "partitioner") == 0)
			name = kafka->settings.passed[i].value;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i].name, name) == 0)
			return known[i].function;
	return NULL;
}

static bool make_room(struct semel_kafka_topic *topic)
{
	if (topic->partitions <= topic->met_count)
		return true;
	struct semel_kafka_partition *met =
		realloc(topic->met, topic->partitions * sizeof(topic->met[0]));
	if (!met)
		return false;
	memset(met + topic->met_count, 0,
	       (topic->partitions - topic->met_count) * sizeof(topic->met[0]));
	topic->met = met;
	topic->met_count = topic->partitions;
	return true;
}

/* NULL: it was not reckoned. */
static struct semel_kafka_partition *partition_of(struct semel_kafka *kafka,
						  const struct semel_kafka_slot *slot)
{
	return slot->partition < 0 ? NULL : &kafka->topics[slot->topic].met[slot->partition];
}

bool semel_kafka_reckon(struct semel_kafka *kafka, const struct semel_kafka_topic *topic,
			struct semel_kafka_slot *slot)
{
	struct semel_text key = slot->event->aggregate_id;
	slot->topic = (size_t)(topic - kafka->topics);
	slot->partition = -1;
	if (!kafka->partitioner)
		kafka->partitioner = partitioner_of(kafka);
	/* What is in a transaction is seen with all before it, or not at all. */
	if (!kafka->partitioner || key.length == 0 || kafka->bundle.name)
		return true;
	slot->partition = kafka->partitioner(topic->handle, key.data, key.length,
					     (int32_t)topic->partitions, NULL, NULL);
	return make_room(&kafka->topics[slot->topic]);
}

/* ---- who goes first -------------------------------------------------------------------------- */

static bool is_known(const struct semel_kafka *kafka, const struct semel_kafka_partition *partition)
{
	return partition->taken && semel_steady_ms(kafka->env) - partition->taken_ms < FORGET_MS;
}

bool semel_kafka_must_wait(struct semel_kafka *kafka, const struct semel_kafka_slot *slot)
{
	const struct semel_kafka_partition *partition = partition_of(kafka, slot);
	return partition &&
	       (partition->waiting > 0 || (partition->first && !is_known(kafka, partition)));
}

void semel_kafka_line_up(struct semel_kafka *kafka, struct semel_kafka_slot *slot)
{
	struct semel_kafka_window *window = &kafka->window;
	partition_of(kafka, slot)->waiting++;
	slot->next = NULL;
	if (window->last_waiting)
		window->last_waiting->next = slot;
	else
		window->waiting = slot;
	window->last_waiting = slot;
}

void semel_kafka_introduce(struct semel_kafka *kafka, const struct semel_kafka_slot *slot)
{
	struct semel_kafka_partition *partition = partition_of(kafka, slot);
	if (partition && !is_known(kafka, partition))
		partition->first = slot;
}

void semel_kafka_introduced(struct semel_kafka *kafka, const struct semel_kafka_slot *slot,
			    int32_t taken_by)
{
	struct semel_kafka_partition *partition = partition_of(kafka, slot);
	if (!partition)
		return;
	if (partition->stalled_ms > 0)
		semel_kafka_unstall(kafka, slot);
	if (partition->first == slot)
		partition->first = NULL;
	partition->taken = taken_by == slot->partition;
	partition->taken_ms = kafka->window.heard_ms;
	if (!partition->taken)
		kafka->topics[slot->topic].partitions = 0; /* there are more: they are asked for */
}

/* ---- those who waited ------------------------------------------------------------------------ */

static struct semel_kafka_slot *take_all(struct semel_kafka *kafka)
{
	struct semel_kafka_slot *first = kafka->window.waiting;
	for (const struct semel_kafka_slot *slot = first; slot; slot = slot->next)
		partition_of(kafka, slot)->waiting--;
	kafka->window.waiting = kafka->window.last_waiting = NULL;
	return first;
}

semel_status semel_kafka_send_waiting(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_slot *next, *slot = take_all(kafka);
	semel_status status = SEMEL_OK;
	for (; slot; slot = next) {
		next = slot->next;
		if (status != SEMEL_OK)
			semel_kafka_line_up(kafka, slot);
		else if (semel_kafka_is_held(&kafka->window, slot))
			semel_kafka_hold(&kafka->window, slot);
		else if ((status = semel_kafka_send(kafka, slot, error)) != SEMEL_OK)
			semel_kafka_line_up(kafka, slot);
	}
	return status == SEMEL_FULL ? SEMEL_OK : status;
}

void semel_kafka_introduce_anew(struct semel_kafka *kafka)
{
	kafka->window.waiting = kafka->window.last_waiting = NULL;
	for (size_t i = 0; i < kafka->topic_count; i++)
		for (uint32_t j = 0; j < kafka->topics[i].met_count; j++) {
			struct semel_kafka_partition *partition = &kafka->topics[i].met[j];
			partition->taken = partition->trying = false;
			partition->first = NULL;
			partition->waiting = 0;
		}
}
