/* SPDX-License-Identifier: Apache-2.0 */
/* The source that reads the database's change stream, and polls the same table where it cannot.
 *
 * - Rows come in the order of their commits. Exceptions (refused events, those behind them, and
 *   dead letters that were replayed) do not come through the stream: they are polled, and a row
 *   whose aggregate has one is looked up before it is handed out.
 * - After every start the stream repeats what was not confirmed, and brings what was polled in
 *   between. There each row is looked up, and what was settled before is left out.
 * - Between stream and polling there is always a moment in which nothing is in flight.
 */
#include "relay/cdc/cdc.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_MS     1000
#define LOADS_MAX   24 /* in flight, for the memory they take; the next one had better be larger */
#define LOADS_WHOLE (SEMEL_FEEDBACK_MAX / 2) /* of one transaction */
#define ROWS_MAX    128                      /* in a load */
#define FEW_ROWS    8                        /* so few came because there were no more */
#define TAIL_MAX    65536                    /* rows of the last second or two, without marks */
#define AMID_MS     5 /* what is left of a transaction wakes nobody if it is small */

static struct semel_cdc *cdc_of(struct semel_source *source)
{
	return (struct semel_cdc *)source; /* base is its first member */
}

/* ---- what has to be done beside reading ------------------------------------------------------ */

static void stand_by(struct semel_cdc *cdc)
{
	if (cdc->state == SEMEL_CDC_STANDBY)
		return;
	cdc->changes->driver->stop(cdc->changes);
	semel_cdc_forget(cdc);
	cdc->state = SEMEL_CDC_STANDBY;
}

/* What came through the stream under an older lease is never marked: another relay has had the rows
 * meanwhile. So the stream begins anew. */
static bool has_lost_the_lanes(const struct semel_cdc *cdc)
{
	bool streamed = cdc->state == SEMEL_CDC_STREAMING || cdc->state == SEMEL_CDC_LEAVING;

	return !semel_lanes_are_all_mine(cdc->lanes) ||
	       (streamed && cdc->tenure != cdc->lanes->tenure);
}

/* Polling tears transactions apart, and without marks it repeats what the stream has sent since the
 * low marks moved: there nothing is read before it is known that there is no stream to be had. */
static void begin_polling(struct semel_cdc *cdc)
{
	cdc->pausing = cdc->options.transactions || !cdc->options.marks;
	semel_poll_restart(cdc->poll);
	cdc->state = SEMEL_CDC_POLLING;
	cdc->drained_ms = 0;
}

/* Those behind an exception are due as soon as it is settled, one after the other: they do not wait
 * for the next look each. */
static semel_status look_for_followers(struct semel_cdc *cdc, semel_error *error)
{
	if (!cdc->due_again)
		return SEMEL_OK;
	cdc->due_again = false;
	return semel_poll_look_for_due(cdc->poll, error);
}

static semel_status move_on(struct semel_cdc *cdc, bool finishing, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(cdc->env);

	switch (cdc->state) {
	case SEMEL_CDC_STANDBY:
		begin_polling(cdc);
		cdc->try_at_ms = 0;
		break;
	case SEMEL_CDC_LEAVING:
		if (!cdc->loads->flying && !semel_cdc_owes(cdc))
			begin_polling(cdc);
		break;
	case SEMEL_CDC_POLLING:
	case SEMEL_CDC_STREAMING:
		break;
	}
	if (cdc->state == SEMEL_CDC_POLLING && !finishing && now_ms >= cdc->try_at_ms)
		return semel_cdc_try(cdc, error);
	if (cdc->state != SEMEL_CDC_STREAMING || finishing)
		return SEMEL_OK;
	if (now_ms < cdc->look_at_ms)
		return look_for_followers(cdc, error);
	cdc->due_again = false;
	cdc->look_at_ms =
		now_ms + (cdc->options.poll_ms < LOOK_MS ? cdc->options.poll_ms : LOOK_MS);
	return semel_cdc_watch(cdc, error);
}

