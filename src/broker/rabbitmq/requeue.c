/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing to one subscription: directly to its queue, or to the tier that keeps the event for
 * the delay. It is confirmed when the function returns, so the original may be acked after it.
 *
 * An alarm blocks whole connections, those that publish. So a consumer requeues events over a
 * second connection, the publisher: deliveries and acks continue over the first. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIRM_MS 30000

void semel_rabbit_requeue_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple,
				    bool nacked)
{
	if (!rabbit->requeue.waiting || tag < rabbit->requeue.tag ||
	    (tag > rabbit->requeue.tag && !multiple))
		return;
	rabbit->requeue.waiting = false;
	if (!nacked || rabbit->requeue.status != SEMEL_OK)
		return;
	rabbit->requeue.status = SEMEL_OUTAGE;
	snprintf(rabbit->requeue.reason, sizeof(rabbit->requeue.reason),
		 "the broker refused the event (nack)");
}

void semel_rabbit_requeue_returned(struct semel_rabbit *rabbit, const char *text)
{
	rabbit->requeue.status = SEMEL_OUTAGE;
	snprintf(rabbit->requeue.reason, sizeof(rabbit->requeue.reason), "%s", text);
}

/* ---- the subscription ------------------------------------------------------------------------ */

static struct semel_rabbit_known_subscription *find_known(struct semel_rabbit *rabbit,
							  const char *queue)
{
	for (size_t i = 0; i < rabbit->known_count; i++)
		if (strcmp(rabbit->known[i].queue, queue) == 0)
			return &rabbit->known[i];
	return NULL;
}

static bool is_own(const struct semel_rabbit *rabbit, const char *scope, const char *topic)
{
	if (!rabbit->scope || strcmp(rabbit->scope, scope) != 0)
		return false;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++)
		if (strcmp(rabbit->assignments[i].topic, topic) == 0)
			return true;
	return false;
}

/* The subscription of another scope has the partitions with which it was declared; one that does
 * not exist gets those of the URL. */
static semel_status find_partitions(struct semel_rabbit *rabbit,
				    struct semel_rabbit_subscription *subscription,
				    bool *exists_out, semel_error *error)
{
	*exists_out = is_own(rabbit, subscription->scope, subscription->topic);
	subscription->partitions = rabbit->partitions;
	if (*exists_out)
		return SEMEL_OK;
	semel_status status = semel_rabbit_partitions_of(
		rabbit, subscription->scope, subscription->topic, &subscription->partitions, error);
	*exists_out = subscription->partitions > 0;
	if (!*exists_out)
		subscription->partitions =
			rabbit->settings.partitions > 0 ? (uint32_t)rabbit->settings.partitions : 1;
	return status;
}

static semel_status add_known(struct semel_rabbit *rabbit,
			      struct semel_rabbit_subscription *subscription, const char *queue,
			      semel_error *error)
{
	struct semel_rabbit_known_subscription *known =
		realloc(rabbit->known, (rabbit->known_count + 1) * sizeof(rabbit->known[0]));
	if (!known)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a queue");
	rabbit->known = known;
	bool exists = false;
	semel_status status = find_partitions(rabbit, subscription, &exists, error);
	if (status != SEMEL_OK)
		return status;
	if (!exists) {
		status = semel_rabbit_declare_subscription(rabbit, subscription, NULL, error);
		if (status != SEMEL_OK)
			return status;
	}
	struct semel_rabbit_known_subscription *added = &rabbit->known[rabbit->known_count++];
	*added = (struct semel_rabbit_known_subscription){ .partitions = subscription->partitions };
	snprintf(added->queue, sizeof(added->queue), "%s", queue);
	return SEMEL_OK;
}

/* Fills in the partitions of the subscription, which is declared if it does not exist. */
static semel_status ensure_subscription(struct semel_rabbit *rabbit,
					struct semel_rabbit_subscription *subscription,
					char queue_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_queue_name(subscription, 0, queue_out, error);
	if (status != SEMEL_OK)
		return status;
	const struct semel_rabbit_known_subscription *known = find_known(rabbit, queue_out);
	if (!known)
		return add_known(rabbit, subscription, queue_out, error);
	subscription->partitions = known->partitions;
	return SEMEL_OK;
}

