/* SPDX-License-Identifier: Apache-2.0 */
/* Consuming: a subscription is a queue for each of its topics (or several, if it is spread over
 * partitions). A delivery that has arrived is in the unacked list until it is acked; fetch copies
 * it to the caller.
 *
 * - At most prefetch deliveries are fetched and unacked, whatever the broker sent ahead.
 * - A delivery's tag names its queue (8 bits), the opening of that queue (16) and the broker's tag.
 * - When a binding is deleted, or disappears with its exchange, the consumer is not informed: the
 *   queue and its consumer stay, but events no longer reach them. So a consumer declares the
 *   bindings of its subscription again from time to time; where they exist, that changes nothing.
 */
#include "base/error.h"
#include "base/text.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REBIND_MS       10000
#define ASSIGNMENTS_MAX 250

/* ---- bindings that were removed -------------------------------------------------------------- */

static bool is_first_of_topic(const struct semel_rabbit *rabbit, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (strcmp(rabbit->assignments[i].topic, rabbit->assignments[at].topic) == 0)
			return false;
	return true;
}

/* Without permission, or with an exchange of another type, existing bindings stay in use. */
static semel_status handle_failure(struct semel_rabbit *rabbit, const char *topic,
				   semel_status status, semel_error *why, semel_error *error)
{
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "a queue of %s not found on %s",
				       rabbit->scope, rabbit->address);
	if (status != SEMEL_CONFIG)
		return semel_error_set(error, status, "%s", why->text);
	if (!rabbit->bind_refused)
		semel_log(SEMEL_LOG_WARN, "cannot renew the bindings",
			  &(struct semel_log_fields){
				  .consumer = rabbit->scope, .topic = topic, .error = why->text });
	rabbit->bind_refused = true;
	return SEMEL_OK;
}

static semel_status bind_topics(struct semel_rabbit *rabbit, bool *refused_out, semel_error *error)
{
	*refused_out = false;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		const struct semel_rabbit_subscription subscription = {
			.scope = rabbit->scope,
			.topic = rabbit->assignments[i].topic,
			.bind = rabbit->bind,
			.partitions = rabbit->partitions
		};
		semel_error why = { 0 };
		if (!is_first_of_topic(rabbit, i))
			continue;
		semel_status status = semel_rabbit_bind_subscription(rabbit, &subscription, &why);
		if (status == SEMEL_OK)
			continue;
		*refused_out = *refused_out || status == SEMEL_CONFIG;
		status = handle_failure(rabbit, subscription.topic, status, &why, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status renew_bindings(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	bool refused;
	if (now_ms < rabbit->bind_at_ms)
		return SEMEL_OK;
	semel_status status = bind_topics(rabbit, &refused, error);
	rabbit->bind_refused = refused;
	rabbit->bind_at_ms = now_ms + (rabbit->heartbeat_ms > 0 ? rabbit->heartbeat_ms : REBIND_MS);
	return status;
}

/* ---- subscribing ----------------------------------------------------------------------------- */

static semel_status check_options(const struct semel_rabbit *rabbit,
				  const struct semel_subscribe_options *options, semel_error *error)
{
	if (rabbit->assignment_count > 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "this broker connection has a subscription already (open "
				       "another one)");
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a scope");
	if (!options->topics || !options->topics[0])
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a topic");
	if (options->partitions > SEMEL_WIRE_LANES)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%u partitions are too many (at most %d on RabbitMQ)",
				       options->partitions, SEMEL_WIRE_LANES);
	return SEMEL_OK;
}

static semel_status choose_partitions(struct semel_rabbit *rabbit,
				      const struct semel_subscribe_options *options,
				      uint32_t *partitions_out, semel_error *error)
{
	if (options->accept_existing)
		return semel_rabbit_partitions_of(rabbit, options->scope, options->topics[0],
						  partitions_out, error);
	*partitions_out = options->partitions > 0 ? options->partitions
						  : (uint32_t)rabbit->settings.partitions;
	if (*partitions_out == 0)
		*partitions_out = 1;
	if (rabbit->settings.stream && !rabbit->offset_store && !options->declare_only)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"a stream needs the store for its offsets, and no store is set here");
	if (options->total_order && *partitions_out > 1)
		return semel_error_set(error, SEMEL_CONFIG,
				       "total order requires a topic with one partition; %s has %u "
				       "(use one partition, or order by aggregate)",
				       options->topics[0], *partitions_out);
	return SEMEL_OK;
}

static struct semel_rabbit_subscription subscription_of(
	const struct semel_subscribe_options *options, uint32_t topic, uint32_t partitions)
{
	return (struct semel_rabbit_subscription){ .scope = options->scope,
						   .topic = options->topics[topic],
						   .bind = options->bind,
						   .partitions = partitions,
						   .delay_max_ms = options->delay_max_ms };
}

