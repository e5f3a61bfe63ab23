/* SPDX-License-Identifier: Apache-2.0 */
/* The slot guard: takes the stream up when it is safe, and lets it go when it is not.
 *
 * - A slot that keeps too much of the log is dropped at once, whatever is in flight; the rows are
 *   in the table, and polling reads them.
 * - The stream begins only when everything that was committed before its slot has been polled and
 *   marked, and nothing polled is in flight.
 * - A hole in the publication is noticed at the next look, and its rows were committed after the
 * one before. A low mark stands at what was complete at a look that found nothing wrong: so
 * polling, which begins at the low marks, finds all of them.
 */
#include "relay/cdc/cdc.h"

#include "base/error.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <stdio.h>
#include <string.h>

#define SOON_MS     100
#define AGAIN_MS    1000
#define LATER_MS    5000
#define PATIENCE_MS 5000 /* for another reader to end, before polling begins */
#define DRAINED_MS  1000 /* beside the time between two looks */

static void note_retained(const struct semel_slot_state *state)
{
	semel_series_set(semel_series(SEMEL_METRIC_SLOT_RETAINED, NULL, NULL),
			 state->exists ? (int64_t)state->retained : 0);
}

/* Once, not every second. */
static void tell(struct semel_cdc *cdc, const char *reason)
{
	if (strcmp(cdc->told, reason) == 0)
		return;
	snprintf(cdc->told, sizeof cdc->told, "%s", reason);
	if (reason[0] != '\0')
		semel_logf(SEMEL_LOG_WARN,
			   "the relay polls instead of reading the change stream: %s", reason);
}

static void again_in(struct semel_cdc *cdc, int64_t wait_ms)
{
	cdc->try_at_ms = semel_steady_ms(cdc->env) + wait_ms;
}

static void seen_exception(struct semel_text type, struct semel_text id, void *user)
{
	semel_held_add(user, type, id);
}

bool semel_cdc_is_amid(const struct semel_cdc *cdc)
{
	return cdc->options.transactions && cdc->state == SEMEL_CDC_STREAMING &&
	       cdc->changes->driver->is_amid(cdc->changes);
}

semel_status semel_cdc_leave(struct semel_cdc *cdc, const char *reason, semel_error *error)
{
	bool amid = semel_cdc_is_amid(cdc);

	cdc->changes->driver->stop(cdc->changes);
	cdc->state = SEMEL_CDC_LEAVING;
	tell(cdc, reason);
	again_in(cdc, SOON_MS);
	if (!amid)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "the change stream has ended within a transaction: %s", reason);
}

semel_status semel_cdc_label(struct semel_source *source, char name_out[SEMEL_SOURCE_LABEL_SIZE],
			     semel_error *error)
{
	struct semel_cdc *cdc = (struct semel_cdc *)source; /* base is its first member */
	struct semel_slot_state state;
	semel_status status = cdc->changes->driver->look(cdc->changes, &state, error);

	if (status != SEMEL_OK)
		return status;
	state.identity[strcspn(state.identity, "/")] = '\0';
	snprintf(name_out, SEMEL_SOURCE_LABEL_SIZE, "semel-%s-%s", state.identity, cdc->slot);
	return SEMEL_OK;
}

/* ---- taking it up ---------------------------------------------------------------------------- */

/* What was polled comes through the stream as well, until it has come to where the database is now.
 * An earlier stream may have ended before it was so far. */
static void catch_up(struct semel_cdc *cdc, uint64_t position)
{
	if (cdc->polled_seq == 0)
		return;
	if (cdc->catch_up_to == 0 || cdc->catch_up_seq < cdc->polled_seq)
		cdc->catch_up_seq = cdc->polled_seq;
	cdc->catch_up_to = position;
	cdc->polled_seq = 0;
}

/* A crash of the database sets the slot back to what it last wrote to its disk; what we remember is
 * durable. Another relay may have read another slot meanwhile. */
static uint64_t settled_to(const struct semel_slot_state *state)
{
	return state->settled_position > state->remembered_position ? state->settled_position
								    : state->remembered_position;
}

/* What is refused from now on is added when it is marked: it is in the table then. */
static semel_status learn_held(struct semel_cdc *cdc, semel_error *error)
{
	semel_held_clear(&cdc->held);
	semel_status status = cdc->store->driver->outbox_exceptions(cdc->store, seen_exception,
								    &cdc->held, error);
	semel_held_is_known(&cdc->held);
	return status;
}

