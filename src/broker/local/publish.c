/* SPDX-License-Identifier: Apache-2.0 */
/* From the relay into the log.
 *
 * - publish() only remembers the event; poll() writes everything that was published in one
 *   transaction, in the order of publishing. Its commit is the confirmation, so no reader sees what
 *   is not durable.
 * - Offsets are drawn under the write lock and commit with their entries: a reader that has seen an
 *   offset has seen all lower ones.
 * - When an event is refused, later ones of its aggregate in the same window are held.
 * - When the transaction fails, nothing was written and the events stay in flight: poll() may be
 *   called again.
 *
 * A delayed retry or a replay is an entry for one subscription, durable when requeue() returns. An
 * event that breaks the contract (no id, no aggregate) is stored like any other.
 */
#include "base/error.h"
#include "broker/local/local.h"
#include "event/hash.h"

#include <stdio.h>
#include <string.h>

semel_status semel_local_publish(struct semel_broker *broker, const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, void *token,
				 semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	if (local->inflight_count == local->window)
		return semel_error_set(error, SEMEL_FULL,
				       "the window is full: %u events are unconfirmed",
				       local->window);
	if (semel_text_is_blank(event->topic))
		return semel_error_set(error, SEMEL_INVALID, "the event names no topic");
	local->inflight[local->inflight_count++] = (struct semel_local_inflight){
		.event = event,
		.metadata = *metadata,
		.token = token,
		.hash = semel_hash_aggregate(event->aggregate_type, event->aggregate_id),
		.status = SEMEL_OK,
	};
	return SEMEL_OK;
}

/* ---- one event ------------------------------------------------------------------------------ */

static bool is_same_aggregate(const struct semel_local_inflight *left,
			      const struct semel_local_inflight *right)
{
	return left->hash == right->hash &&
	       semel_text_equal(left->event->aggregate_type, right->event->aggregate_type) &&
	       semel_text_equal(left->event->aggregate_id, right->event->aggregate_id);
}

static bool is_held(const struct semel_local *local, uint32_t at)
{
	for (uint32_t i = 0; i < at; i++)
		if (local->inflight[i].status != SEMEL_OK &&
		    is_same_aggregate(&local->inflight[i], &local->inflight[at]))
			return true;
	return false;
}

static semel_status count_free_entries(struct semel_local *local, struct semel_local_topic *topic,
				       semel_error *error)
{
	int64_t unacked = 0;
	semel_status status =
		semel_local_get_ints(local, SEMEL_LOCAL_TOPIC_UNSETTLED,
				     SEMEL_LOCAL_INTS(topic->number), &unacked, error);
	int64_t free_entries = local->settings.length_max - unacked;
	topic->free_entries = free_entries > 0 ? free_entries : 0;
	return status;
}

