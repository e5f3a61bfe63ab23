/* SPDX-License-Identifier: Apache-2.0 */
/* Membership in the consumer group: partitions are assigned and revoked, positions are committed.
 *
 * - The group assigns the partitions of the topics only. The owner of partition P of a topic also
 *   reads partition P of its retry topics, so that an aggregate's retries arrive where its events
 *   arrive.
 * - A revoked partition is read no further, and is released when the caller has none of its records
 *   and its position is committed: the next owner begins after the acked records.
 * - A partition that was lost (this member was silent for too long) is ended at once.
 * - A commit carries the position, and the metadata of record.c.
 * - A commit that is sent while a join request is unanswered waits behind it, and then belongs to
 *   an old generation, which librdkafka takes for the loss of all partitions. librdkafka does not
 *   report when it joins, but its requests can be observed. Commits wait until the join is
 *   answered.
 * - Kafka forgets the offsets of topics to which no member of the group is subscribed (KIP-211),
 *   and no member is subscribed to the retry topics. Their offsets are committed again with every
 *   rebalance, and every hour.
 * - One commit is unanswered at a time, and at most ten are sent in a second unless there is
 *   nothing else to do; what is acked meanwhile is in the next commit. After a crash that much is
 *   redelivered.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define FETCHED_TO_AHEAD 1024
#define RETRY_MS         500
#define COMMIT_MS        100
#define JOIN_MS          3000
#define NEW_TOPICS_MS    1000
#define TOPICS_PER_CALL  4 /* topics checked in one call */
#define RECOMMIT_MS      3000
#define REFRESH_MS       ((int64_t)60 * 60 * 1000)

/* ---- requests to join ------------------------------------------------------------------------ */

/* What librdkafka's threads record about a consumer. It may outlive the broker connection: see
 * semel_kafka_group_leave. */
struct semel_kafka_group_join {
	const struct semel_kafka_library *library;
	atomic_bool in_progress;
	atomic_bool answered; /* a join request was answered at least once */
};

enum { JOIN_GROUP = 11, SYNC_GROUP = 14 }; /* Kafka's numbers of these requests */

static void record_request(struct semel_kafka_group_join *group_join, int16_t request,
			   bool in_progress)
{
	if (request == JOIN_GROUP || request == SYNC_GROUP)
		atomic_store(&group_join->in_progress, in_progress);
	if (request == JOIN_GROUP && !in_progress)
		atomic_store(&group_join->answered, true);
}

