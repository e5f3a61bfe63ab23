/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/marking.h"

#include "base/error.h"
#include "base/failpoint.h"
#include "observe/log.h"

#define UNSEEN_MAX_MS 10000 /* a refused row of the change stream is waited for, to be seen */

/* ---- judging --------------------------------------------------------------------------------- */

/* What costs no attempt is not the event's fault: the broker has told of it once, and of its events
 * it would be told again and again. */
static void tell_refusal(const struct semel_mark *mark)
{
	const struct semel_event *event = &mark->row->event;
	bool quiet = mark->kind == SEMEL_MARK_PARKED ||
		     (mark->kind == SEMEL_MARK_RETRY && mark->attempts == mark->row->attempts);

	semel_log(quiet ? SEMEL_LOG_DEBUG : SEMEL_LOG_WARN,
		  mark->kind == SEMEL_MARK_FAILED
			  ? "the broker will not take the event; dead letter"
		  : mark->kind == SEMEL_MARK_RETRY ? "the broker refused the event; it comes again"
						   : "the event waits behind an earlier one",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(event->id),
					      .topic = semel_text_shown(event->topic),
					      .routing_key = semel_text_shown(event->routing_key),
					      .attempt = mark->attempts,
					      .error = mark->reason });
}

/* Which events of a load are marked. Those that were marked before the others never are again. */
enum part {
	PART_WHOLE,
	PART_ANSWERED,
	PART_REFUSED,
};

static bool is_of_part(const struct semel_flight *flight, enum part part)
{
	if (flight->marked || part == PART_WHOLE)
		return !flight->marked;
	return flight->answered && (part == PART_ANSWERED || flight->answer != SEMEL_OK);
}

static void judge(struct semel_marking *marking, struct semel_load *load, enum part part,
		  int64_t now_ms)
{
	for (uint32_t i = 0; i < load->batch.count; i++) {
		struct semel_mark *mark = &load->marks[i];
		if (!is_of_part(&load->flights[i], part))
			continue;
		*mark = (struct semel_mark){ .row = &load->batch.rows[i],
					     .reason = load->flights[i].reason };
		semel_refusal_judge(marking->policy, load->flights[i].answer, now_ms,
				    load->refused ? semel_random(marking->env) : 0, mark);
	}
}

/* A lane that was lost and taken again has a new epoch: another relay has had the rows meanwhile,
 * and what was heard of them here is not the last word. */
static bool is_of_this_lease(const struct semel_marking *marking, const struct semel_load *load)
{
	if (!load->lane)
		return load->epoch == marking->lanes->tenure;
	return load->lane->mine && load->epoch == load->lane->lease.epoch;
}

/* ---- writing it down ------------------------------------------------------------------------- */

static struct semel_mark_batch batch_of(const struct semel_marking *marking,
					const struct semel_load *load)
{
	int64_t waited_ms = semel_steady_ms(marking->env) - load->offered_at_ms;

	return (struct semel_mark_batch){ .now_ms = semel_now_ms(marking->env),
					  .expires_at_ms = semel_lanes_expiry(marking->lanes),
					  .accept_invisible =
						  load->lane || waited_ms > UNSEEN_MAX_MS };
}

static struct semel_mark_batch marks_of(struct semel_marking *marking, struct semel_load *load)
{
	struct semel_mark_batch batch = batch_of(marking, load);

	judge(marking, load, PART_WHOLE, batch.now_ms);
	batch.marks = load->marks;
	batch.count = load->batch.count;
	batch.low_seq = marking->source->driver->low_seq(marking->source, load);
	return batch;
}

/* The marks of one lane, out of those of a load. */
static semel_status mark_lane(struct semel_marking *marking, const struct semel_load *load,
			      enum part part, struct semel_lane *lane, struct semel_mark *marks,
			      semel_error *error)
{
	struct semel_mark_batch batch = batch_of(marking, load);

	batch.marks = marks;
	batch.low_seq = lane->lease.low_seq;
	for (uint32_t i = 0; i < load->batch.count; i++)
		if ((load->lane || load->batch.rows[i].lane == lane->lease.lane) &&
		    is_of_part(&load->flights[i], part))
			marks[batch.count++] = load->marks[i];
	if (batch.count == 0)
		return SEMEL_OK;
	return marking->store->driver->outbox_mark(marking->store, &lane->lease, &batch, error);
}

