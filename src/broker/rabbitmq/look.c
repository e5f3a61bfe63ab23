/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits. The broker counts what is ready in a queue, not what is in somebody's hands: our
 * own deliveries are added, those of another consumer are not known.
 *
 * A message that leaves a tier is in no queue for a moment. So whatever a tier had and has no
 * longer counts as waiting until it has arrived here, or for a second.
 *
 * Tiers are counted as they are there, not as the settings of this process want them: another one,
 * or an earlier start, may have had longer delays. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdlib.h>
#include <string.h>

#define TRANSIT_MS   1000
#define MISSING_MS   600000
#define ASK_AGAIN_MS 1000

/* ---- tiers ----------------------------------------------------------------------------------- */

static struct semel_rabbit_tier_note *note_of(struct semel_rabbit *rabbit, const char *queue)
{
	for (size_t i = 0; i < rabbit->tier_count; i++)
		if (strcmp(rabbit->tiers[i].queue, queue) == 0)
			return &rabbit->tiers[i];
	struct semel_rabbit_tier_note *tiers =
		realloc(rabbit->tiers, (rabbit->tier_count + 1) * sizeof(rabbit->tiers[0]));
	if (tiers)
		rabbit->tiers = tiers;
	char *copy = tiers ? strdup(queue) : NULL;
	if (!copy)
		return NULL;
	rabbit->tiers[rabbit->tier_count] = (struct semel_rabbit_tier_note){ .queue = copy };
	return &rabbit->tiers[rabbit->tier_count++];
}

void semel_rabbit_tier_added(struct semel_rabbit *rabbit, const char *queue)
{
	struct semel_rabbit_tier_note *note = note_of(rabbit, queue);
	if (!note)
		return; /* it is a courtesy to those who drain */
	note->count++;
	for (size_t i = 0; i < rabbit->tier_count; i++)
		rabbit->tiers[i].missing_until_ms = 0; /* shorter ones were made with it */
	note->added_ms = semel_now_ms(rabbit->env);
}

void semel_rabbit_tier_arrived(struct semel_rabbit *rabbit, struct semel_text queue)
{
	if (rabbit->in_transit > 0) {
		rabbit->in_transit--;
		return;
	}
	for (size_t i = 0; i < rabbit->tier_count; i++)
		if (semel_text_equal(semel_text_of(rabbit->tiers[i].queue), queue) &&
		    rabbit->tiers[i].count > 0)
			rabbit->tiers[i].count--;
}

static void note_tier(struct semel_rabbit *rabbit, const char *queue, uint64_t ready)
{
	struct semel_rabbit_tier_note *note = note_of(rabbit, queue);
	if (!note)
		return;
	if (note->count > ready) {
		rabbit->in_transit += note->count - ready;
		rabbit->transit_until_ms = semel_steady_ms(rabbit->env) + TRANSIT_MS;
	}
	note->count = ready;
}

/* When the first of the tier is due at the latest, as far as we know. */
static int64_t due_of(struct semel_rabbit *rabbit, const char *queue, uint32_t tier)
{
	const struct semel_rabbit_tier_note *note = note_of(rabbit, queue);
	int64_t now_ms = semel_now_ms(rabbit->env), length_ms = semel_rabbit_tier_ms(tier);
	int64_t due_ms = note && note->added_ms > 0 ? note->added_ms + length_ms : 0;
	return due_ms > now_ms ? due_ms : now_ms + length_ms;
}

/* Each question for a queue that is not there is a line in the broker's log of errors. So it is
 * asked for again after a while; or when nothing else waits, before that is said. */
static semel_status count_tier(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
			       semel_error *error)
{
	struct semel_rabbit_tier_note *note = note_of(rabbit, queue);
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (note && now_ms < note->missing_until_ms)
		return SEMEL_NOT_FOUND;
	semel_status status = semel_rabbit_count(rabbit, queue, ready_out, NULL, error);
	if (status == SEMEL_BUSY) {
		*ready_out = note ? note->count : 0; /* as it was */
		return SEMEL_OK;
	}
	if (note)
		note->missing_until_ms = status == SEMEL_NOT_FOUND ? now_ms + MISSING_MS : 0;
	return status;
}