/* Called on librdkafka's threads. */
static rd_kafka_resp_err_t request_sent(rd_kafka_t *client, int fd, const char *broker,
					int32_t broker_id, int16_t request, int16_t version,
					int32_t number, size_t size, void *user)
{
	(void)client;
	(void)fd;
	(void)broker;
	(void)broker_id;
	(void)version;
	(void)number;
	(void)size;
	record_request(user, request, true);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t request_answered(rd_kafka_t *client, int fd, const char *broker,
					    int32_t broker_id, int16_t request, int16_t version,
					    int32_t number, size_t size, int64_t took_us,
					    rd_kafka_resp_err_t err, void *user)
{
	(void)client;
	(void)fd;
	(void)broker;
	(void)broker_id;
	(void)version;
	(void)number;
	(void)size;
	(void)took_us;
	(void)err;
	record_request(user, request, false);
	return RD_KAFKA_RESP_ERR_NO_ERROR;
}

static rd_kafka_resp_err_t observe_requests(rd_kafka_t *client, const rd_kafka_conf_t *conf,
					    void *user, char *text, size_t size)
{
	const struct semel_kafka_group_join *group_join = user;
	const struct semel_kafka_library *library = group_join->library;
	(void)conf;
	(void)text;
	(void)size;
	rd_kafka_resp_err_t err =
		library->interceptor_add_on_request_sent(client, "semel", request_sent, user);
	return err ? err
		   : library->interceptor_add_on_response_received(client, "semel",
								   request_answered, user);
}

semel_status semel_kafka_group_join_watch(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
					  semel_error *error)
{
	kafka->group_join = calloc(1, sizeof(*kafka->group_join));
	if (!kafka->group_join)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a subscription");
	kafka->group_join->library = kafka->library;
	(void)kafka->library->conf_interceptor_add_on_new(conf, "semel", observe_requests,
							  kafka->group_join);
	return SEMEL_OK;
}

bool semel_kafka_group_is_joining(const struct semel_kafka *kafka)
{
	return kafka->group_join && atomic_load(&kafka->group_join->in_progress);
}

static bool is_join_answered(const struct semel_kafka *kafka)
{
	return kafka->group_join && atomic_load(&kafka->group_join->answered);
}

/* ---- commits --------------------------------------------------------------------------------- */

/* More was fetched than the last commit records. */
static bool needs_fetched_to(const struct semel_kafka_assignment *assignment)
{
	return assignment->owned && assignment->fetched_count > 0 &&
	       assignment->next_offset > assignment->fetched_to;
}

static bool has_uncommitted(const struct semel_kafka *kafka,
			    const struct semel_kafka_assignment *assignment)
{
	return assignment->owned && assignment->position >= 0 &&
	       (assignment->position != assignment->committed || needs_fetched_to(assignment) ||
		semel_steady_ms(kafka->env) - assignment->committed_ms >= REFRESH_MS);
}

static bool is_urgent(const struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (needs_fetched_to(&kafka->assignments[i]))
			return true;
	return false;
}

static void add_position(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			 struct semel_kafka_assignment *assignment, int64_t fetched_to)
{
	char metadata[SEMEL_KAFKA_COMMIT_METADATA_SIZE];
	rd_kafka_topic_partition_t *entry = kafka->library->topic_partition_list_add(
		list, assignment->topic, assignment->partition);
	semel_kafka_commit_metadata_write(assignment, fetched_to, metadata);
	entry->offset = assignment->position;
	entry->metadata = strdup(metadata);
	entry->metadata_size = entry->metadata ? strlen(metadata) : 0;
	assignment->committed = assignment->position;
	assignment->fetched_to = fetched_to;
	assignment->committed_ms = semel_steady_ms(kafka->env);
}

/* NULL: nothing has changed. last_word: no commit may follow, so fetched_to is exact. */
static rd_kafka_topic_partition_list_t *list_uncommitted(struct semel_kafka *kafka, bool last_word)
{
	rd_kafka_topic_partition_list_t *list = NULL;
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		int64_t fetched_to = assignment->fetched_to;
		bool exact = last_word && assignment->owned &&
			     assignment->next_offset != assignment->fetched_to;
		if (!has_uncommitted(kafka, assignment) && !(exact && assignment->position >= 0))
			continue;
		if (exact)
			fetched_to = assignment->next_offset;
		else if (assignment->next_offset > assignment->fetched_to)
			fetched_to = assignment->next_offset + FETCHED_TO_AHEAD;
		if (!list)
			list = kafka->library->topic_partition_list_new(
				(int)kafka->assignment_count);
		add_position(kafka, list, assignment, fetched_to);
	}
	return list;
}

/* Waits a while, because another rebalance may follow. */
static void recommit_retry_topics(struct semel_kafka *kafka)
{
	if (kafka->recommit_ms == 0 || semel_steady_ms(kafka->env) < kafka->recommit_ms)
		return;
	kafka->recommit_ms = 0;
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].tier > 0)
			kafka->assignments[i].committed = -1;
}

/* All positions are part of the next commit again. */
static void retry_commits(struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		kafka->assignments[i].committed = -1;
	kafka->commit_retry_ms = semel_steady_ms(kafka->env) + RETRY_MS;
}

/* The group has rebalanced without this member, and will report so. */
static bool is_stale_member(rd_kafka_resp_err_t err)
{
	return err == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION ||
	       err == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID ||
	       err == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID ||
	       err == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
}

/* A commit during a rebalance would fail, or lose all partitions. */
static void await_rebalance(struct semel_kafka *kafka)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + JOIN_MS;
	while (semel_kafka_group_is_joining(kafka) && semel_steady_ms(kafka->env) < until_ms)
		semel_sleep_us(1000);
}

