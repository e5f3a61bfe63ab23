/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/marking.h"

#include "base/error.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "observe/log.h"
#include "observe/metrics.h"

#define UNSEEN_MAX_MS 10000 /* for a refused row of the change stream to become visible */
#define STALLED_STEP  4     /* step of the backoff: always the delay of a fourth attempt */

/* ---- deciding -------------------------------------------------------------------------------- */

static void give_up(const struct semel_refusal_policy *policy, struct semel_mark *mark)
{
	mark->kind = SEMEL_MARK_FAILED;
	mark->holds = policy->poison != SEMEL_POISON_SKIP;
	mark->blocks = policy->poison == SEMEL_POISON_BLOCK;
}

void semel_refusal_decide(const struct semel_refusal_policy *policy, semel_status outcome,
			  int64_t now_ms, uint64_t chance, struct semel_mark *mark)
{
	if (outcome == SEMEL_OK ||
	    (SEMEL_PLANTED("refused-is-published") && outcome == SEMEL_TOO_LARGE)) {
		mark->kind = SEMEL_MARK_PUBLISHED;
		return;
	}
	if (outcome == SEMEL_HELD) {
		mark->kind = SEMEL_MARK_PARKED;
		return;
	}
	if (outcome == SEMEL_STALLED) {
		mark->kind = SEMEL_MARK_RETRY;
		mark->attempts = mark->row->attempts;
		mark->due_ms = now_ms + semel_backoff_ms(policy->backoff, STALLED_STEP, chance);
		return;
	}
	mark->attempts = mark->row->attempts + 1;
	if (semel_status_class(outcome) != SEMEL_CLASS_RETRY ||
	    mark->attempts >= policy->attempts_max) {
		give_up(policy, mark);
		return;
	}
	mark->kind = SEMEL_MARK_RETRY;
	mark->due_ms = now_ms + semel_backoff_ms(policy->backoff, mark->attempts, chance);
}

/* A refusal that costs no attempt is not about the event: the broker has logged it once, and every
 * event would repeat it. */
static void log_refusal(const struct semel_mark *mark)
{
	const struct semel_event *event = &mark->row->event;
	bool quiet = mark->kind == SEMEL_MARK_PARKED ||
		     (mark->kind == SEMEL_MARK_RETRY && mark->attempts == mark->row->attempts);

	semel_log(quiet ? SEMEL_LOG_DEBUG : SEMEL_LOG_WARN,
		  mark->kind == SEMEL_MARK_FAILED  ? "broker refused event, dead-lettered"
		  : mark->kind == SEMEL_MARK_RETRY ? "broker refused event, retrying"
						   : "event parked behind an earlier one",
		  &(struct semel_log_fields){ .message_id = semel_text_shown(event->id),
					      .topic = semel_text_shown(event->topic),
					      .routing_key = semel_text_shown(event->routing_key),
					      .attempt = mark->attempts,
					      .error = mark->reason });
}

/* Which events of a batch to mark; those that were marked early are never marked again. */
enum part {
	PART_WHOLE,
	PART_ANSWERED,
	PART_REFUSED,
};

static bool is_of_part(const struct semel_relay_inflight *inflight, enum part part)
{
	if (inflight->marked || part == PART_WHOLE)
		return !inflight->marked;
	return inflight->answered && (part == PART_ANSWERED || inflight->outcome != SEMEL_OK);
}

static void decide(struct semel_marking *marking, struct semel_relay_batch *batch, enum part part,
		   int64_t now_ms)
{
	for (uint32_t i = 0; i < batch->fetched.count; i++) {
		struct semel_mark *mark = &batch->marks[i];
		if (!is_of_part(&batch->inflight[i], part))
			continue;
		*mark = (struct semel_mark){ .row = &batch->fetched.rows[i],
					     .reason = batch->inflight[i].reason };
		semel_refusal_decide(marking->policy, batch->inflight[i].outcome, now_ms,
				     batch->refused ? semel_random(marking->env) : 0, mark);
	}
}

/* A lane that was lost and taken again has a new epoch: another relay has owned the rows since, and
 * may have recorded other outcomes. */
static bool is_of_this_lease(const struct semel_marking *marking,
			     const struct semel_relay_batch *batch)
{
	if (!batch->lane)
		return batch->epoch == marking->lanes->generation;
	return batch->lane->mine && batch->epoch == batch->lane->lease.epoch;
}

/* ---- writing it down ------------------------------------------------------------------------- */

