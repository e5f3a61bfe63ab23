/* SPDX-License-Identifier: Apache-2.0 */
/* The source that reads the database's change stream, and polls the same table when it cannot.
 *
 * - Rows come in the order of their commits. Exceptions (refused events, events held behind them,
 *   and replayed dead letters) do not come through the stream: they are polled, and a row whose
 *   aggregate has one is checked against the table before it is returned.
 * - After every start the stream repeats what was not confirmed, and brings what was polled in
 *   between. Each of these rows is checked, and left out if it is marked already.
 * - Between stream and polling there is always a moment in which nothing is in flight.
 */
#include "relay/cdc/cdc.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define CHECK_MS               1000
#define BATCHES_MAX            24 /* in flight; bounds their memory */
#define BATCHES_IN_TRANSACTION (SEMEL_FEEDBACK_MAX / 2)
#define ROWS_MAX               128   /* in a batch */
#define FEW_ROWS               8     /* a read of so few rows has emptied the stream */
#define UNMARKED_MAX           65536 /* rows of the last second or two, with --marks off */
#define OPEN_TRANSACTION_MS    5     /* the end of a small transaction does not wake the relay */

static struct semel_cdc *cdc_of(struct semel_source *source)
{
	return (struct semel_cdc *)source; /* base is its first member */
}

/* ---- maintenance ----------------------------------------------------------------------------- */

static void stand_by(struct semel_cdc *cdc)
{
	if (cdc->state == SEMEL_CDC_STANDBY)
		return;
	cdc->changes->driver->stop(cdc->changes);
	semel_cdc_reset(cdc);
	cdc->state = SEMEL_CDC_STANDBY;
}

/* Rows that came through the stream under an older lease are never marked: another relay has owned
 * the lanes since. So the stream starts again. */
static bool has_lost_lanes(const struct semel_cdc *cdc)
{
	bool streamed = cdc->state == SEMEL_CDC_STREAMING || cdc->state == SEMEL_CDC_LEAVING;

	return !semel_lanes_has_all(cdc->lanes) ||
	       (streamed && cdc->generation != cdc->lanes->generation);
}

/* Polling splits transactions, and without marks it repeats what the stream has published since the
 * low marks moved: in both cases nothing is read until it is known that no stream can be read. */
static void begin_polling(struct semel_cdc *cdc)
{
	cdc->paused = cdc->options.transactions || !cdc->options.marks;
	semel_poll_restart(cdc->poll);
	cdc->state = SEMEL_CDC_POLLING;
	cdc->drained_ms = 0;
}

/* An exception that is held behind another one becomes due when that one is marked. Such
 * exceptions, one after another, do not wait for the next periodic probe. */
static semel_status probe_followers(struct semel_cdc *cdc, semel_error *error)
{
	if (!cdc->due_again)
		return SEMEL_OK;
	cdc->due_again = false;
	return semel_poll_probe_due(cdc->poll, error);
}

static semel_status advance(struct semel_cdc *cdc, bool finishing, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	switch (cdc->state) {
	case SEMEL_CDC_STANDBY:
		begin_polling(cdc);
		cdc->try_at_ms = 0;
		break;
	case SEMEL_CDC_LEAVING:
		if (!cdc->batches->in_flight && !semel_cdc_has_unmarked(cdc))
			begin_polling(cdc);
		break;
	case SEMEL_CDC_POLLING:
	case SEMEL_CDC_STREAMING:
		break;
	}
	if (cdc->state == SEMEL_CDC_POLLING && !finishing && now_ms >= cdc->try_at_ms)
		return semel_cdc_try_stream(cdc, error);
	if (cdc->state != SEMEL_CDC_STREAMING || finishing)
		return SEMEL_OK;
	if (now_ms < cdc->check_at_ms)
		return probe_followers(cdc, error);
	cdc->due_again = false;
	cdc->check_at_ms =
		now_ms + (cdc->options.poll_ms < CHECK_MS ? cdc->options.poll_ms : CHECK_MS);
	return semel_cdc_check_stream(cdc, error);
}

static semel_status flush_and_advance(struct semel_cdc *cdc, bool finishing, semel_error *error)
{
	bool flush_now = finishing || cdc->state == SEMEL_CDC_LEAVING;
	semel_status status = flush_now && !cdc->batches->in_flight
				      ? semel_cdc_flush_all(cdc, error)
				      : semel_cdc_flush(cdc, false, error);

	if (status != SEMEL_OK)
		return status;
	return advance(cdc, finishing, error);
}

