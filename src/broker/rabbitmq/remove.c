/* SPDX-License-Identifier: Apache-2.0 */
/* Taking away what was made for subscriptions of a topic (topology.c has the names), whatever their
 * partitions and delays were. RabbitMQ calls it done when there was nothing to delete. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>

enum kind { QUEUE, EXCHANGE };

static semel_status take_away(struct semel_rabbit *rabbit, enum kind kind, const char *name,
			      semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	semel_status status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (kind == EXCHANGE)
		library->exchange_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
					 semel_rabbit_string(name), 0);
	else
		library->queue_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
				      semel_rabbit_string(name), 0, 0);
	status = semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, error);
	return status == SEMEL_NOT_FOUND ? SEMEL_OK : status;
}

/* "S.T" and a suffix; a name that would be too long was never made. */
static semel_status delete_of(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
			      enum kind kind, const char *suffix, semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	int length = snprintf(name, sizeof(name), "%s.%s%s", home->scope, home->topic, suffix);
	if (length < 0 || length > SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK;
	return take_away(rabbit, kind, name, error);
}

static semel_status delete_numbered(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_home *home, const char *suffix,
				    uint32_t count, semel_error *error)
{
	char tail[32];
	semel_status status = SEMEL_OK;
	for (uint32_t number = 1; number <= count && status == SEMEL_OK; number++) {
		snprintf(tail, sizeof(tail), "%s%u", suffix, number);
		status = delete_of(rabbit, home, QUEUE, tail, error);
	}
	return status;
}

/* The exchanges first: nothing is brought to a queue while it goes. */
static semel_status delete_home(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				semel_error *error)
{
	char rest[32];
	semel_status status = delete_of(rabbit, home, EXCHANGE, "", error);
	if (status == SEMEL_OK)
		status = delete_of(rabbit, home, EXCHANGE, ".owner", error);
	for (uint32_t number = 1; number <= SEMEL_WIRE_LANES && status == SEMEL_OK; number++) {
		snprintf(rest, sizeof(rest), ".rest-of-%u", number);
		status = delete_of(rabbit, home, EXCHANGE, rest, error);
		snprintf(rest, sizeof(rest), ".%u.owner", number);
		if (status == SEMEL_OK)
			status = delete_of(rabbit, home, EXCHANGE, rest, error);
	}
	if (status == SEMEL_OK)
		status = delete_numbered(rabbit, home, ".retry.", semel_rabbit_tier_for(INT64_MAX),
					 error);
	if (status == SEMEL_OK)
		status = delete_numbered(rabbit, home, ".", SEMEL_WIRE_LANES, error);
	static const char *const suffixes[] = { "", ".members", ".parked" };
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]) && status == SEMEL_OK; i++)
		status = delete_of(rabbit, home, QUEUE, suffixes[i], error);
	return status;
}

semel_status semel_rabbit_remove(struct semel_broker *broker, const char *topic,
				 const char *const *scopes, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = take_away(rabbit, EXCHANGE, topic, error);
	for (; *scopes && status == SEMEL_OK; scopes++) {
		const struct semel_rabbit_home home = { .scope = *scopes, .topic = topic };
		status = delete_home(rabbit, &home, error);
	}
	return status;
}
