/* SPDX-License-Identifier: Apache-2.0 */
/* Is it still the same log?
 *
 * A topic that was deleted and created again begins at 0, and librdkafka 2.0 does not distinguish
 * the new log from the old one; nor does it for a log that was truncated by an unclean election. A
 * reader that continues at its offset skips everything before it. So a log is identified by
 * records:
 *
 * - An anchor is an offset and a hash of the record there. A commit carries two anchors (record.c),
 *   and the offset store has one: they have to be found before any record of an assigned partition
 *   is delivered.
 * - While a partition is read, the anchor that was found last is searched for again from time to
 *   time, and the newest acked record becomes the next anchor: so a log that was replaced between
 *   two checks is noticed, even if records of the new one have been read meanwhile.
 * - An anchor below the log's beginning, or in a gap of a compacted topic, proves nothing: the next
 *   one replaces it.
 * - When another record is found, the position is set to the beginning, at the broker and in the
 *   offset store, and the broker has to be opened again: unacked records can no longer be acked.
 *
 * A consumer outside the group reads the records; nothing waits for it. */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "event/hash.h"
#include "observe/log.h"

#include <string.h>

#define ROUND_MS      10000 /* time for the answers */
#define RECHECK_MS    1000
#define ARENA_BLOCK   4096
#define PAUSE_EACH_MS 250
#define PAUSE_MAX_MS  60000
#define VANISH_MS     1000

static const char replaced[] =
	"topic was replaced or truncated (another record at a known offset), "
	"reading from its beginning";
static const char shortened[] = "topic was replaced or truncated (it ends before a known record), "
				"reading from its beginning";
static const char vanished[] =
	"topic was replaced (the offset of this scope is deleted), reading from its beginning";

/* ---- anchors --------------------------------------------------------------------------------- */

static struct semel_anchor anchor_of(const struct semel_kafka *kafka,
				     const rd_kafka_message_t *message)
{
	struct semel_text id = semel_kafka_header(kafka, message, "ce_id");
	if (!id.data)
		id = semel_kafka_header(kafka, message, "id"); /* of an adopted outbox */
	uint64_t hash = id.data ? semel_event_hash_id(id)
				: semel_hash_aggregate(
					  (struct semel_text){ message->key, message->key_len },
					  (struct semel_text){ message->payload, message->len });
	return (struct semel_anchor){ .offset = message->offset, .hash = hash };
}

void semel_kafka_anchor_record(const struct semel_kafka *kafka,
			       struct semel_kafka_assignment *assignment,
			       const rd_kafka_message_t *message)
{
	if (message->offset <= assignment->last_acked.offset)
		return;
	assignment->last_acked = anchor_of(kafka, message);
	if (assignment->verified.offset < 0)
		assignment->verified = assignment->last_acked;
}

void semel_kafka_anchor_expect(struct semel_kafka_assignment *assignment,
			       struct semel_anchor anchor, bool from_offset_store)
{
	for (uint32_t i = 0; i < assignment->expected_count; i++)
		if (assignment->expected[i].anchor.offset == anchor.offset &&
		    assignment->expected[i].anchor.hash == anchor.hash)
			return;
	if (anchor.offset < 0 || assignment->expected_count == SEMEL_KAFKA_EXPECTED_MAX)
		return;
	assignment->expected[assignment->expected_count++] =
		(struct semel_kafka_expected){ .anchor = anchor,
					       .from_offset_store = from_offset_store };
	assignment->unverified = true;
}

/* A log that was truncated may grow past our offset before the next check: so the record that was
 * acked last before the error is expected too, not only the verified one. */
static void expect_last_acked(struct semel_kafka_assignment *assignment)
{
	bool unverified = assignment->unverified;
	if (!assignment->owned || assignment->verified.offset < 0)
		return;
	if (assignment->expected_count == 0)
		assignment->candidate = assignment->last_acked;
	semel_kafka_anchor_expect(assignment, assignment->verified, false);
	semel_kafka_anchor_expect(assignment, assignment->last_acked, false);
	assignment->unverified = unverified; /* delivery continues meanwhile */
}

void semel_kafka_anchor_recheck(struct semel_kafka *kafka)
{
	int64_t soon_ms = semel_steady_ms(kafka->env) + RECHECK_MS;
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		expect_last_acked(&kafka->assignments[i]);
	if (kafka->check.next_ms > soon_ms)
		kafka->check.next_ms = soon_ms;
}