static struct semel_mark_batch new_mark_batch(const struct semel_marking *marking,
					      const struct semel_relay_batch *batch)
{
	int64_t waited_ms = semel_steady_ms(marking->env) - batch->offered_at_ms;

	return (struct semel_mark_batch){ .now_ms = semel_now_ms(marking->env),
					  .expires_at_ms = semel_lanes_expiry(marking->lanes),
					  .accept_invisible =
						  batch->lane || waited_ms > UNSEEN_MAX_MS };
}

static struct semel_mark_batch marks_for(struct semel_marking *marking,
					 struct semel_relay_batch *batch)
{
	struct semel_mark_batch mark_batch = new_mark_batch(marking, batch);

	decide(marking, batch, PART_WHOLE, mark_batch.now_ms);
	mark_batch.marks = batch->marks;
	mark_batch.count = batch->fetched.count;
	mark_batch.low_seq = marking->source->driver->low_seq(marking->source, batch);
	return mark_batch;
}

/* The marks of one lane, out of those of a batch. */
static semel_status mark_lane(struct semel_marking *marking, const struct semel_relay_batch *batch,
			      enum part part, struct semel_lane *lane, struct semel_mark *marks,
			      semel_error *error)
{
	struct semel_mark_batch mark_batch = new_mark_batch(marking, batch);

	mark_batch.marks = marks;
	mark_batch.low_seq = lane->lease.low_seq;
	for (uint32_t i = 0; i < batch->fetched.count; i++)
		if ((batch->lane || batch->fetched.rows[i].lane == lane->lease.lane) &&
		    is_of_part(&batch->inflight[i], part))
			marks[mark_batch.count++] = batch->marks[i];
	if (mark_batch.count == 0)
		return SEMEL_OK;
	return marking->store->driver->outbox->mark(marking->store, &lane->lease, &mark_batch,
						    error);
}

static void count_mark(struct semel_marking *marking, const struct semel_mark *mark)
{
	marking->published += mark->kind == SEMEL_MARK_PUBLISHED;
	marking->counters.published += mark->kind == SEMEL_MARK_PUBLISHED;
	marking->counters.failed += mark->kind == SEMEL_MARK_FAILED;
	if (mark->kind != SEMEL_MARK_PUBLISHED)
		log_refusal(mark);
}

/* Each lane of the batch is marked in a transaction of its own. */
static void record_marked(struct semel_marking *marking, struct semel_relay_batch *batch,
			  enum part part, const struct semel_lane *lane)
{
	for (uint32_t i = 0; i < batch->fetched.count; i++) {
		struct semel_relay_inflight *inflight = &batch->inflight[i];
		if ((!batch->lane && batch->fetched.rows[i].lane != lane->lease.lane) ||
		    !is_of_part(inflight, part))
			continue;
		count_mark(marking, &batch->marks[i]);
		inflight->marked = true;
		batch->marked_early++;
	}
}

/* The low marks do not move. */
static semel_status mark_part(struct semel_marking *marking, struct semel_relay_batch *batch,
			      enum part part, semel_error *error)
{
	struct semel_lanes *lanes = marking->lanes;
	struct semel_mark *marks =
		semel_arena_alloc(batch->arena, batch->fetched.count * sizeof *marks);

	if (!marks)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for marks");
	decide(marking, batch, part, semel_now_ms(marking->env));
	for (int32_t i = 0; i < lanes->count; i++) {
		struct semel_lane *lane = &lanes->lanes[i];
		if (batch->lane && batch->lane != lane)
			continue;
		semel_status status = mark_lane(marking, batch, part, lane, marks, error);
		if (status != SEMEL_OK)
			return status;
		record_marked(marking, batch, part, lane);
	}
	return SEMEL_OK;
}

/* A batch of all lanes is its source's to mark, unless an event in it was refused. */
static semel_status mark_mixed(struct semel_marking *marking, struct semel_relay_batch *batch,
			       semel_error *error)
{
	if (batch->refused)
		return mark_part(marking, batch, PART_WHOLE, error);
	decide(marking, batch, PART_WHOLE, semel_now_ms(marking->env));
	return SEMEL_OK;
}

