/* SPDX-License-Identifier: Apache-2.0 */
/* The slot monitor: starts the stream when that is safe, and leaves it when it is not.
 *
 * - A slot that retains too much WAL is dropped at once, whatever is in flight; the rows are
 *   in the table, and polling reads them.
 * - The stream starts only when everything that was committed before its slot has been polled and
 *   marked, and nothing polled is in flight.
 * - A gap in the publication is noticed at the next inspection, and its rows were committed after
 *   the previous one. A low mark moves only to what was complete at an inspection that found no
 *   problem: so polling, which begins at the low marks, finds all of them.
 */
#include "relay/cdc/cdc.h"

#include "base/error.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <stdio.h>
#include <string.h>

#define RETRY_IN_FLIGHT_MS  10   /* while polled events are in flight */
#define RETRY_TRANSITION_MS 100  /* while a reader ends, a slot is created, or events are polled */
#define RETRY_CREATE_MS     1000 /* before a missing slot is created */
#define RETRY_PROBLEM_MS    5000 /* after a failure, or while there is a problem */
#define STANDBY_INTERVAL_MS 5000 /* between two inspections by a relay that owns no lanes */
#define READER_TIMEOUT_MS   5000 /* how long another reader may take to end before polling begins */
#define DRAINED_MS          1000 /* added to the time between two inspections */

#define EXPLAIN(decision, ...) snprintf((decision)->reason, sizeof((decision)->reason), __VA_ARGS__)

/* ---- the rule ------------------------------------------------------------------------------ */

static bool is_same_history(const struct semel_slot_state *state)
{
	return strcmp(state->identity, state->recorded_identity) == 0;
}

static bool is_same_publication(const struct semel_slot_state *state)
{
	return strcmp(state->publication, state->recorded_publication) == 0;
}

static enum semel_slot_action decide_missing(const struct semel_slot_view *view,
					     struct semel_slot_decision *decision)
{
	EXPLAIN(decision, "the replication slot does not exist");
	return view->caught_up ? SEMEL_SLOT_CREATE : SEMEL_SLOT_WAIT;
}

static enum semel_slot_action decide_found(const struct semel_slot_state *state,
					   struct semel_slot_decision *decision)
{
	if (!state->recorded || state->position > state->recorded_position) {
		EXPLAIN(decision, "the slot was created or advanced by another program");
		return SEMEL_SLOT_RESYNC;
	}
	if (state->recorded_publication[0] == '\0') {
		EXPLAIN(decision, "the publication at the time of the last read is not recorded");
		return SEMEL_SLOT_RESYNC;
	}
	if (state->poll_to_seq > 0) {
		EXPLAIN(decision, "events committed before the slot must be polled first");
		return SEMEL_SLOT_POLL_FIRST;
	}
	return SEMEL_SLOT_STREAM;
}

void semel_slot_decide(const struct semel_slot_view *view, struct semel_slot_decision *decision_out)
{
	const struct semel_slot_state *state = view->state;

	*decision_out = (struct semel_slot_decision){ .action = SEMEL_SLOT_POLL };
	bool ours = state->known && state->exists && !state->foreign;
	if (state->problem[0] != '\0' && !ours) {
		EXPLAIN(decision_out, "%s", state->problem);
		return;
	}
	if (!state->exists) {
		decision_out->action = decide_missing(view, decision_out);
		return;
	}
	decision_out->action = SEMEL_SLOT_DROP;
	if (state->lost)
		EXPLAIN(decision_out, "the server has removed WAL that the slot needs");
	else if (state->retained > view->budget)
		EXPLAIN(decision_out,
			"the slot retains %llu MB of WAL, more than its budget of %llu MB",
			(unsigned long long)(state->retained >> 20),
			(unsigned long long)(view->budget >> 20));
	else if (state->recorded && !is_same_history(state))
		EXPLAIN(decision_out,
			"system identifier or timeline changed from %s to %s (restore or failover)",
			state->recorded_identity, state->identity);
	else if (state->recorded_publication[0] != '\0' && !is_same_publication(state))
		EXPLAIN(decision_out, "the publication was changed and may have left out events");
	else if (state->problem[0] != '\0') {
		decision_out->action = SEMEL_SLOT_POLL;
		EXPLAIN(decision_out, "%s", state->problem);
	} else
		decision_out->action = decide_found(state, decision_out);
}

/* ---- what its parts share ------------------------------------------------------------------ */

static void record_retained(const struct semel_slot_state *state)
{
	semel_series_set(semel_series(SEMEL_METRIC_SLOT_RETAINED, NULL, NULL),
			 state->exists ? (int64_t)state->retained : 0);
}

