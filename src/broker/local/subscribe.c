/* SPDX-License-Identifier: Apache-2.0 */
/* Topics and subscriptions, declared when first named.
 *
 * - A topic's number and partitions never change, so they stay in memory once the transaction that
 *   created them has committed.
 * - A new subscription starts at the beginning of the log, or at its end if the options say so; its
 *   cursors are created in the same transaction, so that no event gets between.
 */
#include "base/error.h"
#include "base/text.h"
#include "broker/local/local.h"
#include "event/hash.h"
#include "fault/plant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- topics ---------------------------------------------------------------------------------- */

int64_t semel_local_entry_key(int64_t topic, uint32_t partition, int64_t offset)
{
	assert(topic >= 0 && topic <= SEMEL_LOCAL_TOPIC_MAX);
	assert(partition < SEMEL_LOCAL_PARTITIONS_MAX);
	assert(offset >= 0 && offset <= SEMEL_LOCAL_OFFSET_MAX);
	return (topic << (SEMEL_LOCAL_OFFSET_BITS + SEMEL_LOCAL_PARTITION_BITS)) |
	       ((int64_t)partition << SEMEL_LOCAL_OFFSET_BITS) | offset;
}

uint32_t semel_local_partition_of(const struct semel_local_topic *topic,
				  const struct semel_event *event)
{
	return (uint32_t)(semel_hash_aggregate(event->aggregate_type, event->aggregate_id) %
			  topic->partitions);
}

static struct semel_local_topic *known_topic(const struct semel_local *local,
					     struct semel_text name)
{
	for (uint32_t i = 0; i < local->topic_count; i++)
		if (semel_text_equal(semel_text_of(local->topics[i]->name), name))
			return local->topics[i];
	return NULL;
}

static void free_topic(struct semel_local_topic *topic)
{
	free(topic->name);
	free(topic);
}

static struct semel_local_topic *remember_topic(struct semel_local *local, struct semel_text name,
						semel_error *error)
{
	struct semel_local_topic **topics =
		realloc(local->topics, (local->topic_count + (size_t)1) * sizeof(local->topics[0]));
	if (topics != NULL)
		local->topics = topics;
	struct semel_local_topic *topic = topics == NULL ? NULL : calloc(1, sizeof(*topic));
	char *copy = topic == NULL ? NULL : strndup(semel_text_chars(name), name.length);
	if (copy == NULL) {
		free(topic);
		(void)semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
		return NULL;
	}
	topic->name = copy;
	topic->free_entries = -1;
	local->topics[local->topic_count++] = topic;
	return topic;
}

static semel_status create_topic(struct semel_local *local, struct semel_local_topic *topic,
				 semel_error *error)
{
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_TOPIC_ADD,
		SEMEL_LOCAL_INTS(topic->partitions, semel_now_ms(local->env)), error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_TOPIC_ADD, 3, semel_text_of(topic->name));
	status = semel_local_run(local, SEMEL_LOCAL_TOPIC_ADD, error);
	if (status != SEMEL_OK)
		return status;

	topic->number = sqlite3_last_insert_rowid(local->db);
	if (topic->number > SEMEL_LOCAL_TOPIC_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the broker %s has %lld topics, which is its limit "
				       "(use fewer topics, or a second broker file)",
				       local->path, (long long)SEMEL_LOCAL_TOPIC_MAX);
	for (uint32_t i = 0; i < topic->partitions; i++) {
		status = semel_local_run_ints(local, SEMEL_LOCAL_PARTITION_ADD,
					      SEMEL_LOCAL_INTS(topic->number, i), error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status load_topic(struct semel_local *local, struct semel_local_topic *topic,
			       int64_t partitions, semel_error *error)
{
	bool found = false;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_TOPIC_FIND, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_TOPIC_FIND, 1, semel_text_of(topic->name));
	status = semel_local_next(local, SEMEL_LOCAL_TOPIC_FIND, &found, error);
	if (status != SEMEL_OK)
		return status;
	if (!found) {
		topic->partitions = (uint32_t)partitions;
		return create_topic(local, topic, error);
	}
	topic->number = semel_local_int(local, SEMEL_LOCAL_TOPIC_FIND, 0);
	int64_t theirs = semel_local_int(local, SEMEL_LOCAL_TOPIC_FIND, 1);
	semel_local_reset(local, SEMEL_LOCAL_TOPIC_FIND);
	if (theirs < 1 || theirs > SEMEL_LOCAL_PARTITIONS_MAX || topic->number < 1 ||
	    topic->number > SEMEL_LOCAL_TOPIC_MAX)
		return semel_error_set(
			error, SEMEL_INTERNAL,
			"the row of topic %s in %s is damaged (restore the file from a backup)",
			topic->name, local->path);
	topic->partitions = (uint32_t)theirs;
	return SEMEL_OK;
}

static semel_status check_partitions(const struct semel_local *local,
				     const struct semel_local_topic *topic, semel_error *error)
{
	if (!local->settings.partitions_named || topic->partitions == local->settings.partitions)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "the topic %s has %u partitions, the broker's URL says "
			       "partitions=%lld: the number of partitions of a topic never "
			       "changes, because the order of its events depends on "
			       "it (leave the parameter out, or name another topic or file)",
			       topic->name, topic->partitions,
			       (long long)local->settings.partitions);
}