static semel_status maintain(struct semel_source *source, bool finishing, bool *unfinished_out,
			     semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);

	if (has_lost_lanes(cdc)) {
		if (semel_cdc_is_in_transaction(cdc))
			return semel_cdc_leave_stream(cdc, "another relay owns the lanes", error);
		stand_by(cdc);
	}
	if (!semel_lanes_has_all(cdc->lanes)) {
		semel_cdc_monitor_slot_on_standby(cdc);
		return SEMEL_OK;
	}
	semel_status status = flush_and_advance(cdc, finishing, error);
	semel_cdc_keepalive(cdc);
	*unfinished_out = finishing && semel_cdc_has_unmarked(cdc);
	return status;
}

static semel_status probe(struct semel_source *source, semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);

	cdc->exhausted = false;
	if (cdc->state != SEMEL_CDC_POLLING || cdc->paused)
		return SEMEL_OK;
	return semel_poll_probe(cdc->poll, error);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool must_check_row(const struct semel_cdc *cdc, const struct semel_outbox_row *row)
{
	if (cdc->catch_up_to != 0 && row->seq <= cdc->catch_up_seq)
		return true;
	return semel_exception_set_contains(&cdc->exceptions, row->event.aggregate_type,
					    row->event.aggregate_id);
}

static bool must_check(const struct semel_cdc *cdc, const struct semel_outbox_batch *fetched)
{
	if (cdc->check_left > 0)
		return true;
	for (uint32_t i = 0; i < fetched->count; i++)
		if (must_check_row(cdc, &fetched->rows[i]))
			return true;
	return false;
}

static semel_status check(struct semel_cdc *cdc, struct semel_outbox_batch *fetched,
			  semel_error *error)
{
	uint32_t kept = 0;

	if (fetched->count == 0 || !must_check(cdc, fetched))
		return SEMEL_OK;
	semel_status status =
		cdc->store->driver->outbox->check(cdc->store, fetched->rows, fetched->count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < fetched->count; i++)
		if (!fetched->rows[i].marked)
			fetched->rows[kept++] = fetched->rows[i];
	/* After a row that was marked already, others may follow. */
	if (kept < fetched->count && cdc->check_left > 0)
		cdc->check_left = SEMEL_CDC_CHECK_WINDOWS * cdc->options.window;
	else
		cdc->check_left -= kept < cdc->check_left ? kept : cdc->check_left;
	fetched->count = kept;
	return SEMEL_OK;
}

/* How many rows may be read: unmarked rows count as well. */
static uint32_t rows_in(struct semel_cdc *cdc, const struct semel_read_limits *limits)
{
	uint32_t unmarked = cdc->gathered.rows + (cdc->sending ? cdc->sent.rows : 0);
	uint32_t rows = limits->rows > unmarked ? limits->rows - unmarked : 0;

	if (cdc->batches->count >=
	    (cdc->options.transactions ? BATCHES_IN_TRANSACTION : BATCHES_MAX))
		return 0;
	cdc->starved = cdc->starved || (limits->rows > 0 && rows == 0);
	if (semel_feedback_is_full(cdc->feedback) ||
	    cdc->gathered.tickets + cdc->sent.tickets + 1 >= SEMEL_FEEDBACK_MAX) {
		cdc->starved = true;
		return 0;
	}
	return rows < cdc->batches->rows_max ? rows : cdc->batches->rows_max;
}

static semel_status accept_batch(struct semel_cdc *cdc, struct semel_relay_batch *batch,
				 uint64_t position, semel_error *error)
{
	semel_status status = check(cdc, &batch->fetched, error);

	if (status != SEMEL_OK)
		return status;
	if (position >= cdc->catch_up_to && position != 0)
		cdc->catch_up_to = 0;
	if (position >= cdc->check_to && position != 0)
		cdc->check_left = 0;
	if (batch->fetched.count > 0)
		batch->ticket = semel_feedback_open(cdc->feedback, position);
	else if (position != 0)
		semel_feedback_pass(cdc->feedback, position);
	return SEMEL_OK;
}

static semel_status read_stream(struct semel_cdc *cdc, const struct semel_read_limits *limits,
				struct semel_relay_batch **batch_out, semel_error *error)
{
	uint32_t rows = rows_in(cdc, limits);
	uint64_t position = 0;
	semel_error failure = { .status = SEMEL_OK };

