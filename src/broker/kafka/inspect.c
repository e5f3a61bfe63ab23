/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits for a subscription, and whether a given event does. */
#include "base/error.h"
#include "broker/kafka/kafka.h"

#include <string.h>

/* ---- how much -------------------------------------------------------------------------------- */

/* When the first record of the retry topic is due, as far as is known. */
static int64_t due_of(const struct semel_kafka *kafka, const struct semel_kafka_offset_range *range)
{
	int64_t now_ms = semel_now_ms(kafka->env);
	if (range->assignment && range->assignment->due_ms > 0)
		return range->assignment->due_ms;
	if (kafka->tier_due_ms[range->tier] > now_ms)
		return kafka->tier_due_ms[range->tier];
	return now_ms + semel_kafka_tier_ms(range->tier);
}

static void count(const struct semel_kafka *kafka, const struct semel_kafka_offset_range *range,
		  struct semel_backlog *backlog)
{
	uint64_t waiting = (uint64_t)(range->end - range->from);
	if (range->assignment) {
		uint64_t acked = semel_kafka_assignment_acked_ahead(range->assignment);
		waiting -= acked < waiting ? acked : waiting;
		if (waiting == 0 && range->assignment->unverified)
			waiting = 1; /* not known before the check */
	}
	backlog->waiting += waiting;
	if (waiting == 0 || range->tier < 2)
		return;
	int64_t due_ms = due_of(kafka, range);
	backlog->delayed += waiting;
	if (backlog->next_due_ms == 0 || due_ms < backlog->next_due_ms)
		backlog->next_due_ms = due_ms;
}

semel_status semel_kafka_backlog(struct semel_broker *broker, const char *scope,
				 const char *const *topics, struct semel_backlog *backlog_out,
				 semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct semel_kafka_backlog_scan scan;
	*backlog_out = (struct semel_backlog){ 0 };
	semel_status status = semel_kafka_backlog_scan_run(kafka, scope, topics, &scan, error);
	for (size_t i = 0; i < scan.count && status == SEMEL_OK; i++)
		count(kafka, &scan.ranges[i], backlog_out);
	semel_kafka_backlog_scan_free(&scan);
	return status;
}

/* ---- one event ------------------------------------------------------------------------------- */

/* A consumer of no group that reads what waits, once. */
struct search {
	rd_kafka_t *consumer;
	struct semel_kafka_backlog_scan scan;
	size_t unread; /* ranges that are not read to their end */
	struct semel_text id;
	bool found;
};

static struct semel_kafka_offset_range *range_of(struct search *search, const char *topic,
						 int32_t partition)
{
	for (size_t i = 0; i < search->scan.count; i++)
		if (search->scan.ranges[i].partition == partition &&
		    strcmp(search->scan.ranges[i].topic, topic) == 0)
			return &search->scan.ranges[i];
	return NULL;
}

static bool is_settled(const struct semel_kafka_offset_range *range, int64_t offset)
{
	const struct semel_kafka_assignment *assignment = range->assignment;
	for (size_t i = 0; assignment && i < assignment->length; i++)
		if (assignment->unacked[assignment->start + i].offset == offset)
			return !assignment->unacked[assignment->start + i].message;
	return false;
}

static void check_record(struct semel_kafka *kafka, struct search *search,
			 rd_kafka_message_t *message)
{
	const char *topic = message->rkt ? kafka->library->topic_name(message->rkt) : NULL;
	struct semel_kafka_offset_range *range =
		topic ? range_of(search, topic, message->partition) : NULL;
	bool over = message->err != RD_KAFKA_RESP_ERR_NO_ERROR;
	if (!range || range->from >= range->end ||
	    (over && message->err != RD_KAFKA_RESP_ERR__PARTITION_EOF))
		return;
	struct semel_text id =
		over ? (struct semel_text){ NULL, 0 } : semel_kafka_header(kafka, message, "ce_id");
	if (!id.data && !over)
		id = semel_kafka_header(kafka, message, "id"); /* of an adopted outbox */
	if (id.data && message->offset < range->end && semel_text_equal(id, search->id) &&
	    !is_settled(range, message->offset))
		search->found = true;
	range->from = over ? range->end : message->offset + 1;
	if (range->from >= range->end)
		search->unread--;
}

static semel_status read_ranges(struct semel_kafka *kafka, struct search *search,
				semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	int64_t progress_ms = semel_steady_ms(kafka->env);
	while (search->unread > 0 && !search->found) {
		rd_kafka_message_t *message = library->consumer_poll(search->consumer, 100);
		if (!message && semel_steady_ms(kafka->env) - progress_ms > SEMEL_KAFKA_CALL_MS)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "%s does not return the waiting records (does "
					       "every partition have a leader? try again, or check "
					       "the brokers' logs)",
					       kafka->address);
		if (!message)
			continue;
		if (!message->err)
			progress_ms = semel_steady_ms(kafka->env);
		check_record(kafka, search, message);
		library->message_destroy(message);
	}
	return SEMEL_OK;
}

static semel_status run_search(struct semel_kafka *kafka, struct search *search, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_topic_partition_list_t *list = library->topic_partition_list_new(8);
	for (size_t i = 0; i < search->scan.count; i++) {
		const struct semel_kafka_offset_range *range = &search->scan.ranges[i];
		if (range->from >= range->end)
			continue;
		library->topic_partition_list_add(list, range->topic, range->partition)->offset =
			range->from;
		search->unread++;
	}
	semel_status status = SEMEL_OK;
	if (search->unread == 0)
		goto destroy_list;
	status = semel_kafka_observer_make(kafka, "semel-look", &search->consumer, error);
	if (status != SEMEL_OK)
		goto destroy_list;
	rd_kafka_resp_err_t err = library->assign(search->consumer, list);
	status = err ? semel_kafka_call_failed(kafka, err, "read the backlog", error)
		     : read_ranges(kafka, search, error);
	library->destroy_flags(search->consumer, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);

destroy_list:
	library->topic_partition_list_destroy(list);
	return status;
}

semel_status semel_kafka_find_event(struct semel_broker *broker, const char *scope,
				    const char *const *topics, const char *event_id,
				    bool *waiting_out, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	struct search search = { .id = semel_text_of(event_id) };
	semel_status status =
		semel_kafka_backlog_scan_run(kafka, scope, topics, &search.scan, error);
	if (status != SEMEL_OK)
		goto free_scan;
	status = run_search(kafka, &search, error);
free_scan:
	*waiting_out = search.found;
	semel_kafka_backlog_scan_free(&search.scan);
	return status;
}
