/* SPDX-License-Identifier: Apache-2.0 */
/* The subscription: at the broker, and as a row in the store, for operators and for verify. */
#include "consume/consumer.h"

#include "base/buffer.h"
#include "observe/log.h"
#include "store/subscription.h"

#include <stdio.h>

static const char *const guarantees[] = { "effectively-once", "at-least-once", "at-most-once" };
static const char *const claim_modes[] = { "same-tx", "separate" };
static const char *const poisons[] = { "park-key", "block", "skip" };
static const char *const orders[] = { "aggregate", "strict", "total" };

static const char *handler_name(const struct semel_consumer *consumer)
{
	switch (consumer->handler.kind) {
	case SEMEL_HANDLER_FUNCTION:
		return "c";
	case SEMEL_HANDLER_SQL:
		return "sql";
	case SEMEL_HANDLER_OUTSIDE:
		return consumer->handler.outside->name;
	case SEMEL_HANDLER_NONE:
		break;
	}
	return "none";
}

/* A hint only: the producer may use another database, and the role may not be allowed to read
 * it. */
static void hint_at_topics(const struct semel_consumer *consumer)
{
	struct semel_topics published = { 0 };
	if (semel_topics_read_published(consumer->store, consumer->arena, &published, NULL) !=
	    SEMEL_OK)
		return;
	for (size_t i = 0; consumer->config.topics[i]; i++) {
		const char *meant = semel_topics_suggest(&published, consumer->config.topics[i]);
		char hint[2 * SEMEL_NAME_MAX + 64];
		if (!meant)
			continue;
		snprintf(hint, sizeof hint, "nothing is published to %s; did you mean %s?",
			 consumer->config.topics[i], meant);
		semel_log(SEMEL_LOG_WARN, "nothing is published to a topic of the subscription",
			  &(struct semel_log_fields){
				  .consumer = semel_text_shown(consumer->config.scope),
				  .topic = consumer->config.topics[i],
				  .error = hint });
	}
}

/* The topics that this scope has read before, as far as the store knows them; NULL: none. */
static semel_status read_known_topics(struct semel_consumer *consumer,
				      const char *const **topics_out, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	struct semel_topics topics = { 0 };
	uint32_t count = 0;

	*topics_out = NULL;
	semel_status status =
		semel_subscriptions_read(consumer->store, consumer->arena, &rows, &count, error);
	if (status != SEMEL_OK)
		return status;
	const struct semel_subscription_row *row =
		semel_subscription_find(rows, count, semel_text_string(consumer->config.scope));
	if (!row)
		return SEMEL_OK;
	status = semel_subscription_topics(row, consumer->arena, &topics, error);
	*topics_out = topics.names;
	return status;
}

semel_status semel_consumer_subscribe(struct semel_consumer *consumer, semel_error *error)
{
	const semel_consumer_options *options = &consumer->config.options;
	struct semel_subscribe_options subscribe = {
		.scope = semel_text_string(consumer->config.scope),
		.topics = (const char *const *)consumer->config.topics,
		.prefetch = options->batch * 2 + options->concurrency * 16 + 64,
		.prefetch_bytes = options->prefetch_bytes,
		.lease_ms = options->lease_ms,
		.from_latest = options->from_latest,
		.total_order = options->order == SEMEL_ORDER_TOTAL,
		.delay_max_ms = options->delay_max_ms,
		.partitions = options->partitions,
		.bind = consumer->config.bind,
	};

	if (options->from_latest) {
		semel_status status =
			read_known_topics(consumer, &subscribe.previously_read, error);
		if (status != SEMEL_OK)
			return status;
	}
	return consumer->broker->driver->subscribe(consumer->broker, &subscribe, error);
}

semel_status semel_consumer_register(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_buffer topics = { 0 };
	char dedup_by[SEMEL_NAME_MAX + 8] = "id";

	for (size_t i = 0; consumer->config.topics[i]; i++) {
		semel_buffer_string(&topics, i == 0 ? "[" : ",");
		semel_buffer_json(&topics, semel_text_of(consumer->config.topics[i]));
	}
	semel_buffer_string(&topics, "]");
	if (consumer->config.dedup_header)
		snprintf(dedup_by, sizeof dedup_by, "header:%s", consumer->config.dedup_header);
	struct semel_subscription_row row = {
		.scope = consumer->config.scope,
		.topics = semel_buffer_text(&topics),
		.guarantee = semel_text_of(guarantees[consumer->config.options.guarantee]),
		.claim = semel_text_of(claim_modes[consumer->config.options.claim]),
		.poison = semel_text_of(poisons[consumer->config.options.poison]),
		.order = semel_text_of(orders[consumer->config.options.order]),
		.dedup_by = semel_text_of(dedup_by),
		.handler = semel_text_of(handler_name(consumer)),
		.bind = semel_text_of(consumer->config.bind),
		.from_latest = consumer->config.options.from_latest,
	};
	semel_status status = consumer->store->driver->upkeep->subscription_put(
		consumer->store, &row, semel_now_ms(consumer->env), error);
	semel_buffer_free(&topics);
	if (status != SEMEL_OK)
		return status;
	hint_at_topics(consumer);
	return SEMEL_OK;
}
