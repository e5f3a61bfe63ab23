/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/window.h"

#include "base/error.h"

#define DEFERRED_POLL_MS 5 /* the longest delay of a deferred poll */
#define UNFINISHED_MS    1

void semel_window_reset(struct semel_window *window)
{
	semel_relay_batches_reset(&window->batches);
	window->rows = window->unanswered = window->unmarked_refusals = 0;
	window->bytes = 0;
	window->refused = false;
}

/* ---- offered, answered, marked --------------------------------------------------------------- */

void semel_window_add(struct semel_window *window, struct semel_relay_batch *batch)
{
	int64_t now_ms = semel_steady_ms(window->env);

	semel_relay_batch_start(&window->batches, batch);
	batch->offered_at_ms = now_ms;
	batch->unanswered = batch->fetched.count;
	for (uint32_t i = 0; i < batch->fetched.count; i++) {
		batch->inflight[i] = (struct semel_relay_inflight){ .batch = batch };
		batch->bytes += batch->fetched.rows[i].event.payload.length;
	}
	window->sparse = now_ms > window->offered_at_ms;
	window->offered_at_ms = now_ms;
	window->unanswered += batch->fetched.count;
	window->rows += batch->fetched.count;
	window->bytes += batch->bytes;
}

void semel_window_record_outcome(struct semel_window *window, struct semel_relay_inflight *inflight,
				 semel_status outcome, const char *reason)
{
	struct semel_relay_batch *batch = inflight->batch;

	inflight->answered = true;
	inflight->outcome = outcome;
	inflight->reason =
		outcome == SEMEL_OK ? NULL : semel_arena_printf(batch->arena, "%s", reason);
	batch->unanswered--;
	if (batch->unanswered == 0)
		batch->answered_at_ms = semel_steady_ms(window->env);
	window->unanswered--;
	if (outcome == SEMEL_OK)
		return;
	batch->refused = window->refused = true;
	if (outcome != SEMEL_HELD) {
		batch->unmarked_refusals++;
		window->unmarked_refusals++;
	}
}

void semel_window_refusals_marked(struct semel_window *window, struct semel_relay_batch *batch)
{
	window->unmarked_refusals -= batch->unmarked_refusals;
	batch->unmarked_refusals = 0;
}

static bool has_refused(const struct semel_window *window)
{
	for (const struct semel_relay_batch *batch = window->batches.in_flight; batch;
	     batch = batch->next)
		if (batch->refused)
			return true;
	return false;
}

void semel_window_remove(struct semel_window *window, struct semel_relay_batch *batch)
{
	semel_window_refusals_marked(window, batch);
	window->bytes -= batch->bytes;
	window->rows -= batch->fetched.count;
	semel_relay_batch_finish(&window->batches, batch);
	semel_relay_batch_release(&window->batches, batch);
	window->refused = window->refused && has_refused(window);
}

/* ---- questions ------------------------------------------------------------------------------- */

struct semel_read_limits semel_window_read_limits(const struct semel_window *window,
						  bool transaction_open)
{
	if (window->rows >= window->limits.rows_max || (window->refused && !transaction_open) ||
	    window->bytes >= window->limits.bytes_max)
		return (struct semel_read_limits){ 0 };
	return (struct semel_read_limits){ .rows = window->limits.rows_max - window->rows,
					   .bytes = window->limits.bytes_max - window->bytes };
}

bool semel_window_is_behind_refused(const struct semel_window *window,
				    const struct semel_relay_batch *mine, uint32_t at)
{
	const struct semel_event *event = &mine->fetched.rows[at].event;

	if (!window->refused)
		return false;
	for (const struct semel_relay_batch *batch = window->batches.in_flight; batch;
	     batch = batch->next) {
		uint32_t count = batch == mine ? at : batch->fetched.count;
		for (uint32_t i = 0; batch->refused && i < count; i++)
			if (batch->inflight[i].answered && batch->inflight[i].outcome != SEMEL_OK &&
			    semel_event_has_same_aggregate(&batch->fetched.rows[i].event, event))
				return true;
	}
	return false;
}