/* ---- another log ----------------------------------------------------------------------------- */

/* One offset of the partition: its beginning or its end. -1: unknown. */
static int64_t edge_of(struct semel_kafka *kafka, const struct semel_kafka_assignment *assignment,
		       int64_t which)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(1);
	rd_kafka_topic_partition_t *entry =
		library->topic_partition_list_add(list, assignment->topic, assignment->partition);
	entry->offset = which;
	semel_status status = semel_kafka_resolve_offsets(kafka, kafka->producer, list, NULL);
	int64_t offset = status == SEMEL_OK ? list->elems[0].offset : -1;
	library->topic_partition_list_destroy(list);
	return offset;
}

/* Commits the beginning, which removes the anchors of the old log. If that fails, the next owner
 * finds again that they are missing. */
static void commit_beginning(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(1);
	rd_kafka_topic_partition_t *entry =
		library->topic_partition_list_add(list, assignment->topic, assignment->partition);
	entry->offset = assignment->position;
	rd_kafka_resp_err_t err = semel_kafka_commit_sync(kafka, list);
	if (err)
		semel_log(SEMEL_LOG_DEBUG, "cannot commit the start offset of a replaced topic",
			  &(struct semel_log_fields){ .topic = assignment->event_topic,
						      .error = library->err2str(err) });
	library->topic_partition_list_destroy(list);
}

semel_status semel_kafka_log_replaced(struct semel_kafka *kafka,
				      struct semel_kafka_assignment *assignment, const char *what,
				      semel_error *error)
{
	int64_t begin = edge_of(kafka, assignment, RD_KAFKA_OFFSET_BEGINNING);
	semel_status status = SEMEL_OK;
	semel_log(
		SEMEL_LOG_WARN, what,
		&(struct semel_log_fields){ .consumer = kafka->scope,
					    .topic = semel_kafka_own_name(kafka, assignment->topic),
					    .partition = assignment->partition,
					    .offset = assignment->position,
					    .has_position = true });
	semel_kafka_assignment_clear(kafka, assignment);
	assignment->position = assignment->next_offset = begin >= 0 ? begin : 0;
	assignment->committed = assignment->position;
	assignment->fetched_to = assignment->next_offset;
	assignment->last_acked = assignment->verified = assignment->candidate = SEMEL_ANCHOR_NONE;
	commit_beginning(kafka, assignment);
	if (kafka->offset_store && assignment->tier == 0)
		status = kafka->offset_store->reset(kafka->offset_store->user,
						    assignment->event_topic, assignment->partition,
						    assignment->position, error);
	kafka->must_reopen = true;
	if (status != SEMEL_OK)
		return status;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "topic %s was replaced or truncated; it is read from its beginning",
			       semel_kafka_own_name(kafka, assignment->topic));
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The first expected record was found, or can no longer be found. */
static void accept_first(struct semel_kafka_assignment *assignment)
{
	assignment->requested = false;
	assignment->expected_count--;
	memmove(assignment->expected, assignment->expected + 1,
		assignment->expected_count * sizeof(assignment->expected[0]));
	if (assignment->expected_count > 0)
		return;
	assignment->unverified = false;
	if (assignment->candidate.offset >= 0)
		assignment->verified = assignment->candidate;
}

/* The log continues after the anchor, but the anchor is missing. Only in a topic that keeps every
 * record between its beginning and its end does that mean another log. */
static semel_status check_gap(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment,
			      semel_error *error)
{
	int64_t begin = edge_of(kafka, assignment, RD_KAFKA_OFFSET_BEGINNING);
	if (begin < 0) { /* requested again in the next round */
		assignment->requested = false;
		return SEMEL_OK;
	}
	if (begin > assignment->expected[0].anchor.offset ||
	    !semel_kafka_has_all_records(kafka, assignment->topic)) {
		accept_first(assignment);
		return SEMEL_OK;
	}
	return semel_kafka_log_replaced(kafka, assignment, replaced, error);
}

/* A new leader may not know the end yet; then it does not answer. */
static semel_status check_end(struct semel_kafka *kafka, struct semel_kafka_assignment *assignment,
			      semel_error *error)
{
	int64_t end = edge_of(kafka, assignment, RD_KAFKA_OFFSET_END);
	assignment->requested = false;
	return end < 0 || end > assignment->expected[0].anchor.offset
		       ? SEMEL_OK
		       : semel_kafka_log_replaced(kafka, assignment, shortened, error);
}