/* Declares the tier, together with the shorter ones. */
static semel_status ensure_tier(struct semel_rabbit *rabbit,
				struct semel_rabbit_subscription *subscription, const char *queue,
				uint32_t tier, semel_error *error)
{
	struct semel_rabbit_known_subscription *known = find_known(rabbit, queue);
	if (known->tier >= tier)
		return SEMEL_OK;
	subscription->delay_max_ms = semel_rabbit_tier_ms(tier);
	semel_status status = semel_rabbit_declare_tiers(rabbit, subscription, error);
	if (status == SEMEL_OK)
		known->tier = tier;
	return status;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Does not wait while the broker is blocked: what was sent may still be accepted later, and is then
 * a duplicate, which the claims detect. */
static semel_status await_confirm(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(rabbit->env) + CONFIRM_MS;
	while (rabbit->requeue.waiting) {
		if (rabbit->blocked[0])
			return semel_error_set(error, SEMEL_BUSY, "%s", rabbit->blocked);
		semel_status status = semel_rabbit_pump(rabbit, 100, error);
		if (status != SEMEL_OK)
			return status;
		if (rabbit->requeue.waiting && semel_steady_ms(rabbit->env) >= until_ms)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "%s has not confirmed a requeued event within %d ms",
					       rabbit->address, CONFIRM_MS);
	}
	if (rabbit->requeue.status != SEMEL_OK)
		return semel_error_set(error, rabbit->requeue.status, "cannot requeue an event: %s",
				       rabbit->requeue.reason);
	return SEMEL_OK;
}

static semel_status send_over(struct semel_rabbit *rabbit,
			      const struct semel_rabbit_outgoing *outgoing, semel_error *error)
{
	semel_status status = semel_rabbit_pump(rabbit, 0, error);
	if (status != SEMEL_OK)
		return status;
	if (rabbit->blocked[0])
		return semel_error_set(error, SEMEL_BUSY, "%s", rabbit->blocked);
	status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_REQUEUE, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_write_message(rabbit, outgoing, error);
	if (status != SEMEL_OK)
		return status;
	rabbit->requeue.tag++;
	rabbit->requeue.waiting = true;
	rabbit->requeue.status = SEMEL_OK;
	status = await_confirm(rabbit, error);
	semel_rabbit_signal_ready(rabbit);
	return status;
}

/* ---- the publisher --------------------------------------------------------------------------- */

void semel_rabbit_maintain_publisher(struct semel_rabbit *rabbit)
{
	struct semel_rabbit *publisher = rabbit->publisher;
	if (!publisher)
		return;
	semel_rabbit_lock(&publisher->broker);
	(void)semel_rabbit_unlock(&publisher->broker, semel_rabbit_pump(publisher, 0, NULL));
	if (!publisher->lost)
		return;
	semel_rabbit_free(publisher);
	rabbit->publisher = NULL;
}

semel_status semel_rabbit_send_confirmed(struct semel_rabbit *rabbit,
					 const struct semel_rabbit_outgoing *outgoing,
					 semel_error *error)
{
	semel_rabbit_maintain_publisher(rabbit);
	if (!rabbit->publisher) {
		semel_status status = semel_rabbit_open_second(rabbit, &rabbit->publisher, error);
		if (status != SEMEL_OK)
			return status;
	}
	struct semel_rabbit *publisher = rabbit->publisher;
	if (!publisher)
		return semel_error_set(error, SEMEL_INTERNAL, "no second connection was opened");
	semel_rabbit_lock(&publisher->broker);
	return semel_rabbit_unlock(&publisher->broker, send_over(publisher, outgoing, error));
}

