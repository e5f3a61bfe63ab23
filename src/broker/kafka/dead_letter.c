/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of a dead letter as a record in T.S.dlt, for those who monitor Kafka: the event unchanged,
 * and why, when and from where it came. The dead letter that can be replayed is in the store. */
#include "base/error.h"
#include "base/time.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>

static semel_status ensure_dead_letter_topic(struct semel_kafka *kafka, const char *scope,
					     const char *topic_name,
					     struct semel_kafka_topic **dead_letter_topic_out,
					     semel_error *error)
{
	char name[SEMEL_KAFKA_NAME_SIZE];
	struct semel_kafka_topic *topic = NULL;
	int length = snprintf(name, sizeof(name), "%s.%s.dlt", topic_name, scope);
	if (length < 0 || length > SEMEL_KAFKA_NAME_MAX)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the name of the dead letter topic for %s and %s is too long "
			"(choose shorter names, or set dead-letter-topics=no)",
			scope, topic_name);
	semel_status status = semel_kafka_topic_lookup(kafka, topic_name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_topic_ensure(kafka, name, topic->partitions, dead_letter_topic_out,
					  error);
	if (status == SEMEL_UNROUTABLE || status == SEMEL_NACKED)
		return SEMEL_OUTAGE; /* of that topic: the event is not at fault */
	return status;
}

semel_status semel_kafka_publish_dead_letter(struct semel_broker *broker,
					     const struct semel_dead_letter_copy *letter,
					     semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	const struct semel_delivery *delivery = letter->delivery;
	struct semel_kafka_topic *dead_letter_topic = NULL;
	char attempts[16], time[SEMEL_TIME_SIZE], partition[16], offset[24];
	if (!kafka->settings.publishes_dead_letters)
		return SEMEL_OK;
	if (kafka->lost)
		return semel_kafka_check_health(kafka, error);
	snprintf(attempts, sizeof(attempts), "%u", letter->attempts);
	snprintf(partition, sizeof(partition), "%d", delivery->partition);
	snprintf(offset, sizeof(offset), "%" PRId64, delivery->offset);
	semel_time_format(letter->failed_at_ms, time);
	const struct semel_wire_field fields[] = {
		{ SEMEL_TEXT("semel-dead-reason"), semel_text_of(letter->reason) },
		{ SEMEL_TEXT("semel-dead-attempts"), semel_text_of(attempts) },
		{ SEMEL_TEXT("semel-dead-time"), semel_text_of(time) },
		{ SEMEL_TEXT("semel-dead-scope"), semel_text_of(letter->scope) },
		{ SEMEL_TEXT("semel-dead-topic"), delivery->event.topic },
		{ SEMEL_TEXT("semel-dead-partition"), semel_text_of(partition) },
		{ SEMEL_TEXT("semel-dead-offset"), semel_text_of(offset) },
	};
	struct semel_kafka_outgoing outgoing = { .event = &delivery->event,
						 .metadata = &delivery->metadata,
						 .extra = fields,
						 .extra_count =
							 sizeof(fields) / sizeof(fields[0]) };
	semel_status status = ensure_dead_letter_topic(kafka, letter->scope,
						       semel_text_string(delivery->event.topic),
						       &dead_letter_topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_produce_and_wait(kafka, dead_letter_topic, &outgoing, error);
	if (status != SEMEL_TOO_LARGE)
		return status;
	semel_log(SEMEL_LOG_WARN, "dead letter too large for its topic, kept in the store only",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(delivery->event.id),
					      .topic = semel_text_shown(delivery->event.topic) });
	return SEMEL_OK;
}
