/* SPDX-License-Identifier: Apache-2.0 */
/* Our place in the consumer group: partitions come and go, positions are committed.
 *
 * - Only the topics are shared out by the group. Who has partition P of a topic reads partition P
 *   of its retry topics too: so an aggregate's retries come to where its events come.
 * - A partition that the group asks back is read no further, and given up when nothing of it is in
 *   the caller's hands and its position is committed: the next owner begins behind what was acked.
 * - A partition that was lost (we were silent for too long) is forgotten at once.
 * - A commit carries the position, and as its metadata up to where records may have been handed
 *   out. That is written ahead, so it costs next to nothing; it is how the next owner knows what
 *   is redelivered.
 * - One commit is under way at a time, and ten in a second at most unless there is nothing else to
 *   do; what is acked meanwhile goes with the next. After a crash so much comes again.
 */
#include "base/error.h"
#include "base/text.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_AHEAD  1024
#define AGAIN_MS    500
#define COMMIT_MS   100
#define JOIN_MS     3000
#define NOTE_PREFIX "semel:"

/* ---- commits --------------------------------------------------------------------------------- */

/* More was handed out than the broker has been told. */
static bool needs_note(const struct semel_kafka_share *share)
{
	return share->held && share->out > 0 && share->next_offset > share->noted;
}

static bool has_news(const struct semel_kafka_share *share)
{
	return share->held && share->position >= 0 &&
	       (share->position != share->committed || needs_note(share));
}

static bool is_urgent(const struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->share_count; i++)
		if (needs_note(&kafka->shares[i]))
			return true;
	return false;
}

static void add_position(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			 struct semel_kafka_share *share, int64_t noted)
{
	char note[40];
	rd_kafka_topic_partition_t *entry =
		kafka->library->topic_partition_list_add(list, share->topic, share->partition);
	int length = snprintf(note, sizeof(note), NOTE_PREFIX "%" PRId64, noted);
	entry->offset = share->position;
	entry->metadata = strdup(note);
	entry->metadata_size = entry->metadata ? (size_t)length : 0;
	share->committed = share->position;
	share->noted = noted;
}

/* NULL: nothing has changed. leaving: only of those that go, with the last word about them. */
static rd_kafka_topic_partition_list_t *list_news(struct semel_kafka *kafka, bool last_word)
{
	rd_kafka_topic_partition_list_t *list = NULL;
	for (uint32_t i = 0; i < kafka->share_count; i++) {
		struct semel_kafka_share *share = &kafka->shares[i];
		int64_t noted = share->noted;
		bool exact = last_word && share->held && share->next_offset != share->noted;
		if (!has_news(share) && !(exact && share->position >= 0))
			continue;
		if (exact)
			noted = share->next_offset;
		else if (share->next_offset > share->noted)
			noted = share->next_offset + NOTE_AHEAD;
		if (!list)
			list = kafka->library->topic_partition_list_new((int)kafka->share_count);
		add_position(kafka, list, share, noted);
	}
	return list;
}

/* They are told again with the next commit. */
static void forget_commits(struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->share_count; i++)
		kafka->shares[i].committed = -1;
	kafka->commit_again_ms = semel_steady_ms(kafka->env) + AGAIN_MS;
}

/* The group has moved on, and will say so. */
static bool is_moved_on(rd_kafka_resp_err_t err)
{
	return err == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION ||
	       err == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID ||
	       err == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID ||
	       err == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
}

/* A commit while the group is shared out anew would fail, and worse: see joining.c. */
static void await_group(struct semel_kafka *kafka)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + JOIN_MS;
	while (semel_kafka_joining_goes_on(kafka) && semel_steady_ms(kafka->env) < until_ms)
		semel_wake_pause_us(1000);
}

semel_status semel_kafka_group_commit_now(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->committing)
		forget_commits(kafka); /* it may fail, and nobody would tell it again */
	rd_kafka_topic_partition_list_t *list = list_news(kafka, true);
	if (!list)
		return SEMEL_OK;
	await_group(kafka);
	rd_kafka_resp_err_t err = semel_kafka_commit(kafka, list);
	kafka->library->topic_partition_list_destroy(list);
	if (!err || err == RD_KAFKA_RESP_ERR__NO_OFFSET)
		return SEMEL_OK;
	forget_commits(kafka);
	return is_moved_on(err) ? SEMEL_OK
				: semel_kafka_failed(kafka, err, "commit offsets", error);
}

