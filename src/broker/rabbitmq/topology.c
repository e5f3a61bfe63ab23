/* SPDX-License-Identifier: Apache-2.0 */
/* What is declared at the broker, by name:
 *
 *   topic T          durable topic exchange T
 *   subscription S   queue S.T, bound to T; single active consumer, quorum unless set otherwise
 *                    (a stream: with a marker of ours in it, see stream.c)
 *                    the exchange S.T.owner says which scope and topic it belongs to
 *   its retries      queues S.T.retry.1 …: what is there for the tier's time goes back to S.T
 *   its dead letters a copy each in the queue S.T.parked, for a week; the letters are in the store
 *   partitioned      queues S.T.1 … S.T.N behind the headers exchange S.T, which chooses by
 *                    semel-lane; what has none (foreign) goes to S.T.1
 *
 * - The tiers are quorum queues with confirmed dead-lettering whatever the queue is: a retry must
 *   not be lost on its way back.
 * - A binding that brings events is declared after everything that takes them.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <string.h>

/* Seconds. Doubling as the consumer's delays do, then coarser. */
static const int tiers[SEMEL_RABBIT_TIER_COUNT] = { 1,  2,   4,   8,    16,    32,
						    60, 300, 900, 3600, 21600, 86400 };

#define MINUTE_MS  60000
#define PARKED     ".parked"
#define OWNER      ".owner"
#define OWNED_BY   ".of-"
#define PARKED_MS  604800000 /* a week: as long as dead letters are kept */
#define PARKED_MAX 100000

#define DELIVERY_LIMIT                                                                             \
	1000000 /* RabbitMQ 3 has no value for none, and RabbitMQ 4 defaults to 20                 \
		 */

uint32_t semel_rabbit_tier_for(int64_t delay_ms)
{
	uint32_t tier = 1;
	while (tier < SEMEL_RABBIT_TIER_COUNT && semel_rabbit_tier_ms(tier) < delay_ms)
		tier++;
	return tier;
}

int64_t semel_rabbit_tier_ms(uint32_t tier)
{
	return (int64_t)tiers[tier - 1] * 1000;
}

/* ---- names ----------------------------------------------------------------------------------- */

static semel_status make_name(const struct semel_rabbit_subscription *subscription,
			      const char *suffix, uint32_t number,
			      char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	char tail[32] = "";
	if (number > 0)
		snprintf(tail, sizeof(tail), "%s%u", suffix, number);
	int length = snprintf(name_out, SEMEL_RABBIT_NAME_SIZE, "%s.%s%s", subscription->scope,
			      subscription->topic, tail);
	if (length < 0 || length > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the name of the queue for %s and %s would be longer than %d "
			"bytes (choose a shorter scope or topic)",
			subscription->scope, subscription->topic, SEMEL_RABBIT_NAME_MAX);
	return SEMEL_OK;
}

semel_status semel_rabbit_queue_name(const struct semel_rabbit_subscription *subscription,
				     uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
				     semel_error *error)
{
	return make_name(subscription, ".", number, name_out, error);
}

semel_status semel_rabbit_partition_name(const struct semel_rabbit_subscription *subscription,
					 uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
					 semel_error *error)
{
	return semel_rabbit_queue_name(subscription, subscription->partitions > 1 ? number : 0,
				       name_out, error);
}

semel_status semel_rabbit_tier_name(const struct semel_rabbit_subscription *subscription,
				    uint32_t tier, char name_out[SEMEL_RABBIT_NAME_SIZE],
				    semel_error *error)
{
	return make_name(subscription, ".retry.", tier, name_out, error);
}

semel_status semel_rabbit_parked_name(const struct semel_rabbit_subscription *subscription,
				      char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = make_name(subscription, "", 0, name_out, error);
	if (status != SEMEL_OK)
		return status;
	size_t length = strlen(name_out);
	if (length + strlen(PARKED) > SEMEL_RABBIT_NAME_MAX)
		return make_name(subscription, PARKED, 1, name_out, error); /* sets the error */
	memcpy(name_out + length, PARKED, sizeof(PARKED));
	return SEMEL_OK;
}

