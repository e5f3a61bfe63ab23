/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a dead letter as other programs read it: `semel dlq --json` and the admin API show
 * the same members, and every member is always present. */
#include "deadletter/deadletter.h"

#include "base/time.h"

static void text_member(struct semel_buffer *buffer, const char *name, const char *value)
{
	semel_buffer_printf(buffer, "\"%s\":", name);
	semel_buffer_json_or_null(buffer, semel_text_of(value));
	semel_buffer_string(buffer, ",");
}

static void time_member(struct semel_buffer *buffer, const char *name, int64_t time_ms)
{
	char text[SEMEL_TIME_SIZE];
	semel_time_format(time_ms, text);
	text_member(buffer, name, text);
}

void semel_dead_letter_to_json(const semel_dead_letter *letter, struct semel_buffer *buffer)
{
	semel_buffer_string(buffer, "{");
	text_member(buffer, "dlqEntryId", letter->entry_id);
	text_member(buffer, "originalEventId", letter->event_id);
	text_member(buffer, "eventType", letter->event_type);
	text_member(buffer, "topicName", letter->topic);
	semel_buffer_string(buffer, "\"eventRecord\":");
	semel_event_to_record(letter->event, buffer);
	semel_buffer_string(buffer, ",");
	text_member(buffer, "failureReason", letter->failure_reason);
	time_member(buffer, "failureTimestamp", letter->failed_at_ms);
	text_member(buffer, "sourceService", letter->scope);
	text_member(buffer, "sagaId", letter->saga_id);
	text_member(buffer, "correlationId", letter->correlation_id);
	semel_buffer_printf(buffer, "\"attempts\":%u,\"replayCount\":%u,", letter->attempts,
			    letter->replay_count);
	text_member(buffer, "status", semel_dead_status_name(letter->status));
	text_member(buffer, "discardReason", letter->discard_reason);
	semel_buffer_printf(buffer, "\"parked\":%llu,\"payloadSize\":%llu}",
			    (unsigned long long)letter->parked,
			    (unsigned long long)letter->payload_size);
}
