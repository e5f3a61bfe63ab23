/* SPDX-License-Identifier: Apache-2.0 */
/* The backlog. The broker counts the ready messages of a queue, not those that its consumers have
 * unacked: our own unacked deliveries are added, those of another consumer are not known.
 *
 * A queue is counted while deliveries arrive. The library's own calls read everything that the
 * broker has sent before its answer, however much that is. So the request is sent here, and the
 * answer is found among the frames as they are taken; if the unacked list is full before the answer
 * has arrived, the result is BUSY, and the answer is ignored when it arrives.
 *
 * A message that leaves a tier is in no queue for a moment. So messages that a tier had and no
 * longer has count as waiting until they have arrived here, or for a second.
 *
 * Tiers are counted as they exist, not as the settings of this process need them: another process,
 * or an earlier start, may have had longer delays. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS   30000
#define WAIT_MS      100
#define TRANSIT_MS   1000
#define MISSING_MS   600000
#define ASK_AGAIN_MS 1000

/* ---- one queue ------------------------------------------------------------------------------- */

/* Requests on this channel without an answer. */
static uint32_t *pending_counts(struct semel_rabbit *rabbit, uint16_t channel)
{
	return channel < SEMEL_RABBIT_ASSIGNMENTS
		       ? &rabbit->count_request.pending
		       : &rabbit->assignments[channel - SEMEL_RABBIT_ASSIGNMENTS].counts_pending;
}

void semel_rabbit_count_received(struct semel_rabbit *rabbit, uint16_t channel,
				 const amqp_queue_declare_ok_t *ok)
{
	uint32_t *open = pending_counts(rabbit, channel);
	if (*open > 0)
		(*open)--;
	if (*open > 0 || rabbit->count_request.channel != channel)
		return;
	rabbit->count_request.channel = 0;
	rabbit->count_request.ready = ok->message_count;
	rabbit->count_request.consumers = ok->consumer_count;
}

void semel_rabbit_count_failed(struct semel_rabbit *rabbit, uint16_t channel, semel_status status,
			       const char *why)
{
	*pending_counts(rabbit, channel) = 0;
	if (rabbit->count_request.channel != channel)
		return;
	rabbit->count_request.channel = 0;
	rabbit->count_request.status =
		semel_error_set(&rabbit->count_request.why, status, "%s", why);
}

static semel_status send_request(struct semel_rabbit *rabbit, uint16_t channel, const char *queue,
				 semel_error *error)
{
	amqp_queue_declare_t passive = { .queue = semel_rabbit_string(queue), .passive = 1 };
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	int code = rabbit->library->send_method(rabbit->connection, channel,
						AMQP_QUEUE_DECLARE_METHOD, &passive);
	if (code != AMQP_STATUS_OK)
		return semel_rabbit_set_lost(rabbit, code, error);
	(*pending_counts(rabbit, channel))++;
	rabbit->count_request.channel = channel;
	rabbit->count_request.status = SEMEL_OK;
	return SEMEL_OK;
}

