/* SPDX-License-Identifier: Apache-2.0 */
/* When a binding is deleted, or disappears with its exchange, the consumer is not informed: the
 * queue stays, its consumer is well, and events miss it. So a consumer declares the bindings of its
 * subscription again from time to time; where they exist, that changes nothing. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <string.h>

#define REBIND_MS 10000

static bool is_first_of_topic(const struct semel_rabbit *rabbit, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (strcmp(rabbit->assignments[i].topic, rabbit->assignments[at].topic) == 0)
			return false;
	return true;
}

/* Without the permission, or with an exchange of another type, what exists is consumed on. */
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

semel_status semel_rabbit_rebind(struct semel_rabbit *rabbit, semel_error *error)
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
