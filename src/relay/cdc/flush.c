/* SPDX-License-Identifier: Apache-2.0 */
/* From the broker's confirms to the confirmed position of the slot.
 *
 * - Rows are marked in large batches, by a statement that the relay does not wait for.
 * - A position is confirmed to the slot only after the statement that marks all rows up to it, and
 *   records the position, is durable. Refused rows were marked before, over the store's own
 *   connection; that statement makes them durable as well.
 * - A keepalive is sent at least three times within the database's timeout, whatever the broker
 *   does.
 */
#include "relay/cdc/cdc.h"

#include "fault/failpoint.h"
#include "observe/log.h"

#include <assert.h>
#include <stdlib.h>

#define LINGER_MS        100 /* how long the oldest confirmed row waits for others */
#define STARVED_MS       20
#define RESEND_MS        10
#define RESEND_MAX_MS    1000
#define AT_ONCE          1    /* value of resend_ms: a time in the past */
#define IDLE_MS          5000 /* how often the position of an idle stream is recorded */
#define LOW_MARK_MS      1000
#define KEEPALIVE_MAX_MS 10000
#define FLUSH_DIVISOR    4 /* a window divided by this is worth a statement */

/* ---- a ring of open batches, by ticket ----------------------------------------------------- */

static uint64_t entry_of(uint64_t ticket)
{
	return ticket % SEMEL_FEEDBACK_MAX;
}

void semel_feedback_reset(struct semel_feedback *feedback)
{
	feedback->first = feedback->next;
	feedback->position = 0;
}

bool semel_feedback_is_full(const struct semel_feedback *feedback)
{
	return feedback->next - feedback->first >= SEMEL_FEEDBACK_MAX;
}

bool semel_feedback_is_idle(const struct semel_feedback *feedback)
{
	return feedback->next == feedback->first;
}

static void reach(struct semel_feedback *feedback, uint64_t position)
{
	if (position > feedback->position)
		feedback->position = position;
}

uint64_t semel_feedback_open(struct semel_feedback *feedback, uint64_t position)
{
	assert(!semel_feedback_is_full(feedback));
	uint64_t ticket = feedback->next++;
	feedback->batches[entry_of(ticket)].position = position;
	feedback->batches[entry_of(ticket)].complete = false;
	return ticket;
}

void semel_feedback_pass(struct semel_feedback *feedback, uint64_t position)
{
	if (semel_feedback_is_idle(feedback)) {
		reach(feedback, position);
		return;
	}
	uint64_t last = entry_of(feedback->next - 1);
	if (position > feedback->batches[last].position)
		feedback->batches[last].position = position;
}

void semel_feedback_complete(struct semel_feedback *feedback, uint64_t ticket)
{
	if (ticket < feedback->first || ticket >= feedback->next)
		return; /* a ticket of a stream that has ended */
	feedback->batches[entry_of(ticket)].complete = true;
	while (feedback->first < feedback->next &&
	       feedback->batches[entry_of(feedback->first)].complete)
		reach(feedback, feedback->batches[entry_of(feedback->first++)].position);
}

/* ---- rows to mark -------------------------------------------------------------------------- */

bool semel_mark_buffer_open(struct semel_mark_buffer *buffer, uint32_t capacity)
{
	*buffer = (struct semel_mark_buffer){ .capacity = capacity };
	buffer->lanes = calloc(capacity, sizeof *buffer->lanes);
	buffer->seqs = calloc(capacity, sizeof *buffer->seqs);
	buffer->xids = calloc(capacity, sizeof *buffer->xids);
	buffer->ticket = calloc(SEMEL_FEEDBACK_MAX, sizeof *buffer->ticket);
	return buffer->lanes && buffer->seqs && buffer->xids && buffer->ticket;
}

bool semel_mark_buffer_is_empty(const struct semel_mark_buffer *buffer)
{
	return buffer->tickets == 0;
}