	if (rows == 0 || cdc->exhausted)
		return SEMEL_OK;
	struct semel_relay_batch *batch = semel_relay_batch_acquire_mixed(cdc->batches, cdc->lanes);
	if (!batch)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	batch->fetched.capacity = rows;
	batch->fetched.bytes_max = limits->bytes;
	semel_status status =
		cdc->changes->driver->read(cdc->changes, &batch->fetched, &position, &failure);
	if (status != SEMEL_OK) {
		semel_relay_batch_release(cdc->batches, batch);
		return semel_cdc_leave_stream(cdc, failure.text, error);
	}
	cdc->exhausted = batch->fetched.count < FEW_ROWS && !batch->fetched.cut;
	status = accept_batch(cdc, batch, position, error);
	if (status == SEMEL_OK && batch->fetched.count > 0)
		*batch_out = batch;
	else
		semel_relay_batch_release(cdc->batches, batch);
	return status;
}

static semel_status read_poll(struct semel_cdc *cdc, const struct semel_read_limits *limits,
			      struct semel_relay_batch **batch_out, semel_error *error)
{
	struct semel_read_limits none = { 0 };
	semel_status status =
		cdc->poll->driver->read(cdc->poll, cdc->paused ? &none : limits, batch_out, error);

	if (status != SEMEL_OK)
		return status;
	if (!*batch_out && limits->rows > 0 && !cdc->paused &&
	    cdc->poll->driver->is_exhausted(cdc->poll))
		cdc->drained_ms = semel_steady_ms(cdc->env);
	for (uint32_t i = 0; *batch_out && i < (*batch_out)->fetched.count; i++)
		if ((*batch_out)->fetched.rows[i].seq > cdc->polled_seq)
			cdc->polled_seq = (*batch_out)->fetched.rows[i].seq;
	return SEMEL_OK;
}

static semel_status read_next(struct semel_source *source, const struct semel_read_limits *limits,
			      struct semel_relay_batch **batch_out, semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);

	*batch_out = NULL;
	if (cdc->state == SEMEL_CDC_POLLING)
		return read_poll(cdc, limits, batch_out, error);
	if (cdc->state != SEMEL_CDC_STREAMING || limits->rows == 0)
		return SEMEL_OK;
	if (!semel_cdc_is_in_transaction(cdc)) {
		semel_status status = semel_poll_read_due(cdc->poll, limits, batch_out, error);
		if (status != SEMEL_OK || *batch_out)
			return status;
	}
	return read_stream(cdc, limits, batch_out, error);
}

static bool is_listening(const struct semel_source *source)
{
	const struct semel_cdc *cdc = (const struct semel_cdc *)source;
	return cdc->state == SEMEL_CDC_STREAMING && cdc->exhausted;
}

static bool in_transaction(const struct semel_source *source)
{
	return semel_cdc_is_in_transaction((const struct semel_cdc *)source);
}

/* ---- marking batches ------------------------------------------------------------------------- */

static void remember_exceptions(struct semel_cdc *cdc, const struct semel_relay_batch *batch)
{
	for (uint32_t i = 0; i < batch->fetched.count; i++)
		if (batch->marks[i].kind != SEMEL_MARK_PUBLISHED)
			semel_exception_set_add(&cdc->exceptions,
						batch->fetched.rows[i].event.aggregate_type,
						batch->fetched.rows[i].event.aggregate_id);
}

static void batch_marked(struct semel_source *source, const struct semel_relay_batch *batch)
{
	struct semel_cdc *cdc = cdc_of(source);

	if (batch->refused)
		remember_exceptions(cdc, batch);
	cdc->due_again = cdc->due_again || batch->exceptions;
	if (!batch->lane && !batch->refused)
		semel_unmarked_add(&cdc->unmarked, batch);
	if (!batch->lane)
		semel_mark_buffer_add(&cdc->gathered, batch, cdc->options.marks && !batch->refused,
				      semel_steady_ms(cdc->env));
}

static int64_t low_seq(struct semel_source *source, const struct semel_relay_batch *batch)
{
	struct semel_cdc *cdc = cdc_of(source);

	if (cdc->state != SEMEL_CDC_POLLING)
		return batch->lane->lease.low_seq;
	return cdc->poll->driver->low_seq(cdc->poll, batch);
}

/* ---- sleeping, and the whole ----------------------------------------------------------------- */

static bool arm_wakeup(struct semel_source *source, bool only_if_armed)
{
	struct semel_cdc *cdc = cdc_of(source);
	return cdc->state == SEMEL_CDC_POLLING &&
	       cdc->poll->driver->arm_wakeup(cdc->poll, only_if_armed);
}

/* Only a read shows whether the stream has rows. */
static bool check_wakeup(struct semel_source *source)
{
	struct semel_cdc *cdc = cdc_of(source);
	(void)cdc->poll->driver->check_wakeup(cdc->poll);
	return true;
}

