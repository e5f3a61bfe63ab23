/* SPDX-License-Identifier: Apache-2.0 */
/* A binding that is taken away, or goes with its exchange, is not told to anybody: the queue stays,
 * its consumer is well, and events pass it by. So who consumes makes the bindings of its
 * subscription again and again; where they are there, that changes nothing. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <string.h>

#define REBIND_MS 10000

static bool is_first_of_topic(const struct semel_rabbit *rabbit, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (strcmp(rabbit->shares[i].topic, rabbit->shares[at].topic) == 0)
			return false;
	return true;
}

/* Without the right to it, or with an exchange of another kind, what is there is consumed on. */
static semel_status judge(struct semel_rabbit *rabbit, const char *topic, semel_status status,
			  semel_error *why, semel_error *error)
{
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "a queue of %s is gone from %s",
				       rabbit->scope, rabbit->place);
	if (status != SEMEL_CONFIG)
		return semel_error_set(error, status, "%s", why->text);
	if (!rabbit->bind_refused)
		semel_log(SEMEL_LOG_WARN, "the bindings could not be made again",
			  &(struct semel_log_fields){
				  .consumer = rabbit->scope, .topic = topic, .error = why->text });
	rabbit->bind_refused = true;
	return SEMEL_OK;
}

semel_status semel_rabbit_rebind(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	semel_status status = SEMEL_OK;
	bool refused = false;
	if (now_ms < rabbit->bind_at_ms)
		return SEMEL_OK;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++) {
		const struct semel_rabbit_home home = { .scope = rabbit->scope,
							.topic = rabbit->shares[i].topic,
							.bind = rabbit->bind,
							.partitions = rabbit->partitions };
		semel_error why = { 0 };
		if (!is_first_of_topic(rabbit, i))
			continue;
		status = semel_rabbit_bind_home(rabbit, &home, &why);
		refused = refused || status == SEMEL_CONFIG;
		if (status != SEMEL_OK)
			status = judge(rabbit, home.topic, status, &why, error);
	}
	rabbit->bind_refused = refused;
	rabbit->bind_at_ms = now_ms + (rabbit->heartbeat_ms > 0 ? rabbit->heartbeat_ms : REBIND_MS);
	return status;
}
