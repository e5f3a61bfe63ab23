/* SPDX-License-Identifier: Apache-2.0 */
/* Delayed retries and replays: an entry for one subscription, durable when requeue() returns. An
 * event that breaks the contract (no id, no aggregate) is stored like any other. */
#include "base/error.h"
#include "broker/local/local.h"

static semel_status add_delayed(struct semel_local *local, const char *scope,
				const struct semel_event *event,
				const struct semel_publish_metadata *metadata, int64_t delay_ms,
				semel_error *error)
{
	struct semel_local_topic *topic = NULL;
	int64_t subscription = 0;
	semel_status status = semel_local_topic_declare(local, event->topic,
							local->settings.partitions, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_subscription_declare(local, scope, topic, false, &subscription, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_bind(local, SEMEL_LOCAL_DELAYED_ADD,
				  SEMEL_LOCAL_INTS(subscription,
						   semel_local_partition_of(topic, event),
						   semel_now_ms(local->env) + delay_ms),
				  error);
	if (status != SEMEL_OK)
		return status;
	semel_local_event_bind(local, SEMEL_LOCAL_DELAYED_ADD, 4, event, metadata);
	return semel_local_run(local, SEMEL_LOCAL_DELAYED_ADD, error);
}

semel_status semel_local_requeue(struct semel_broker *broker, const char *scope,
				 const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, int64_t delay_ms,
				 semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	if (semel_string_is_blank(scope))
		return semel_error_set(error, SEMEL_INVALID, "a requeued event needs a scope");
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	status = add_delayed(local, scope, event, metadata, delay_ms > 0 ? delay_ms : 0, error);
	return semel_local_topics_end(local, status, error);
}
