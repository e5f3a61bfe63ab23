/* SPDX-License-Identifier: Apache-2.0 */
/* Consuming: a subscription is a queue for each of its topics (or several, when it is spread over
 * partitions). What has arrived waits in the stage until it is acked; fetch copies it to the
 * caller.
 *
 * - Not more than prefetch deliveries are in the caller's hands, whatever the broker sent ahead.
 * - A delivery's tag names its queue (8 bits), the opening of that queue (16) and the broker's tag.
 */
#include "base/error.h"
#include "base/text.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARES_MAX 250

/* ---- subscribing ----------------------------------------------------------------------------- */

static semel_status check_options(const struct semel_rabbit *rabbit,
				  const struct semel_subscribe_options *options, semel_error *error)
{
	if (rabbit->share_count > 0)
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
			"a stream is read from where the store says, and nobody asks "
			"the store here");
	if (options->total_order && *partitions_out > 1)
		return semel_error_set(error, SEMEL_CONFIG,
				       "a total order cannot be kept over %u partitions (use one, "
				       "or order by aggregate)",
				       *partitions_out);
	return SEMEL_OK;
}

static struct semel_rabbit_home home_of(const struct semel_subscribe_options *options,
					uint32_t topic, uint32_t partitions)
{
	return (struct semel_rabbit_home){ .scope = options->scope,
					   .topic = options->topics[topic],
					   .bind = options->bind,
					   .partitions = partitions,
					   .delay_max_ms = options->delay_max_ms };
}

static semel_status add_shares(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
			       semel_error *error)
{
	for (uint32_t number = 1; number <= home->partitions; number++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		semel_status status = semel_rabbit_queue_name(
			home, home->partitions > 1 ? number : 0, queue, error);
		if (status != SEMEL_OK)
			return status;
		if (rabbit->share_count == SHARES_MAX)
			return semel_error_set(error, SEMEL_CONFIG,
					       "a subscription can have %d queues at most "
					       "(use fewer topics or partitions)",
					       SHARES_MAX);
		struct semel_rabbit_share *shares = realloc(
			rabbit->shares, (rabbit->share_count + 1) * sizeof(rabbit->shares[0]));
		if (shares)
			rabbit->shares = shares;
		char *queue_copy = shares ? strdup(queue) : NULL;
		char *topic_copy = queue_copy ? strdup(home->topic) : NULL;
		if (!topic_copy) {
			free(queue_copy);
			return semel_error_set(error, SEMEL_INTERNAL,
					       "no memory for a subscription");
		}
		rabbit->shares[rabbit->share_count++] = (struct semel_rabbit_share){
			.queue = queue_copy,
			.topic = topic_copy,
			.partition = (int32_t)number - 1,
			.log = { .next = -1, .seen = -1, .still_at = -1 }
		};
	}
	return SEMEL_OK;
}

static semel_status name_members(struct semel_rabbit *rabbit, semel_error *error)
{
	int length = snprintf(rabbit->members, sizeof(rabbit->members), "%s.%s.members",
			      rabbit->scope, rabbit->shares[0].topic);
	if (length > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the names %s and %s are too long together", rabbit->scope,
				       rabbit->shares[0].topic);
	return semel_rabbit_join(rabbit, rabbit->members, error);
}

semel_status semel_rabbit_subscribe(struct semel_broker *broker,
				    const struct semel_subscribe_options *options,
				    semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	uint32_t partitions = 1;
	semel_status status = check_options(rabbit, options, error);
	if (status == SEMEL_OK)
		status = choose_partitions(rabbit, options, &partitions, error);
	if (status != SEMEL_OK)
		return status;
	rabbit->partitions = partitions;
	rabbit->prefetch = options->prefetch;
	rabbit->budget = options->prefetch_bytes > 0 ? (size_t)options->prefetch_bytes
						     : SEMEL_PREFETCH_BYTES;
	rabbit->scope = strdup(options->scope);
	rabbit->bind = options->bind ? strdup(options->bind) : NULL;
	rabbit->bind_at_ms = semel_steady_ms(rabbit->env) + rabbit->heartbeat_ms;
	for (uint32_t i = 0; options->topics[i] && status == SEMEL_OK; i++) {
		struct semel_rabbit_home home = home_of(options, i, partitions);
		if (semel_string_is_repeated(options->topics, i))
			continue;
		status = semel_rabbit_declare_home(rabbit, &home, NULL, error);
		if (status == SEMEL_OK)
			status = add_shares(rabbit, &home, error);
	}
	if (options->declare_only)
		return status;
	if (status == SEMEL_OK && partitions > 1 && rabbit->settings.single_active)
		status = name_members(rabbit, error);
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++)
		status = semel_rabbit_share_open(rabbit, i, error);
	return status;
}

