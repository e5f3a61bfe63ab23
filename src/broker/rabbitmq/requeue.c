/* SPDX-License-Identifier: Apache-2.0 */
/* To one subscription: straight to its queue, or to the tier that keeps it for the delay. Confirmed
 * when it returns, so the original may be acked after it.
 *
 * An alarm stops whole connections, those that publish. So a consumer puts events back over a
 * second one, the outlet: deliveries and acks go on over the first. */
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
		 "the broker refused it (nack)");
}

void semel_rabbit_requeue_came_back(struct semel_rabbit *rabbit, const char *text)
{
	rabbit->requeue.status = SEMEL_OUTAGE;
	snprintf(rabbit->requeue.reason, sizeof(rabbit->requeue.reason), "%s", text);
}

/* ---- the subscription's home ----------------------------------------------------------------- */

static struct semel_rabbit_known_home *find_home(struct semel_rabbit *rabbit, const char *queue)
{
	for (size_t i = 0; i < rabbit->home_count; i++)
		if (strcmp(rabbit->homes[i].queue, queue) == 0)
			return &rabbit->homes[i];
	return NULL;
}

static bool is_own(const struct semel_rabbit *rabbit, const char *scope, const char *topic)
{
	if (!rabbit->scope || strcmp(rabbit->scope, scope) != 0)
		return false;
	for (uint32_t i = 0; i < rabbit->share_count; i++)
		if (strcmp(rabbit->shares[i].topic, topic) == 0)
			return true;
	return false;
}

/* Another's subscription has as many partitions as it has; one that nobody made yet gets what the
 * URL says. */
static semel_status find_partitions(struct semel_rabbit *rabbit, struct semel_rabbit_home *home,
				    bool *there_out, semel_error *error)
{
	*there_out = is_own(rabbit, home->scope, home->topic);
	home->partitions = rabbit->partitions;
	if (*there_out)
		return SEMEL_OK;
	semel_status status = semel_rabbit_partitions_of(rabbit, home->scope, home->topic,
							 &home->partitions, error);
	*there_out = home->partitions > 0;
	if (!*there_out)
		home->partitions =
			rabbit->settings.partitions > 0 ? (uint32_t)rabbit->settings.partitions : 1;
	return status;
}

static semel_status learn_home(struct semel_rabbit *rabbit, const struct semel_rabbit_home *wanted,
			       const char *queue, semel_error *error)
{
	struct semel_rabbit_known_home *homes =
		realloc(rabbit->homes, (rabbit->home_count + 1) * sizeof(rabbit->homes[0]));
	if (!homes)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a queue");
	rabbit->homes = homes;
	struct semel_rabbit_home home = *wanted;
	bool there = false;
	semel_status status = find_partitions(rabbit, &home, &there, error);
	if (status == SEMEL_OK && !there)
		status = semel_rabbit_declare_home(rabbit, &home, NULL, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit_known_home *known = &rabbit->homes[rabbit->home_count++];
	*known = (struct semel_rabbit_known_home){ .partitions = home.partitions };
	snprintf(known->queue, sizeof(known->queue), "%s", queue);
	return SEMEL_OK;
}

static semel_status need_home(struct semel_rabbit *rabbit, struct semel_rabbit_home *home,
			      char queue_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_queue_name(home, 0, queue_out, error);
	if (status != SEMEL_OK)
		return status;
	if (!find_home(rabbit, queue_out))
		status = learn_home(rabbit, home, queue_out, error);
	if (status != SEMEL_OK)
		return status;
	home->partitions = find_home(rabbit, queue_out)->partitions;
	return SEMEL_OK;
}

/* Tiers are there in order, so that whoever counts them may stop at the first that is missing. */
static semel_status need_tier(struct semel_rabbit *rabbit, struct semel_rabbit_home *home,
			      const char *queue, uint32_t tier, semel_error *error)
{
	struct semel_rabbit_known_home *known = find_home(rabbit, queue);
	if (known->tier >= tier)
		return SEMEL_OK;
	home->delay_max_ms = semel_rabbit_tier_ms(tier);
	semel_status status = semel_rabbit_declare_tiers(rabbit, home, error);
	if (status == SEMEL_OK)
		known->tier = tier;
	return status;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* While the broker is blocked, nobody waits for it: what was sent may still be taken later, and
 * comes twice then, which the claims know. */
static semel_status confirm(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(rabbit->env) + CONFIRM_MS;
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK && rabbit->requeue.waiting) {
		if (rabbit->blocked[0])
			return semel_error_set(error, SEMEL_BUSY, "%s", rabbit->blocked);
		status = semel_rabbit_pump(rabbit, 100, error);
		if (status == SEMEL_OK && rabbit->requeue.waiting &&
		    semel_steady_ms(rabbit->env) >= until_ms)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "%s has not confirmed a retry in %d ms",
					       rabbit->place, CONFIRM_MS);
	}
	semel_rabbit_ring(rabbit);
	if (status == SEMEL_OK && rabbit->requeue.status != SEMEL_OK)
		return semel_error_set(error, rabbit->requeue.status,
				       "an event could not be put back: %s",
				       rabbit->requeue.reason);
	return status;
}