/* A part was marked early; the low mark moves with the rest. */
static semel_status mark_rest(struct semel_marking *marking, struct semel_relay_batch *batch,
			      semel_error *error)
{
	struct semel_mark_batch mark_batch = marks_for(marking, batch);
	struct semel_mark *marks =
		semel_arena_alloc(batch->arena, batch->fetched.count * sizeof *marks);

	if (!marks)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for marks");
	mark_batch.marks = marks;
	mark_batch.count = 0;
	for (uint32_t i = 0; i < batch->fetched.count; i++)
		if (!batch->inflight[i].marked)
			marks[mark_batch.count++] = batch->marks[i];
	return marking->store->driver->outbox->mark(marking->store, &batch->lane->lease,
						    &mark_batch, error);
}

static semel_status mark_whole_batch(struct semel_marking *marking, struct semel_relay_batch *batch,
				     semel_error *error)
{
	if (!is_of_this_lease(marking, batch))
		return SEMEL_LEASE_LOST;
	if (!batch->lane)
		return mark_mixed(marking, batch, error);
	if (batch->marked_early > 0)
		return mark_rest(marking, batch, error);
	struct semel_mark_batch mark_batch = marks_for(marking, batch);
	return marking->store->driver->outbox->mark(marking->store, &batch->lane->lease,
						    &mark_batch, error);
}