semel_status semel_rabbit_compare(struct semel_broker *broker,
				  const struct semel_subscribe_options *options,
				  semel_difference_callback seen, void *user, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const struct semel_rabbit_survey survey = { .seen = seen, .user = user };
	uint32_t partitions = 1;
	semel_status status = check_options(rabbit, options, error);
	if (status == SEMEL_OK)
		status = choose_partitions(rabbit, options, &partitions, error);
	for (uint32_t i = 0; status == SEMEL_OK && options->topics[i]; i++) {
		struct semel_rabbit_home home = home_of(options, i, partitions);
		status = semel_rabbit_declare_home(rabbit, &home, &survey, error);
	}
	return status;
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

static uint32_t count_handed(const struct semel_rabbit *rabbit)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		count += rabbit->shares[i].handed;
	return count;
}

static semel_status hand_out(struct semel_rabbit *rabbit, uint32_t max, struct semel_arena *arena,
			     struct semel_delivery *deliveries, uint32_t *count_out,
			     semel_error *error)
{
	uint32_t handed = count_handed(rabbit);
	uint32_t room = handed < rabbit->prefetch ? rabbit->prefetch - handed : 0;
	struct semel_rabbit_parcel *parcel = NULL;
	while (*count_out < max && *count_out < room &&
	       (parcel = semel_rabbit_stage_next(rabbit, parcel)) != NULL) {
		if (!copy_delivery(&parcel->delivery, arena, &deliveries[*count_out]))
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
		parcel->out = true;
		rabbit->stage.waiting--;
		rabbit->shares[parcel->share].handed++;
		(*count_out)++;
	}
	return SEMEL_OK;
}

static semel_status reopen(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++)
		if (!rabbit->shares[i].open && rabbit->shares[i].log.ask_at_ms <= now_ms)
			status = semel_rabbit_share_open(rabbit, i, error);
	return status;
}

static semel_status ack_needless(struct semel_rabbit *rabbit, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++) {
		if (!rabbit->shares[i].log.needless)
			continue;
		rabbit->shares[i].log.needless = false;
		status = semel_rabbit_share_send_acks(rabbit, i, error);
	}
	return status;
}

/* A socket from which nothing is read for now would wake its sleeper all the time. */
static void watch_while_reading(struct semel_rabbit *rabbit)
{
	bool full = semel_rabbit_stage_is_full(rabbit);
	if (!rabbit->wake || full == rabbit->unwatched)
		return;
	rabbit->unwatched = full;
	if (full)
		semel_wake_unwatch_fd(rabbit->wake, rabbit->fd);
	else
		semel_wake_watch_fd(rabbit->wake, rabbit->fd);
}

/* A queue that the broker closed on us (its consumer time-out) is opened again when something of it
 * is wanted, and not while a person or the breaker lets all wait: each time counts as a delivery.
 */
semel_status semel_rabbit_fetch(struct semel_broker *broker, uint32_t max,
				struct semel_arena *arena, struct semel_delivery *deliveries_out,
				uint32_t *count_out, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	*count_out = 0;
	semel_rabbit_tend_outlet(rabbit);
	semel_status status = semel_rabbit_pump(rabbit, 0, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_rebind(rabbit, error);
	if (status == SEMEL_OK && max > 0)
		status = reopen(rabbit, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_balance(rabbit, error);
	if (status == SEMEL_OK)
		status = ack_needless(rabbit, error);
	if (status == SEMEL_OK)
		status = hand_out(rabbit, max, arena, deliveries_out, count_out, error);
	rabbit->stage.seen = rabbit->stage.waiting;
	watch_while_reading(rabbit);
	return status;
}

/* ---- settling -------------------------------------------------------------------------------- */

semel_status semel_rabbit_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			      size_t count, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = SEMEL_OK;
	bool late = false;
	for (size_t i = 0; i < count; i++) {
		uint32_t at = (uint32_t)(deliveries[i].tag >> 56);
		uint16_t epoch = (uint16_t)(deliveries[i].tag >> 40);
		if (at < rabbit->share_count && rabbit->shares[at].epoch == epoch)
			semel_rabbit_share_ack(rabbit, at, deliveries[i].tag & 0xffffffffff);
		else
			late = true;
	}
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++)
		status = semel_rabbit_share_send_acks(rabbit, i, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_flush(rabbit, error);
	if (status == SEMEL_OK && late)
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "the broker had taken deliveries back before they were "
				       "acked; they come again");
	return status;
}

/* A stream keeps what was delivered: anybody can look for it there. */
uint64_t semel_rabbit_count_in_flight(struct semel_broker *broker)
{
	const struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	uint64_t count = 0;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		count += semel_rabbit_share_unacked(&rabbit->shares[i]);
	return count;
}

/* Without the broker: to give a delivery back is counted there, and limited. */
semel_status semel_rabbit_rewind(struct semel_broker *broker, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	(void)error;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		rabbit->shares[i].handed = 0;
	semel_rabbit_stage_rewind(rabbit);
	rabbit->stage.seen = 0;
	semel_rabbit_ring(rabbit);
	return SEMEL_OK;
}