semel_status semel_kafka_group_commit_now(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->committing)
		retry_commits(kafka); /* the unanswered one may fail, too late to be repeated */
	rd_kafka_topic_partition_list_t *list = list_uncommitted(kafka, true);
	if (!list)
		return SEMEL_OK;
	await_rebalance(kafka);
	rd_kafka_resp_err_t err = semel_kafka_commit_sync(kafka, list);
	kafka->library->topic_partition_list_destroy(list);
	if (!err || err == RD_KAFKA_RESP_ERR__NO_OFFSET)
		return SEMEL_OK;
	retry_commits(kafka);
	return is_stale_member(err) ? SEMEL_OK
				    : semel_kafka_call_failed(kafka, err, "commit offsets", error);
}

void semel_kafka_group_commit(struct semel_kafka *kafka, bool idle)
{
	int64_t now_ms = semel_steady_ms(kafka->env);
	bool early = kafka->committing || (!idle && now_ms - kafka->commit_ms < COMMIT_MS);
	if (now_ms < kafka->commit_retry_ms || semel_kafka_group_is_joining(kafka) ||
	    (early && !is_urgent(kafka)))
		return;
	recommit_retry_topics(kafka);
	rd_kafka_topic_partition_list_t *list = list_uncommitted(kafka, false);
	if (!list)
		return;
	kafka->commit_ms = now_ms;
	rd_kafka_resp_err_t err = kafka->library->commit_queue(kafka->consumer, list,
							       kafka->consumer_queue, NULL, NULL);
	kafka->library->topic_partition_list_destroy(list);
	kafka->committing = !err;
	if (err)
		retry_commits(kafka);
}

static void handle_commit_result(struct semel_kafka *kafka, rd_kafka_event_t *event)
{
	rd_kafka_resp_err_t err = kafka->library->event_error(event);
	kafka->committing = false;
	if (!err || err == RD_KAFKA_RESP_ERR__NO_OFFSET)
		return;
	semel_log(SEMEL_LOG_DEBUG, "offset commit failed, retrying",
		  &(struct semel_log_fields){ .consumer = kafka->scope,
					      .error = kafka->library->err2str(err) });
	retry_commits(kafka);
}

/* ---- rebalances ------------------------------------------------------------------------------ */

static semel_status check_assign(struct semel_kafka *kafka, rd_kafka_error_t *failure,
				 semel_error *error)
{
	if (!failure)
		return SEMEL_OK;
	semel_status status = semel_error_set(
		error, SEMEL_OUTAGE, "cannot accept the partitions assigned by group %s at %s: %s",
		kafka->scope, kafka->address, kafka->library->error_string(failure));
	kafka->library->error_destroy(failure);
	return status;
}

/* Where the offsets are stored with the effects, the store's offsets count. */
static semel_status get_offset_from_store(struct semel_kafka *kafka,
					  rd_kafka_topic_partition_t *entry, semel_error *error)
{
	int64_t next = -1;
	size_t length;
	const char *own = semel_kafka_own_name(kafka, entry->topic);
	if (!kafka->offset_store || semel_kafka_tier_of(kafka, own, &length) > 0)
		return SEMEL_OK;
	semel_status status = kafka->offset_store->acquire(kafka->offset_store->user, own,
							   entry->partition, true, &next, error);
	if (status != SEMEL_OK)
		return status;
	if (next >= 0)
		entry->offset = next;
	return SEMEL_OK;
}

/* The offsets were in the store once, and are the broker's now. After a crash the store's offsets
 * may be newer; from now on they would be older, so they are removed. */
static semel_status retire_offset_store(struct semel_kafka *kafka,
					rd_kafka_topic_partition_t *entry, semel_error *error)
{
	const struct semel_offset_store *offset_store = kafka->former_offset_store;
	const char *own = semel_kafka_own_name(kafka, entry->topic);
	struct semel_anchor anchors[2];
	uint32_t count = 0;
	int64_t next = -1;
	size_t length;
	if (!offset_store || semel_kafka_tier_of(kafka, own, &length) > 0)
		return SEMEL_OK;
	semel_status status = offset_store->get(offset_store->user, kafka->scope, own,
						entry->partition, &next, error);
	if (status != SEMEL_OK || next < 0)
		return status;
	/* unless an administrator has set the offset: then there is no metadata of ours */
	if (next > entry->offset && semel_kafka_commit_metadata_read(entry, anchors, &count) > 0)
		entry->offset = next;
	status = offset_store->acquire(offset_store->user, own, entry->partition, true, &next,
				       error);
	if (status != SEMEL_OK)
		goto release;
	status = offset_store->reset(offset_store->user, own, entry->partition, -1, error);

release:
	offset_store->release(offset_store->user, own, entry->partition);
	return status;
}