void semel_mark_buffer_add(struct semel_mark_buffer *buffer, const struct semel_relay_batch *batch,
			   bool marks, int64_t now_ms)
{
	if (semel_mark_buffer_is_empty(buffer))
		buffer->since_ms = now_ms;
	assert(buffer->tickets < SEMEL_FEEDBACK_MAX);
	buffer->ticket[buffer->tickets++] = batch->ticket;
	buffer->rows += batch->fetched.count;
	assert(!marks || buffer->count + batch->fetched.count <= buffer->capacity);
	for (uint32_t i = 0; marks && i < batch->fetched.count; i++) {
		buffer->lanes[buffer->count] = batch->fetched.rows[i].lane;
		buffer->xids[buffer->count] = batch->fetched.rows[i].xid;
		buffer->seqs[buffer->count++] = batch->fetched.rows[i].seq;
	}
}

void semel_mark_buffer_clear(struct semel_mark_buffer *buffer)
{
	buffer->rows = buffer->count = buffer->tickets = 0;
}

void semel_mark_buffer_free(struct semel_mark_buffer *buffer)
{
	free(buffer->lanes);
	free(buffer->seqs);
	free(buffer->xids);
	free(buffer->ticket);
	*buffer = (struct semel_mark_buffer){ 0 };
}

/* ---- without marks --------------------------------------------------------------------------- */

bool semel_unmarked_open(struct semel_unmarked *unmarked, uint32_t capacity)
{
	*unmarked = (struct semel_unmarked){ .capacity = capacity };
	unmarked->rows = capacity > 0 ? calloc(capacity, sizeof *unmarked->rows) : NULL;
	return capacity == 0 || unmarked->rows;
}

void semel_unmarked_add(struct semel_unmarked *unmarked, const struct semel_relay_batch *batch)
{
	for (uint32_t i = 0; i < batch->fetched.count && unmarked->count < unmarked->capacity;
	     i++) {
		const struct semel_outbox_row *row = &batch->fetched.rows[i];
		unmarked->rows[unmarked->count++] =
			(struct semel_unmarked_row){ row->seq, row->xid, row->lane };
	}
}

void semel_unmarked_drop_below(struct semel_unmarked *unmarked, int64_t low_seq)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < unmarked->count; i++)
		if (unmarked->rows[i].seq > low_seq)
			unmarked->rows[kept++] = unmarked->rows[i];
	unmarked->count = kept;
}

void semel_unmarked_move_to(struct semel_unmarked *unmarked, struct semel_mark_buffer *buffer)
{
	while (unmarked->count > 0 && buffer->count < buffer->capacity) {
		const struct semel_unmarked_row *row = &unmarked->rows[--unmarked->count];
		buffer->lanes[buffer->count] = row->lane;
		buffer->xids[buffer->count] = row->xid;
		buffer->seqs[buffer->count++] = row->seq;
	}
}

void semel_unmarked_free(struct semel_unmarked *unmarked)
{
	free(unmarked->rows);
	*unmarked = (struct semel_unmarked){ 0 };
}

bool semel_cdc_has_unmarked(const struct semel_cdc *cdc)
{
	return cdc->sending || !semel_mark_buffer_is_empty(&cdc->gathered) ||
	       cdc->unmarked.count > 0;
}

/* ---- marks ----------------------------------------------------------------------------------- */

void semel_cdc_set_next_low_mark(struct semel_cdc *cdc, int64_t seq, uint64_t position)
{
	if (cdc->next_low_mark.position != 0 || seq <= cdc->low_seqs[0])
		return;
	cdc->next_low_mark.seq = seq;
	cdc->next_low_mark.position = position;
}

static void reach_next_low_mark(struct semel_cdc *cdc)
{
	if (cdc->next_low_mark.position == 0 || cdc->recorded < cdc->next_low_mark.position)
		return;
	for (int32_t i = 0; i < cdc->lanes->count; i++)
		cdc->low_seqs[i] = cdc->next_low_mark.seq;
	cdc->next_low_mark.position = 0;
}

static bool is_worth_flushing(const struct semel_cdc *cdc, int64_t now_ms)
{
	const struct semel_mark_buffer *buffer = &cdc->gathered;
	bool low = cdc->low_seqs[0] > cdc->lanes->lanes[0].lease.low_seq;
	int64_t idle_ms = cdc->next_low_mark.position != 0 || low ? LOW_MARK_MS : IDLE_MS;

	if (!semel_mark_buffer_is_empty(buffer))
		return cdc->starved || buffer->rows >= cdc->options.window / FLUSH_DIVISOR ||
		       now_ms - buffer->since_ms >= LINGER_MS;
	if (now_ms - cdc->flushed_ms < idle_ms || cdc->state != SEMEL_CDC_STREAMING)
		return false;
	return low || cdc->feedback->position > cdc->recorded;
}