/* The offset store has the hash of the event's id, as the consumer read it. */
static bool matches_stored_anchor(struct semel_kafka *kafka,
				  const struct semel_kafka_assignment *assignment,
				  const rd_kafka_message_t *message, uint64_t hash)
{
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	struct semel_delivery delivery;
	bool same = !arena ||
		    !semel_kafka_read_record(kafka, assignment, message, arena, &delivery) ||
		    !delivery.event.id.data || semel_event_hash_id(delivery.event.id) == hash;
	if (arena)
		semel_arena_free(arena);
	return same;
}

static semel_status check_record(struct semel_kafka *kafka,
				 struct semel_kafka_assignment *assignment,
				 const rd_kafka_message_t *message, semel_error *error)
{
	const struct semel_kafka_expected *expected = &assignment->expected[0];
	uint64_t hash = expected->anchor.hash;
	if (message->offset > expected->anchor.offset)
		return check_gap(kafka, assignment, error);
	if (message->offset < expected->anchor.offset)
		return check_end(kafka, assignment, error);
	if (expected->from_offset_store ? !matches_stored_anchor(kafka, assignment, message, hash)
					: anchor_of(kafka, message).hash != hash)
		return semel_kafka_log_replaced(kafka, assignment, replaced, error);
	accept_first(assignment);
	return SEMEL_OK;
}

static semel_status check_answer(struct semel_kafka *kafka, const rd_kafka_message_t *message,
				 semel_error *error)
{
	const char *topic = message->rkt ? kafka->library->topic_name(message->rkt) : NULL;
	struct semel_kafka_assignment *assignment =
		topic ? semel_kafka_assignment_find(kafka, topic, message->partition) : NULL;
	if (!assignment || !assignment->requested)
		return SEMEL_OK;
	if (!message->err)
		return check_record(kafka, assignment, message, error);
	if (message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
		return SEMEL_OK;
	return message->offset > assignment->expected[0].anchor.offset
		       ? check_gap(kafka, assignment, error)
		       : check_end(kafka, assignment, error);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static bool is_any_requested(const struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].requested)
			return true;
	return false;
}

/* Expects the verified record of every owned partition again. */
static void expect_verified(struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		if (!assignment->owned || assignment->expected_count > 0 ||
		    assignment->verified.offset < 0)
			continue;
		assignment->expected[assignment->expected_count++].anchor = assignment->verified;
		assignment->expected[0].from_offset_store = false;
		assignment->candidate = assignment->last_acked;
	}
}

static rd_kafka_topic_partition_list_t *list_expected(struct semel_kafka *kafka)
{
	rd_kafka_topic_partition_list_t *list = kafka->library->topic_partition_list_new(8);
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		assignment->requested = assignment->owned && assignment->expected_count > 0;
		if (assignment->requested)
			kafka->library
				->topic_partition_list_add(list, assignment->topic,
							   assignment->partition)
				->offset = assignment->expected[0].anchor.offset;
	}
	return list;
}

static semel_status make_reader(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = semel_kafka_record_reader_new(kafka, &kafka->check.reader, error);
	if (status != SEMEL_OK)
		return status;
	kafka->check.queue = kafka->library->queue_get_consumer(kafka->check.reader);
	if (kafka->wake)
		semel_kafka_notify_on(kafka, kafka->check.queue);
	return SEMEL_OK;
}

static semel_status begin_round(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = SEMEL_OK;
	rd_kafka_topic_partition_list_t *list = list_expected(kafka);
	if (list->cnt == 0)
		goto destroy_list;
	if (!kafka->check.reader) {
		status = make_reader(kafka, error);
		if (status != SEMEL_OK)
			goto destroy_list;
	}
	rd_kafka_resp_err_t err = kafka->library->assign(kafka->check.reader, list);
	if (err)
		status = semel_kafka_call_failed(kafka, err, "read a record", error);
	kafka->check.running = true;
	kafka->check.until_ms = semel_steady_ms(kafka->env) + ROUND_MS;

destroy_list:
	kafka->library->topic_partition_list_destroy(list);
	return status;
}