/* ---- topics ---------------------------------------------------------------------------------- */

static semel_status declare_exchange(struct semel_rabbit *rabbit, const char *name,
				     const char *type, const char *alternate,
				     const struct semel_rabbit_comparison *comparison,
				     semel_error *error)
{
	struct semel_rabbit_arguments arguments = { 0 };
	const struct semel_rabbit_entity exchange = {
		.kind = "exchange", .name = name, .type = type, .arguments = &arguments
	};
	if (alternate)
		semel_rabbit_add_text(&arguments, "alternate-exchange", alternate);
	return semel_rabbit_ensure_entity(rabbit, &exchange, comparison, error);
}

/* "… but current is the value 'S.T.of-4-20' of type 'longstr'" */
static bool explain_owner(const char *queue, const char *words, char *text_out, size_t size)
{
	const char *current = strstr(words, " but current is ");
	const char *of = current ? strstr(current, OWNED_BY) : NULL;
	for (const char *next = of; next; next = strstr(next + 1, OWNED_BY))
		of = next;
	size_t scope = 0, topic = 0;
	if (!of || sscanf(of + strlen(OWNED_BY), "%4zu-%4zu", &scope, &topic) != 2 ||
	    scope + 1 + topic > strlen(queue))
		return false;
	snprintf(text_out, size,
		 "the queue %s belongs to the scope %.*s and its topic %.*s, and would get the "
		 "events of both subscriptions (choose another scope, or another topic)",
		 queue, (int)scope, queue, (int)topic, queue + scope + 1);
	return true;
}

/* Which scope and topic a queue belongs to. They are one name, and another scope and topic may have
 * the same one: shop and billing.orders, shop.billing and orders. So an exchange of the queue's
 * name, to which nothing is published, has the lengths of the two in the name of an alternate that
 * does not exist: the broker refuses to declare it with another one. */