static void swap_buffers(struct semel_cdc *cdc)
{
	struct semel_mark_buffer empty = cdc->sent;
	cdc->sent = cdc->gathered;
	cdc->gathered = empty;
}

static semel_status send_marks(struct semel_cdc *cdc, semel_error *error)
{
	struct semel_lease leases[SEMEL_LANES_MAX];

	for (int32_t i = 0; i < cdc->lanes->count; i++)
		leases[i] = cdc->lanes->lanes[i].lease;
	struct semel_flush flush = { .leases = leases,
				     .lease_count = (size_t)cdc->lanes->count,
				     .low_seqs = cdc->low_seqs,
				     .lanes = cdc->sent.lanes,
				     .seqs = cdc->sent.seqs,
				     .xids = cdc->sent.xids,
				     .count = cdc->sent.count,
				     .again = cdc->resend_wait_ms > 0,
				     .marks = cdc->options.marks,
				     .position = cdc->sent_position,
				     .now_ms = semel_now_ms(cdc->env),
				     .expires_at_ms = semel_lanes_expiry(cdc->lanes) };
	cdc->sending = true;
	cdc->resend_ms = 0;
	cdc->flushed_ms = semel_steady_ms(cdc->env);
	return cdc->changes->driver->flush_send(cdc->changes, &flush, error);
}

static semel_status send_flush(struct semel_cdc *cdc, semel_error *error)
{
	for (uint32_t i = 0; i < cdc->gathered.tickets; i++)
		semel_feedback_complete(cdc->feedback, cdc->gathered.ticket[i]);
	cdc->sent_position = cdc->feedback->position;
	cdc->resend_wait_ms = 0;
	swap_buffers(cdc);
	return send_marks(cdc, error);
}

/* A commit becomes visible a little after the stream has delivered it; with a synchronous standby
 * that was set up recently it may take a while. */
static semel_status resend_later(struct semel_cdc *cdc)
{
	int64_t wait_ms = cdc->resend_wait_ms > 0 ? cdc->resend_wait_ms * 2 : RESEND_MS;

	cdc->sending = true;
	cdc->resend_wait_ms = wait_ms < RESEND_MAX_MS ? wait_ms : RESEND_MAX_MS;
	cdc->resend_ms = semel_steady_ms(cdc->env) + cdc->resend_wait_ms;
	return SEMEL_OK;
}

static void confirm(struct semel_cdc *cdc, bool ask)
{
	semel_error error = { .status = SEMEL_OK };

	cdc->confirmed_ms = semel_steady_ms(cdc->env);
	cdc->confirmed = cdc->recorded;
	/* An error of a broken stream is reported by the next read. */
	(void)cdc->changes->driver->confirm(cdc->changes, cdc->recorded, ask, &error);
}

/* Polling would begin at the low marks, and a probe of the table goes no further back. */
static void move_low_marks(struct semel_cdc *cdc)
{
	for (int32_t i = 0; i < cdc->lanes->count; i++) {
		struct semel_lane *lane = &cdc->lanes->lanes[i];
		if (cdc->low_seqs[i] <= lane->lease.low_seq)
			continue;
		lane->lease.low_seq = cdc->low_seqs[i];
		if (cdc->state == SEMEL_CDC_STREAMING && lane->cursor < lane->lease.low_seq)
			lane->cursor = lane->read_to = lane->lease.low_seq;
	}
	semel_unmarked_drop_below(&cdc->unmarked, cdc->low_seqs[0]);
}