/* Without a subscription there are no deliveries to protect, and one connection is enough. */
static semel_status send_out(struct semel_rabbit *rabbit,
			     const struct semel_rabbit_outgoing *outgoing, semel_error *error)
{
	return rabbit->assignment_count == 0 ? send_over(rabbit, outgoing, error)
					     : semel_rabbit_send_confirmed(rabbit, outgoing, error);
}

/* ---- to a subscription ----------------------------------------------------------------------- */

/* An aggregate that was derived from the routing key had no lane when it arrived. */
static bool is_foreign(const struct semel_event *event)
{
	return !event->aggregate_id.data ||
	       (semel_text_equal(event->aggregate_type, event->topic) &&
		semel_text_equal(event->aggregate_id, event->routing_key));
}

/* NOT_FOUND: the queue was deleted while we used it. After a reconnection it is declared again. */
static semel_status send_to(struct semel_rabbit *rabbit, const char *queue,
			    const struct semel_rabbit_outgoing *outgoing, semel_error *error)
{
	semel_status status = send_out(rabbit, outgoing, error);
	if (status != SEMEL_NOT_FOUND)
		return status;
	rabbit->known_count = 0;
	return semel_error_set(error, SEMEL_OUTAGE, "queue %s not found on %s; declaring it again",
			       queue, rabbit->address);
}

static semel_status send_to_tier(struct semel_rabbit *rabbit,
				 struct semel_rabbit_subscription *subscription, const char *queue,
				 struct semel_rabbit_outgoing *outgoing, uint32_t tier,
				 semel_error *error)
{
	char tier_queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = ensure_tier(rabbit, subscription, queue, tier, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_tier_name(subscription, tier, tier_queue, error);
	if (status != SEMEL_OK)
		return status;
	outgoing->key = semel_text_of(tier_queue);
	status = send_to(rabbit, queue, outgoing, error);
	if (status != SEMEL_OK)
		return status;
	semel_rabbit_tier_added(rabbit, tier_queue);
	return SEMEL_OK;
}

semel_status semel_rabbit_requeue(struct semel_broker *broker, const char *scope,
				  const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, int64_t delay_ms,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const char *topic = semel_text_string(event->topic);
	struct semel_rabbit_subscription subscription = { .scope = scope, .topic = topic };
	struct semel_rabbit_outgoing outgoing = { .channel = SEMEL_RABBIT_REQUEUE,
						  .exchange = SEMEL_TEXT(""),
						  .event = event,
						  .metadata = metadata,
						  .keeps_routing_key = true,
						  .omits_lane = is_foreign(event) };
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = ensure_subscription(rabbit, &subscription, queue, error);
	if (status != SEMEL_OK)
		return status;
	if (delay_ms > 0)
		return send_to_tier(rabbit, &subscription, queue, &outgoing,
				    semel_rabbit_tier_for(delay_ms), error);
	outgoing.key = semel_text_of(queue);
	if (subscription.partitions > 1)
		outgoing.exchange = outgoing.key;
	return send_to(rabbit, queue, &outgoing, error);
}

/* The copy keeps its lane: in the parked queue it need not reach another queue. */
semel_status semel_rabbit_publish_dead_letter(struct semel_broker *broker,
					      const struct semel_dead_letter_copy *letter,
					      semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const struct semel_event *event = &letter->delivery->event;
	const char *topic = semel_text_string(event->topic);
	const struct semel_rabbit_subscription subscription = { .scope = letter->scope,
								.topic = topic };
	struct semel_publish_metadata metadata = letter->delivery->metadata;
	char parked[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_parked_name(&subscription, parked, error);
	if (status != SEMEL_OK)
		return status;
	metadata.attempt = letter->attempts;
	const struct semel_rabbit_outgoing outgoing = { .channel = SEMEL_RABBIT_REQUEUE,
							.exchange = SEMEL_TEXT(""),
							.key = semel_text_of(parked),
							.event = event,
							.metadata = &metadata,
							.keeps_routing_key = true,
							.reason = letter->reason };
	return send_out(rabbit, &outgoing, error);
}