static semel_status declare_owner(struct semel_rabbit *rabbit, const char *queue,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE + 32], owner[SEMEL_RABBIT_NAME_SIZE + 32],
		text[SEMEL_ERROR_TEXT_MAX];
	struct semel_rabbit_arguments arguments = { 0 };
	semel_error why = { 0 };
	snprintf(name, sizeof(name), "%s" OWNER, queue);
	snprintf(owner, sizeof(owner), "%s" OWNED_BY "%zu-%zu", queue, strlen(subscription->scope),
		 strlen(subscription->topic));
	if (strlen(owner) > SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK; /* two such names cannot exist */
	semel_rabbit_add_text(&arguments, "alternate-exchange", owner);
	const struct semel_rabbit_entity exchange = {
		.kind = "exchange", .name = name, .type = "fanout", .arguments = &arguments
	};
	semel_status status =
		comparison ? semel_rabbit_declare(rabbit, &exchange, true, &why) : SEMEL_OK;
	if (status == SEMEL_NOT_FOUND)
		return SEMEL_OK; /* an earlier version has declared the queue */
	if (status == SEMEL_OK)
		status = semel_rabbit_declare(rabbit, &exchange, false, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status != SEMEL_CONFIG || !explain_owner(queue, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "cannot declare the exchange %s: %s", name,
				       why.text);
	if (!comparison)
		return semel_error_set(error, status, "%s", text);
	comparison->report(text, comparison->user);
	return SEMEL_OK;
}

/* A quorum queue counts how often an event was delivered. Past its limit it is dropped, so the
 * limit is one that nothing reaches; and where a policy has a lower one, the event goes to the
 * parked queue, confirmed. */
static semel_status limit_deliveries(const struct semel_rabbit_subscription *subscription,
				     struct semel_rabbit_arguments *arguments,
				     char parked[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_parked_name(subscription, parked, error);
	if (status != SEMEL_OK)
		return status;
	semel_rabbit_add_number(arguments, "x-delivery-limit", DELIVERY_LIMIT);
	semel_rabbit_add_text(arguments, "x-dead-letter-exchange", "");
	semel_rabbit_add_text(arguments, "x-dead-letter-routing-key", parked);
	semel_rabbit_add_text(arguments, "x-dead-letter-strategy", "at-least-once");
	semel_rabbit_add_text(arguments, "x-overflow", "reject-publish");
	return SEMEL_OK;
}

/* One that is not consumed. */
static semel_status declare_plain_queue(struct semel_rabbit *rabbit, const char *name,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	struct semel_rabbit_arguments arguments = { 0 };
	const struct semel_rabbit_entity queue = { .kind = "queue",
						   .name = name,
						   .arguments = &arguments };
	semel_rabbit_add_text(&arguments, "x-queue-type",
			      rabbit->settings.stream ? "quorum" : rabbit->settings.queue_type);
	return semel_rabbit_ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_queue(struct semel_rabbit *rabbit, const char *name,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	struct semel_rabbit_arguments arguments = { 0 };
	char parked[SEMEL_RABBIT_NAME_SIZE];
	bool limits = strcmp(settings->queue_type, "quorum") == 0;
	semel_rabbit_add_text(&arguments, "x-queue-type", settings->queue_type);
	if (settings->single_active && !settings->stream)
		semel_rabbit_add_true(&arguments, "x-single-active-consumer");
	struct semel_rabbit_arguments older = arguments;
	const struct semel_rabbit_entity queue = { .kind = "queue",
						   .name = name,
						   .arguments = &arguments,
						   .older = limits ? &older : NULL };
	semel_status status =
		limits ? limit_deliveries(subscription, &arguments, parked, error) : SEMEL_OK;
	if (status != SEMEL_OK)
		return status;
	status = declare_owner(rabbit, name, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_ensure_entity(rabbit, &queue, comparison, error);
	if (status != SEMEL_OK || !settings->stream || comparison)
		return status;
	return semel_rabbit_stream_write_marker(rabbit, name, error);
}

/* An exchange and a queue of its name, for what no subscription takes. */
static semel_status declare_alternate(struct semel_rabbit *rabbit, const char *name,
				      const struct semel_rabbit_comparison *comparison,
				      semel_error *error)
{
	struct semel_rabbit_binding binding = { .from = name, .to = name, .key = "" };
	semel_status status = declare_exchange(rabbit, name, "fanout", NULL, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_plain_queue(rabbit, name, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_ensure_binding(rabbit, &binding, comparison, error);
}

semel_status semel_rabbit_declare_topic(struct semel_rabbit *rabbit, const char *topic,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	const char *alternate = rabbit->settings.alternate_exchange;
	if (strlen(topic) > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "a topic of more than %d bytes cannot be an exchange",
				       SEMEL_RABBIT_NAME_MAX);
	if (alternate) {
		semel_status status = declare_alternate(rabbit, alternate, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return declare_exchange(rabbit, topic, "topic", alternate, comparison, error);
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static semel_status declare_tier(struct semel_rabbit *rabbit,
				 const struct semel_rabbit_subscription *subscription,
				 uint32_t tier, const struct semel_rabbit_comparison *comparison,
				 semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE], target[SEMEL_RABBIT_NAME_SIZE];
	struct semel_rabbit_arguments arguments = { 0 };
	const struct semel_rabbit_entity queue = { .kind = "queue",
						   .name = name,
						   .arguments = &arguments };
	semel_status status = semel_rabbit_tier_name(subscription, tier, name, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_queue_name(subscription, 0, target, error);
	if (status != SEMEL_OK)
		return status;
	semel_rabbit_add_text(&arguments, "x-queue-type", "quorum");
	semel_rabbit_add_number(&arguments, "x-message-ttl", semel_rabbit_tier_ms(tier));
	semel_rabbit_add_text(&arguments, "x-dead-letter-exchange",
			      subscription->partitions > 1 ? target : "");
	semel_rabbit_add_text(&arguments, "x-dead-letter-routing-key", target);
	semel_rabbit_add_text(&arguments, "x-dead-letter-strategy", "at-least-once");
	semel_rabbit_add_text(&arguments, "x-overflow", "reject-publish");
	return semel_rabbit_ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_parked(struct semel_rabbit *rabbit,
				   const struct semel_rabbit_subscription *subscription,
				   const struct semel_rabbit_comparison *comparison,
				   semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	struct semel_rabbit_arguments arguments = { 0 };
	const struct semel_rabbit_entity queue = { .kind = "queue",
						   .name = name,
						   .arguments = &arguments };
	semel_status status = semel_rabbit_parked_name(subscription, name, error);
	if (status != SEMEL_OK)
		return status;
	semel_rabbit_add_text(&arguments, "x-queue-type", "quorum");
	semel_rabbit_add_number(&arguments, "x-message-ttl", PARKED_MS);
	semel_rabbit_add_number(&arguments, "x-max-length", PARKED_MAX);
	return semel_rabbit_ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_tiers(struct semel_rabbit *rabbit,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	int64_t longest_ms =
		subscription->delay_max_ms > 0 ? subscription->delay_max_ms : MINUTE_MS;
	uint32_t last = semel_rabbit_tier_for(longest_ms);
	for (uint32_t tier = 1; tier <= last; tier++) {
		semel_status status = declare_tier(rabbit, subscription, tier, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_declare_tiers(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					semel_error *error)
{
	return declare_tiers(rabbit, subscription, NULL, error);
}

static semel_status bind_lanes(struct semel_rabbit *rabbit,
			       const struct semel_rabbit_subscription *subscription,
			       uint32_t number, const struct semel_rabbit_comparison *comparison,
			       semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], queue[SEMEL_RABBIT_NAME_SIZE], lane_text[16];
	semel_status status = semel_rabbit_queue_name(subscription, 0, exchange, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_queue_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t lane = number - 1; lane < SEMEL_WIRE_LANES;
	     lane += subscription->partitions) {
		struct semel_rabbit_binding binding = { .from = exchange, .to = queue, .key = "" };
		snprintf(lane_text, sizeof(lane_text), "%u", lane);
		semel_rabbit_add_text(&binding.arguments, "x-match", "all");
		semel_rabbit_add_text(&binding.arguments, "semel-lane", lane_text);
		status = semel_rabbit_ensure_binding(rabbit, &binding, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status declare_partition(struct semel_rabbit *rabbit,
				      const struct semel_rabbit_subscription *subscription,
				      uint32_t number,
				      const struct semel_rabbit_comparison *comparison,
				      semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_queue(rabbit, queue, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return bind_lanes(rabbit, subscription, number, comparison, error);
}

typedef semel_status (*partition_function)(struct semel_rabbit *rabbit,
					   const struct semel_rabbit_subscription *subscription,
					   uint32_t number,
					   const struct semel_rabbit_comparison *comparison,
					   semel_error *error);

/* The alternate exchange takes what has no lane; its name has the number of partitions, so that
 * another number is a difference that the broker finds. */
static semel_status declare_alternate_of_partitions(
	struct semel_rabbit *rabbit, const struct semel_rabbit_subscription *subscription,
	char rest_out[SEMEL_RABBIT_NAME_SIZE], const struct semel_rabbit_comparison *comparison,
	semel_error *error)
{
	semel_status status =
		make_name(subscription, ".rest-of-", subscription->partitions, rest_out, error);
	if (status != SEMEL_OK)
		return status;
	return declare_exchange(rabbit, rest_out, "fanout", NULL, comparison, error);
}

static semel_status bind_partitioned(struct semel_rabbit *rabbit,
				     const struct semel_rabbit_subscription *subscription,
				     const char *exchange, const char *rest,
				     const struct semel_rabbit_comparison *comparison,
				     semel_error *error)
{
	char first[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 1, first, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit_binding of_rest = { .from = rest, .to = first, .key = "" };
	status = semel_rabbit_ensure_binding(rabbit, &of_rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit_binding of_all = { .from = subscription->topic,
					       .to = exchange,
					       .key = subscription->bind ? subscription->bind : "#",
					       .to_exchange = true };
	return semel_rabbit_ensure_binding(rabbit, &of_all, comparison, error);
}

static semel_status declare_partitioned(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					partition_function declare_each,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], rest[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, exchange, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_alternate_of_partitions(rabbit, subscription, rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_exchange(rabbit, exchange, "headers", rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t number = 1; number <= subscription->partitions; number++) {
		status = declare_each(rabbit, subscription, number, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return bind_partitioned(rabbit, subscription, exchange, rest, comparison, error);
}

static semel_status bind_single(struct semel_rabbit *rabbit,
				const struct semel_rabbit_subscription *subscription,
				const char *queue, const struct semel_rabbit_comparison *comparison,
				semel_error *error)
{
	struct semel_rabbit_binding binding = { .from = subscription->topic,
						.to = queue,
						.key = subscription->bind ? subscription->bind
									  : "#" };
	return semel_rabbit_ensure_binding(rabbit, &binding, comparison, error);
}

semel_status semel_rabbit_declare_subscription(struct semel_rabbit *rabbit,
					       const struct semel_rabbit_subscription *subscription,
					       const struct semel_rabbit_comparison *comparison,
					       semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_declare_topic(rabbit, subscription->topic, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_tiers(rabbit, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_parked(rabbit, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	if (subscription->partitions > 1)
		return declare_partitioned(rabbit, subscription, declare_partition, comparison,
					   error);
	status = declare_queue(rabbit, queue, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return bind_single(rabbit, subscription, queue, comparison, error);
}

semel_status semel_rabbit_bind_subscription(struct semel_rabbit *rabbit,
					    const struct semel_rabbit_subscription *subscription,
					    semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_declare_topic(rabbit, subscription->topic, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return subscription->partitions > 1
		       ? declare_partitioned(rabbit, subscription, bind_lanes, NULL, error)
		       : bind_single(rabbit, subscription, queue, NULL, error);
}

/* ---- members and partitions ------------------------------------------------------------------ */

semel_status semel_rabbit_join(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const uint16_t channel = SEMEL_RABBIT_MEMBERS;
	semel_status status = semel_rabbit_open_channel(rabbit, channel, error);
	if (status != SEMEL_OK)
		return status;
	library->queue_declare(rabbit->connection, channel, semel_rabbit_string(queue), 0, 1, 0, 1,
			       SEMEL_RABBIT_NO_TABLE);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, channel, semel_rabbit_string(queue),
			       SEMEL_RABBIT_NO_BYTES, 0, 1, 0, SEMEL_RABBIT_NO_TABLE);
	return semel_rabbit_call_end(rabbit, channel, NULL, error);
}

/* NOT_FOUND: it does not. number 0: the only queue. */
static semel_status check_queue(struct semel_rabbit *rabbit,
				const struct semel_rabbit_subscription *subscription,
				uint32_t number, semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	uint64_t ready;
	semel_status status = semel_rabbit_queue_name(subscription, number, queue, error);
	return status == SEMEL_OK ? semel_rabbit_count(rabbit, queue, &ready, NULL, error) : status;
}

semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error)
{
	const struct semel_rabbit_subscription subscription = { .scope = scope, .topic = topic };
	*partitions_out = 0;
	semel_status status = check_queue(rabbit, &subscription, 0, error);
	if (status == SEMEL_OK)
		*partitions_out = 1;
	if (status != SEMEL_NOT_FOUND)
		return status;
	for (uint32_t number = 1; number <= SEMEL_WIRE_LANES; number++) {
		status = check_queue(rabbit, &subscription, number, error);
		if (status != SEMEL_OK)
			return status == SEMEL_NOT_FOUND ? SEMEL_OK : status;
		*partitions_out = number;
	}
	return SEMEL_OK;
}