static semel_status tend(struct semel_source *source, bool finishing, bool *owes_out,
			 semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);
	bool hurry = finishing || cdc->state == SEMEL_CDC_LEAVING;

	if (has_lost_the_lanes(cdc)) {
		if (semel_cdc_is_amid(cdc))
			return semel_cdc_leave(cdc, "another relay has the lanes", error);
		stand_by(cdc);
	}
	if (!semel_lanes_are_all_mine(cdc->lanes)) {
		semel_cdc_stand_guard(cdc);
		return SEMEL_OK;
	}
	semel_status status = hurry && !cdc->loads->flying ? semel_cdc_flush_all(cdc, error)
							   : semel_cdc_flush(cdc, false, error);
	if (status == SEMEL_OK)
		status = move_on(cdc, finishing, error);
	semel_cdc_beat(cdc);
	*owes_out = finishing && semel_cdc_owes(cdc);
	return status;
}

static semel_status look(struct semel_source *source, semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);

	cdc->dry = false;
	if (cdc->state != SEMEL_CDC_POLLING || cdc->pausing)
		return SEMEL_OK;
	return semel_poll_look(cdc->poll, error);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool must_check_row(const struct semel_cdc *cdc, const struct semel_outbox_row *row)
{
	if (cdc->catch_up_to != 0 && row->seq <= cdc->catch_up_seq)
		return true;
	return semel_held_has(&cdc->held, row->event.aggregate_type, row->event.aggregate_id);
}

static bool must_check(const struct semel_cdc *cdc, const struct semel_outbox_batch *batch)
{
	if (cdc->check_left > 0)
		return true;
	for (uint32_t i = 0; i < batch->count; i++)
		if (must_check_row(cdc, &batch->rows[i]))
			return true;
	return false;
}

static semel_status check(struct semel_cdc *cdc, struct semel_outbox_batch *batch,
			  semel_error *error)
{
	uint32_t kept = 0;

	if (batch->count == 0 || !must_check(cdc, batch))
		return SEMEL_OK;
	semel_status status =
		cdc->store->driver->outbox_check(cdc->store, batch->rows, batch->count, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < batch->count; i++)
		if (!batch->rows[i].marked)
			batch->rows[kept++] = batch->rows[i];
	/* Where one was marked before, others may follow. */
	if (kept < batch->count && cdc->check_left > 0)
		cdc->check_left = SEMEL_CDC_CHECK_WINDOWS * cdc->options.window;
	else
		cdc->check_left -= kept < cdc->check_left ? kept : cdc->check_left;
	batch->count = kept;
	return SEMEL_OK;
}

/* How many rows may be read: what is not marked counts, too. */
static uint32_t rows_in(struct semel_cdc *cdc, const struct semel_room *room)
{
	uint32_t unmarked = cdc->gathered.rows + (cdc->sending ? cdc->sent.rows : 0);
	uint32_t rows = room->rows > unmarked ? room->rows - unmarked : 0;

	if (cdc->loads->count >= (cdc->options.transactions ? LOADS_WHOLE : LOADS_MAX))
		return 0;
	cdc->starved = cdc->starved || (room->rows > 0 && rows == 0);
	if (semel_feedback_is_full(cdc->feedback) ||
	    cdc->gathered.tickets + cdc->sent.tickets + 1 >= SEMEL_FEEDBACK_MAX) {
		cdc->starved = true;
		return 0;
	}
	return rows < cdc->loads->rows_max ? rows : cdc->loads->rows_max;
}

static semel_status take_in(struct semel_cdc *cdc, struct semel_load *load, uint64_t position,
			    semel_error *error)
{
	semel_status status = check(cdc, &load->batch, error);

	if (status != SEMEL_OK)
		return status;
	if (position >= cdc->catch_up_to && position != 0)
		cdc->catch_up_to = 0;
	if (position >= cdc->check_to && position != 0)
		cdc->check_left = 0;
	if (load->batch.count > 0)
		load->ticket = semel_feedback_open(cdc->feedback, position);
	else if (position != 0)
		semel_feedback_pass(cdc->feedback, position);
	return SEMEL_OK;
}

static semel_status read_stream(struct semel_cdc *cdc, const struct semel_room *room,
				struct semel_load **load_out, semel_error *error)
{
	uint32_t rows = rows_in(cdc, room);
	uint64_t position = 0;
	semel_error trouble = { .status = SEMEL_OK };