void semel_marking_mark_unconfirmed(struct semel_marking *marking, semel_error *error)
{
	for (struct semel_relay_batch *batch = marking->window->batches.in_flight; batch;
	     batch = batch->next)
		(void)mark_whole_batch(marking, batch, error);
	(void)semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

/* ---- marking batches ------------------------------------------------------------------------- */

static void count_marks(struct semel_marking *marking, const struct semel_relay_batch *batch)
{
	for (uint32_t i = 0; i < batch->fetched.count; i++)
		if (!batch->inflight[i].marked)
			count_mark(marking, &batch->marks[i]);
}

/* The new owner publishes the events again; the inbox recognises the duplicates. */
static void lose_lane(struct semel_marking *marking, const struct semel_relay_batch *batch)
{
	if (batch->lane && is_of_this_lease(marking, batch))
		batch->lane->mine = false;
	marking->lanes->maintain_at_ms = 0;
}

/* The batch was marked, with this status. */
static semel_status finish_batch(struct semel_marking *marking, struct semel_relay_batch *batch,
				 semel_status status, semel_error *error)
{
	if (status == SEMEL_LEASE_LOST) {
		lose_lane(marking, batch);
		status = SEMEL_OK;
		goto remove_batch;
	}
	if (status != SEMEL_OK)
		goto remove_batch;
	count_marks(marking, batch);
	if (batch->lane || batch->refused)
		status = semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
	if (marking->source->driver->batch_marked)
		marking->source->driver->batch_marked(marking->source, batch);

remove_batch:
	semel_window_remove(marking->window, batch);
	return status;
}

/* Every event in it needs only a plain PUBLISHED mark. */
static bool is_plain(const struct semel_marking *marking, const struct semel_relay_batch *batch)
{
	return batch->lane && batch->unanswered == 0 && !batch->refused && !batch->exceptions &&
	       is_of_this_lease(marking, batch);
}

/* Marks as many plain batches as one statement can. */
static semel_status mark_plain_batches(struct semel_marking *marking, size_t *count_out,
				       semel_error *error)
{
	struct semel_lane_marks marks[SEMEL_MARKING_BATCHES_MAX];
	struct semel_relay_batch *marked[SEMEL_MARKING_BATCHES_MAX];
	size_t count = 0;

	for (struct semel_relay_batch *batch = marking->window->batches.in_flight;
	     batch && count < SEMEL_MARKING_BATCHES_MAX; batch = batch->next) {
		batch->being_marked = is_plain(marking, batch);
		if (batch->being_marked)
			marked[count++] = batch;
	}
	for (size_t i = 0; i < count; i++)
		marks[i] = (struct semel_lane_marks){ .lease = &marked[i]->lane->lease,
						      .batch = marks_for(marking, marked[i]) };
	semel_status status = count == 0 ? SEMEL_OK
					 : marking->store->driver->outbox->mark_lanes(
						   marking->store, marks, count, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = finish_batch(marking, marked[i],
				      marks[i].lost ? SEMEL_LEASE_LOST : SEMEL_OK, error);
	*count_out = count;
	return status;
}

static semel_status mark_all_plain_batches(struct semel_marking *marking, bool *any_out,
					   semel_error *error)
{
	size_t count = SEMEL_MARKING_BATCHES_MAX;
	semel_status status = SEMEL_OK;

	while (count == SEMEL_MARKING_BATCHES_MAX && status == SEMEL_OK) {
		status = mark_plain_batches(marking, &count, error);
		*any_out = *any_out || count > 0;
	}
	return status;
}

semel_status semel_marking_mark_batches(struct semel_marking *marking,
					struct semel_marking_result *result, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (marking->store->driver->outbox->mark_lanes)
		status = mark_all_plain_batches(marking, &result->marked, error);
	for (struct semel_relay_batch *batch = marking->window->batches.in_flight, *next;
	     batch && status == SEMEL_OK; batch = next) {
		next = batch->next;
		if (batch->unanswered > 0)
			continue;
		status = mark_whole_batch(marking, batch, error);
		if (status == SEMEL_NOT_FINISHED) {
			result->deferred = true;
			status = SEMEL_OK;
			continue;
		}
		status = finish_batch(marking, batch, status, error);
		result->marked = true;
	}
	return status;
}

/* ---- before the rest of a batch -------------------------------------------------------------- */

static semel_status mark_refusals_of(struct semel_marking *marking, struct semel_relay_batch *batch,
				     struct semel_marking_result *result, semel_error *error)
{
	semel_status status = mark_part(marking, batch, PART_REFUSED, error);

	if (status == SEMEL_NOT_FINISHED) {
		result->deferred = true;
		return SEMEL_OK;
	}
	if (status == SEMEL_LEASE_LOST) {
		lose_lane(marking, batch);
		status = SEMEL_OK;
	}
	if (status != SEMEL_OK)
		return status;
	semel_window_refusals_marked(marking->window, batch);
	return semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

semel_status semel_marking_mark_refusals(struct semel_marking *marking,
					 struct semel_marking_result *result, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (marking->window->unmarked_refusals == 0)
		return SEMEL_OK;
	for (struct semel_relay_batch *batch = marking->window->batches.in_flight;
	     batch && status == SEMEL_OK; batch = batch->next)
		if (batch->unmarked_refusals > 0 && batch->unanswered > 0 &&
		    is_of_this_lease(marking, batch))
			status = mark_refusals_of(marking, batch, result, error);
	return status;
}

semel_status semel_marking_mark_answered(struct semel_marking *marking, semel_error *error)
{
	semel_status status = SEMEL_OK;

	for (struct semel_relay_batch *batch = marking->window->batches.in_flight;
	     batch && status == SEMEL_OK; batch = batch->next) {
		if (!is_of_this_lease(marking, batch))
			continue;
		status = mark_part(marking, batch, PART_ANSWERED, error);
		if (status == SEMEL_LEASE_LOST || status == SEMEL_NOT_FINISHED)
			status = SEMEL_OK; /* continue with the others */
	}
	return status;
}

/* ---- counting -------------------------------------------------------------------------------- */

void semel_relay_counters_open(struct semel_relay_counters *counters)
{
	*counters = (struct semel_relay_counters){
		.attempts = semel_series(SEMEL_METRIC_PUBLISH_ATTEMPTS, NULL, NULL),
		.done = semel_series(SEMEL_METRIC_PUBLISHED, NULL, NULL),
		.refused = semel_series(SEMEL_METRIC_PUBLISH_NACKED, NULL, NULL),
		.unroutable = semel_series(SEMEL_METRIC_PUBLISH_RETURNED, NULL, NULL),
		.letters = semel_series(SEMEL_METRIC_DLQ_ADDED, NULL, NULL),
		.outstanding = semel_series(SEMEL_METRIC_PUBLISH_OUTSTANDING, NULL, NULL),
		.confirm = semel_series(SEMEL_METRIC_PUBLISH_CONFIRM, NULL, NULL),
	};
}

void semel_relay_counters_add_outcome(struct semel_relay_counters *counters, semel_status outcome,
				      int64_t took_us)
{
	counters->offered++;
	counters->nacked += outcome == SEMEL_NACKED;
	counters->returned += outcome == SEMEL_UNROUTABLE;
	semel_series_observe(counters->confirm, took_us);
}

static void add_to_series(struct semel_series *series, uint64_t *count)
{
	if (*count > 0)
		semel_series_add(series, *count);
	*count = 0;
}

void semel_relay_counters_report(struct semel_relay_counters *counters, uint32_t outstanding)
{
	add_to_series(counters->attempts, &counters->offered);
	add_to_series(counters->done, &counters->published);
	add_to_series(counters->refused, &counters->nacked);
	add_to_series(counters->unroutable, &counters->returned);
	add_to_series(counters->letters, &counters->failed);
	semel_series_set(counters->outstanding, outstanding);
}