static int64_t sleep_ms(struct semel_source *source)
{
	const struct semel_cdc *cdc = cdc_of(source);
	int64_t now_ms = semel_steady_ms(cdc->env);
	int64_t visibility_wait_ms =
		cdc->state == SEMEL_CDC_STREAMING
			? cdc->changes->driver->visibility_wait_ms(cdc->changes)
			: -1;

	if (cdc->state == SEMEL_CDC_STANDBY)
		return CHECK_MS / 4;
	if (cdc->sending || cdc->state == SEMEL_CDC_LEAVING)
		return 5;
	if (cdc->state == SEMEL_CDC_STREAMING && cdc->changes->driver->in_transaction(cdc->changes))
		return OPEN_TRANSACTION_MS;
	if (visibility_wait_ms >= 0)
		return visibility_wait_ms;
	if (!semel_mark_buffer_is_empty(&cdc->gathered))
		return 20;
	if (cdc->state == SEMEL_CDC_STREAMING)
		return cdc->due_again ? 0 : cdc->check_at_ms - now_ms;
	return cdc->try_at_ms - now_ms;
}

static void keepalive(struct semel_source *source)
{
	semel_cdc_keepalive(cdc_of(source));
}

static void monitor(struct semel_source *source)
{
	semel_cdc_monitor_slot(cdc_of(source));
}

static void connect_to(struct semel_source *source, semel_store *store,
		       struct semel_relay_batches *batches)
{
	struct semel_cdc *cdc = cdc_of(source);

	cdc->changes->driver->stop(cdc->changes);
	semel_cdc_reset(cdc);
	cdc->store = store;
	cdc->batches = batches;
	if (batches->rows_max > ROWS_MAX && !batches->spare)
		batches->rows_max = ROWS_MAX;
	cdc->state = SEMEL_CDC_STANDBY;
	cdc->poll->driver->connect(cdc->poll, store, batches);
}

static void close_cdc(struct semel_source *source)
{
	struct semel_cdc *cdc = cdc_of(source);

	semel_source_close(cdc->poll);
	if (cdc->changes)
		cdc->changes->driver->close(cdc->changes);
	semel_mark_buffer_free(&cdc->gathered);
	semel_mark_buffer_free(&cdc->sent);
	semel_unmarked_free(&cdc->unmarked);
	semel_exception_set_free(&cdc->exceptions);
	free(cdc->feedback);
	free(cdc->store_url);
	free(cdc->slot);
	free(cdc);
}

static const struct semel_source_driver driver = {
	.name = "cdc",
	.wait_ms = 1, /* rows come at any time */
	.connect = connect_to,
	.probe = probe,
	.read = read_next,
	.is_listening = is_listening,
	.low_seq = low_seq,
	.arm_wakeup = arm_wakeup,
	.check_wakeup = check_wakeup,
	.close = close_cdc,
	.maintain = maintain,
	.batch_marked = batch_marked,
	.keepalive = keepalive,
	.monitor = monitor,
	.sleep_ms = sleep_ms,
	.in_transaction = in_transaction,
	.label = semel_cdc_label,
};

/* Everything but the change stream itself. */
static bool allocate(struct semel_cdc *cdc, const struct semel_cdc_options *options)
{
	uint32_t capacity = options->window + options->window / 2 + 1000;

	cdc->base.driver = &driver;
	cdc->options = *options;
	cdc->store_url = strdup(options->store_url);
	cdc->slot = strdup(options->slot);
	cdc->feedback = calloc(1, sizeof *cdc->feedback);
	return cdc->store_url && cdc->slot && cdc->feedback &&
	       semel_mark_buffer_open(&cdc->gathered, capacity) &&
	       semel_mark_buffer_open(&cdc->sent, capacity) &&
	       semel_unmarked_open(&cdc->unmarked, options->marks ? 0 : UNMARKED_MAX);
}

semel_status semel_source_open_cdc(const struct semel_cdc_options *options,
				   const struct semel_env *env, struct semel_lanes *lanes,
				   struct semel_source **source_out, semel_error *error)
{
	struct semel_cdc *cdc = calloc(1, sizeof *cdc);
	*source_out = NULL;
	if (!cdc)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the relay");
	cdc->env = env;
	cdc->lanes = lanes;
	semel_status status = semel_source_open_poll(env, lanes, &cdc->poll, error);
	if (status != SEMEL_OK)
		goto close_source;
	if (!allocate(cdc, options)) {
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for the relay");
		goto close_source;
	}
	status = semel_changes_open(cdc->store_url, cdc->slot, env, &cdc->changes, error);
	if (status != SEMEL_OK)
		goto close_source;
	lanes->all_or_none = true;
	*source_out = &cdc->base;
	return SEMEL_OK;

close_source:
	close_cdc(&cdc->base);
	return status;
}