	if (rows == 0 || cdc->dry)
		return SEMEL_OK;
	struct semel_load *load = semel_load_take_mixed(cdc->loads, cdc->lanes);
	if (!load)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch of events");
	load->batch.capacity = rows;
	load->batch.bytes_max = room->bytes;
	semel_status status =
		cdc->changes->driver->read(cdc->changes, &load->batch, &position, &trouble);
	if (status != SEMEL_OK) {
		semel_load_give_back(cdc->loads, load);
		return semel_cdc_leave(cdc, trouble.text, error);
	}
	cdc->dry = load->batch.count < FEW_ROWS && !load->batch.cut;
	status = take_in(cdc, load, position, error);
	if (status == SEMEL_OK && load->batch.count > 0)
		*load_out = load;
	else
		semel_load_give_back(cdc->loads, load);
	return status;
}

static semel_status read_poll(struct semel_cdc *cdc, const struct semel_room *room,
			      struct semel_load **load_out, semel_error *error)
{
	struct semel_room none = { 0 };
	semel_status status =
		cdc->poll->driver->read(cdc->poll, cdc->pausing ? &none : room, load_out, error);

	if (status == SEMEL_OK && !*load_out && room->rows > 0 && !cdc->pausing &&
	    cdc->poll->driver->is_dry(cdc->poll))
		cdc->drained_ms = semel_steady_ms(cdc->env);
	for (uint32_t i = 0; *load_out && i < (*load_out)->batch.count; i++)
		if ((*load_out)->batch.rows[i].seq > cdc->polled_seq)
			cdc->polled_seq = (*load_out)->batch.rows[i].seq;
	return status;
}

static semel_status read_next(struct semel_source *source, const struct semel_room *room,
			      struct semel_load **load_out, semel_error *error)
{
	struct semel_cdc *cdc = cdc_of(source);

	*load_out = NULL;
	if (cdc->state == SEMEL_CDC_POLLING)
		return read_poll(cdc, room, load_out, error);
	if (cdc->state != SEMEL_CDC_STREAMING || room->rows == 0)
		return SEMEL_OK;
	semel_status status = SEMEL_OK;
	if (!semel_cdc_is_amid(cdc))
		status = semel_poll_read_due(cdc->poll, room, load_out, error);
	if (status != SEMEL_OK || *load_out)
		return status;
	return read_stream(cdc, room, load_out, error);
}

static bool is_listening(const struct semel_source *source)
{
	const struct semel_cdc *cdc = (const struct semel_cdc *)source;
	return cdc->state == SEMEL_CDC_STREAMING && cdc->dry;
}

static bool is_amid(const struct semel_source *source)
{
	return semel_cdc_is_amid((const struct semel_cdc *)source);
}

/* ---- settling -------------------------------------------------------------------------------- */

static void hold_back(struct semel_cdc *cdc, const struct semel_load *load)
{
	for (uint32_t i = 0; i < load->batch.count; i++)
		if (load->marks[i].kind != SEMEL_MARK_PUBLISHED)
			semel_held_add(&cdc->held, load->batch.rows[i].event.aggregate_type,
				       load->batch.rows[i].event.aggregate_id);
}

static void settled(struct semel_source *source, const struct semel_load *load)
{
	struct semel_cdc *cdc = cdc_of(source);

	if (load->refused)
		hold_back(cdc, load);
	cdc->due_again = cdc->due_again || load->exceptions;
	if (!load->lane && !load->refused)
		semel_tail_add(&cdc->tail, load);
	if (!load->lane)
		semel_pile_add(&cdc->gathered, load, cdc->options.marks && !load->refused,
			       semel_steady_ms(cdc->env));
}

static int64_t low_seq(struct semel_source *source, const struct semel_load *load)
{
	struct semel_cdc *cdc = cdc_of(source);

	if (cdc->state != SEMEL_CDC_POLLING)
		return load->lane->lease.low_seq;
	return cdc->poll->driver->low_seq(cdc->poll, load);
}

/* ---- sleeping, and the whole ----------------------------------------------------------------- */

static bool doze(struct semel_source *source, bool lightly)
{
	struct semel_cdc *cdc = cdc_of(source);
	return cdc->state == SEMEL_CDC_POLLING && cdc->poll->driver->doze(cdc->poll, lightly);
}

/* What the stream has is known by reading it. */
static bool rouse(struct semel_source *source)
{
	struct semel_cdc *cdc = cdc_of(source);
	(void)cdc->poll->driver->rouse(cdc->poll);
	return true;
}

