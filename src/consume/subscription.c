/* SPDX-License-Identifier: Apache-2.0 */
/* The subscription as the store keeps it, for people and for verify. */
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
	switch (consumer->kind) {
	case SEMEL_HANDLER_FUNCTION:
		return "c";
	case SEMEL_HANDLER_SQL:
		return "sql";
	case SEMEL_HANDLER_OUTSIDE:
		return consumer->outside->name;
	case SEMEL_HANDLER_NONE:
		break;
	}
	return "none";
}

/* A hint only: the producer may have another database, and a role may not be allowed to look. */
static void hint_at_topics(const struct semel_consumer *consumer)
{
	struct semel_topics published = { 0 };
	if (semel_topics_read_published(consumer->store, consumer->arena, &published, NULL) !=
	    SEMEL_OK)
		return;
	for (size_t i = 0; consumer->topics[i]; i++) {
		const char *meant = semel_topics_suggest(&published, consumer->topics[i]);
		char hint[2 * SEMEL_NAME_MAX + 64];
		if (!meant)
			continue;
		snprintf(hint, sizeof hint, "nothing is published to %s; did you mean %s?",
			 consumer->topics[i], meant);
		semel_log(SEMEL_LOG_WARN, "the subscription reads a topic that nobody publishes",
			  &(struct semel_log_fields){ .consumer = semel_text_shown(consumer->scope),
						      .topic = consumer->topics[i],
						      .error = hint });
	}
}

semel_status semel_consumer_register(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_buffer topics = { 0 };
	char dedup_by[SEMEL_NAME_MAX + 8] = "id";

	for (size_t i = 0; consumer->topics[i]; i++) {
		semel_buffer_string(&topics, i == 0 ? "[" : ",");
		semel_buffer_json(&topics, semel_text_of(consumer->topics[i]));
	}
	semel_buffer_string(&topics, "]");
	if (consumer->dedup_header)
		snprintf(dedup_by, sizeof dedup_by, "header:%s", consumer->dedup_header);
	struct semel_subscription_row row = {
		.scope = consumer->scope,
		.topics = semel_buffer_text(&topics),
		.guarantee = semel_text_of(guarantees[consumer->options.guarantee]),
		.claim = semel_text_of(claim_modes[consumer->options.claim]),
		.poison = semel_text_of(poisons[consumer->options.poison]),
		.order = semel_text_of(orders[consumer->options.order]),
		.dedup_by = semel_text_of(dedup_by),
		.handler = semel_text_of(handler_name(consumer)),
		.bind = semel_text_of(consumer->bind),
		.from_latest = consumer->options.from_latest,
	};
	semel_status status = consumer->store->driver->upkeep->subscription_put(
		consumer->store, &row, semel_now_ms(consumer->env), error);
	semel_buffer_free(&topics);
	if (status == SEMEL_OK)
		hint_at_topics(consumer);
	return status;
}
