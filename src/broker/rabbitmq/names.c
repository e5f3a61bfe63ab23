/* SPDX-License-Identifier: Apache-2.0 */
/* The names of what topology.c declares for a subscription, and deletion by these names, whatever
 * partitions and delays the subscription had. RabbitMQ reports success if there was nothing to
 * delete. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <string.h>

#define PARKED ".parked"

/* Seconds. Doubling as the consumer's delays do, then coarser. */
static const int tiers[SEMEL_RABBIT_TIER_COUNT] = { 1,  2,   4,   8,    16,    32,
						    60, 300, 900, 3600, 21600, 86400 };

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

semel_status semel_rabbit_make_name(const struct semel_rabbit_subscription *subscription,
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
	return semel_rabbit_make_name(subscription, ".", number, name_out, error);
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
	return semel_rabbit_make_name(subscription, ".retry.", tier, name_out, error);
}

semel_status semel_rabbit_parked_name(const struct semel_rabbit_subscription *subscription,
				      char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_make_name(subscription, "", 0, name_out, error);
	if (status != SEMEL_OK)
		return status;
	size_t length = strlen(name_out);
	if (length + strlen(PARKED) > SEMEL_RABBIT_NAME_MAX)
		return semel_rabbit_make_name(subscription, PARKED, 1, name_out,
					      error); /* sets the error */
	memcpy(name_out + length, PARKED, sizeof(PARKED));
	return SEMEL_OK;
}

/* ---- deleting -------------------------------------------------------------------------------- */

enum kind { QUEUE, EXCHANGE };

static semel_status delete_entity(struct semel_rabbit *rabbit, enum kind kind, const char *name,
				  semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	semel_status status = semel_rabbit_control_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (kind == EXCHANGE)
		library->exchange_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
					 semel_rabbit_string(name), 0);
	else
		library->queue_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
				      semel_rabbit_string(name), 0, 0);
	status = semel_rabbit_control_end(rabbit, error);
	return status == SEMEL_NOT_FOUND ? SEMEL_OK : status;
}

/* "S.T" and a suffix; a name that would be too long was never declared. */
static semel_status delete_of(struct semel_rabbit *rabbit,
			      const struct semel_rabbit_subscription *subscription, enum kind kind,
			      const char *suffix, semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	int length = snprintf(name, sizeof(name), "%s.%s%s", subscription->scope,
			      subscription->topic, suffix);
	if (length < 0 || length > SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK;
	return delete_entity(rabbit, kind, name, error);
}

/* Exchanges first, so that nothing is routed to a queue while it is deleted. count 0: one name
 * without a number; otherwise the numbers from 1 to count, between prefix and suffix. */
static const struct entities {
	enum kind kind;
	const char *prefix, *suffix;
	uint32_t count;
} entities[] = {
	{ EXCHANGE, "", "", 0 },
	{ EXCHANGE, ".owner", "", 0 },
	{ EXCHANGE, ".rest-of-", "", SEMEL_WIRE_LANES },
	{ EXCHANGE, ".", ".owner", SEMEL_WIRE_LANES },
	{ QUEUE, ".retry.", "", SEMEL_RABBIT_TIER_COUNT },
	{ QUEUE, ".", "", SEMEL_WIRE_LANES },
	{ QUEUE, "", "", 0 },
	{ QUEUE, ".members", "", 0 },
	{ QUEUE, ".parked", "", 0 },
};

static semel_status delete_entities(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_subscription *subscription,
				    const struct entities *set, semel_error *error)
{
	char tail[32];
	if (set->count == 0)
		return delete_of(rabbit, subscription, set->kind, set->prefix, error);
	for (uint32_t number = 1; number <= set->count; number++) {
		snprintf(tail, sizeof(tail), "%s%u%s", set->prefix, number, set->suffix);
		semel_status status = delete_of(rabbit, subscription, set->kind, tail, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status delete_subscription(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					semel_error *error)
{
	for (size_t i = 0; i < sizeof(entities) / sizeof(entities[0]); i++) {
		semel_status status = delete_entities(rabbit, subscription, &entities[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_remove(struct semel_broker *broker, const char *topic,
				 const char *const *scopes, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = delete_entity(rabbit, EXCHANGE, topic, error);
	if (status != SEMEL_OK)
		return status;
	for (; *scopes; scopes++) {
		const struct semel_rabbit_subscription subscription = { .scope = *scopes,
									.topic = topic };
		status = delete_subscription(rabbit, &subscription, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}
