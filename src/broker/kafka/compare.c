/* SPDX-License-Identifier: Apache-2.0 */
/* What a subscription needs at the cluster and is not there, or is otherwise; nothing is changed.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>

struct look {
	struct semel_kafka *kafka;
	const struct semel_subscribe_options *options;
	semel_difference_seen seen;
	void *user;
};

static semel_status compare_topic(const struct look *look, const char *name, uint32_t wanted,
				  uint32_t *partitions_out, semel_error *error)
{
	struct semel_kafka_topic *topic = NULL;
	char text[512];
	semel_status status = semel_kafka_topic_look(look->kafka, name, &topic, error);
	if (status != SEMEL_OK)
		return status;
	*partitions_out = topic->partitions;
	if (topic->partitions == 0) {
		snprintf(text, sizeof(text), "the topic %s is missing", name);
		look->seen(text, look->user);
	} else if (wanted > 0 && topic->partitions != wanted) {
		snprintf(text, sizeof(text), "the topic %s has %u partitions, not %u", name,
			 topic->partitions, wanted);
		look->seen(text, look->user);
	}
	return SEMEL_OK;
}

static semel_status compare_all(const struct look *look, const char *name, semel_error *error)
{
	const struct semel_subscribe_options *options = look->options;
	uint32_t partitions = 0, of_tier = 0;
	uint32_t tiers =
		semel_kafka_tier_for(options->delay_max_ms > 0 ? options->delay_max_ms : 60000);
	semel_status status = compare_topic(
		look, name, options->total_order ? 1 : options->partitions, &partitions, error);
	for (uint32_t tier = 1; tier <= tiers && status == SEMEL_OK; tier++) {
		char tier_name[SEMEL_KAFKA_NAME_SIZE];
		status = semel_kafka_tier_name(options->scope, name, tier, tier_name, error);
		if (status == SEMEL_OK)
			status = compare_topic(look, tier_name, 0, &of_tier, error);
	}
	return status;
}

semel_status semel_kafka_compare(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 semel_difference_seen seen, void *user, semel_error *error)
{
	const struct look look = { semel_kafka_of(broker), options, seen, user };
	semel_status status = SEMEL_OK;
	for (size_t i = 0; options->topics[i] && status == SEMEL_OK; i++)
		status = compare_all(&look, options->topics[i], error);
	return status;
}