void semel_kafka_group_commit(struct semel_kafka *kafka, bool idle)
{
	int64_t now_ms = semel_steady_ms(kafka->env);
	bool early = kafka->committing || (!idle && now_ms - kafka->commit_ms < COMMIT_MS);
	if (now_ms < kafka->commit_again_ms || semel_kafka_joining_goes_on(kafka) ||
	    (early && !is_urgent(kafka)))
		return;
	rd_kafka_topic_partition_list_t *list = list_news(kafka, false);
	if (!list)
		return;
	kafka->commit_ms = now_ms;
	rd_kafka_resp_err_t err = kafka->library->commit_queue(kafka->consumer, list,
							       kafka->consumer_queue, NULL, NULL);
	kafka->library->topic_partition_list_destroy(list);
	kafka->committing = !err;
	if (err)
		forget_commits(kafka);
}

static void hear_commit(struct semel_kafka *kafka, rd_kafka_event_t *event)
{
	rd_kafka_resp_err_t err = kafka->library->event_error(event);
	kafka->committing = false;
	if (!err || err == RD_KAFKA_RESP_ERR__NO_OFFSET)
		return;
	semel_logf(SEMEL_LOG_DEBUG, "kafka: a commit failed: %s", kafka->library->err2str(err));
	forget_commits(kafka);
}

/* ---- where to begin -------------------------------------------------------------------------- */

static bool is_retry(const struct semel_kafka *kafka, const char *topic)
{
	char middle[SEMEL_KAFKA_NAME_SIZE];
	snprintf(middle, sizeof(middle), ".%s.retry.", kafka->scope);
	return strstr(topic, middle) != NULL;
}

/* The end for a subscription that is to see new events only; but what lies in a retry topic was
 * put there for this subscription. */
semel_status semel_kafka_group_begin(struct semel_kafka *kafka,
				     rd_kafka_topic_partition_list_t *partitions,
				     semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *unknown =
		library->topic_partition_list_new(partitions->cnt);
	for (int i = 0; i < partitions->cnt; i++) {
		const rd_kafka_topic_partition_t *entry = &partitions->elems[i];
		if (entry->offset >= 0)
			continue;
		bool latest = kafka->from_latest && !is_retry(kafka, entry->topic);
		library->topic_partition_list_add(unknown, entry->topic, entry->partition)->offset =
			latest ? RD_KAFKA_OFFSET_END : RD_KAFKA_OFFSET_BEGINNING;
	}
	semel_status status = semel_kafka_resolve(kafka, kafka->consumer, unknown, error);
	for (int i = 0, at = 0; i < partitions->cnt && status == SEMEL_OK; i++)
		if (partitions->elems[i].offset < 0)
			partitions->elems[i].offset = unknown->elems[at++].offset;
	library->topic_partition_list_destroy(unknown);
	return status;
}

/* -1: nothing was ever committed there. */
static int64_t note_of(const rd_kafka_topic_partition_t *entry)
{
	char text[40];
	long long noted = 0;
	size_t prefix = strlen(NOTE_PREFIX);
	if (!entry->metadata)
		return -1;
	if (entry->metadata_size <= prefix || entry->metadata_size >= sizeof(text) ||
	    memcmp(entry->metadata, NOTE_PREFIX, prefix) != 0)
		return 0;
	memcpy(text, entry->metadata, entry->metadata_size);
	text[entry->metadata_size] = '\0';
	return semel_text_to_int64(text + prefix, 0, INT64_MAX, &noted) ? noted : 0;
}

/* ---- rebalances ------------------------------------------------------------------------------ */

static semel_status check_move(struct semel_kafka *kafka, rd_kafka_error_t *failure,
			       semel_error *error)
{
	if (!failure)
		return SEMEL_OK;
	semel_status status =
		semel_error_set(error, SEMEL_OUTAGE, "the group %s at %s is in disorder: %s",
				kafka->scope, kafka->place, kafka->library->error_string(failure));
	kafka->library->error_destroy(failure);
	return status;
}