static semel_status begin(struct semel_cdc *cdc, const struct semel_slot_state *state,
			  semel_error *error)
{
	semel_status status = learn_held(cdc, error);
	if (status != SEMEL_OK)
		return status;
	semel_feedback_reset(cdc->feedback);
	cdc->tenure = cdc->lanes->tenure;
	catch_up(cdc, state->current);
	cdc->check_left = SEMEL_CDC_CHECK_WINDOWS * cdc->options.window;
	cdc->check_to = state->current;
	cdc->remembered = settled_to(state);
	cdc->confirmed = state->position;
	cdc->confirmed_ms = cdc->flushed_ms = semel_steady_ms(cdc->env);
	cdc->look_at_ms = 0;
	cdc->point.lsn = 0;
	for (int32_t i = 0; i < cdc->lanes->count; i++)
		cdc->low_seqs[i] = cdc->lanes->lanes[i].lease.low_seq;
	if (cdc->store->driver->hush)
		cdc->store->driver->hush(cdc->store);
	cdc->state = SEMEL_CDC_STREAMING;
	cdc->pausing = false;
	cdc->busy_since = 0;
	tell(cdc, "");
	semel_logf(SEMEL_LOG_INFO, "reading the change stream (slot %s, %llu MB behind)", cdc->slot,
		   (unsigned long long)((state->current - state->position) >> 20));
	return SEMEL_OK;
}

/* For a while nothing is read: the stream may soon begin. */
static bool is_patient(struct semel_cdc *cdc)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	if (cdc->busy_since == 0)
		cdc->busy_since = now_ms;
	return now_ms - cdc->busy_since < PATIENCE_MS;
}

/* Somebody else still reads: he was told to end, and is waited for a while. */
static void wait_for_reader(struct semel_cdc *cdc, const char *reason)
{
	bool patient = is_patient(cdc);

	cdc->pausing = patient || cdc->options.transactions;
	if (!patient)
		tell(cdc, reason);
	again_in(cdc, SOON_MS);
}

static semel_status start(struct semel_cdc *cdc, const struct semel_slot_state *state,
			  semel_error *error)
{
	semel_error trouble = { .status = SEMEL_OK };

	cdc->pausing = true;
	if (cdc->loads->flying) {
		again_in(cdc, SOON_MS / 10);
		return SEMEL_OK;
	}
	semel_status status = SEMEL_OK;
	if (state->poll_to_seq > 0)
		status = cdc->changes->driver->remember(cdc->changes, state->remembered_position, 0,
							state->publication, error);
	if (status != SEMEL_OK)
		return status;
	status = cdc->changes->driver->start(cdc->changes, settled_to(state), cdc->options.wake,
					     cdc->options.transactions, &trouble);
	if (status == SEMEL_OK)
		return begin(cdc, state, error);
	if (status == SEMEL_BUSY) {
		wait_for_reader(cdc, trouble.text);
		return SEMEL_OK;
	}
	cdc->pausing = false;
	tell(cdc, trouble.text);
	again_in(cdc, LATER_MS);
	return SEMEL_OK;
}

static semel_status poll_first(struct semel_cdc *cdc, const struct semel_slot_state *state,
			       semel_error *error)
{
	if (semel_poll_read_to(cdc->poll) >= state->poll_to_seq)
		return start(cdc, state, error);
	again_in(cdc, SOON_MS);
	return SEMEL_OK;
}

/* Troubles with the slot never stop the relay: it polls, and tries again. Without marks polling
 * repeats what the stream has sent, so that it does not begin at once. */
static semel_status forgive(struct semel_cdc *cdc, semel_status status, const semel_error *error)
{
	if (status == SEMEL_OK)
		return SEMEL_OK;
	cdc->pausing = !cdc->options.marks && is_patient(cdc);
	if (!cdc->pausing)
		tell(cdc, error->text);
	again_in(cdc, cdc->pausing ? SOON_MS : LATER_MS);
	return SEMEL_OK;
}

static semel_status make_slot(struct semel_cdc *cdc, semel_error *error)
{
	bool made = false;
	semel_status status = cdc->changes->driver->make(cdc->changes, &made, error);

	cdc->making = status == SEMEL_OK && !made;
	if (made)
		semel_logf(SEMEL_LOG_INFO, "made the slot %s", cdc->slot);
	again_in(cdc, SOON_MS);
	return status;
}

static semel_status drop_slot(struct semel_cdc *cdc, const char *reason, semel_error *error)
{
	semel_status status = cdc->changes->driver->drop(cdc->changes, error);

	cdc->making = false;
	if (status == SEMEL_OK)
		semel_logf(SEMEL_LOG_WARN, "dropped the slot %s: %s", cdc->slot, reason);
	again_in(cdc, status == SEMEL_BUSY ? SOON_MS : AGAIN_MS);
	return status == SEMEL_BUSY ? SEMEL_OK : status;
}

/* All that was committed so far is polled first. */
static semel_status distrust(struct semel_cdc *cdc, const struct semel_slot_state *state,
			     semel_error *error)
{
	uint64_t position = state->position > state->remembered_position
				    ? state->position
				    : state->remembered_position;

	return cdc->changes->driver->remember(cdc->changes, position, state->drawn_seq,
					      state->publication, error);
}