/* Fills in offer->status: OK, or why it is refused. */
static semel_status check_inflight(struct semel_local *local, uint32_t at, bool any_refused,
				   struct semel_local_topic *topic, semel_error *error)
{
	struct semel_local_inflight *inflight = &local->inflight[at];
	const struct semel_event *event = inflight->event;
	inflight->status = SEMEL_OK;
	if (any_refused && is_held(local, at)) {
		inflight->status = SEMEL_HELD;
		return SEMEL_OK;
	}
	if (event->payload.length + event->headers.length > (uint64_t)local->settings.message_max) {
		inflight->status = SEMEL_TOO_LARGE;
		return SEMEL_OK;
	}
	if (local->settings.length_max == 0)
		return SEMEL_OK;
	if (topic->free_entries < 0) {
		semel_status status = count_free_entries(local, topic, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (topic->free_entries == 0)
		inflight->status = SEMEL_NACKED;
	else
		topic->free_entries--;
	return SEMEL_OK;
}

static semel_status append(struct semel_local *local, const struct semel_local_inflight *inflight,
			   struct semel_local_topic *topic, int64_t offset, semel_error *error)
{
	if (offset > SEMEL_LOCAL_OFFSET_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the broker %s has no offsets left (use a new file)",
				       local->path);
	uint32_t partition = (uint32_t)(inflight->hash % topic->partitions);
	semel_status status = semel_local_bind(
		local, SEMEL_LOCAL_LOG_ADD,
		SEMEL_LOCAL_INTS(semel_local_entry_key(topic->number, partition, offset),
				 semel_now_ms(local->env)),
		error);
	if (status != SEMEL_OK)
		return status;
	semel_local_event_bind(local, SEMEL_LOCAL_LOG_ADD, 3, inflight->event, &inflight->metadata);
	status = semel_local_run(local, SEMEL_LOCAL_LOG_ADD, error);
	topic->appended[partition]++;
	topic->touched = true;
	return status;
}

/* ---- the window ----------------------------------------------------------------------------- */

static semel_status count_appended(struct semel_local *local, semel_error *error)
{
	for (uint32_t i = 0; i < local->topic_count; i++) {
		const struct semel_local_topic *topic = local->topics[i];
		for (uint32_t p = 0; topic->touched && p < topic->partitions; p++) {
			if (topic->appended[p] == 0)
				continue;
			semel_status status = semel_local_run_ints(
				local, SEMEL_LOCAL_PARTITION_APPENDED,
				SEMEL_LOCAL_INTS(topic->number, p, topic->appended[p]), error);
			if (status != SEMEL_OK)
				return status;
		}
	}
	return SEMEL_OK;
}

/* Appends the event, or fills in why it is refused. */
static semel_status append_or_refuse(struct semel_local *local, uint32_t at, bool any_refused,
				     int64_t *next, semel_error *error)
{
	struct semel_local_inflight *inflight = &local->inflight[at];
	struct semel_local_topic *topic = NULL;
	semel_status status = semel_local_topic_declare(local, inflight->event->topic,
							local->settings.partitions, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = check_inflight(local, at, any_refused, topic, error);
	if (status != SEMEL_OK || inflight->status != SEMEL_OK)
		return status;
	return append(local, inflight, topic, (*next)++, error);
}

static semel_status append_all(struct semel_local *local, semel_error *error)
{
	int64_t next = 1;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_OFFSET_GET, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_get(local, SEMEL_LOCAL_OFFSET_GET, 1, &next, error);
	if (status != SEMEL_OK)
		return status;
	int64_t first = next;
	bool any_refused = false;
	for (uint32_t i = 0; i < local->inflight_count; i++) {
		status = append_or_refuse(local, i, any_refused, &next, error);
		if (status != SEMEL_OK)
			return status;
		any_refused = any_refused || local->inflight[i].status != SEMEL_OK;
	}
	status = count_appended(local, error);
	if (status != SEMEL_OK || next == first)
		return status;
	return semel_local_run_ints(local, SEMEL_LOCAL_OFFSET_SET, SEMEL_LOCAL_INTS(next), error);
}

static semel_status write_inflight(struct semel_local *local, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	status = append_all(local, error);
	return semel_local_topics_end(local, status, error);
}

static void explain(const struct semel_local *local, const struct semel_local_inflight *inflight,
		    struct semel_publish_outcome *outcome)
{
	const struct semel_event *event = inflight->event;
	size_t size = sizeof(outcome->reason);
	outcome->reason[0] = '\0';
	if (inflight->status == SEMEL_HELD)
		snprintf(outcome->reason, size, "an earlier event of its aggregate was refused");
	if (inflight->status == SEMEL_NACKED)
		snprintf(outcome->reason, size, "topic %.80s is full (max-length %lld)",
			 semel_text_shown(event->topic), (long long)local->settings.length_max);
	if (inflight->status == SEMEL_TOO_LARGE)
		snprintf(outcome->reason, size,
			 "the event has %zu bytes, more than max-message=%lld",
			 event->payload.length + event->headers.length,
			 (long long)local->settings.message_max);
}

semel_status semel_local_poll(struct semel_broker *broker, int64_t wait_ms,
			      semel_outcome_callback callback, void *user, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	(void)wait_ms; /* the commit is the answer: there is nothing to wait for */
	if (local->inflight_count == 0)
		return SEMEL_OK;
	semel_status status = write_inflight(local, error);
	if (status != SEMEL_OK)
		return status;

	uint32_t reported = local->inflight_count; /* the callback may offer more */
	for (uint32_t i = 0; i < reported; i++) {
		struct semel_publish_outcome outcome = { .token = local->inflight[i].token,
							 .status = local->inflight[i].status };
		explain(local, &local->inflight[i], &outcome);
		callback(&outcome, user);
	}
	local->inflight_count -= reported;
	memmove(local->inflight, local->inflight + reported,
		local->inflight_count * sizeof(local->inflight[0]));
	return SEMEL_OK;
}

/* ---- to one subscription --------------------------------------------------------------------- */

static semel_status add_delayed(struct semel_local *local, const char *scope,
				const struct semel_event *event,
				const struct semel_publish_metadata *metadata, int64_t delay_ms,
				semel_error *error)
{
	struct semel_local_topic *topic = NULL;
	int64_t subscription = 0;
	semel_status status = semel_local_topic_declare(local, event->topic,
							local->settings.partitions, &topic, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_subscription_declare(local, scope, topic, false, &subscription, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_bind(local, SEMEL_LOCAL_DELAYED_ADD,
				  SEMEL_LOCAL_INTS(subscription,
						   semel_local_partition_of(topic, event),
						   semel_now_ms(local->env) + delay_ms),
				  error);
	if (status != SEMEL_OK)
		return status;
	semel_local_event_bind(local, SEMEL_LOCAL_DELAYED_ADD, 4, event, metadata);
	return semel_local_run(local, SEMEL_LOCAL_DELAYED_ADD, error);
}

semel_status semel_local_requeue(struct semel_broker *broker, const char *scope,
				 const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, int64_t delay_ms,
				 semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	if (semel_string_is_blank(scope))
		return semel_error_set(error, SEMEL_INVALID, "a requeued event needs a scope");
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	status = add_delayed(local, scope, event, metadata, delay_ms > 0 ? delay_ms : 0, error);
	return semel_local_topics_end(local, status, error);
}