semel_status semel_local_topic_declare(struct semel_local *local, struct semel_text name,
				       int64_t partitions, struct semel_local_topic **topic_out,
				       semel_error *error)
{
	if (name.data == NULL || semel_text_is_blank(name))
		return semel_error_set(error, SEMEL_INVALID, "the event names no topic");
	struct semel_local_topic *topic = known_topic(local, name);
	if (topic == NULL) {
		topic = remember_topic(local, name, error);
		if (topic == NULL)
			return SEMEL_INTERNAL;
		topic->created = true;
		semel_status status = load_topic(local, topic, partitions, error);
		if (status != SEMEL_OK)
			return status;
	}
	*topic_out = topic;
	return check_partitions(local, topic, error);
}

/* Keeps the topics that were created in the transaction, or forgets them. */
static void finish_topics(struct semel_local *local, bool committed)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < local->topic_count; i++) {
		struct semel_local_topic *topic = local->topics[i];
		if (topic->created && !committed) {
			free_topic(topic);
			continue;
		}
		topic->created = false;
		topic->free_entries = -1;
		if (topic->touched)
			memset(topic->appended, 0, sizeof(topic->appended));
		topic->touched = false;
		local->topics[count++] = topic;
	}
	local->topic_count = count;
}

semel_status semel_local_topics_end(struct semel_local *local, semel_status status,
				    semel_error *error)
{
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		finish_topics(local, false);
		return status;
	}
	status = semel_local_commit(local, error);
	finish_topics(local, status == SEMEL_OK);
	return status;
}

/* ---- subscriptions -------------------------------------------------------------------------- */

/* A planted bug: what a scope has read is remembered outside the broker's file, and used when
 * the file was replaced. */
static int64_t remember_offset(const struct semel_local *local, const char *scope, bool made)
{
	static struct {
		char scope[32];
		int64_t offset, at_ms;
	} offsets[8];
	int64_t now_ms = semel_now_ms(local->env);
	sqlite3_stmt *statement = NULL;
	size_t at = 0;

	while (at < 7 && offsets[at].scope[0] && strcmp(offsets[at].scope, scope) != 0)
		at++;
	snprintf(offsets[at].scope, sizeof offsets[at].scope, "%s", scope);
	if (now_ms < offsets[at].at_ms)
		offsets[at].offset = 0;
	offsets[at].at_ms = now_ms;
	if (made)
		return offsets[at].offset;
	if (sqlite3_prepare_v2(local->db, "SELECT next - 1 FROM semel_offset", -1, &statement,
			       NULL) == SQLITE_OK &&
	    sqlite3_step(statement) == SQLITE_ROW)
		offsets[at].offset = sqlite3_column_int64(statement, 0);
	sqlite3_finalize(statement);
	return 0;
}

static semel_status create_subscription(struct semel_local *local, const char *scope,
					const struct semel_local_topic *topic, bool from_latest,
					int64_t *number_out, semel_error *error)
{
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_SUBSCRIPTION_ADD,
				 SEMEL_LOCAL_INTS(topic->number, semel_now_ms(local->env)), error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_SUBSCRIPTION_ADD, 3, semel_text_of(scope));
	status = semel_local_run(local, SEMEL_LOCAL_SUBSCRIPTION_ADD, error);
	if (status != SEMEL_OK)
		return status;
	*number_out = sqlite3_last_insert_rowid(local->db);

	int64_t cursor = 0;
	if (SEMEL_PLANTED("offset-outlives-broker"))
		cursor = remember_offset(local, scope, true);
	if (from_latest) {
		int64_t next = 1;
		status =
			semel_local_bind(local, SEMEL_LOCAL_OFFSET_GET, SEMEL_LOCAL_NO_INTS, error);
		if (status != SEMEL_OK)
			return status;
		status = semel_local_get(local, SEMEL_LOCAL_OFFSET_GET, 1, &next, error);
		if (status != SEMEL_OK)
			return status;
		cursor = next - 1;
	}
	return semel_local_run_ints(
		local, SEMEL_LOCAL_ASSIGNMENTS_ADD,
		SEMEL_LOCAL_INTS(*number_out, topic->number, cursor, from_latest ? 1 : 0), error);
}

semel_status semel_local_subscription_declare(struct semel_local *local, const char *scope,
					      const struct semel_local_topic *topic,
					      bool from_latest, int64_t *number_out,
					      semel_error *error)
{
	semel_status status = semel_local_bind(local, SEMEL_LOCAL_SUBSCRIPTION_FIND,
					       SEMEL_LOCAL_INTS(topic->number), error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_SUBSCRIPTION_FIND, 2, semel_text_of(scope));
	status = semel_local_get(local, SEMEL_LOCAL_SUBSCRIPTION_FIND, 0, number_out, error);
	if (SEMEL_PLANTED("offset-outlives-broker") && *number_out != 0)
		(void)remember_offset(local, scope, false);
	if (status != SEMEL_OK || *number_out != 0)
		return status;
	return create_subscription(local, scope, topic, from_latest, number_out, error);
}

/* ---- subscribing ----------------------------------------------------------------------------- */

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
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the local broker cannot filter by routing key (remove --bind "
			"%s)",
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
		return semel_error_set(error, SEMEL_CONFIG,
				       "total order requires a topic with one partition; %s has %u "
				       "(use a new topic created with ?partitions=1, or order by "
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
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a subscription");

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
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a subscription");
	return SEMEL_OK;
}
