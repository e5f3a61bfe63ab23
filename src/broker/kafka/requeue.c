/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing to one subscription. It is confirmed when the function returns, so the original may be
 * acked afterwards:
 *
 * - A delayed retry or a replay goes into the retry topic for the delay, with the time when it is
 *   due.
 * - A copy of a dead letter goes into T.S.dlt, for operators who monitor Kafka: the event
 *   unchanged, and why, when and from where it came. The dead letter that can be replayed is in the
 *   store. */
#include "base/error.h"
#include "base/time.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CONFIRM_MS 30000

/* Ensures the retry topic, with as many partitions as the topic has, or will have when created. */
static semel_status ensure_tier(struct semel_kafka *kafka, const char *scope,
				const char *topic_name, uint32_t tier,
				struct semel_kafka_topic **topic_out, semel_error *error)
{
	char name[SEMEL_KAFKA_NAME_SIZE];
	struct semel_kafka_topic *topic = NULL;
	semel_status status = semel_kafka_tier_name(scope, topic_name, tier, name, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_topic_resolve(kafka, topic_name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_topic_ensure(kafka, name, topic->partitions, topic_out, error);
	if (status == SEMEL_UNROUTABLE || status == SEMEL_NACKED)
		return SEMEL_OUTAGE; /* the retry topic is at fault, not the event */
	return status;
}

static semel_status await_report(struct semel_kafka *kafka, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + CONFIRM_MS;
	while (kafka->requeue.waiting) {
		semel_kafka_producer_serve(kafka, 100);
		semel_status status = semel_kafka_check_health(kafka, error);
		if (status != SEMEL_OK || !kafka->requeue.waiting)
			return status;
		if (kafka->window.broken)
			return semel_error_set(error, SEMEL_OUTAGE, "%s refused a requeued event",
					       kafka->address);
		if (semel_steady_ms(kafka->env) >= until_ms)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "%s has not confirmed a requeued event within %d ms",
					       kafka->address, CONFIRM_MS);
	}
	return SEMEL_OK;
}

static semel_status confirm(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = await_report(kafka, error);
	if (status != SEMEL_OK)
		goto set_lost;
	if (!kafka->requeue.err)
		return SEMEL_OK;
	status = semel_error_set(error, SEMEL_OUTAGE, "cannot requeue an event at %s: %s",
				 kafka->address, kafka->library->err2str(kafka->requeue.err));

set_lost:
	kafka->lost = true; /* no report may arrive later */
	return status;
}

/* Confirmed when it returns OK. */
static semel_status produce_and_wait(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
				     struct semel_kafka_outgoing *outgoing, semel_error *error)
{
	rd_kafka_topic_t *handle = semel_kafka_topic_handle(kafka, topic);
	if (!handle)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	outgoing->opaque = &kafka->requeue;
	semel_status status = semel_kafka_produce(kafka, handle, outgoing, error);
	if (status != SEMEL_OK)
		return status;
	kafka->requeue.waiting = true;
	return confirm(kafka, error);
}

static void record_due(struct semel_kafka *kafka, uint32_t tier, int64_t due_ms)
{
	if (tier > 1)
		kafka->tier_due_ms[tier] = due_ms;
}

semel_status semel_kafka_requeue(struct semel_broker *broker, const char *scope,
				 const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, int64_t delay_ms,
				 semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct semel_kafka_topic *topic = NULL;
	uint32_t tier = semel_kafka_tier_for(delay_ms);
	int64_t due_ms = semel_now_ms(kafka->env) + delay_ms;
	char due[24];
	if (kafka->lost)
		return semel_kafka_check_health(kafka, error);
	if (kafka->scope && strcmp(kafka->scope, scope) == 0 && tier > kafka->tiers)
		tier = kafka->tiers; /* the last tier that is certain to be read */
	int length = snprintf(due, sizeof(due), "%" PRId64, due_ms);
	const struct semel_wire_field fields[] = {
		{ SEMEL_TEXT("semel-due"), semel_text_from(due, (size_t)length) },
		{ SEMEL_TEXT("semel-retry-scope"), semel_text_of(scope) },
	};
	struct semel_kafka_outgoing outgoing = { .event = event,
						 .metadata = metadata,
						 .extra = fields,
						 .extra_count =
							 sizeof(fields) / sizeof(fields[0]) };
	semel_status status =
		ensure_tier(kafka, scope, semel_text_string(event->topic), tier, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = produce_and_wait(kafka, topic, &outgoing, error);
	if (status != SEMEL_OK)
		return status;
	record_due(kafka, tier, due_ms);
	return SEMEL_OK;
}

/* ---- dead letters ---------------------------------------------------------------------------- */

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
	semel_status status = semel_kafka_topic_resolve(kafka, topic_name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_topic_ensure(kafka, name, topic->partitions, dead_letter_topic_out,
					  error);
	if (status == SEMEL_UNROUTABLE || status == SEMEL_NACKED)
		return SEMEL_OUTAGE; /* the dead letter topic is at fault, not the event */
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
	status = produce_and_wait(kafka, dead_letter_topic, &outgoing, error);
	if (status != SEMEL_TOO_LARGE)
		return status;
	semel_log(SEMEL_LOG_WARN, "dead letter too large for its topic, kept in the store only",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(delivery->event.id),
					      .topic = semel_text_shown(delivery->event.topic) });
	return SEMEL_OK;
}