static semel_status count_tiers(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				struct semel_backlog *backlog, semel_error *error)
{
	uint32_t last = semel_rabbit_tier_for(INT64_MAX);
	for (uint32_t tier = 1; tier <= last; tier++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		uint64_t ready = 0;
		semel_status status = semel_rabbit_tier_name(home, tier, queue, error);
		if (status == SEMEL_OK)
			status = count_tier(rabbit, queue, &ready, error);
		if (status == SEMEL_NOT_FOUND)
			continue; /* longer ones may be there: of other settings */
		if (status != SEMEL_OK)
			return status;
		note_tier(rabbit, queue, ready);
		backlog->waiting += ready;
		backlog->delayed += ready;
		int64_t due_ms = ready > 0 ? due_of(rabbit, queue, tier) : 0;
		if (due_ms > 0 && (backlog->next_due_ms == 0 || due_ms < backlog->next_due_ms))
			backlog->next_due_ms = due_ms;
	}
	return SEMEL_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static semel_status count_own(struct semel_rabbit *rabbit, const char *topic,
			      struct semel_backlog *backlog, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++) {
		uint64_t ready = 0;
		if (strcmp(rabbit->shares[i].topic, topic) != 0)
			continue;
		if (rabbit->settings.stream) {
			status = semel_rabbit_stream_waiting(rabbit, i, &ready, error);
			backlog->waiting += ready;
			continue;
		}
		status = semel_rabbit_share_count(rabbit, i, &ready, error);
		backlog->waiting += ready + semel_rabbit_share_unacked(&rabbit->shares[i]);
	}
	return status;
}

static semel_status count_stream(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				 uint32_t number, uint64_t *waiting_out, semel_error *error)
{
	struct semel_rabbit_probe probe = { 0 };
	semel_status status = semel_rabbit_stream_look(rabbit, home, number, &probe, error);
	*waiting_out = probe.count;
	return status;
}

static semel_status count_queues(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				 struct semel_backlog *backlog, semel_error *error)
{
	for (uint32_t number = 1; number <= home->partitions; number++) {
		char queue[SEMEL_RABBIT_NAME_SIZE];
		uint64_t ready = 0;
		uint32_t consumers = 0;
		semel_status status = semel_rabbit_queue_name(
			home, home->partitions > 1 ? number : 0, queue, error);
		if (status == SEMEL_OK)
			status = rabbit->settings.stream
					 ? count_stream(rabbit, home, number, &ready, error)
					 : semel_rabbit_count(rabbit, queue, &ready, &consumers,
							      error);
		if (status != SEMEL_OK)
			return status;
		backlog->waiting += ready;
		backlog->in_flight_unknown |= consumers > 0;
	}
	return SEMEL_OK;
}

static bool is_own_scope(const struct semel_rabbit *rabbit, const char *scope)
{
	return rabbit->scope && strcmp(rabbit->scope, scope) == 0;
}

static void count_transit(const struct semel_rabbit *rabbit, struct semel_backlog *backlog)
{
	if (semel_steady_ms(rabbit->env) < rabbit->transit_until_ms)
		backlog->waiting += rabbit->in_transit;
}

/* Another process may have made a tier since it was asked for. */
static bool forget_missing(struct semel_rabbit *rabbit)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (now_ms < rabbit->missing_asked_ms + ASK_AGAIN_MS)
		return false;
	rabbit->missing_asked_ms = now_ms;
	for (size_t i = 0; i < rabbit->tier_count; i++)
		rabbit->tiers[i].missing_until_ms = 0;
	return true;
}