/* The anchors have to be found in the log before any record is delivered. */
static semel_status start_assignment(struct semel_kafka *kafka,
				     const rd_kafka_topic_partition_t *entry, semel_error *error)
{
	struct semel_anchor anchors[2];
	uint32_t count = 0;
	int64_t fetched_to = semel_kafka_commit_metadata_read(entry, anchors, &count);
	struct semel_kafka_assignment *assignment =
		semel_kafka_assignment_start(kafka, entry, fetched_to);
	if (!assignment)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a partition");
	assignment->group_partition = semel_kafka_topic_partition_of(entry);
	for (uint32_t i = 0; i < count; i++)
		semel_kafka_anchor_expect(assignment, anchors[i], false);
	if (count > 0) { /* until they are found, the next owner searches for both */
		assignment->verified = anchors[0];
		assignment->last_acked = assignment->candidate = anchors[count - 1];
	}
	if (kafka->offset_store && assignment->tier == 0)
		semel_kafka_anchor_expect(assignment,
					  kafka->offset_store->anchor(kafka->offset_store->user,
								      assignment->event_topic,
								      assignment->partition),
					  true);
	semel_log(SEMEL_LOG_DEBUG, "partition assigned",
		  &(struct semel_log_fields){ .consumer = kafka->scope,
					      .topic = entry->topic,
					      .partition = entry->partition,
					      .offset = entry->offset,
					      .has_position = true });
	return SEMEL_OK;
}