static void count_mark(struct semel_marking *marking, const struct semel_mark *mark)
{
	marking->published += mark->kind == SEMEL_MARK_PUBLISHED;
	semel_relay_tally_mark(marking->tally, mark);
	if (mark->kind != SEMEL_MARK_PUBLISHED)
		tell_refusal(mark);
}

/* They are never marked again. Each lane of the load is a transaction of its own. */
static void note_marked(struct semel_marking *marking, struct semel_load *load, enum part part,
			const struct semel_lane *lane)
{
	for (uint32_t i = 0; i < load->batch.count; i++) {
		struct semel_flight *flight = &load->flights[i];
		if ((!load->lane && load->batch.rows[i].lane != lane->lease.lane) ||
		    !is_of_part(flight, part))
			continue;
		count_mark(marking, &load->marks[i]);
		flight->marked = true;
		load->noted++;
	}
}

/* The low marks stay where they are. */
static semel_status mark_part(struct semel_marking *marking, struct semel_load *load,
			      enum part part, semel_error *error)
{
	struct semel_lanes *lanes = marking->lanes;
	semel_status status = SEMEL_OK;
	struct semel_mark *marks =
		semel_arena_alloc(load->arena, load->batch.count * sizeof *marks);

	if (!marks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for marks");
	judge(marking, load, part, semel_now_ms(marking->env));
	for (int32_t i = 0; i < lanes->count && status == SEMEL_OK; i++) {
		struct semel_lane *lane = &lanes->lanes[i];
		if (load->lane && load->lane != lane)
			continue;
		status = mark_lane(marking, load, part, lane, marks, error);
		if (status == SEMEL_OK)
			note_marked(marking, load, part, lane);
	}
	return status;
}

/* A load of all lanes is its source's to mark, unless something in it was refused. */
static semel_status mark_mixed(struct semel_marking *marking, struct semel_load *load,
			       semel_error *error)
{
	if (load->refused)
		return mark_part(marking, load, PART_WHOLE, error);
	judge(marking, load, PART_WHOLE, semel_now_ms(marking->env));
	return SEMEL_OK;
}

/* Some of it was marked before; the low mark moves with the rest. */
static semel_status mark_rest(struct semel_marking *marking, struct semel_load *load,
			      semel_error *error)
{
	struct semel_mark_batch batch = marks_of(marking, load);
	struct semel_mark *marks =
		semel_arena_alloc(load->arena, load->batch.count * sizeof *marks);

	if (!marks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for marks");
	batch.marks = marks;
	batch.count = 0;
	for (uint32_t i = 0; i < load->batch.count; i++)
		if (!load->flights[i].marked)
			marks[batch.count++] = load->marks[i];
	return marking->store->driver->outbox_mark(marking->store, &load->lane->lease, &batch,
						   error);
}

static semel_status mark_load(struct semel_marking *marking, struct semel_load *load,
			      semel_error *error)
{
	if (!is_of_this_lease(marking, load))
		return SEMEL_LEASE_LOST;
	if (!load->lane)
		return mark_mixed(marking, load, error);
	if (load->noted > 0)
		return mark_rest(marking, load, error);
	struct semel_mark_batch batch = marks_of(marking, load);
	return marking->store->driver->outbox_mark(marking->store, &load->lane->lease, &batch,
						   error);
}

void semel_marking_pretend(struct semel_marking *marking, semel_error *error)
{
	for (struct semel_load *load = marking->window->loads.flying; load; load = load->next)
		(void)mark_load(marking, load, error);
	(void)semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

/* ---- settling -------------------------------------------------------------------------------- */

static void count_marks(struct semel_marking *marking, const struct semel_load *load)
{
	for (uint32_t i = 0; i < load->batch.count; i++)
		if (!load->flights[i].marked)
			count_mark(marking, &load->marks[i]);
}

/* The new owner sends them again; the inbox knows them. */
static void lose_lane(struct semel_marking *marking, const struct semel_load *load)
{
	if (load->lane && is_of_this_lease(marking, load))
		load->lane->mine = false;
	marking->lanes->tend_at_ms = 0;
}

/* It was marked, with this status. */
static semel_status settle_load(struct semel_marking *marking, struct semel_load *load,
				semel_status status, semel_error *error)
{
	if (status == SEMEL_OK) {
		count_marks(marking, load);
		if (load->lane || load->refused)
			status = semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
		if (marking->source->driver->settled)
			marking->source->driver->settled(marking->source, load);
	} else if (status == SEMEL_LEASE_LOST) {
		lose_lane(marking, load);
		status = SEMEL_OK;
	}
	semel_window_remove(marking->window, load);
	return status;
}

/* Nothing in it needs more than one plain mark. */
static bool is_plain(const struct semel_marking *marking, const struct semel_load *load)
{
	return load->lane && load->unanswered == 0 && !load->refused && !load->exceptions &&
	       is_of_this_lease(marking, load);
}

/* Plain loads, as many as one statement takes. */
static semel_status settle_plain(struct semel_marking *marking, size_t *count_out,
				 semel_error *error)
{
	struct semel_lane_marks marks[SEMEL_MARKING_LOADS_MAX];
	struct semel_load *settled[SEMEL_MARKING_LOADS_MAX];
	size_t count = 0;

	for (struct semel_load *load = marking->window->loads.flying;
	     load && count < SEMEL_MARKING_LOADS_MAX; load = load->next) {
		load->settling = is_plain(marking, load);
		if (load->settling)
			settled[count++] = load;
	}
	for (size_t i = 0; i < count; i++)
		marks[i] = (struct semel_lane_marks){ .lease = &settled[i]->lane->lease,
						      .batch = marks_of(marking, settled[i]) };
	semel_status status = count == 0 ? SEMEL_OK
					 : marking->store->driver->outbox_mark_lanes(
						   marking->store, marks, count, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = settle_load(marking, settled[i],
				     marks[i].lost ? SEMEL_LEASE_LOST : SEMEL_OK, error);
	*count_out = count;
	return status;
}

static semel_status settle_all_plain(struct semel_marking *marking, bool *any_out,
				     semel_error *error)
{
	size_t count = SEMEL_MARKING_LOADS_MAX;
	semel_status status = SEMEL_OK;

	while (count == SEMEL_MARKING_LOADS_MAX && status == SEMEL_OK) {
		status = settle_plain(marking, &count, error);
		*any_out = *any_out || count > 0;
	}
	return status;
}

semel_status semel_marking_settle(struct semel_marking *marking,
				  struct semel_marking_result *result, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (marking->store->driver->outbox_mark_lanes)
		status = settle_all_plain(marking, &result->settled, error);
	for (struct semel_load *load = marking->window->loads.flying, *next;
	     load && status == SEMEL_OK; load = next) {
		next = load->next;
		if (load->unanswered > 0)
			continue;
		status = mark_load(marking, load, error);
		if (status == SEMEL_NOT_FINISHED) {
			result->deferred = true;
			status = SEMEL_OK;
			continue;
		}
		status = settle_load(marking, load, status, error);
		result->settled = true;
	}
	return status;
}

/* ---- before the rest of a load --------------------------------------------------------------- */

static semel_status note_load(struct semel_marking *marking, struct semel_load *load,
			      struct semel_marking_result *result, semel_error *error)
{
	semel_status status = mark_part(marking, load, PART_REFUSED, error);

	if (status == SEMEL_NOT_FINISHED) {
		result->deferred = true;
		return SEMEL_OK;
	}
	if (status == SEMEL_LEASE_LOST) {
		lose_lane(marking, load);
		status = SEMEL_OK;
	}
	if (status != SEMEL_OK)
		return status;
	semel_window_note(marking->window, load);
	return semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

semel_status semel_marking_note(struct semel_marking *marking, struct semel_marking_result *result,
				semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (marking->window->unnoted == 0)
		return SEMEL_OK;
	for (struct semel_load *load = marking->window->loads.flying; load && status == SEMEL_OK;
	     load = load->next)
		if (load->unnoted > 0 && load->unanswered > 0 && is_of_this_lease(marking, load))
			status = note_load(marking, load, result, error);
	return status;
}

semel_status semel_marking_salvage(struct semel_marking *marking, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (struct semel_load *load = marking->window->loads.flying; load && status == SEMEL_OK;
	     load = load->next) {
		if (!is_of_this_lease(marking, load))
			continue;
		status = mark_part(marking, load, PART_ANSWERED, error);
		if (status == SEMEL_LEASE_LOST || status == SEMEL_NOT_FINISHED)
			status = SEMEL_OK; /* the others all the same */
	}
	return status;
}