static semel_status add_tier(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			     const rd_kafka_topic_partition_t *of, uint32_t tier,
			     semel_error *error)
{
	char name[SEMEL_KAFKA_NAME_SIZE];
	struct semel_kafka_topic *topic = NULL;
	uint32_t partitions = 0, retries = 0;
	const char *own = semel_kafka_own_name(kafka, of->topic);
	semel_status status = semel_kafka_topic_look(kafka, own, &topic, error);
	if (status == SEMEL_OK) {
		partitions = topic->partitions > 0 ? topic->partitions : 1;
		status = semel_kafka_tier_name(kafka->scope, own, tier, name, error);
	}
	if (status == SEMEL_OK)
		status = semel_kafka_topic_look(kafka, name, &topic, error);
	if (status == SEMEL_OK)
		retries = topic->partitions;
	for (uint32_t i = (uint32_t)of->partition; i < retries; i += partitions)
		kafka->library->topic_partition_list_add(list, topic->full, (int32_t)i);
	return status;
}

/* With each partition of a topic those of its retry topics. */
static semel_status add_retries(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
				semel_error *error)
{
	semel_status status = SEMEL_OK;
	int count = list->cnt;
	for (int i = 0; i < count && status == SEMEL_OK; i++)
		for (uint32_t tier = 1; tier <= kafka->tiers && status == SEMEL_OK; tier++) {
			/* the list may move when it grows */
			rd_kafka_topic_partition_t of = list->elems[i];
			status = add_tier(kafka, list, &of, tier, error);
		}
	return status;
}

/* Where the offsets are kept with the effects, the store knows better than the group. */
static semel_status ask_keeper(struct semel_kafka *kafka, rd_kafka_topic_partition_t *entry,
			       semel_error *error)
{
	int64_t next = -1;
	if (!kafka->keeper || is_retry(kafka, entry->topic))
		return SEMEL_OK;
	semel_status status =
		kafka->keeper->take(kafka->keeper->user, semel_kafka_own_name(kafka, entry->topic),
				    entry->partition, true, &next, error);
	if (status == SEMEL_OK && next >= 0)
		entry->offset = next;
	return status;
}

static semel_status take(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
			 semel_error *error)
{
	semel_status status = add_retries(kafka, list, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_kafka_committed(kafka, kafka->consumer, list, error);
	if (status == SEMEL_OK)
		status = semel_kafka_group_begin(kafka, list, error);
	for (int i = 0; i < list->cnt && status == SEMEL_OK; i++)
		status = ask_keeper(kafka, &list->elems[i], error);
	for (int i = 0; i < list->cnt && status == SEMEL_OK; i++) {
		const rd_kafka_topic_partition_t *entry = &list->elems[i];
		status = semel_kafka_share_take(kafka, entry->topic, entry->partition,
						entry->offset, note_of(entry), error);
		semel_logf(SEMEL_LOG_DEBUG, "kafka: %s reads %s [%d] from %" PRId64, kafka->scope,
			   entry->topic, entry->partition, entry->offset);
	}
	return status;
}

static void forget(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++) {
		struct semel_kafka_share *share =
			semel_kafka_share_of(kafka, list->elems[i].topic, list->elems[i].partition);
		if (share && share->held)
			semel_kafka_share_forget(kafka, share);
	}
}

/* The group waits for an answer, also when we can do nothing with what it gave: without one the
 * consumer can neither go on nor be closed. */
static semel_status hear_assignment(struct semel_kafka *kafka,
				    rd_kafka_topic_partition_list_t *list, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	kafka->assigned = true;
	semel_status status = take(kafka, list, error);
	if (status == SEMEL_OK)
		return check_move(kafka, library->incremental_assign(kafka->consumer, list), error);
	forget(kafka, list);
	rd_kafka_topic_partition_list_t *none = library->topic_partition_list_new(0);
	(void)check_move(kafka, library->incremental_assign(kafka->consumer, none), NULL);
	library->topic_partition_list_destroy(none);
	return status;
}

static bool is_in_hand(struct semel_kafka *kafka, const rd_kafka_topic_partition_list_t *list)
{
	for (int i = 0; i < list->cnt; i++) {
		const struct semel_kafka_share *share =
			semel_kafka_share_of(kafka, list->elems[i].topic, list->elems[i].partition);
		if (share && share->held && share->out > 0)
			return true;
	}
	return false;
}