/* Records that were not found are requested again in the next round. */
static void end_round(struct semel_kafka *kafka)
{
	kafka->check.running = false;
	(void)kafka->library->assign(kafka->check.reader, NULL);
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		if (assignment->requested && assignment->unverified)
			semel_log(SEMEL_LOG_WARN, "partition not read until its anchor is verified",
				  &(struct semel_log_fields){
					  .detail = "is the leader of the partition running?",
					  .consumer = kafka->scope,
					  .topic = semel_kafka_own_name(kafka, assignment->topic),
					  .partition = assignment->partition,
					  .offset = assignment->expected[0].anchor.offset,
					  .has_position = true });
		assignment->requested = false;
	}
}

static semel_status handle_answers(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = SEMEL_OK;
	rd_kafka_message_t *message;
	while (status == SEMEL_OK && is_any_requested(kafka) &&
	       semel_steady_ms(kafka->env) < kafka->check.until_ms &&
	       (message = kafka->library->consumer_poll(kafka->check.reader, 0)) != NULL) {
		status = check_answer(kafka, message, error);
		kafka->library->message_destroy(message);
	}
	if (!is_any_requested(kafka) || semel_steady_ms(kafka->env) >= kafka->check.until_ms)
		end_round(kafka);
	return status;
}

/* Kafka deletes the offsets of a topic together with the topic. For a partition in which nothing
 * was acked yet, this is the only sign of another log. */
static semel_status check_committed_offsets(struct semel_kafka *kafka, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	semel_status status = SEMEL_OK;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(8);
	for (uint32_t i = 0; i < kafka->assignment_count; i++) {
		const struct semel_kafka_assignment *assignment = &kafka->assignments[i];
		if (assignment->owned && !assignment->releasing &&
		    assignment->verified.offset < 0 && assignment->position > 0 &&
		    assignment->committed == assignment->position)
			library->topic_partition_list_add(list, assignment->topic,
							  assignment->partition);
	}
	rd_kafka_resp_err_t err =
		list->cnt > 0 && !kafka->committing && !semel_kafka_group_is_joining(kafka)
			? library->committed(kafka->consumer, list, VANISH_MS)
			: RD_KAFKA_RESP_ERR__NO_OFFSET;
	for (int i = 0; i < list->cnt && !err && status == SEMEL_OK; i++) {
		const rd_kafka_topic_partition_t *entry = &list->elems[i];
		struct semel_kafka_assignment *assignment =
			semel_kafka_assignment_find(kafka, entry->topic, entry->partition);
		if (assignment && !entry->err && entry->offset < 0)
			status = semel_kafka_log_replaced(kafka, assignment, vanished, error);
	}
	library->topic_partition_list_destroy(list);
	return status;
}

/* The more partitions are checked, the longer the pause: reading a record means reading its
 * batch. */
static int64_t pause_ms(const struct semel_kafka *kafka)
{
	int64_t pause = SEMEL_KAFKA_CHECK_MS;
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		pause += kafka->assignments[i].verified.offset >= 0 ? PAUSE_EACH_MS : 0;
	return pause < PAUSE_MAX_MS ? pause : PAUSE_MAX_MS;
}

static bool is_any_unverified(const struct semel_kafka *kafka)
{
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].owned && kafka->assignments[i].unverified)
			return true;
	return false;
}

static semel_status check_partitions(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = semel_kafka_group_add_retry_topics(kafka, error);
	if (status != SEMEL_OK)
		return status;
	return check_committed_offsets(kafka, error);
}

semel_status semel_kafka_anchor_check(struct semel_kafka *kafka, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(kafka->env);
	semel_status status = SEMEL_OK;
	if (kafka->must_reopen)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "a replaced topic is read from its beginning");
	if (kafka->check.running)
		status = handle_answers(kafka, error);
	if (status != SEMEL_OK || kafka->check.running || kafka->down_since_ms > 0)
		return status;
	if (now_ms < kafka->check.next_ms)
		return is_any_unverified(kafka) ? begin_round(kafka, error) : SEMEL_OK;
	kafka->check.next_ms = now_ms + pause_ms(kafka);
	status = check_partitions(kafka, error);
	expect_verified(kafka);
	if (status != SEMEL_OK)
		return status;
	return begin_round(kafka, error);
}

void semel_kafka_anchor_close(struct semel_kafka *kafka)
{
	if (!kafka->check.reader)
		return;
	semel_kafka_notify_off(kafka, kafka->check.queue);
	kafka->library->queue_destroy(kafka->check.queue);
	kafka->library->destroy_flags(kafka->check.reader, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
	kafka->check.reader = NULL;
}