static semel_status poll_flush(struct semel_cdc *cdc, int64_t wait_ms, semel_error *error)
{
	bool done = false;
	semel_status status = cdc->changes->driver->flush_poll(cdc->changes, wait_ms, &done, error);

	if (status == SEMEL_NOT_FINISHED)
		return resend_later(cdc);
	if (status == SEMEL_LEASE_LOST) {
		cdc->sending = false;
		cdc->lanes->maintain_at_ms = 0;
		cdc->lanes->generation++;
		return SEMEL_OK;
	}
	if (status != SEMEL_OK) {
		/* The outcome of the statement is unknown: it is sent again before any later marks.
		 */
		cdc->resend_ms = AT_ONCE;
		return status;
	}
	if (!done)
		return SEMEL_OK;
	cdc->sending = cdc->starved = false;
	semel_mark_buffer_clear(&cdc->sent);
	move_low_marks(cdc);
	if (cdc->sent_position > cdc->recorded)
		cdc->recorded = cdc->sent_position;
	reach_next_low_mark(cdc);
	if (cdc->state == SEMEL_CDC_STREAMING && cdc->recorded > cdc->confirmed)
		confirm(cdc, false);
	return semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

semel_status semel_cdc_flush(struct semel_cdc *cdc, bool now, semel_error *error)
{
	/* Nothing else to do until the statement is done: the stream would wake us for nothing. */
	bool idle = cdc->starved && !cdc->batches->in_flight;
	semel_status status = SEMEL_OK;

	if (cdc->sending && cdc->resend_ms != 0) {
		if (!now && semel_steady_ms(cdc->env) < cdc->resend_ms)
			return SEMEL_OK;
		status = send_marks(cdc, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (cdc->sending) {
		status = poll_flush(cdc, now ? -1 : idle ? STARVED_MS : 0, error);
		if (status != SEMEL_OK || cdc->sending)
			return status;
	}
	if (now ? semel_mark_buffer_is_empty(&cdc->gathered)
		: !is_worth_flushing(cdc, semel_steady_ms(cdc->env)))
		return SEMEL_OK;
	status = send_flush(cdc, error);
	if (status != SEMEL_OK || !now)
		return status;
	return poll_flush(cdc, -1, error);
}

/* Without marks, when the stream ends: polling would begin at the low marks, and publish these rows
 * again. */
static semel_status mark_unmarked(struct semel_cdc *cdc, semel_error *error)
{
	while (!cdc->sending && cdc->unmarked.count > 0) {
		semel_mark_buffer_clear(&cdc->sent);
		semel_unmarked_move_to(&cdc->unmarked, &cdc->sent);
		cdc->resend_wait_ms = 0;
		semel_status status = send_marks(cdc, error);
		if (status != SEMEL_OK)
			return status;
		status = poll_flush(cdc, -1, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_cdc_flush_all(struct semel_cdc *cdc, semel_error *error)
{
	semel_status status = semel_cdc_flush(cdc, true, error);

	if (status != SEMEL_OK)
		return status;
	return mark_unmarked(cdc, error);
}

void semel_cdc_reset(struct semel_cdc *cdc)
{
	semel_error error = { .status = SEMEL_OK };

	if (semel_cdc_has_unmarked(cdc) && cdc->generation == cdc->lanes->generation &&
	    semel_lanes_has_all(cdc->lanes) && semel_cdc_flush_all(cdc, &error) != SEMEL_OK)
		semel_log(SEMEL_LOG_WARN, "cannot mark confirmed events, publishing them again",
			  &(struct semel_log_fields){ .error = error.text });
	cdc->sending = cdc->starved = false;
	cdc->resend_ms = 0;
	cdc->unmarked.count = 0;
	semel_mark_buffer_clear(&cdc->gathered);
	semel_mark_buffer_clear(&cdc->sent);
	semel_feedback_reset(cdc->feedback);
	cdc->next_low_mark.position = 0;
}

/* ---- keepalives ------------------------------------------------------------------------------ */

void semel_cdc_keepalive(struct semel_cdc *cdc)
{
	int64_t now_ms = semel_steady_ms(cdc->env);
	int64_t keepalive_ms = cdc->changes->driver->keepalive_timeout_ms(cdc->changes) / 3;

	if (cdc->state != SEMEL_CDC_STREAMING)
		return;
	if (keepalive_ms <= 0 || keepalive_ms > KEEPALIVE_MAX_MS)
		keepalive_ms = KEEPALIVE_MAX_MS;
	bool ask = cdc->next_low_mark.position != 0 && semel_feedback_is_idle(cdc->feedback);
	if (now_ms - cdc->confirmed_ms >= (ask ? LOW_MARK_MS : keepalive_ms))
		confirm(cdc, true);
}