/* What was asked back goes, as soon as it can. */
static semel_status give(struct semel_kafka *kafka, semel_error *error)
{
	bool lost = kafka->leaving && kafka->library->assignment_lost(kafka->consumer);
	if (!kafka->leaving || (!lost && !kafka->closing && is_in_hand(kafka, kafka->leaving)))
		return SEMEL_OK;
	rd_kafka_topic_partition_list_t *list = kafka->leaving;
	kafka->leaving = NULL;
	if (!lost)
		(void)semel_kafka_group_commit_now(kafka, NULL);
	forget(kafka, list);
	semel_status status = check_move(
		kafka, kafka->library->incremental_unassign(kafka->consumer, list), error);
	kafka->library->topic_partition_list_destroy(list);
	return status;
}

static semel_status hear_rebalance(struct semel_kafka *kafka, rd_kafka_event_t *event,
				   semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->event_topic_partition_list(event);
	rd_kafka_resp_err_t err = library->event_error(event);
	if (err == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS)
		return hear_assignment(kafka, list, error);
	if (kafka->leaving)
		library->topic_partition_list_destroy(kafka->leaving);
	kafka->leaving = library->topic_partition_list_copy(list);
	semel_status status = add_retries(kafka, kafka->leaving, error);
	for (int i = 0; i < kafka->leaving->cnt && status == SEMEL_OK; i++) {
		const rd_kafka_topic_partition_t *entry = &kafka->leaving->elems[i];
		struct semel_kafka_share *share =
			semel_kafka_share_of(kafka, entry->topic, entry->partition);
		if (share)
			share->leaving = true;
	}
	if (status != SEMEL_OK)
		return status;
	return give(kafka, error);
}

/* ---- events ---------------------------------------------------------------------------------- */

static semel_status hear(struct semel_kafka *kafka, rd_kafka_event_t *event, semel_error *error)
{
	switch (kafka->library->event_type(event)) {
	case RD_KAFKA_EVENT_REBALANCE:
		return hear_rebalance(kafka, event, error);
	case RD_KAFKA_EVENT_OFFSET_COMMIT:
		hear_commit(kafka, event);
		return SEMEL_OK;
	case RD_KAFKA_EVENT_ERROR:
		semel_kafka_hear_error(kafka, kafka->consumer, event);
		return SEMEL_OK;
	default:
		return SEMEL_OK;
	}
}

semel_status semel_kafka_group_serve(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = SEMEL_OK;
	rd_kafka_event_t *event;
	while (status == SEMEL_OK &&
	       (event = kafka->library->queue_poll(kafka->consumer_queue, 0)) != NULL) {
		status = hear(kafka, event, error);
		kafka->library->event_destroy(event);
	}
	if (status == SEMEL_OK)
		status = give(kafka, error);
	return status == SEMEL_OK ? semel_kafka_health(kafka, error) : status;
}

/* librdkafka 2.0 ends the process when a consumer is closed between the answer to its first request
 * to join and its first assignment. So that is waited for; and if it does not come, the consumer is
 * left to itself, with nothing of ours in its hands: the group forgets it, because nobody reads. */
static bool can_close(struct semel_kafka *kafka)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + SEMEL_KAFKA_CALL_MS;
	while (kafka->consumer_queue && !kafka->assigned &&
	       (!kafka->lost || semel_kafka_joining_was_answered(kafka)) &&
	       semel_steady_ms(kafka->env) < until_ms) {
		semel_wake_pause_us(2000);
		(void)semel_kafka_group_serve(kafka, NULL);
	}
	return !kafka->consumer_queue || kafka->assigned ||
	       !semel_kafka_joining_was_answered(kafka);
}

/* Where nobody answers no goodbye is said. */
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
	if (!lost && kafka->leaving)
		(void)give(kafka, NULL);
	for (uint32_t i = 0; i < kafka->share_count; i++)
		semel_kafka_share_forget(kafka, &kafka->shares[i]);
	if (kafka->leaving)
		library->topic_partition_list_destroy(kafka->leaving);
	if (kafka->consumer_queue) {
		semel_kafka_ring_off(kafka, kafka->consumer_queue);
		library->queue_destroy(kafka->consumer_queue);
	}
	if (!lost && closable)
		(void)library->consumer_close(kafka->consumer);
	if (closable)
		library->destroy_flags(kafka->consumer,
				       lost ? RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE : 0);
	else
		kafka->joining = NULL; /* its threads go on, and note there */
	kafka->consumer = NULL;
}