static semel_status start_assignments(struct semel_kafka *kafka,
				      rd_kafka_topic_partition_list_t *list, semel_error *error)
{
	semel_status status = semel_kafka_read_committed(kafka, kafka->consumer, list, error);
	if (status != SEMEL_OK)
		return status;
	for (int i = 0; i < list->cnt; i++) {
		status = retire_offset_store(kafka, &list->elems[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	status = semel_kafka_set_start_offsets(kafka, list, error);
	if (status != SEMEL_OK)
		return status;
	for (int i = 0; i < list->cnt; i++) {
		status = get_offset_from_store(kafka, &list->elems[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	for (int i = 0; i < list->cnt; i++) {
		status = start_assignment(kafka, &list->elems[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static void end_assignments(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++) {
		struct semel_kafka_assignment *assignment = semel_kafka_assignment_find(
			kafka, list->elems[i].topic, list->elems[i].partition);
		if (assignment && assignment->owned)
			semel_kafka_assignment_end(kafka, assignment);
	}
}

/* The group needs an answer, even when the assignment cannot be used: without an answer the
 * consumer can neither continue nor be closed. */
static semel_status handle_assignment(struct semel_kafka *kafka,
				      rd_kafka_topic_partition_list_t *list, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	kafka->assigned = true;
	kafka->recommit_ms = semel_steady_ms(kafka->env) + RECOMMIT_MS;
	semel_status status = semel_kafka_tiers_add(kafka, list, 0, error);
	if (status != SEMEL_OK)
		goto decline;
	status = start_assignments(kafka, list, error);
	if (status != SEMEL_OK)
		goto decline;
	return check_assign(kafka, library->incremental_assign(kafka->consumer, list), error);

decline:
	end_assignments(kafka, list);
	rd_kafka_topic_partition_list_t *none = library->topic_partition_list_new(0);
	(void)check_assign(kafka, library->incremental_assign(kafka->consumer, none), NULL);
	library->topic_partition_list_destroy(none);
	return status;
}

static bool is_any_unacked(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++) {
		const struct semel_kafka_assignment *assignment = semel_kafka_assignment_find(
			kafka, list->elems[i].topic, list->elems[i].partition);
		if (assignment && assignment->owned && assignment->fetched_count > 0)
			return true;
	}
	return false;
}

/* Releases the revoked partitions as soon as possible. */
static semel_status release_revoked(struct semel_kafka *kafka, semel_error *error)
{
	bool lost = kafka->revoked && kafka->library->assignment_lost(kafka->consumer);
	if (!kafka->revoked || (!lost && !kafka->closing && is_any_unacked(kafka, kafka->revoked)))
		return SEMEL_OK;
	rd_kafka_topic_partition_list_t *list = kafka->revoked;
	kafka->revoked = NULL;
	if (!lost)
		(void)semel_kafka_group_commit_now(kafka, NULL);
	end_assignments(kafka, list);
	semel_status status = check_assign(
		kafka, kafka->library->incremental_unassign(kafka->consumer, list), error);
	kafka->library->topic_partition_list_destroy(list);
	return status;
}

/* Together with the partitions of its retry topics that are ours. */
static void revoke_partition(struct semel_kafka *kafka, const rd_kafka_topic_partition_t *entry)
{
	const char *own = semel_kafka_own_name(kafka, entry->topic);
	kafka->library->topic_partition_list_add(kafka->revoked, entry->topic, entry->partition);
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		if (!assignment->owned || assignment->group_partition != entry->partition ||
		    strcmp(assignment->event_topic, own) != 0)
			continue;
		assignment->releasing = true;
		if (assignment->tier > 0)
			kafka->library->topic_partition_list_add(kafka->revoked, assignment->topic,
								 assignment->partition);
	}
}

/* Lists the entries of all that are not owned. */
static void list_missing(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *all,
			 rd_kafka_topic_partition_list_t *missing_out)
{
	for (int i = 0; i < all->cnt; i++) {
		const rd_kafka_topic_partition_t *entry = &all->elems[i];
		const struct semel_kafka_assignment *assignment =
			semel_kafka_assignment_find(kafka, entry->topic, entry->partition);
		if (assignment && assignment->owned)
			continue;
		kafka->library
			->topic_partition_list_add(missing_out, entry->topic, entry->partition)
			->opaque = entry->opaque;
	}
}

static semel_status handle_rebalance(struct semel_kafka *kafka, rd_kafka_event_t *event,
				     semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->event_topic_partition_list(event);
	rd_kafka_resp_err_t err = library->event_error(event);
	if (err == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS)
		return handle_assignment(kafka, list, error);
	if (kafka->revoked)
		library->topic_partition_list_destroy(kafka->revoked);
	kafka->revoked = library->topic_partition_list_new(list->cnt);
	for (int i = 0; i < list->cnt; i++)
		revoke_partition(kafka, &list->elems[i]);
	return release_revoked(kafka, error);
}

static bool is_topic_listed(const rd_kafka_topic_partition_list_t *list, const char *topic)
{
	for (int i = 0; i < list->cnt; i++)
		if (strcmp(list->elems[i].topic, topic) == 0)
			return true;
	return false;
}

/* Lists the partitions of a few topics, and of the next ones with the next call: each topic costs a
 * request per tier. */
static void list_next_topics(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list)
{
	uint32_t topics = 0, at = 0;
	for (uint32_t n = 0; n < kafka->assignment_count; n++) {
		at = (kafka->next_topic_checked + n) % kafka->assignment_count;
		const struct semel_kafka_assignment *assignment = &kafka->assignments[at];
		if (!assignment->owned || assignment->tier != 0)
			continue;
		if (!is_topic_listed(list, assignment->topic) && ++topics > TOPICS_PER_CALL)
			break;
		kafka->library->topic_partition_list_add(list, assignment->topic,
							 assignment->partition);
	}
	if (topics > TOPICS_PER_CALL)
		kafka->next_topic_checked = at;
}

semel_status semel_kafka_group_add_retry_topics(struct semel_kafka *kafka, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	if (!kafka->assigned || kafka->revoked || semel_kafka_group_is_joining(kafka))
		return SEMEL_OK;
	rd_kafka_topic_partition_list_t *all = library->topic_partition_list_new(8);
	rd_kafka_topic_partition_list_t *more = library->topic_partition_list_new(8);
	list_next_topics(kafka, all);
	semel_status status = SEMEL_OK;
	/* A failure is not reported: reading continues, and the next check tries again. */
	if (semel_kafka_tiers_add(kafka, all, semel_steady_ms(kafka->env) + NEW_TOPICS_MS, NULL) !=
	    SEMEL_OK)
		goto destroy_lists;
	list_missing(kafka, all, more);
	if (more->cnt == 0)
		goto destroy_lists;
	if (start_assignments(kafka, more, NULL) != SEMEL_OK) {
		end_assignments(kafka, more);
		goto destroy_lists;
	}
	status = check_assign(kafka, library->incremental_assign(kafka->consumer, more), error);

destroy_lists:
	library->topic_partition_list_destroy(all);
	library->topic_partition_list_destroy(more);
	return status;
}

/* ---- events ---------------------------------------------------------------------------------- */

static semel_status handle_event(struct semel_kafka *kafka, rd_kafka_event_t *event,
				 semel_error *error)
{
	switch (kafka->library->event_type(event)) {
	case RD_KAFKA_EVENT_REBALANCE:
		return handle_rebalance(kafka, event, error);
	case RD_KAFKA_EVENT_OFFSET_COMMIT:
		handle_commit_result(kafka, event);
		return SEMEL_OK;
	case RD_KAFKA_EVENT_ERROR:
		semel_kafka_handle_error(kafka, kafka->consumer, event);
		semel_kafka_anchor_recheck(kafka);
		return SEMEL_OK;
	default:
		return SEMEL_OK;
	}
}

semel_status semel_kafka_group_serve(struct semel_kafka *kafka, semel_error *error)
{
	rd_kafka_event_t *event;
	while ((event = kafka->library->queue_poll(kafka->consumer_queue, 0)) != NULL) {
		semel_status status = handle_event(kafka, event, error);
		kafka->library->event_destroy(event);
		if (status != SEMEL_OK)
			return status;
	}
	semel_status status = release_revoked(kafka, error);
	if (status != SEMEL_OK)
		return status;
	return semel_kafka_check_health(kafka, error);
}

/* librdkafka 2.0 ends the process when a consumer is closed between the answer to its first join
 * request and its first assignment. So this waits for the assignment; if it does not come, the
 * consumer is abandoned without any partition: the group removes it, because it does not poll. */
static bool can_close(struct semel_kafka *kafka)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + SEMEL_KAFKA_CALL_MS;
	while (kafka->consumer_queue && !kafka->assigned &&
	       (!kafka->lost || is_join_answered(kafka)) &&
	       semel_steady_ms(kafka->env) < until_ms) {
		semel_sleep_us(2000);
		(void)semel_kafka_group_serve(kafka, NULL);
	}
	return !kafka->consumer_queue || kafka->assigned || !is_join_answered(kafka);
}

/* An unreachable cluster gets no request to leave. */
void semel_kafka_group_leave(struct semel_kafka *kafka)
{
	const struct semel_kafka_library *library = kafka->library;
	if (!kafka->consumer)
		return;
	kafka->closing = true;
	bool closable = can_close(kafka);
	bool lost = kafka->lost || kafka->down_since_ms > 0;
	if (!lost)
		(void)semel_kafka_group_commit_now(kafka, NULL);
	if (!lost && kafka->revoked)
		(void)release_revoked(kafka, NULL);
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		semel_kafka_assignment_end(kafka, &kafka->assignments[i]);
	if (kafka->revoked)
		library->topic_partition_list_destroy(kafka->revoked);
	if (kafka->consumer_queue) {
		semel_kafka_notify_off(kafka, kafka->consumer_queue);
		library->queue_destroy(kafka->consumer_queue);
	}
	if (!lost && closable)
		(void)library->consumer_close(kafka->consumer);
	if (closable)
		library->destroy_flags(kafka->consumer,
				       lost ? RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE : 0);
	else
		kafka->group_join = NULL; /* its threads continue, and write there */
	kafka->consumer = NULL;
}