/* Logs a reason once, not at every inspection. */
static void log_reason(struct semel_cdc *cdc, const char *reason)
{
	if (strcmp(cdc->logged_reason, reason) == 0)
		return;
	snprintf(cdc->logged_reason, sizeof cdc->logged_reason, "%s", reason);
	if (reason[0] != '\0')
		semel_log_detail(SEMEL_LOG_WARN, "polling instead of reading the change stream",
				 "%s", reason);
}

static void retry_in(struct semel_cdc *cdc, int64_t wait_ms)
{
	cdc->try_at_ms = semel_steady_ms(cdc->env) + wait_ms;
}

static void add_exception(struct semel_text type, struct semel_text id, void *user)
{
	semel_exception_set_add(user, type, id);
}

bool semel_cdc_is_in_transaction(const struct semel_cdc *cdc)
{
	return cdc->options.transactions && cdc->state == SEMEL_CDC_STREAMING &&
	       cdc->changes->driver->in_transaction(cdc->changes);
}

semel_status semel_cdc_leave_stream(struct semel_cdc *cdc, const char *reason, semel_error *error)
{
	bool transaction_open = semel_cdc_is_in_transaction(cdc);

	cdc->changes->driver->stop(cdc->changes);
	cdc->state = SEMEL_CDC_LEAVING;
	log_reason(cdc, reason);
	retry_in(cdc, RETRY_TRANSITION_MS);
	if (!transaction_open)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "the change stream ended within a transaction: %s", reason);
}

semel_status semel_cdc_label(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			     semel_error *error)
{
	struct semel_cdc *cdc = (struct semel_cdc *)source; /* base is its first member */
	struct semel_slot_state state;
	semel_status status = cdc->changes->driver->inspect(cdc->changes, &state, error);

	if (status != SEMEL_OK)
		return status;
	state.identity[strcspn(state.identity, "/")] = '\0';
	snprintf(name_out, SEMEL_SOURCE_LABEL_SIZE, "semel-%s-%s", state.identity, cdc->slot);
	return SEMEL_OK;
}

/* ---- starting the stream --------------------------------------------------------------------- */

/* What was polled comes through the stream as well, up to the current end of the WAL. An earlier
 * stream may have ended before it reached that position. */
static void catch_up(struct semel_cdc *cdc, uint64_t position)
{
	if (cdc->polled_seq == 0)
		return;
	if (cdc->catch_up_to == 0 || cdc->catch_up_seq < cdc->polled_seq)
		cdc->catch_up_seq = cdc->polled_seq;
	cdc->catch_up_to = position;
	cdc->polled_seq = 0;
}

/* A crash of the database sets the slot back to its last position on disk; what we recorded is
 * durable. Another relay may have read another slot since. */
static uint64_t complete_to(const struct semel_slot_state *state)
{
	return state->complete_position > state->recorded_position ? state->complete_position
								   : state->recorded_position;
}

/* Exceptions that are already in the table; later ones are added when they are marked. */
static semel_status load_exceptions(struct semel_cdc *cdc, semel_error *error)
{
	semel_exception_set_clear(&cdc->exceptions);
	semel_status status = cdc->store->driver->outbox->exceptions_each(cdc->store, add_exception,
									  &cdc->exceptions, error);
	semel_exception_set_loaded(&cdc->exceptions);
	return status;
}

static semel_status begin(struct semel_cdc *cdc, const struct semel_slot_state *state,
			  semel_error *error)
{
	semel_status status = load_exceptions(cdc, error);
	if (status != SEMEL_OK)
		return status;
	semel_feedback_reset(cdc->feedback);
	cdc->generation = cdc->lanes->generation;
	catch_up(cdc, state->current);
	cdc->check_left = SEMEL_CDC_CHECK_WINDOWS * cdc->options.window;
	cdc->check_to = state->current;
	cdc->recorded = complete_to(state);
	cdc->confirmed = state->position;
	cdc->confirmed_ms = cdc->flushed_ms = semel_steady_ms(cdc->env);
	cdc->check_at_ms = 0;
	cdc->next_low_mark.position = 0;
	for (int32_t i = 0; i < cdc->lanes->count; i++)
		cdc->low_seqs[i] = cdc->lanes->lanes[i].lease.low_seq;
	if (cdc->store->driver->outbox->disarm_wakeup)
		cdc->store->driver->outbox->disarm_wakeup(cdc->store);
	cdc->state = SEMEL_CDC_STREAMING;
	cdc->paused = false;
	cdc->busy_since = 0;
	log_reason(cdc, "");
	semel_log_detail(SEMEL_LOG_INFO, "reading the change stream", "slot %s, %llu MB behind",
			 cdc->slot, (unsigned long long)((state->current - state->position) >> 20));
	return SEMEL_OK;
}