static semel_status act(struct semel_cdc *cdc, const struct semel_slot_state *state,
			const struct semel_slot_verdict *verdict, semel_error *error)
{
	semel_error trouble = { .status = SEMEL_OK };

	if (verdict->move != SEMEL_SLOT_STREAM) {
		tell(cdc, verdict->reason);
		cdc->pausing = false;
	}
	switch (verdict->move) {
	case SEMEL_SLOT_STREAM:
		return start(cdc, state, error);
	case SEMEL_SLOT_POLL_FIRST:
		return poll_first(cdc, state, error);
	case SEMEL_SLOT_DISTRUST:
		again_in(cdc, SOON_MS);
		return distrust(cdc, state, error);
	case SEMEL_SLOT_MAKE:
		return forgive(cdc, make_slot(cdc, &trouble), &trouble);
	case SEMEL_SLOT_DROP:
		return forgive(cdc, drop_slot(cdc, verdict->reason, &trouble), &trouble);
	case SEMEL_SLOT_WAIT:
		again_in(cdc, AGAIN_MS);
		return SEMEL_OK;
	case SEMEL_SLOT_POLL:
		again_in(cdc, LATER_MS);
		return SEMEL_OK;
	}
	return SEMEL_OK;
}

static semel_status look(struct semel_cdc *cdc, struct semel_slot_state *state,
			 struct semel_slot_verdict *verdict, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(cdc->env);
	bool drained =
		cdc->drained_ms > 0 && now_ms - cdc->drained_ms < cdc->options.poll_ms + DRAINED_MS;
	semel_status status = cdc->changes->driver->look(cdc->changes, state, error);

	if (status != SEMEL_OK)
		return status;
	note_retained(state);
	semel_slot_judge(&(struct semel_slot_view){ .state = state,
						    .budget = cdc->options.budget,
						    .caught_up = drained },
			 verdict);
	return SEMEL_OK;
}

/* The log is kept from when the making began, and somebody's open transaction may hold it up for
 * hours. Of all that can be wrong with a slot only this concerns one that is not finished. */
static semel_status go_on_making(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_verdict verdict;
	semel_status status = look(cdc, &state, &verdict, error);

	if (status != SEMEL_OK)
		return status;
	if (!state.exists || state.retained <= cdc->options.budget)
		return make_slot(cdc, error);
	semel_logf(SEMEL_LOG_WARN,
		   "gave up making the slot %s, which waits for an open transaction: %s", cdc->slot,
		   verdict.reason);
	return drop_slot(cdc, verdict.reason, error);
}

semel_status semel_cdc_try(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_verdict verdict;
	semel_error trouble = { .status = SEMEL_OK };

	if (cdc->making)
		return forgive(cdc, go_on_making(cdc, &trouble), &trouble);
	semel_status status = look(cdc, &state, &verdict, &trouble);
	if (status != SEMEL_OK)
		return forgive(cdc, status, &trouble);
	return act(cdc, &state, &verdict, error);
}

/* ---- letting it go --------------------------------------------------------------------------- */

semel_status semel_cdc_watch(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_slot_state state;
	struct semel_slot_verdict verdict;
	semel_status status = semel_poll_look_for_due(cdc->poll, error);

	if (status == SEMEL_OK && semel_held_has_grown(&cdc->held))
		status = learn_held(cdc, error);
	if (status == SEMEL_OK)
		status = look(cdc, &state, &verdict, error);
	if (status != SEMEL_OK)
		return status;
	if (verdict.move == SEMEL_SLOT_STREAM || verdict.move == SEMEL_SLOT_POLL_FIRST) {
		semel_cdc_point(cdc, semel_poll_complete_seq(cdc->poll), state.current);
		return SEMEL_OK;
	}
	status = semel_cdc_leave(cdc, verdict.reason, error);
	if (verdict.move == SEMEL_SLOT_DROP) {
		semel_error trouble = { .status = SEMEL_OK };
		(void)forgive(cdc, drop_slot(cdc, verdict.reason, &trouble), &trouble);
	}
	return status;
}

void semel_cdc_stand_guard(struct semel_cdc *cdc)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	if (now_ms < cdc->guard_at_ms)
		return;
	cdc->guard_at_ms = now_ms + LATER_MS;
	semel_cdc_guard(cdc);
}

void semel_cdc_guard(struct semel_cdc *cdc)
{
	struct semel_slot_state state;
	struct semel_slot_verdict verdict;
	semel_error error = { .status = SEMEL_OK };

	cdc->changes->driver->stop(cdc->changes);
	if (look(cdc, &state, &verdict, &error) == SEMEL_OK && !state.active &&
	    verdict.move == SEMEL_SLOT_DROP)
		(void)drop_slot(cdc, verdict.reason, &error);
}