static int64_t sleep_ms(struct semel_source *source)
{
	const struct semel_cdc *cdc = cdc_of(source);
	int64_t now_ms = semel_steady_ms(cdc->env);
	int64_t held_ms = cdc->state == SEMEL_CDC_STREAMING
				  ? cdc->changes->driver->held_ms(cdc->changes)
				  : -1;

	if (cdc->state == SEMEL_CDC_STANDBY)
		return LOOK_MS / 4;
	if (cdc->sending || cdc->state == SEMEL_CDC_LEAVING)
		return 5;
	if (cdc->state == SEMEL_CDC_STREAMING && cdc->changes->driver->is_amid(cdc->changes))
		return AMID_MS;
	if (held_ms >= 0)
		return held_ms;
	if (!semel_pile_is_empty(&cdc->gathered))
		return 20;
	if (cdc->state == SEMEL_CDC_STREAMING)
		return cdc->due_again ? 0 : cdc->look_at_ms - now_ms;
	return cdc->try_at_ms - now_ms;
}

static void beat(struct semel_source *source)
{
	semel_cdc_beat(cdc_of(source));
}

static void guard(struct semel_source *source)
{
	semel_cdc_guard(cdc_of(source));
}

static void connect_to(struct semel_source *source, semel_store *store, struct semel_loads *loads)
{
	struct semel_cdc *cdc = cdc_of(source);

	cdc->changes->driver->stop(cdc->changes);
	semel_cdc_forget(cdc);
	cdc->store = store;
	cdc->loads = loads;
	if (loads->rows_max > ROWS_MAX && !loads->spare)
		loads->rows_max = ROWS_MAX;
	cdc->state = SEMEL_CDC_STANDBY;
	cdc->poll->driver->connect(cdc->poll, store, loads);
}

static void close_cdc(struct semel_source *source)
{
	struct semel_cdc *cdc = cdc_of(source);

	semel_source_close(cdc->poll);
	if (cdc->changes)
		cdc->changes->driver->close(cdc->changes);
	semel_pile_free(&cdc->gathered);
	semel_pile_free(&cdc->sent);
	semel_tail_free(&cdc->tail);
	semel_held_free(&cdc->held);
	free(cdc->feedback);
	free(cdc->store_url);
	free(cdc->slot);
	free(cdc);
}

static const struct semel_source_driver driver = {
	.name = "cdc",
	.wait_ms = 1, /* rows come at any time */
	.connect = connect_to,
	.look = look,
	.read = read_next,
	.is_listening = is_listening,
	.low_seq = low_seq,
	.doze = doze,
	.rouse = rouse,
	.close = close_cdc,
	.tend = tend,
	.settled = settled,
	.beat = beat,
	.guard = guard,
	.sleep_ms = sleep_ms,
	.is_amid = is_amid,
	.label = semel_cdc_label,
};

/* What has to be there before the change stream is opened. */
static bool furnish(struct semel_cdc *cdc, const struct semel_cdc_options *options)
{
	uint32_t capacity = options->window + options->window / 2 + 1000;

	cdc->base.driver = &driver;
	cdc->options = *options;
	cdc->store_url = strdup(options->store_url);
	cdc->slot = strdup(options->slot);
	cdc->feedback = calloc(1, sizeof *cdc->feedback);
	return cdc->store_url && cdc->slot && cdc->feedback &&
	       semel_pile_open(&cdc->gathered, capacity) && semel_pile_open(&cdc->sent, capacity) &&
	       semel_tail_open(&cdc->tail, options->marks ? 0 : TAIL_MAX);
}

semel_status semel_source_open_cdc(const struct semel_cdc_options *options,
				   const struct semel_env *env, struct semel_lanes *lanes,
				   struct semel_source **source_out, semel_error *error)
{
	struct semel_cdc *cdc = calloc(1, sizeof *cdc);
	*source_out = NULL;
	if (!cdc)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the relay");
	cdc->env = env;
	cdc->lanes = lanes;
	semel_status status = semel_source_open_poll(env, lanes, &cdc->poll, error);
	if (status == SEMEL_OK && !furnish(cdc, options))
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory for the relay");
	if (status == SEMEL_OK)
		status = semel_changes_open(cdc->store_url, cdc->slot, &cdc->changes, error);
	if (status != SEMEL_OK) {
		close_cdc(&cdc->base);
		return status;
	}
	lanes->whole = true;
	*source_out = &cdc->base;
	return SEMEL_OK;
}