/* Until the timeout nothing is read: the stream may start soon. */
static bool is_within_timeout(struct semel_cdc *cdc)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	if (cdc->busy_since == 0)
		cdc->busy_since = now_ms;
	return now_ms - cdc->busy_since < READER_TIMEOUT_MS;
}

/* Another reader is still active: it was terminated, and may take a while to end. */
static void wait_for_reader(struct semel_cdc *cdc, const char *reason)
{
	bool patient = is_within_timeout(cdc);

	cdc->paused = patient || cdc->options.transactions;
	if (!patient)
		log_reason(cdc, reason);
	retry_in(cdc, RETRY_TRANSITION_MS);
}

static semel_status start(struct semel_cdc *cdc, const struct semel_slot_state *state,
			  semel_error *error)
{
	semel_error failure = { .status = SEMEL_OK };

	cdc->paused = true;
	if (cdc->batches->in_flight) {
		retry_in(cdc, RETRY_IN_FLIGHT_MS);
		return SEMEL_OK;
	}
	semel_status status;
	if (state->poll_to_seq > 0) {
		status = cdc->changes->driver->record(cdc->changes, state->recorded_position, 0,
						      state->publication, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = cdc->changes->driver->start(cdc->changes, complete_to(state), cdc->options.wake,
					     cdc->options.transactions, &failure);
	if (status == SEMEL_BUSY) {
		wait_for_reader(cdc, failure.text);
		return SEMEL_OK;
	}
	if (status != SEMEL_OK) {
		cdc->paused = false;
		log_reason(cdc, failure.text);
		retry_in(cdc, RETRY_PROBLEM_MS);
		return SEMEL_OK;
	}
	return begin(cdc, state, error);
}

static semel_status poll_first(struct semel_cdc *cdc, const struct semel_slot_state *state,
			       semel_error *error)
{
	if (semel_poll_read_to(cdc->poll) >= state->poll_to_seq)
		return start(cdc, state, error);
	retry_in(cdc, RETRY_TRANSITION_MS);
	return SEMEL_OK;
}

/* A problem with the slot never stops the relay: it polls, and retries. Without marks polling
 * repeats what the stream has published, so it does not start before the timeout. */
static semel_status poll_and_retry(struct semel_cdc *cdc, semel_status status,
				   const semel_error *error)
{
	if (status == SEMEL_OK)
		return SEMEL_OK;
	cdc->paused = !cdc->options.marks && is_within_timeout(cdc);
	if (!cdc->paused)
		log_reason(cdc, error->text);
	retry_in(cdc, cdc->paused ? RETRY_TRANSITION_MS : RETRY_PROBLEM_MS);
	return SEMEL_OK;
}

static semel_status create_slot(struct semel_cdc *cdc, semel_error *error)
{
	bool made = false;
	semel_status status = cdc->changes->driver->create(cdc->changes, &made, error);

	cdc->creating = status == SEMEL_OK && !made;
	if (made)
		semel_log_detail(SEMEL_LOG_INFO, "created the replication slot", "%s", cdc->slot);
	retry_in(cdc, RETRY_TRANSITION_MS);
	return status;
}

static semel_status drop_slot(struct semel_cdc *cdc, const char *reason, semel_error *error)
{
	semel_status status = cdc->changes->driver->drop(cdc->changes, error);

	cdc->creating = false;
	retry_in(cdc, status == SEMEL_BUSY ? RETRY_TRANSITION_MS : RETRY_CREATE_MS);
	if (status != SEMEL_OK)
		return status == SEMEL_BUSY ? SEMEL_OK : status;
	semel_log_detail(SEMEL_LOG_WARN, "dropped the replication slot", "%s: %s", cdc->slot,
			 reason);
	return SEMEL_OK;
}

/* Everything committed so far is polled first. */
static semel_status resync(struct semel_cdc *cdc, const struct semel_slot_state *state,
			   semel_error *error)
{
	uint64_t position = state->position > state->recorded_position ? state->position
								       : state->recorded_position;

	return cdc->changes->driver->record(cdc->changes, position, state->drawn_seq,
					    state->publication, error);
}

static semel_status apply(struct semel_cdc *cdc, const struct semel_slot_state *state,
			  const struct semel_slot_decision *decision, semel_error *error)
{
	semel_error failure = { .status = SEMEL_OK };

	if (decision->action != SEMEL_SLOT_STREAM) {
		log_reason(cdc, decision->reason);
		cdc->paused = false;
	}
	switch (decision->action) {
	case SEMEL_SLOT_STREAM:
		return start(cdc, state, error);
	case SEMEL_SLOT_POLL_FIRST:
		return poll_first(cdc, state, error);
	case SEMEL_SLOT_RESYNC:
		retry_in(cdc, RETRY_TRANSITION_MS);
		return resync(cdc, state, error);
	case SEMEL_SLOT_CREATE:
		return poll_and_retry(cdc, create_slot(cdc, &failure), &failure);
	case SEMEL_SLOT_DROP:
		return poll_and_retry(cdc, drop_slot(cdc, decision->reason, &failure), &failure);
	case SEMEL_SLOT_WAIT:
		retry_in(cdc, RETRY_CREATE_MS);
		return SEMEL_OK;
	case SEMEL_SLOT_POLL:
		retry_in(cdc, RETRY_PROBLEM_MS);
		return SEMEL_OK;
	}
	return SEMEL_OK;
}

static semel_status inspect(struct semel_cdc *cdc, struct semel_slot_state *state,
			    struct semel_slot_decision *decision, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(cdc->env);
	bool drained =
		cdc->drained_ms > 0 && now_ms - cdc->drained_ms < cdc->options.poll_ms + DRAINED_MS;
	semel_status status = cdc->changes->driver->inspect(cdc->changes, state, error);

	if (status != SEMEL_OK)
		return status;
	record_retained(state);
	semel_slot_decide(&(struct semel_slot_view){ .state = state,
						     .budget = cdc->options.budget,
						     .caught_up = drained },
			  decision);
	return SEMEL_OK;
}

/* WAL is retained from the moment when the creation began, and an open transaction may block
 * the creation for hours. Of all slot problems only this one concerns a slot that is not
 * complete. */
static semel_status continue_creating(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_decision decision;
	semel_status status = inspect(cdc, &state, &decision, error);

	if (status != SEMEL_OK)
		return status;
	if (!state.exists || state.retained <= cdc->options.budget)
		return create_slot(cdc, error);
	semel_log_detail(SEMEL_LOG_WARN, "cancelled the creation of the replication slot",
			 "%s: it was waiting for an open transaction; %s", cdc->slot,
			 decision.reason);
	return drop_slot(cdc, decision.reason, error);
}

semel_status semel_cdc_try_stream(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_decision decision;
	semel_error failure = { .status = SEMEL_OK };

	if (cdc->creating)
		return poll_and_retry(cdc, continue_creating(cdc, &failure), &failure);
	semel_status status = inspect(cdc, &state, &decision, &failure);
	if (status != SEMEL_OK)
		return poll_and_retry(cdc, status, &failure);
	return apply(cdc, &state, &decision, error);
}

/* ---- leaving the stream ---------------------------------------------------------------------- */

semel_status semel_cdc_check_stream(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_decision decision;
	semel_status status = semel_poll_probe_due(cdc->poll, error);

	if (status != SEMEL_OK)
		return status;
	if (semel_exception_set_is_stale(&cdc->exceptions)) {
		status = load_exceptions(cdc, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = inspect(cdc, &state, &decision, error);
	if (status != SEMEL_OK)
		return status;
	if (decision.action == SEMEL_SLOT_STREAM || decision.action == SEMEL_SLOT_POLL_FIRST) {
		semel_cdc_set_next_low_mark(cdc, semel_poll_complete_seq(cdc->poll), state.current);
		return SEMEL_OK;
	}
	status = semel_cdc_leave_stream(cdc, decision.reason, error);
	if (decision.action == SEMEL_SLOT_DROP) {
		semel_error failure = { .status = SEMEL_OK };
		(void)poll_and_retry(cdc, drop_slot(cdc, decision.reason, &failure), &failure);
	}
	return status;
}

void semel_cdc_monitor_slot_on_standby(struct semel_cdc *cdc)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	if (now_ms < cdc->monitor_at_ms)
		return;
	cdc->monitor_at_ms = now_ms + STANDBY_INTERVAL_MS;
	semel_cdc_monitor_slot(cdc);
}

void semel_cdc_monitor_slot(struct semel_cdc *cdc)
{
	struct semel_slot_state state;
	struct semel_slot_decision decision;
	semel_error error = { .status = SEMEL_OK };

	cdc->changes->driver->stop(cdc->changes);
	if (inspect(cdc, &state, &decision, &error) == SEMEL_OK && !state.active &&
	    decision.action == SEMEL_SLOT_DROP)
		(void)drop_slot(cdc, decision.reason, &error);
}