static semel_status send(struct semel_rabbit *rabbit, const struct semel_rabbit_post *post,
			 semel_error *error)
{
	semel_status status = semel_rabbit_pump(rabbit, 0, error);
	if (status == SEMEL_OK && rabbit->blocked[0])
		return semel_error_set(error, SEMEL_BUSY, "%s", rabbit->blocked);
	if (status == SEMEL_OK)
		status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_REQUEUE, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_post(rabbit, post, error);
	if (status != SEMEL_OK)
		return status;
	rabbit->requeue.tag++;
	rabbit->requeue.waiting = true;
	rabbit->requeue.status = SEMEL_OK;
	return confirm(rabbit, error);
}

/* ---- the outlet ------------------------------------------------------------------------------ */

static void drop_outlet(struct semel_rabbit *rabbit)
{
	semel_rabbit_free(rabbit->outlet);
	rabbit->outlet = NULL;
}

void semel_rabbit_tend_outlet(struct semel_rabbit *rabbit)
{
	if (!rabbit->outlet)
		return;
	semel_rabbit_enter(&rabbit->outlet->broker);
	(void)semel_rabbit_leave(&rabbit->outlet->broker,
				 semel_rabbit_pump(rabbit->outlet, 0, NULL));
	if (rabbit->outlet->lost)
		drop_outlet(rabbit);
}

semel_status semel_rabbit_send_confirmed(struct semel_rabbit *rabbit,
					 const struct semel_rabbit_post *post, semel_error *error)
{
	semel_rabbit_tend_outlet(rabbit);
	struct semel_rabbit *outlet = rabbit->outlet;
	semel_status status =
		outlet ? SEMEL_OK : semel_rabbit_open_beside(rabbit, &rabbit->outlet, error);
	if (status != SEMEL_OK)
		return status;
	outlet = rabbit->outlet;
	if (!outlet)
		return semel_error_set(error, SEMEL_INTERNAL, "no second connection was opened");
	semel_rabbit_enter(&outlet->broker);
	return semel_rabbit_leave(&outlet->broker, send(outlet, post, error));
}

/* Who consumes nothing needs no outlet. */
static semel_status send_out(struct semel_rabbit *rabbit, const struct semel_rabbit_post *post,
			     semel_error *error)
{
	return rabbit->share_count == 0 ? send(rabbit, post, error)
					: semel_rabbit_send_confirmed(rabbit, post, error);
}

/* An aggregate that was made up from the routing key had no lane when it came. */
static bool is_foreign(const struct semel_event *event)
{
	return !event->aggregate_id.data ||
	       (semel_text_equal(event->aggregate_type, event->topic) &&
		semel_text_equal(event->aggregate_id, event->routing_key));
}

/* Somebody has deleted it under us: whoever starts over declares it again. */
static semel_status home_is_gone(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	rabbit->home_count = 0;
	return semel_error_set(error, SEMEL_OUTAGE, "the subscription %s is gone from %s", queue,
			       rabbit->place);
}

semel_status semel_rabbit_requeue(struct semel_broker *broker, const char *scope,
				  const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, int64_t delay_ms,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_rabbit_home home = { .scope = scope,
					  .topic = semel_text_string(event->topic) };
	char queue[SEMEL_RABBIT_NAME_SIZE], tier_queue[SEMEL_RABBIT_NAME_SIZE];
	uint32_t tier = delay_ms > 0 ? semel_rabbit_tier_for(delay_ms) : 0;
	semel_status status = need_home(rabbit, &home, queue, error);
	if (status == SEMEL_OK && tier > 0)
		status = need_tier(rabbit, &home, queue, tier, error);
	if (status == SEMEL_OK && tier > 0)
		status = semel_rabbit_tier_name(&home, tier, tier_queue, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit_post post = {
		.channel = SEMEL_RABBIT_REQUEUE,
		.exchange = SEMEL_TEXT(""),
		.key = semel_text_of(tier > 0 ? tier_queue : queue),
		.event = event,
		.metadata = metadata,
		.keeps_key = true,
		.keeps_no_lane = is_foreign(event),
	};
	if (tier == 0 && home.partitions > 1)
		post.exchange = post.key;
	status = send_out(rabbit, &post, error);
	if (status == SEMEL_OK && tier > 0)
		semel_rabbit_tier_added(rabbit, tier_queue);
	return status == SEMEL_NOT_FOUND ? home_is_gone(rabbit, queue, error) : status;
}

/* Where it lies it need not find a queue again. */
semel_status semel_rabbit_publish_dead_letter(struct semel_broker *broker,
					      const struct semel_dead_letter_copy *letter,
					      semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	const struct semel_event *event = &letter->delivery->event;
	struct semel_rabbit_home home = { .scope = letter->scope,
					  .topic = semel_text_string(event->topic) };
	struct semel_publish_metadata metadata = letter->delivery->metadata;
	char parking[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_parking_name(&home, parking, error);
	if (status != SEMEL_OK)
		return status;
	metadata.attempt = letter->attempts;
	struct semel_rabbit_post post = { .channel = SEMEL_RABBIT_REQUEUE,
					  .exchange = SEMEL_TEXT(""),
					  .key = semel_text_of(parking),
					  .event = event,
					  .metadata = &metadata,
					  .keeps_key = true,
					  .reason = letter->reason };
	return send_out(rabbit, &post, error);
}