bool semel_window_has_answered_batch(const struct semel_window *window)
{
	for (const struct semel_relay_batch *batch = window->batches.in_flight; batch;
	     batch = batch->next)
		if (batch->unanswered == 0)
			return true;
	return false;
}

/* Urgent: marking exceptions frees later events of their aggregates; a batch without a lane is
 * collected by its source. */
void semel_window_mark_facts(const struct semel_window *window, struct semel_mark_facts *facts)
{
	facts->batches = facts->rows = 0;
	facts->answered_at_ms = INT64_MAX;
	facts->urgent = false;
	facts->refused = window->refused;
	for (const struct semel_relay_batch *batch = window->batches.in_flight; batch;
	     batch = batch->next) {
		if (batch->unanswered > 0)
			continue;
		facts->batches++;
		facts->rows += batch->fetched.count;
		facts->urgent = facts->urgent || batch->exceptions || !batch->lane;
		if (batch->answered_at_ms < facts->answered_at_ms)
			facts->answered_at_ms = batch->answered_at_ms;
	}
}

semel_status semel_window_check_timeout(struct semel_window *window, bool blocked,
					semel_error *error)
{
	int64_t now_ms = semel_steady_ms(window->env);

	for (struct semel_relay_batch *batch = window->batches.in_flight; batch;
	     batch = batch->next) {
		if (blocked)
			batch->offered_at_ms = now_ms;
		if (batch->unanswered > 0 &&
		    now_ms - batch->offered_at_ms > window->limits.confirm_timeout_ms)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "no confirm from the broker for %u events within "
					       "%lld ms",
					       batch->unanswered,
					       (long long)window->limits.confirm_timeout_ms);
	}
	return SEMEL_OK;
}

/* ---- pacing ---------------------------------------------------------------------------------- */

int64_t semel_pacing_mark_at_ms(const struct semel_mark_facts *facts)
{
	if (facts->batches == 0)
		return INT64_MAX;
	if (facts->refused || facts->urgent || facts->rows >= facts->rows_min ||
	    facts->batches >= facts->batches_max)
		return 0;
	return facts->answered_at_ms + facts->delay_ms;
}

/* Single rows: the next row wakes the relay, which polls the outcomes then. A second wakeup for
 * each outcome would double the work. Where rows are frequent, waiting for outcomes lets them
 * collect.
 */
static bool may_defer_outcomes(const struct semel_outcome_facts *facts)
{
	return facts->broker_works_in_background && facts->sparse && !facts->transactional &&
	       facts->source_listens && facts->can_read;
}

enum semel_outcome_mode semel_pacing_outcome_mode(const struct semel_outcome_facts *facts)
{
	if (may_defer_outcomes(facts))
		return SEMEL_OUTCOMES_DEFERRED;
	return facts->broker_wakes && facts->source_reports_exhausted ? SEMEL_OUTCOMES_WAKE
								      : SEMEL_OUTCOMES_POLLED;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

int64_t semel_pacing_sleep_ms(const struct semel_pacing_facts *facts)
{
	int64_t sleep_ms = facts->unfinished ? UNFINISHED_MS : facts->most_ms;

	if (facts->unanswered > 0 && facts->outcomes == SEMEL_OUTCOMES_POLLED)
		return 0; /* the next step waits */
	if (facts->progressed && facts->may_read)
		return 0;
	if (facts->unanswered > 0 && facts->outcomes == SEMEL_OUTCOMES_DEFERRED)
		sleep_ms = least(sleep_ms, DEFERRED_POLL_MS);
	if (facts->mark_at_ms == INT64_MAX)
		return sleep_ms;
	if (facts->mark_at_ms <= facts->now_ms)
		return 0;
	return least(sleep_ms, facts->mark_at_ms - facts->now_ms);
}
