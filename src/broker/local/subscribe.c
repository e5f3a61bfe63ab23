/* SPDX-License-Identifier: Apache-2.0 */
/* Declaring a subscription. A new one starts at the beginning of the log, or at its end if the
 * options say so; its cursors are created in the same transaction, so that no event gets between.
 */
#include "base/error.h"
#include "base/text.h"
#include "broker/local/local.h"
#include "fault/plant.h"

#include <stdlib.h>
#include <string.h>

static uint32_t count_topics(const char *const *topics)
{
	uint32_t count = 0;
	while (topics[count] != NULL)
		count++;
	return count;
}

static semel_status check_options(const struct semel_local *local,
				  const struct semel_subscribe_options *options, semel_error *error)
{
	if (local->subscription_count > 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "this broker connection has a subscription already (open "
				       "another one)");
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a scope");
	if (options->topics == NULL || options->topics[0] == NULL)
		return semel_error_set(error, SEMEL_INVALID, "a subscription needs a topic");
	if (options->prefetch == 0 || options->lease_ms <= 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "prefetch and lease of a subscription must be above 0");
	if (options->partitions > SEMEL_LOCAL_PARTITIONS_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "a topic cannot have %u partitions (at most %d)",
				       options->partitions, SEMEL_LOCAL_PARTITIONS_MAX);
	if (options->bind != NULL && strcmp(options->bind, "#") != 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the local broker does not select by routing key (leave out "
				       "the binding %s)",
				       options->bind);
	return SEMEL_OK;
}

/* A topic that is created for a total order gets the one partition that it needs. */
static int64_t partitions_of(const struct semel_local *local,
			     const struct semel_subscribe_options *options)
{
	if (local->settings.partitions_named)
		return local->settings.partitions;
	if (options->total_order)
		return 1;
	return options->partitions > 0 ? options->partitions : local->settings.partitions;
}

static semel_status declare(struct semel_local *local,
			    const struct semel_subscribe_options *options, const char *name,
			    struct semel_local_subscription *subscription, semel_error *error)
{
	struct semel_local_topic *topic = NULL;
	semel_status status = semel_local_topic_declare(
		local, semel_text_of(name), partitions_of(local, options), &topic, error);
	if (status != SEMEL_OK)
		return status;
	if (options->total_order && topic->partitions > 1)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"a total order needs a topic of one partition, and %s has "
			"%u (use a new topic created with ?partitions=1, or order by "
			"aggregate)",
			name, topic->partitions);
	subscription->topic = topic;
	return semel_local_subscription_declare(local, options->scope, topic, options->from_latest,
						&subscription->number, error);
}

/* Planted bugs: cursors are set to the end at every start, or for a topic that is no longer read.
 */
static void reset_cursors(struct semel_local *local, const struct semel_subscribe_options *options,
			  uint32_t count)
{
	const char *which = NULL;

	if (SEMEL_PLANTED("from-latest-again") && options->from_latest)
		which = "";
	if (SEMEL_PLANTED("removed-topic-is-settled") && count == 1)
		which = " AND topic <> (SELECT number FROM semel_topic WHERE name = %Q)";
	if (!which)
		return;
	char *condition = sqlite3_mprintf(which, options->topics[0]);
	char *sql = sqlite3_mprintf("UPDATE semel_share SET cursor ="
				    " (SELECT next - 1 FROM semel_offset) WHERE subscription IN"
				    " (SELECT number FROM semel_subscription WHERE scope = %Q%s)",
				    options->scope, condition);
	sqlite3_exec(local->db, sql, NULL, NULL, NULL);
	sqlite3_free(sql);
	sqlite3_free(condition);
}

static semel_status declare_all(struct semel_local *local,
				const struct semel_subscribe_options *options,
				struct semel_local_subscription *subscriptions, uint32_t *count_out,
				semel_error *error)
{
	*count_out = 0;
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; options->topics[i] != NULL; i++) {
		if (semel_string_is_repeated(options->topics, i))
			continue;
		status = declare(local, options, options->topics[i], &subscriptions[(*count_out)++],
				 error);
		if (status != SEMEL_OK)
			return semel_local_topics_end(local, status, error);
	}
	reset_cursors(local, options, *count_out);
	return semel_local_topics_end(local, SEMEL_OK, error);
}

static bool make_assignments(struct semel_local_subscription *subscriptions, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct semel_local_subscription *subscription = &subscriptions[i];
		subscription->assignments = calloc(subscription->topic->partitions,
						   sizeof(subscription->assignments[0]));
		if (subscription->assignments == NULL)
			return false;
	}
	return true;
}

semel_status semel_local_subscribe(struct semel_broker *broker,
				   const struct semel_subscribe_options *options,
				   semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	semel_status status = check_options(local, options, error);
	if (status != SEMEL_OK)
		return status;
	uint32_t count = count_topics(options->topics);
	struct semel_local_subscription *subscriptions = calloc(count, sizeof(subscriptions[0]));
	if (subscriptions == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a subscription");

	status = declare_all(local, options, subscriptions, &count, error);
	if (status != SEMEL_OK) {
		free(subscriptions);
		return status;
	}
	local->subscriptions = subscriptions;
	local->subscription_count = count;
	local->prefetch = options->prefetch;
	local->prefetch_bytes = (uint64_t)(options->prefetch_bytes > 0 ? options->prefetch_bytes
								       : SEMEL_PREFETCH_BYTES);
	local->lease_ms = options->lease_ms;
	if (!make_assignments(subscriptions, count))
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a subscription");
	return SEMEL_OK;
}