static semel_status add_assignment(struct semel_rabbit *rabbit, const char *queue,
				   const char *topic, uint32_t number, semel_error *error)
{
	if (rabbit->assignment_count == ASSIGNMENTS_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "a subscription can have %d queues at most "
				       "(use fewer topics or partitions)",
				       ASSIGNMENTS_MAX);
	struct semel_rabbit_assignment *assignments =
		realloc(rabbit->assignments,
			(rabbit->assignment_count + 1) * sizeof(rabbit->assignments[0]));
	if (!assignments)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a subscription");
	rabbit->assignments = assignments;
	char *queue_copy = strdup(queue);
	char *topic_copy = strdup(topic);
	if (!queue_copy || !topic_copy) {
		free(queue_copy);
		free(topic_copy);
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a subscription");
	}
	rabbit->assignments[rabbit->assignment_count++] = (struct semel_rabbit_assignment){
		.queue = queue_copy,
		.topic = topic_copy,
		.partition = (int32_t)number - 1,
		.log = { .next = -1, .redelivered_to = -1, .idle_next = -1 }
	};
	return SEMEL_OK;
}

static semel_status add_assignments(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_subscription *subscription,
				    semel_error *error)
{
	for (uint32_t number = 1; number <= subscription->partitions; number++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		semel_status status =
			semel_rabbit_partition_name(subscription, number, queue, error);
		if (status != SEMEL_OK)
			return status;
		status = add_assignment(rabbit, queue, subscription->topic, number, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status join_members(struct semel_rabbit *rabbit, semel_error *error)
{
	int length = snprintf(rabbit->members, sizeof(rabbit->members), "%s.%s.members",
			      rabbit->scope, rabbit->assignments[0].topic);
	if (length > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the scope %s and the topic %s are too long together "
				       "(choose shorter names)",
				       rabbit->scope, rabbit->assignments[0].topic);
	return semel_rabbit_join(rabbit, rabbit->members, error);
}

static semel_status declare_topics(struct semel_rabbit *rabbit,
				   const struct semel_subscribe_options *options,
				   semel_error *error)
{
	for (uint32_t i = 0; options->topics[i]; i++) {
		const struct semel_rabbit_subscription subscription =
			subscription_of(options, i, rabbit->partitions);
		if (semel_string_is_repeated(options->topics, i))
			continue;
		semel_status status =
			semel_rabbit_declare_subscription(rabbit, &subscription, NULL, error);
		if (status != SEMEL_OK)
			return status;
		status = add_assignments(rabbit, &subscription, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status check_and_choose(struct semel_rabbit *rabbit,
				     const struct semel_subscribe_options *options,
				     uint32_t *partitions_out, semel_error *error)
{
	semel_status status = check_options(rabbit, options, error);
	if (status != SEMEL_OK)
		return status;
	return choose_partitions(rabbit, options, partitions_out, error);
}

semel_status semel_rabbit_subscribe(struct semel_broker *broker,
				    const struct semel_subscribe_options *options,
				    semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	uint32_t partitions = 1;
	semel_status status = check_and_choose(rabbit, options, &partitions, error);
	if (status != SEMEL_OK)
		return status;
	rabbit->partitions = partitions;
	rabbit->prefetch = options->prefetch;
	rabbit->budget = options->prefetch_bytes > 0 ? (size_t)options->prefetch_bytes
						     : SEMEL_PREFETCH_BYTES;
	rabbit->scope = strdup(options->scope);
	rabbit->bind = options->bind ? strdup(options->bind) : NULL;
	rabbit->bind_at_ms = semel_steady_ms(rabbit->env) + rabbit->heartbeat_ms;
	status = declare_topics(rabbit, options, error);
	if (status != SEMEL_OK || options->declare_only)
		return status;
	if (partitions > 1 && rabbit->settings.single_active) {
		status = join_members(rabbit, error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		status = semel_rabbit_assignment_open(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_compare(struct semel_broker *broker,
				  const struct semel_subscribe_options *options,
				  semel_difference_callback report, void *user, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const struct semel_rabbit_comparison comparison = { .report = report, .user = user };
	uint32_t partitions = 1;
	semel_status status = check_and_choose(rabbit, options, &partitions, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; options->topics[i]; i++) {
		const struct semel_rabbit_subscription subscription =
			subscription_of(options, i, partitions);
		status = semel_rabbit_declare_subscription(rabbit, &subscription, &comparison,
							   error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- fetching -------------------------------------------------------------------------------- */

static bool copy_delivery(const struct semel_delivery *from, struct semel_arena *arena,
			  struct semel_delivery *to)
{
	*to = *from;
	struct semel_text *texts[] = {
		&to->event.id,           &to->event.type,    &to->event.aggregate_type,
		&to->event.aggregate_id, &to->event.topic,   &to->event.routing_key,
		&to->event.content_type, &to->event.headers, &to->event.payload,
		&to->metadata.previous,
	};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (!texts[i]->data)
			continue;
		*texts[i] = semel_arena_text(arena, texts[i]->data, texts[i]->length);
		if (!texts[i]->data)
			return false;
	}
	return true;
}

static uint32_t count_fetched(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		count += rabbit->assignments[i].fetched;
	return count;
}

static semel_status copy_fetched(struct semel_rabbit *rabbit, uint32_t max,
				 struct semel_arena *arena, struct semel_delivery *deliveries,
				 uint32_t *count_out, semel_error *error)
{
	uint32_t fetched = count_fetched(rabbit);
	uint32_t free_count = fetched < rabbit->prefetch ? rabbit->prefetch - fetched : 0;
	struct semel_rabbit_unacked *unacked = NULL;
	while (*count_out < max && *count_out < free_count &&
	       (unacked = semel_rabbit_unacked_list_next(rabbit, unacked)) != NULL) {
		if (!copy_delivery(&unacked->delivery, arena, &deliveries[*count_out]))
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a delivery");
		unacked->fetched = true;
		rabbit->unacked.waiting--;
		rabbit->assignments[unacked->assignment].fetched++;
		(*count_out)++;
	}
	return SEMEL_OK;
}

static semel_status reopen(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		if (rabbit->assignments[i].open || rabbit->assignments[i].log.retry_at_ms > now_ms)
			continue;
		semel_status status = semel_rabbit_assignment_open(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status ack_skipped(struct semel_rabbit *rabbit, semel_error *error)
{
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		if (!rabbit->assignments[i].log.has_skipped)
			continue;
		rabbit->assignments[i].log.has_skipped = false;
		semel_status status = semel_rabbit_assignment_send_acks(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Watches the socket only while it is read: otherwise unread data would wake the sleeper all the
 * time. */
static void watch_while_reading(struct semel_rabbit *rabbit)
{
	bool full = semel_rabbit_unacked_list_is_full(rabbit);
	if (!rabbit->wake || full == rabbit->is_unwatched)
		return;
	rabbit->is_unwatched = full;
	if (full)
		semel_wake_unwatch_fd(rabbit->wake, rabbit->fd);
	else
		semel_wake_watch_fd(rabbit->wake, rabbit->fd);
}

/* A queue whose channel the broker closed (consumer time-out) is opened again when deliveries are
 * wanted, and not while an operator or the breaker stops fetching: each opening counts as a
 * delivery. */
static semel_status maintain(struct semel_rabbit *rabbit, bool reopens, semel_error *error)
{
	semel_rabbit_maintain_publisher(rabbit);
	semel_status status = semel_rabbit_pump(rabbit, 0, error);
	if (status != SEMEL_OK)
		return status;
	status = renew_bindings(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (reopens) {
		status = reopen(rabbit, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = semel_rabbit_balance(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	return ack_skipped(rabbit, error);
}

semel_status semel_rabbit_fetch(struct semel_broker *broker, uint32_t max,
				struct semel_arena *arena, struct semel_delivery *deliveries_out,
				uint32_t *count_out, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	*count_out = 0;
	semel_status status = maintain(rabbit, max > 0, error);
	if (status != SEMEL_OK)
		goto watch;
	status = copy_fetched(rabbit, max, arena, deliveries_out, count_out, error);
watch:
	rabbit->unacked.waiting_before = rabbit->unacked.waiting;
	watch_while_reading(rabbit);
	return status;
}

/* ---- acknowledging --------------------------------------------------------------------------- */

static semel_status send_acks(struct semel_rabbit *rabbit, semel_error *error)
{
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		semel_status status = semel_rabbit_assignment_send_acks(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_rabbit_flush(rabbit, error);
}

semel_status semel_rabbit_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			      size_t count, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	bool late = false;
	for (size_t i = 0; i < count; i++) {
		uint32_t at = (uint32_t)(deliveries[i].tag >> 56);
		uint16_t epoch = (uint16_t)(deliveries[i].tag >> 40);
		if (at < rabbit->assignment_count && rabbit->assignments[at].epoch == epoch)
			semel_rabbit_assignment_ack(rabbit, at, deliveries[i].tag & 0xffffffffff);
		else
			late = true;
	}
	semel_status status = send_acks(rabbit, error);
	if (status != SEMEL_OK || !late)
		return status;
	return semel_error_set(error, SEMEL_LEASE_LOST,
			       "the broker had requeued deliveries before they were acked; they "
			       "will be redelivered");
}

/* A stream keeps what was delivered: every reader finds it there. */
uint64_t semel_rabbit_count_in_flight(struct semel_broker *broker)
{
	const struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	uint64_t count = 0;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		count += semel_rabbit_assignment_count_unacked(&rabbit->assignments[i]);
	return count;
}

/* Rewinds without the broker, because it counts and limits the deliveries that go back to it. */
semel_status semel_rabbit_rewind(struct semel_broker *broker, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	(void)error;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		rabbit->assignments[i].fetched = 0;
	semel_rabbit_unacked_list_rewind(rabbit);
	rabbit->unacked.waiting_before = 0;
	semel_rabbit_signal_ready(rabbit);
	return SEMEL_OK;
}
