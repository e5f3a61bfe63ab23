/* SPDX-License-Identifier: Apache-2.0 */
/* At every partition the first record of a producer is sent alone.
 *
 * - From a producer that it knows, a broker accepts batches only in their order: after a refused
 *   batch it refuses the following ones. From a producer that it does not know, it accepts any
 *   batch as the first, even the second one after it refused the first; and librdkafka sends the
 *   second one.
 * - So until a partition has accepted a record of this producer, only one event is in flight there;
 *   the others wait here, in their order. If the first one is refused, nothing has overtaken it.
 * - A broker forgets a producer that was silent for a long time (producer.id.expiration.ms). We
 *   assume so earlier.
 * - The partition is computed as librdkafka does. If there are more partitions than were known, a
 *   report shows it; adding partitions moves aggregates, so there is no order at that moment
 *   anyway.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdlib.h>
#include <string.h>

#define FORGET_MS 60000

/* ---- which partition ------------------------------------------------------------------------- */

/* NULL: the partitioner is random, so there is no order to keep. */
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
	for (size_t i = 0; i < kafka->settings.forwarded_count; i++)
		if (strcmp(kafka->settings.forwarded[i].name, "partitioner") == 0)
			name = kafka->settings.forwarded[i].value;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(known[i].name, name) == 0)
			return known[i].function;
	return NULL;
}

static bool grow_partitions(struct semel_kafka_topic *topic)
{
	if (topic->partitions <= topic->partition_state_count)
		return true;
	struct semel_kafka_partition *partition_states = realloc(
		topic->partition_states, topic->partitions * sizeof(topic->partition_states[0]));
	if (!partition_states)
		return false;
	memset(partition_states + topic->partition_state_count, 0,
	       (topic->partitions - topic->partition_state_count) *
		       sizeof(topic->partition_states[0]));
	topic->partition_states = partition_states;
	topic->partition_state_count = topic->partitions;
	return true;
}

/* NULL: the partition is not known. */
static struct semel_kafka_partition *partition_of(struct semel_kafka *kafka,
						  const struct semel_kafka_inflight *inflight)
{
	return inflight->partition < 0
		       ? NULL
		       : &kafka->topics[inflight->topic].partition_states[inflight->partition];
}

bool semel_kafka_choose_partition(struct semel_kafka *kafka, const struct semel_kafka_topic *topic,
				  struct semel_kafka_inflight *inflight)
{
	struct semel_text key = inflight->event->aggregate_id;
	inflight->topic = (size_t)(topic - kafka->topics);
	inflight->partition = -1;
	if (!kafka->partitioner)
		kafka->partitioner = partitioner_of(kafka);
	/* A record in a transaction becomes visible together with all earlier ones, or not at
	 * all. */
	if (!kafka->partitioner || key.length == 0 || kafka->transaction.name)
		return true;
	inflight->partition = kafka->partitioner(topic->handle, key.data, key.length,
						 (int32_t)topic->partitions, NULL, NULL);
	return grow_partitions(&kafka->topics[inflight->topic]);
}

/* ---- the first record ------------------------------------------------------------------------ */

static bool is_known(const struct semel_kafka *kafka, const struct semel_kafka_partition *partition)
{
	return partition->accepted &&
	       semel_steady_ms(kafka->env) - partition->accepted_ms < FORGET_MS;
}

bool semel_kafka_is_behind_first(struct semel_kafka *kafka,
				 const struct semel_kafka_inflight *inflight)
{
	const struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	return partition &&
	       (partition->waiting > 0 || (partition->first && !is_known(kafka, partition)));
}

void semel_kafka_wait_for_first(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_window *window = &kafka->window;
	partition_of(kafka, inflight)->waiting++;
	inflight->next = NULL;
	if (window->last_waiting)
		window->last_waiting->next = inflight;
	else
		window->waiting = inflight;
	window->last_waiting = inflight;
}

void semel_kafka_first_sent(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	if (partition && !is_known(kafka, partition))
		partition->first = inflight;
}

void semel_kafka_partition_accepted(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    int32_t accepted_by)
{
	struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	if (!partition)
		return;
	if (partition->stalled_ms > 0)
		semel_kafka_end_stall(kafka, inflight);
	if (partition->first == inflight)
		partition->first = NULL;
	partition->accepted = accepted_by == inflight->partition;
	partition->accepted_ms = kafka->window.polled_ms;
	if (!partition->accepted)
		kafka->topics[inflight->topic].partitions = 0; /* there are more: query them */
}

/* ---- waiting events --------------------------------------------------------------------- */

static struct semel_kafka_inflight *take_all(struct semel_kafka *kafka)
{
	struct semel_kafka_inflight *first = kafka->window.waiting;
	for (const struct semel_kafka_inflight *inflight = first; inflight;
	     inflight = inflight->next)
		partition_of(kafka, inflight)->waiting--;
	kafka->window.waiting = kafka->window.last_waiting = NULL;
	return first;
}

semel_status semel_kafka_send_waiting(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_inflight *next, *inflight = take_all(kafka);
	semel_status status = SEMEL_OK;
	for (; inflight; inflight = next) {
		next = inflight->next;
		if (status != SEMEL_OK)
			semel_kafka_wait_for_first(kafka, inflight);
		else if (semel_kafka_is_held(&kafka->window, inflight))
			semel_kafka_hold(&kafka->window, inflight);
		else if ((status = semel_kafka_send(kafka, inflight, error)) != SEMEL_OK)
			semel_kafka_wait_for_first(kafka, inflight);
	}
	return status == SEMEL_FULL ? SEMEL_OK : status;
}

void semel_kafka_first_reset(struct semel_kafka *kafka)
{
	kafka->window.waiting = kafka->window.last_waiting = NULL;
	for (size_t i = 0; i < kafka->topic_count; i++)
		for (uint32_t j = 0; j < kafka->topics[i].partition_state_count; j++) {
			struct semel_kafka_partition *partition =
				&kafka->topics[i].partition_states[j];
			partition->accepted = partition->probing = false;
			partition->first = NULL;
			partition->waiting = 0;
		}
}