/* tiers_only: what waits in the queues themselves is not asked for. */
static semel_status count_all(struct semel_rabbit *rabbit, const char *scope,
			      const char *const *topics, bool tiers_only,
			      struct semel_backlog *backlog_out, semel_error *error)
{
	bool own = is_own_scope(rabbit, scope);
	semel_status status = SEMEL_OK;
	*backlog_out = (struct semel_backlog){ 0 };
	for (uint32_t i = 0; topics[i] && status == SEMEL_OK; i++) {
		struct semel_rabbit_home home = { .scope = scope,
						  .topic = topics[i],
						  .partitions = rabbit->partitions };
		if (!own)
			status = semel_rabbit_partitions_of(rabbit, scope, topics[i],
							    &home.partitions, error);
		if (status == SEMEL_OK && home.partitions == 0)
			continue; /* nobody subscribed */
		if (status == SEMEL_OK)
			status = count_tiers(rabbit, &home, backlog_out, error);
		if (status == SEMEL_OK && !tiers_only)
			status = own ? count_own(rabbit, topics[i], backlog_out, error)
				     : count_queues(rabbit, &home, backlog_out, error);
	}
	if (own)
		count_transit(rabbit, backlog_out);
	if (status == SEMEL_NOT_FOUND)
		return semel_error_set(error, SEMEL_OUTAGE, "a queue of %s is gone from %s", scope,
				       rabbit->place);
	return status;
}

semel_status semel_rabbit_backlog(struct semel_broker *broker, const char *scope,
				  const char *const *topics, struct semel_backlog *backlog_out,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = count_all(rabbit, scope, topics, false, backlog_out, error);
	if (status != SEMEL_OK || backlog_out->waiting > 0 || !forget_missing(rabbit))
		return status;
	return count_all(rabbit, scope, topics, false, backlog_out, error);
}

/* To count what waits in a stream is to read it once more, and a new reader needs what one that
 * is at work does not: the coordinator of streams, which may be away for hours. So that is done
 * only when nothing has come for a while. */
semel_status semel_rabbit_next_due(struct semel_broker *broker, const char *scope,
				   const char *const *topics, int64_t *due_ms_out,
				   semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_backlog backlog = { 0 };
	semel_status status =
		count_all(rabbit, scope, topics, rabbit->settings.stream, &backlog, error);
	*due_ms_out = backlog.next_due_ms;
	for (uint32_t i = 0; i < rabbit->share_count && status == SEMEL_OK; i++)
		if (rabbit->settings.stream)
			status = semel_rabbit_stream_check(rabbit, i, error);
	return status;
}

/* A stream can be read by anybody, without a trace. */
static semel_status find_in_stream(struct semel_rabbit *rabbit, struct semel_rabbit_home *home,
				   const char *event_id, bool *waiting_out, semel_error *error)
{
	struct semel_backlog tiers = { 0 };
	semel_status status = semel_rabbit_partitions_of(rabbit, home->scope, home->topic,
							 &home->partitions, error);
	for (uint32_t number = 1; number <= home->partitions && status == SEMEL_OK && !*waiting_out;
	     number++) {
		struct semel_rabbit_probe probe = { .limit = UINT64_MAX,
						    .wanted = semel_text_of(event_id) };
		status = semel_rabbit_stream_look(rabbit, home, number, &probe, error);
		*waiting_out = probe.found;
	}
	if (status == SEMEL_OK && home->partitions > 0 && !*waiting_out)
		status = count_tiers(rabbit, home, &tiers, error);
	*waiting_out = *waiting_out || tiers.waiting > 0;
	return status;
}

/* A queue cannot be looked into without taking from it, which would disturb its order. */
semel_status semel_rabbit_find_event(struct semel_broker *broker, const char *scope,
				     const char *const *topics, const char *event_id,
				     bool *waiting_out, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_backlog backlog = { 0 };
	semel_status status = SEMEL_OK;
	*waiting_out = false;
	if (!rabbit->settings.stream) {
		status = semel_rabbit_backlog(broker, scope, topics, &backlog, error);
		*waiting_out = backlog.waiting > 0;
		return status;
	}
	for (uint32_t i = 0; topics[i] && status == SEMEL_OK && !*waiting_out; i++) {
		struct semel_rabbit_home home = { .scope = scope, .topic = topics[i] };
		status = find_in_stream(rabbit, &home, event_id, waiting_out, error);
	}
	return status;
}