static semel_status await_answer(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(rabbit->env) + TIMEOUT_MS;
	while (rabbit->count_request.channel != 0) {
		if (semel_rabbit_unacked_list_is_full(rabbit))
			return SEMEL_BUSY;
		semel_status status = semel_rabbit_pump(rabbit, WAIT_MS, error);
		if (status != SEMEL_OK)
			return status;
		if (semel_steady_ms(rabbit->env) >= until_ms)
			return semel_rabbit_set_lost(rabbit, AMQP_STATUS_TIMEOUT, error);
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_request_count(struct semel_rabbit *rabbit, uint16_t channel,
					const char *queue, semel_error *error)
{
	if (semel_rabbit_unacked_list_is_full(rabbit))
		return SEMEL_BUSY;
	semel_status status = send_request(rabbit, channel, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = await_answer(rabbit, error);
	rabbit->count_request.channel = 0;
	semel_rabbit_signal_ready(rabbit);
	if (status != SEMEL_OK || rabbit->count_request.status == SEMEL_OK)
		return status;
	return semel_error_set(error, rabbit->count_request.status, "%s",
			       rabbit->count_request.why.text);
}

semel_status semel_rabbit_count(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
				uint32_t *consumers_out, semel_error *error)
{
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_request_count(rabbit, SEMEL_RABBIT_CONTROL, queue, error);
	if (status != SEMEL_OK)
		return status;
	*ready_out = rabbit->count_request.ready;
	if (consumers_out)
		*consumers_out = rabbit->count_request.consumers;
	return SEMEL_OK;
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static struct semel_rabbit_tier_state *tier_of(struct semel_rabbit *rabbit, const char *queue)
{
	for (size_t i = 0; i < rabbit->tier_count; i++)
		if (strcmp(rabbit->tiers[i].queue, queue) == 0)
			return &rabbit->tiers[i];
	struct semel_rabbit_tier_state *tiers =
		realloc(rabbit->tiers, (rabbit->tier_count + 1) * sizeof(rabbit->tiers[0]));
	if (tiers)
		rabbit->tiers = tiers;
	char *copy = tiers ? strdup(queue) : NULL;
	if (!copy)
		return NULL;
	rabbit->tiers[rabbit->tier_count] = (struct semel_rabbit_tier_state){ .queue = copy };
	return &rabbit->tiers[rabbit->tier_count++];
}

void semel_rabbit_tier_added(struct semel_rabbit *rabbit, const char *queue)
{
	struct semel_rabbit_tier_state *state = tier_of(rabbit, queue);
	if (!state)
		return; /* it only makes a drain end later */
	state->count++;
	for (size_t i = 0; i < rabbit->tier_count; i++)
		rabbit->tiers[i].missing_until_ms = 0; /* shorter tiers were created with it */
	state->added_ms = semel_now_ms(rabbit->env);
}

void semel_rabbit_tier_arrived(struct semel_rabbit *rabbit, struct semel_text queue)
{
	if (rabbit->in_transit > 0) {
		rabbit->in_transit--;
		return;
	}
	for (size_t i = 0; i < rabbit->tier_count; i++)
		if (semel_text_equal(semel_text_of(rabbit->tiers[i].queue), queue) &&
		    rabbit->tiers[i].count > 0)
			rabbit->tiers[i].count--;
}

static void update_tier(struct semel_rabbit *rabbit, const char *queue, uint64_t ready)
{
	struct semel_rabbit_tier_state *state = tier_of(rabbit, queue);
	if (!state)
		return;
	if (state->count > ready) {
		rabbit->in_transit += state->count - ready;
		rabbit->transit_until_ms = semel_steady_ms(rabbit->env) + TRANSIT_MS;
	}
	state->count = ready;
}

/* When the first event of the tier is due at the latest, as far as we know. */
static int64_t due_of(struct semel_rabbit *rabbit, const char *queue, uint32_t tier)
{
	const struct semel_rabbit_tier_state *state = tier_of(rabbit, queue);
	int64_t now_ms = semel_now_ms(rabbit->env), length_ms = semel_rabbit_tier_ms(tier);
	int64_t due_ms = state && state->added_ms > 0 ? state->added_ms + length_ms : 0;
	return due_ms > now_ms ? due_ms : now_ms + length_ms;
}

/* Each request for a queue that does not exist writes a line to the broker's error log. So a
 * missing tier is queried again only after a while, or before it is reported that nothing waits. */
static semel_status count_tier(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
			       semel_error *error)
{
	struct semel_rabbit_tier_state *tier = tier_of(rabbit, queue);
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (tier && now_ms < tier->missing_until_ms)
		return SEMEL_NOT_FOUND;
	semel_status status = semel_rabbit_count(rabbit, queue, ready_out, NULL, error);
	if (status == SEMEL_BUSY) {
		*ready_out = tier ? tier->count : 0; /* as it was */
		return SEMEL_OK;
	}
	if (tier)
		tier->missing_until_ms = status == SEMEL_NOT_FOUND ? now_ms + MISSING_MS : 0;
	return status;
}

static semel_status count_tiers(struct semel_rabbit *rabbit,
				const struct semel_rabbit_subscription *subscription,
				struct semel_backlog *backlog, semel_error *error)
{
	for (uint32_t tier = 1; tier <= SEMEL_RABBIT_TIER_COUNT; tier++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		uint64_t ready = 0;
		semel_status status = semel_rabbit_tier_name(subscription, tier, queue, error);
		if (status != SEMEL_OK)
			return status;
		status = count_tier(rabbit, queue, &ready, error);
		if (status == SEMEL_NOT_FOUND)
			continue; /* longer tiers of other settings may exist */
		if (status != SEMEL_OK)
			return status;
		update_tier(rabbit, queue, ready);
		backlog->waiting += ready;
		backlog->delayed += ready;
		int64_t due_ms = ready > 0 ? due_of(rabbit, queue, tier) : 0;
		if (due_ms > 0 && (backlog->next_due_ms == 0 || due_ms < backlog->next_due_ms))
			backlog->next_due_ms = due_ms;
	}
	return SEMEL_OK;
}

/* ---- the backlog ----------------------------------------------------------------------------- */

static semel_status count_assignment(struct semel_rabbit *rabbit, uint32_t at,
				     struct semel_backlog *backlog, semel_error *error)
{
	uint64_t ready = 0;
	if (rabbit->settings.stream) {
		semel_status status = semel_rabbit_stream_backlog(rabbit, at, &ready, error);
		backlog->waiting += ready;
		return status;
	}
	semel_status status = semel_rabbit_assignment_count_ready(rabbit, at, &ready, error);
	backlog->waiting += ready + semel_rabbit_assignment_count_unacked(&rabbit->assignments[at]);
	return status;
}

static semel_status count_own(struct semel_rabbit *rabbit, const char *topic,
			      struct semel_backlog *backlog, semel_error *error)
{
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		if (strcmp(rabbit->assignments[i].topic, topic) != 0)
			continue;
		semel_status status = count_assignment(rabbit, i, backlog, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status count_stream(struct semel_rabbit *rabbit,
				 const struct semel_rabbit_subscription *subscription,
				 uint32_t number, uint64_t *waiting_out, semel_error *error)
{
	struct semel_rabbit_probe probe = { 0 };
	semel_status status =
		semel_rabbit_stream_probe(rabbit, subscription, number, &probe, error);
	*waiting_out = probe.count;
	return status;
}

static semel_status count_queues(struct semel_rabbit *rabbit,
				 const struct semel_rabbit_subscription *subscription,
				 struct semel_backlog *backlog, semel_error *error)
{
	for (uint32_t number = 1; number <= subscription->partitions; number++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		uint64_t ready = 0;
		uint32_t consumers = 0;
		semel_status status =
			semel_rabbit_partition_name(subscription, number, queue, error);
		if (status != SEMEL_OK)
			return status;
		status = rabbit->settings.stream
				 ? count_stream(rabbit, subscription, number, &ready, error)
				 : semel_rabbit_count(rabbit, queue, &ready, &consumers, error);
		if (status != SEMEL_OK)
			return status;
		backlog->waiting += ready;
		backlog->in_flight_unknown |= consumers > 0;
	}
	return SEMEL_OK;
}

static bool is_own_scope(const struct semel_rabbit *rabbit, const char *scope)
{
	return rabbit->scope && strcmp(rabbit->scope, scope) == 0;
}

static void count_transit(const struct semel_rabbit *rabbit, struct semel_backlog *backlog)
{
	if (semel_steady_ms(rabbit->env) < rabbit->transit_until_ms)
		backlog->waiting += rabbit->in_transit;
}

/* Another process may have created a tier since it was last queried. */
static bool forget_missing(struct semel_rabbit *rabbit)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (now_ms < rabbit->missing_asked_ms + ASK_AGAIN_MS)
		return false;
	rabbit->missing_asked_ms = now_ms;
	for (size_t i = 0; i < rabbit->tier_count; i++)
		rabbit->tiers[i].missing_until_ms = 0;
	return true;
}

/* tiers_only: what waits in the queues themselves is not counted. */
static semel_status count_topic(struct semel_rabbit *rabbit,
				struct semel_rabbit_subscription *subscription, bool tiers_only,
				struct semel_backlog *backlog, semel_error *error)
{
	const bool own = is_own_scope(rabbit, subscription->scope);
	if (!own) {
		semel_status status =
			semel_rabbit_partitions_of(rabbit, subscription->scope, subscription->topic,
						   &subscription->partitions, error);
		if (status != SEMEL_OK || subscription->partitions == 0)
			return status; /* 0: no subscription */
	}
	semel_status status = count_tiers(rabbit, subscription, backlog, error);
	if (status != SEMEL_OK || tiers_only)
		return status;
	return own ? count_own(rabbit, subscription->topic, backlog, error)
		   : count_queues(rabbit, subscription, backlog, error);
}

static semel_status count_all(struct semel_rabbit *rabbit, const char *scope,
			      const char *const *topics, bool tiers_only,
			      struct semel_backlog *backlog_out, semel_error *error)
{
	semel_status status = SEMEL_OK;
	*backlog_out = (struct semel_backlog){ 0 };
	for (uint32_t i = 0; topics[i] && status == SEMEL_OK; i++) {
		struct semel_rabbit_subscription subscription = {
			.scope = scope, .topic = topics[i], .partitions = rabbit->partitions
		};
		status = count_topic(rabbit, &subscription, tiers_only, backlog_out, error);
	}
	if (is_own_scope(rabbit, scope))
		count_transit(rabbit, backlog_out);
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "a queue of %s not found on %s", scope,
				       rabbit->address);
	return status;
}

semel_status semel_rabbit_backlog(struct semel_broker *broker, const char *scope,
				  const char *const *topics, struct semel_backlog *backlog_out,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = count_all(rabbit, scope, topics, false, backlog_out, error);
	if (status != SEMEL_OK || backlog_out->waiting > 0 || !forget_missing(rabbit))
		return status;
	return count_all(rabbit, scope, topics, false, backlog_out, error);
}

/* Counting what waits in a stream means reading it with another reader. A new reader needs the
 * coordinator of streams, which may be unreachable for hours; an existing one does not. So that is
 * done only when nothing has arrived for a while. */
semel_status semel_rabbit_next_due(struct semel_broker *broker, const char *scope,
				   const char *const *topics, int64_t *due_ms_out,
				   semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const bool stream = rabbit->settings.stream;
	struct semel_backlog backlog = { 0 };
	semel_status status = count_all(rabbit, scope, topics, stream, &backlog, error);
	*due_ms_out = backlog.next_due_ms;
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; stream && i < rabbit->assignment_count; i++) {
		status = semel_rabbit_stream_check(rabbit, i, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- one event ------------------------------------------------------------------------------- */

static semel_status find_in_tiers(struct semel_rabbit *rabbit,
				  const struct semel_rabbit_subscription *subscription,
				  bool *waiting_out, semel_error *error)
{
	struct semel_backlog tiers = { 0 };
	semel_status status = count_tiers(rabbit, subscription, &tiers, error);
	*waiting_out = tiers.waiting > 0;
	return status;
}

/* Reading a stream leaves no trace. */
static semel_status find_in_stream(struct semel_rabbit *rabbit,
				   struct semel_rabbit_subscription *subscription,
				   const char *event_id, bool *waiting_out, semel_error *error)
{
	semel_status status = semel_rabbit_partitions_of(
		rabbit, subscription->scope, subscription->topic, &subscription->partitions, error);
	if (status != SEMEL_OK || subscription->partitions == 0)
		return status;
	for (uint32_t number = 1; number <= subscription->partitions; number++) {
		struct semel_rabbit_probe probe = { .limit = UINT64_MAX,
						    .event_id = semel_text_of(event_id) };
		status = semel_rabbit_stream_probe(rabbit, subscription, number, &probe, error);
		*waiting_out = probe.found;
		if (status != SEMEL_OK || probe.found)
			return status;
	}
	return find_in_tiers(rabbit, subscription, waiting_out, error);
}

/* A queue cannot be read without taking messages from it, which would disturb its order. */
semel_status semel_rabbit_find_event(struct semel_broker *broker, const char *scope,
				     const char *const *topics, const char *event_id,
				     bool *waiting_out, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	*waiting_out = false;
	if (!rabbit->settings.stream) {
		struct semel_backlog backlog = { 0 };
		semel_status status = semel_rabbit_backlog(broker, scope, topics, &backlog, error);
		*waiting_out = backlog.waiting > 0;
		return status;
	}
	for (uint32_t i = 0; topics[i]; i++) {
		struct semel_rabbit_subscription subscription = { .scope = scope,
								  .topic = topics[i] };
		semel_status status =
			find_in_stream(rabbit, &subscription, event_id, waiting_out, error);
		if (status != SEMEL_OK || *waiting_out)
			return status;
	}
	return SEMEL_OK;
}
