/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/pipeline.h"

#include "base/error.h"
#include "base/failpoint.h"
#include "base/plant.h"
#include "base/uuid.h"
#include "observe/log.h"
#include "observe/meter.h"
#include "observe/span.h"
#include "relay/tally.h"

#include <stdlib.h>
#include <string.h>

#define LOAD_MAX  500
#define LOAD_MIN  16
#define ROUND_MAX 16
#define POLL_MS   20
#define HEAR_MS   5 /* answers that nobody waits for are heard with the next row, or after this */

struct semel_pipeline {
	struct semel_pipeline_options options;
	const struct semel_env *env;
	struct semel_lanes *lanes;
	struct semel_source *source;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_loads loads;
	uint32_t room_min; /* so much of the window is free before more is read */
	uint32_t rows;     /* in flight: offered, and not marked */
	uint32_t unanswered;
	uint64_t bytes;
	bool refused;          /* read nothing before it is marked */
	bool read;             /* in the last step something was read, */
	bool settled;          /* or marked, */
	bool owes;             /* or the source has not finished something */
	bool more;             /* the last look has left something */
	bool joined;           /* the broker knows of transactions */
	bool seldom;           /* the last load came a while after the one before */
	int64_t offered_at_ms; /* steady: the last load */
	struct {               /* the transaction of the row offered last; more of it may come */
		uint64_t number;
		semel_status spoilt; /* by the refusal of one of its events */
	} transaction;
	uint64_t published;
	struct semel_relay_tally tally;
	int64_t heard_at_ms; /* steady; 0: nothing was heard in this poll yet */
	semel_status heard;  /* a failpoint's error, met while hearing answers */
};

/* ---- hearing --------------------------------------------------------------------------------- */

static void answer(struct semel_pipeline *pipeline, struct semel_flight *flight,
		   semel_status status, const char *reason)
{
	struct semel_load *load = flight->load;

	flight->answered = true;
	flight->answer = status;
	flight->reason = status == SEMEL_OK ? NULL : semel_arena_printf(load->arena, "%s", reason);
	load->unanswered--;
	if (load->unanswered == 0)
		load->answered_at_ms = semel_steady_ms(pipeline->env);
	pipeline->unanswered--;
	if (status != SEMEL_OK)
		load->refused = pipeline->refused = true;
	if (semel_status_class(status) == SEMEL_CLASS_REJECT && flight->passage.transaction != 0 &&
	    flight->passage.transaction == pipeline->transaction.number)
		pipeline->transaction.spoilt = status;
}

static void hear(const struct semel_publish_outcome *outcome, void *user)
{
	struct semel_pipeline *pipeline = user;

	const struct semel_flight *flight = outcome->token;

	int64_t took_us = outcome->took_us;

	if (pipeline->heard_at_ms == 0)
		pipeline->heard_at_ms = semel_steady_ms(pipeline->env);
	if (took_us <= 0)
		took_us = (pipeline->heard_at_ms - flight->load->offered_at_ms) * 1000;
	semel_relay_tally_answer(&pipeline->tally, outcome->status, took_us);
	if (semel_spans_wanted())
		semel_relay_span(flight, outcome->status, pipeline->env);
	answer(pipeline, outcome->token, outcome->status, outcome->reason);
	if (outcome->status == SEMEL_OK && pipeline->heard == SEMEL_OK)
		pipeline->heard = semel_failpoint(SEMEL_FP_RELAY_AFTER_CONFIRM, NULL);
}

static semel_status poll_broker(struct semel_pipeline *pipeline, int64_t wait_ms,
				semel_error *error)
{
	pipeline->heard = SEMEL_OK;
	pipeline->heard_at_ms = 0;
	int64_t began_us = semel_meter_begin();
	semel_status status =
		pipeline->broker->driver->poll(pipeline->broker, wait_ms, hear, pipeline, error);
	semel_meter_end(SEMEL_WORK_CONFIRM, began_us);
	if (status == SEMEL_OK && pipeline->heard != SEMEL_OK)
		return semel_error_set(error, pipeline->heard, "failpoint relay.after-confirm");
	return status;
}

/* A broker that has told us to wait is not late. */
static void be_patient(struct semel_pipeline *pipeline, int64_t now_ms)
{
	if (!pipeline->broker->driver->blocked(pipeline->broker))
		return;
	for (struct semel_load *load = pipeline->loads.flying; load; load = load->next)
		load->offered_at_ms = now_ms;
}

static semel_status check_patience(struct semel_pipeline *pipeline, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(pipeline->env);

	be_patient(pipeline, now_ms);
	for (const struct semel_load *load = pipeline->loads.flying; load; load = load->next)
		if (load->unanswered > 0 &&
		    now_ms - load->offered_at_ms > pipeline->options.confirm_timeout_ms)
			return semel_error_set(
				error, SEMEL_OUTAGE,
				"the broker has not answered for %u events in %lld ms",
				load->unanswered, (long long)pipeline->options.confirm_timeout_ms);
	return SEMEL_OK;
}

/* ---- offering -------------------------------------------------------------------------------- */

/* A sibling before it was refused, and the broker need not know that this one is behind it. */
static bool behind_refused(const struct semel_pipeline *pipeline, const struct semel_load *mine,
			   uint32_t at)
{
	const struct semel_event *event = &mine->batch.rows[at].event;

	if (!pipeline->refused)
		return false;
	for (const struct semel_load *load = pipeline->loads.flying; load; load = load->next) {
		uint32_t count = load == mine ? at : load->batch.count;
		for (uint32_t i = 0; load->refused && i < count; i++)
			if (load->flights[i].answered && load->flights[i].answer != SEMEL_OK &&
			    semel_event_is_sibling(&load->batch.rows[i].event, event))
				return true;
	}
	return false;
}

/* It is not to be offered: an event before it was refused. */
static bool must_wait(const struct semel_pipeline *pipeline, const struct semel_load *load,
		      uint32_t at)
{
	return pipeline->transaction.spoilt != SEMEL_OK || behind_refused(pipeline, load, at);
}

/* The broker has no room: hears it out for a while. */
static semel_status make_room(struct semel_pipeline *pipeline, semel_error *error)
{
	semel_status status = poll_broker(pipeline, POLL_MS, error);

	if (pipeline->source->driver->beat)
		pipeline->source->driver->beat(pipeline->source);
	return status == SEMEL_OK ? check_patience(pipeline, error) : status;
}

/* FULL: it has to wait behind an event that was refused while the broker had no room. */
static semel_status publish(struct semel_pipeline *pipeline, struct semel_load *load, uint32_t at,
			    semel_error *error)
{
	struct semel_broker *broker = pipeline->broker;
	struct semel_flight *flight = &load->flights[at];
	struct semel_outbox_row *row = &load->batch.rows[at];
	semel_status status;

	if (SEMEL_PLANTED("new-id-on-retry")) {
		char id[SEMEL_UUID_SIZE];
		semel_uuid_make(pipeline->env, id);
		row->event.id = semel_arena_text(load->arena, id, strlen(id));
	}
	while ((status = broker->driver->publish(broker, &row->event, &flight->passage, flight,
						 error)) == SEMEL_FULL) {
		status = make_room(pipeline, error);
		if (status != SEMEL_OK)
			return status;
		if (must_wait(pipeline, load, at))
			return SEMEL_FULL;
	}
	return status;
}

/* Said at once instead of later; nobody else's event is the worse for it. */
static bool is_about_event(semel_status status)
{
	semel_class class = semel_status_class(status);

	return class == SEMEL_CLASS_REJECT || class == SEMEL_CLASS_RETRY;
}

/* What is left of a transaction that cannot be shown is refused as well. */
static void hold(struct semel_pipeline *pipeline, struct semel_flight *flight)
{
	if (pipeline->transaction.spoilt != SEMEL_OK)
		answer(pipeline, flight, pipeline->transaction.spoilt,
		       "an earlier event of its transaction was refused");
	else
		answer(pipeline, flight, SEMEL_HELD, "waits behind an earlier event");
}

static void enter_transaction(struct semel_pipeline *pipeline, uint64_t number)
{
	if (number == pipeline->transaction.number)
		return;
	pipeline->transaction.number = number;
	pipeline->transaction.spoilt = SEMEL_OK;
}

static semel_status offer_row(struct semel_pipeline *pipeline, struct semel_load *load, uint32_t at,
			      semel_error *error)
{
	struct semel_outbox_row *row = &load->batch.rows[at];
	struct semel_flight *flight = &load->flights[at];

	flight->passage =
		(struct semel_passage){ .replay = row->replay,
					.previous = row->previous,
					.transaction = pipeline->joined ? row->transaction : 0 };
	enter_transaction(pipeline, flight->passage.transaction);
	if (row->held || must_wait(pipeline, load, at)) {
		hold(pipeline, flight);
		return SEMEL_OK;
	}
	semel_status status = semel_failpoint(SEMEL_FP_RELAY_BEFORE_PUBLISH, error);
	if (status != SEMEL_OK) {
		answer(pipeline, flight, SEMEL_NACKED, "failpoint relay.before-publish");
		return SEMEL_OK;
	}
	status = publish(pipeline, load, at, error);
	if (status == SEMEL_FULL) {
		hold(pipeline, flight);
		return SEMEL_OK;
	}
	if (is_about_event(status)) {
		answer(pipeline, flight, status, error->text);
		return SEMEL_OK;
	}
	return status == SEMEL_OK ? semel_failpoint(SEMEL_FP_RELAY_AFTER_PUBLISH, error) : status;
}

/* From here on the load is in flight. */
static semel_status offer(struct semel_pipeline *pipeline, struct semel_load *load,
			  semel_error *error)
{
	semel_status status = SEMEL_OK;

	semel_load_launch(&pipeline->loads, load);
	load->offered_at_ms = semel_steady_ms(pipeline->env);
	pipeline->seldom = load->offered_at_ms > pipeline->offered_at_ms;
	pipeline->offered_at_ms = load->offered_at_ms;
	load->unanswered = load->batch.count;
	pipeline->unanswered += load->batch.count;
	pipeline->rows += load->batch.count;
	for (uint32_t i = 0; i < load->batch.count; i++) {
		load->flights[i] = (struct semel_flight){ .load = load };
		load->bytes += load->batch.rows[i].event.payload.length;
	}
	pipeline->bytes += load->bytes;
	for (uint32_t i = 0; i < load->batch.count && status == SEMEL_OK; i++)
		status = offer_row(pipeline, load, i, error);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The last row that was read has others behind it that were committed with it. */
static bool is_amid_transaction(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	return pipeline->joined && source->driver->is_amid && source->driver->is_amid(source);
}

/* Everything unmarked counts, for all of it would be repeated after a crash. A refusal may have to
 * wait for the end of a transaction. */
static uint32_t free_rows(const struct semel_pipeline *pipeline)
{
	if (pipeline->rows >= pipeline->options.window ||
	    (pipeline->refused && !is_amid_transaction(pipeline)) ||
	    pipeline->bytes >= pipeline->options.window_bytes)
		return 0;
	return pipeline->options.window - pipeline->rows;
}

/* A window that is nearly full is not topped up row by row: a statement for a few rows costs nearly
 * as much as one for many. */
bool semel_pipeline_has_room(const struct semel_pipeline *pipeline)
{
	uint32_t rows = free_rows(pipeline);

	return rows > 0 && rows >= pipeline->room_min;
}

/* Only now, for it shuts out whoever has published so far: the lanes are ours. */
static semel_status join(struct semel_pipeline *pipeline, semel_error *error)
{
	char name[SEMEL_SOURCE_LABEL_SIZE];
	semel_status status = pipeline->source->driver->label(pipeline->source, name, error);

	if (status == SEMEL_OK)
		status = pipeline->broker->driver->transact(pipeline->broker, name, error);
	pipeline->joined = status == SEMEL_OK;
	return status;
}

/* From here on it is the pipeline's. */
static semel_status carry(struct semel_pipeline *pipeline, struct semel_load *load,
			  semel_error *error)
{
	semel_status status = semel_failpoint(SEMEL_FP_RELAY_AFTER_CLAIM, error);

	if (status == SEMEL_OK && pipeline->options.transactions && !pipeline->joined)
		status = join(pipeline, error);
	if (status == SEMEL_OK)
		return offer(pipeline, load, error);
	semel_load_give_back(&pipeline->loads, load);
	return status;
}

static struct semel_room room_in(const struct semel_pipeline *pipeline)
{
	uint32_t rows = free_rows(pipeline);

	if (rows == 0)
		return (struct semel_room){ 0 };
	return (struct semel_room){ .rows = rows,
				    .bytes = pipeline->options.window_bytes - pipeline->bytes };
}

static bool is_listening(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	return source->driver->is_listening && source->driver->is_listening(source);
}

static bool is_dry(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	if (is_listening(pipeline))
		return true;
	return source->driver->is_dry ? source->driver->is_dry(source) : !pipeline->read;
}

static semel_status fill(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_source *source = pipeline->source;
	struct semel_load *load = NULL;

	if (!semel_pipeline_has_room(pipeline)) {
		pipeline->more = true;
		return SEMEL_OK;
	}
	int64_t began_us = semel_meter_begin();
	semel_status status = source->driver->look(source, error);
	while (status == SEMEL_OK) {
		struct semel_room room = room_in(pipeline);
		status = source->driver->read(source, &room, &load, error);
		if (status != SEMEL_OK || !load)
			break;
		semel_meter_end(SEMEL_WORK_READ, began_us);
		pipeline->read = true;
		began_us = semel_meter_begin();
		status = carry(pipeline, load, error);
		semel_meter_end(SEMEL_WORK_PUBLISH, began_us);
		began_us = semel_meter_begin();
	}
	semel_meter_end(SEMEL_WORK_READ, began_us);
	pipeline->more = !is_dry(pipeline);
	return status;
}

/* ---- marking --------------------------------------------------------------------------------- */

static void tell_refusal(const struct semel_mark *mark)
{
	const struct semel_event *event = &mark->row->event;

	semel_log(mark->kind == SEMEL_MARK_PARKED ? SEMEL_LOG_DEBUG : SEMEL_LOG_WARN,
		  mark->kind == SEMEL_MARK_FAILED
			  ? "the broker will not take the event; dead letter"
		  : mark->kind == SEMEL_MARK_RETRY ? "the broker refused the event; it comes again"
						   : "the event waits behind an earlier one",
		  &(struct semel_log_fields){ .message_id = event->id.data,
					      .topic = event->topic.data,
					      .routing_key = event->routing_key.data,
					      .attempt = mark->attempts,
					      .error = mark->reason });
}

static void judge(struct semel_pipeline *pipeline, struct semel_load *load, int64_t now_ms)
{
	for (uint32_t i = 0; i < load->batch.count; i++) {
		struct semel_mark *mark = &load->marks[i];
		*mark = (struct semel_mark){ .row = &load->batch.rows[i],
					     .reason = load->flights[i].reason };
		semel_refusal_judge(&pipeline->options.refusal, load->flights[i].answer, now_ms,
				    load->refused ? semel_random(pipeline->env) : 0, mark);
		if (mark->kind != SEMEL_MARK_PUBLISHED)
			tell_refusal(mark);
	}
}

static void count_published(struct semel_pipeline *pipeline, const struct semel_load *load)
{
	for (uint32_t i = 0; i < load->batch.count; i++) {
		pipeline->published += load->marks[i].kind == SEMEL_MARK_PUBLISHED;
		semel_relay_tally_mark(&pipeline->tally, &load->marks[i]);
	}
}

static struct semel_mark_batch marks_of(struct semel_pipeline *pipeline, struct semel_load *load)
{
	int64_t now_ms = semel_now_ms(pipeline->env);

	judge(pipeline, load, now_ms);
	return (struct semel_mark_batch){ .marks = load->marks,
					  .count = load->batch.count,
					  .low_seq = pipeline->source->driver->low_seq(
						  pipeline->source, load),
					  .now_ms = now_ms,
					  .expires_at_ms = semel_lanes_expiry(pipeline->lanes) };
}

/* A lane that was lost and taken again has a new epoch: another relay has had the rows meanwhile,
 * and what was heard of them here is not the last word. */
static bool is_of_this_lease(const struct semel_pipeline *pipeline, const struct semel_load *load)
{
	if (!load->lane)
		return load->epoch == pipeline->lanes->tenure;
	return load->lane->mine && load->epoch == load->lane->lease.epoch;
}

/* The marks of one lane, out of those of a load of all lanes. */
static semel_status mark_lane(struct semel_pipeline *pipeline, const struct semel_load *load,
			      struct semel_lane *lane, struct semel_mark *marks, semel_error *error)
{
	struct semel_mark_batch batch = { .marks = marks,
					  .low_seq = lane->lease.low_seq,
					  .now_ms = semel_now_ms(pipeline->env),
					  .expires_at_ms = semel_lanes_expiry(pipeline->lanes) };

	for (uint32_t i = 0; i < load->batch.count; i++)
		if (load->batch.rows[i].lane == lane->lease.lane)
			marks[batch.count++] = load->marks[i];
	if (batch.count == 0)
		return SEMEL_OK;
	return pipeline->store->driver->outbox_mark(pipeline->store, &lane->lease, &batch, error);
}

/* A load of all lanes: its source marks it later, with many others, unless something in it was
 * refused. */
static semel_status mark_mixed(struct semel_pipeline *pipeline, struct semel_load *load,
			       semel_error *error)
{
	struct semel_lanes *lanes = pipeline->lanes;
	semel_status status = SEMEL_OK;

	judge(pipeline, load, semel_now_ms(pipeline->env));
	if (!load->refused)
		return SEMEL_OK;
	struct semel_mark *marks =
		semel_arena_alloc(load->arena, load->batch.count * sizeof *marks);
	if (!marks)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for marks");
	for (int32_t i = 0; i < lanes->count && status == SEMEL_OK; i++)
		status = mark_lane(pipeline, load, &lanes->lanes[i], marks, error);
	return status;
}

static semel_status mark_load(struct semel_pipeline *pipeline, struct semel_load *load,
			      semel_error *error)
{
	if (!is_of_this_lease(pipeline, load))
		return SEMEL_LEASE_LOST;
	if (!load->lane)
		return mark_mixed(pipeline, load, error);
	struct semel_mark_batch batch = marks_of(pipeline, load);
	return pipeline->store->driver->outbox_mark(pipeline->store, &load->lane->lease, &batch,
						    error);
}

static bool any_refused(const struct semel_pipeline *pipeline)
{
	for (const struct semel_load *load = pipeline->loads.flying; load; load = load->next)
		if (load->refused)
			return true;
	return false;
}

/* It was marked, with this status. */
static semel_status settle_load(struct semel_pipeline *pipeline, struct semel_load *load,
				semel_status status, semel_error *error)
{
	if (status == SEMEL_OK) {
		count_published(pipeline, load);
		if (load->lane || load->refused)
			status = semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
		if (pipeline->source->driver->settled)
			pipeline->source->driver->settled(pipeline->source, load);
	} else if (status == SEMEL_LEASE_LOST) {
		/* The new owner sends them again; the inbox knows them. */
		if (load->lane && is_of_this_lease(pipeline, load))
			load->lane->mine = false;
		pipeline->lanes->tend_at_ms = 0;
		status = SEMEL_OK;
	}
	pipeline->settled = true;
	pipeline->bytes -= load->bytes;
	pipeline->rows -= load->batch.count;
	semel_load_land(&pipeline->loads, load);
	semel_load_give_back(&pipeline->loads, load);
	pipeline->refused = pipeline->refused && any_refused(pipeline);
	return status;
}

/* Nothing in it needs more than one plain mark. */
static bool is_plain(const struct semel_pipeline *pipeline, const struct semel_load *load)
{
	return load->lane && load->unanswered == 0 && !load->refused && !load->exceptions &&
	       is_of_this_lease(pipeline, load);
}

/* Loads without a hitch, as many as one statement takes. */
static semel_status settle_plain(struct semel_pipeline *pipeline, bool *more_out,
				 semel_error *error)
{
	struct semel_lane_marks marks[ROUND_MAX];
	struct semel_load *settled[ROUND_MAX];
	size_t count = 0;

	for (struct semel_load *load = pipeline->loads.flying; load && count < ROUND_MAX;
	     load = load->next) {
		load->settling = is_plain(pipeline, load);
		if (load->settling)
			settled[count++] = load;
	}
	for (size_t i = 0; i < count; i++)
		marks[i] = (struct semel_lane_marks){ .lease = &settled[i]->lane->lease,
						      .batch = marks_of(pipeline, settled[i]) };
	semel_status status = count == 0 ? SEMEL_OK
					 : pipeline->store->driver->outbox_mark_lanes(
						   pipeline->store, marks, count, error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++)
		status = settle_load(pipeline, settled[i],
				     marks[i].lost ? SEMEL_LEASE_LOST : SEMEL_OK, error);
	*more_out = count == ROUND_MAX;
	return status;
}

static semel_status settle(struct semel_pipeline *pipeline, semel_error *error)
{
	bool more = pipeline->store->driver->outbox_mark_lanes != NULL;
	semel_status status = SEMEL_OK;

	while (more && status == SEMEL_OK)
		status = settle_plain(pipeline, &more, error);
	for (struct semel_load *load = pipeline->loads.flying, *next; load && status == SEMEL_OK;
	     load = next) {
		next = load->next;
		if (load->unanswered > 0)
			continue;
		status = mark_load(pipeline, load, error);
		status = settle_load(pipeline, load, status, error);
	}
	return status;
}

/* Only a planted bug comes here: marked, and a crash before the broker has it loses it. */
static void pretend_confirmed(struct semel_pipeline *pipeline, semel_error *error)
{
	for (struct semel_load *load = pipeline->loads.flying; load; load = load->next)
		(void)mark_load(pipeline, load, error);
	(void)semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* When the loads that are answered must be marked; steady. INT64_MAX: none is. */
static int64_t mark_at_ms(const struct semel_pipeline *pipeline)
{
	int64_t first_ms = INT64_MAX;
	uint32_t rows = 0, loads = 0;

	for (const struct semel_load *load = pipeline->loads.flying; load; load = load->next) {
		if (load->unanswered > 0)
			continue;
		rows += load->batch.count;
		loads++;
		if (load->exceptions || !load->lane)
			first_ms = 0; /* others of their aggregates wait; the source gathers */
		else if (load->answered_at_ms < first_ms)
			first_ms = load->answered_at_ms;
	}
	if (loads == 0)
		return INT64_MAX;
	if (pipeline->refused || rows >= pipeline->room_min || loads >= ROUND_MAX)
		return 0;
	return first_ms + pipeline->options.mark_delay_ms;
}

/* Single rows: whoever sleeps is woken by the next one, and hears the answers then. To be woken by
 * each answer as well would double the work. While many come, waiting for answers lets them gather.
 */
static bool may_hear_later(const struct semel_pipeline *pipeline)
{
	return pipeline->broker->driver->works_alone && pipeline->seldom && !pipeline->joined &&
	       is_listening(pipeline) && semel_pipeline_has_room(pipeline);
}

/* The broker wakes whoever sleeps on it. A source that cannot tell when it is dry may wake all the
 * time, also while there is no room for what it has: there the broker is waited for alone. */
static bool is_woken(const struct semel_pipeline *pipeline)
{
	return (pipeline->broker->driver->watch_outcomes && pipeline->source->driver->is_dry) ||
	       may_hear_later(pipeline);
}

static bool is_any_answered(const struct semel_pipeline *pipeline)
{
	for (const struct semel_load *load = pipeline->loads.flying; load; load = load->next)
		if (load->unanswered == 0)
			return true;
	return false;
}

/* Between two transactions the broker may show what it has. One that fills the window alone would
 * wait for ever. */
static void tell_whole(struct semel_pipeline *pipeline)
{
	bool amid = is_amid_transaction(pipeline);

	if (!pipeline->joined || (amid && (free_rows(pipeline) > 0 || is_any_answered(pipeline))))
		return;
	if (amid)
		semel_logf(SEMEL_LOG_WARN,
			   "a transaction of more than %u events, or %llu bytes, is shown in parts "
			   "(raise --window and --window-bytes to twice its size)",
			   pipeline->unanswered, (unsigned long long)pipeline->bytes);
	pipeline->broker->driver->complete(pipeline->broker);
}

/* With nothing to hear of, too: it keeps the connection alive. */
static semel_status hear_all(struct semel_pipeline *pipeline, enum semel_step kind,
			     semel_error *error)
{
	bool wait = kind == SEMEL_STEP_FINISH || !is_woken(pipeline);

	if (pipeline->read || pipeline->unanswered == 0)
		wait = false;
	int64_t wait_ms = wait ? pipeline->source->driver->wait_ms : 0;
	tell_whole(pipeline);
	semel_status status = poll_broker(pipeline, wait_ms, error);
	return status == SEMEL_OK ? check_patience(pipeline, error) : status;
}

semel_status semel_pipeline_step(struct semel_pipeline *pipeline, enum semel_step kind,
				 bool *busy_out, semel_error *error)
{
	struct semel_source *source = pipeline->source;
	semel_status status = SEMEL_OK;

	*busy_out = pipeline->read = pipeline->settled = pipeline->owes = false;
	if (source->driver->tend)
		status = source->driver->tend(source, kind == SEMEL_STEP_FINISH, &pipeline->owes,
					      error);
	if (status == SEMEL_OK && kind == SEMEL_STEP_READ)
		status = fill(pipeline, error);
	if (status != SEMEL_OK)
		return status;
	if (SEMEL_PLANTED("mark-before-confirm"))
		pretend_confirmed(pipeline, error);
	status = hear_all(pipeline, kind, error);
	if (status == SEMEL_OK &&
	    (kind == SEMEL_STEP_FINISH || mark_at_ms(pipeline) <= semel_steady_ms(pipeline->env))) {
		int64_t began_us = semel_meter_begin();
		status = settle(pipeline, error);
		semel_meter_end(SEMEL_WORK_MARK, began_us);
	}
	semel_relay_tally_tell(&pipeline->tally, pipeline->unanswered);
	*busy_out = pipeline->read || pipeline->owes || pipeline->loads.flying != NULL;
	/* Nobody reads the rest of a transaction any more; what there is of it is not shown. */
	if (kind == SEMEL_STEP_FINISH && is_amid_transaction(pipeline))
		*busy_out = pipeline->owes || is_any_answered(pipeline);
	return status;
}

bool semel_pipeline_is_carrying(const struct semel_pipeline *pipeline)
{
	return pipeline->loads.flying != NULL;
}

bool semel_pipeline_has_more(const struct semel_pipeline *pipeline)
{
	return pipeline->more;
}

int64_t semel_pipeline_rest_ms(const struct semel_pipeline *pipeline, int64_t most_ms)
{
	int64_t mark_ms = mark_at_ms(pipeline);

	if (pipeline->unanswered > 0 && !is_woken(pipeline))
		return 0; /* the next step waits */
	if ((pipeline->read || pipeline->settled) && pipeline->more &&
	    semel_pipeline_has_room(pipeline))
		return 0;
	if (pipeline->owes)
		most_ms = 1;
	if (pipeline->unanswered > 0 && may_hear_later(pipeline) && most_ms > HEAR_MS)
		most_ms = HEAR_MS;
	if (mark_ms == INT64_MAX)
		return most_ms;
	mark_ms -= semel_steady_ms(pipeline->env);
	if (mark_ms < 0)
		return 0;
	return mark_ms < most_ms ? mark_ms : most_ms;
}

/* The window is shared by the lanes, as far as loads do not get too small for that. */
static uint32_t load_max_for(uint32_t window, uint32_t lanes)
{
	uint32_t share = window / lanes;

	if (share < LOAD_MIN)
		share = LOAD_MIN;
	if (share > LOAD_MAX)
		share = LOAD_MAX;
	return share < window ? share : window;
}

semel_status semel_pipeline_open(const struct semel_pipeline_options *options,
				 const struct semel_env *env, struct semel_lanes *lanes,
				 struct semel_source *source, struct semel_pipeline **pipeline_out,
				 semel_error *error)
{
	struct semel_pipeline *pipeline = calloc(1, sizeof *pipeline);
	*pipeline_out = NULL;
	if (!pipeline)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the relay");
	pipeline->options = *options;
	pipeline->env = env;
	pipeline->lanes = lanes;
	pipeline->source = source;
	semel_relay_tally_open(&pipeline->tally);
	pipeline->loads.rows_max = load_max_for(options->window, (uint32_t)lanes->count);
	pipeline->room_min = options->transactions ? 1 : options->window / 4;
	*pipeline_out = pipeline;
	return SEMEL_OK;
}

void semel_pipeline_connect(struct semel_pipeline *pipeline, semel_store *store,
			    struct semel_broker *broker)
{
	semel_loads_ground(&pipeline->loads);
	pipeline->rows = pipeline->unanswered = 0;
	pipeline->bytes = 0;
	pipeline->refused = pipeline->read = pipeline->more = pipeline->joined = false;
	pipeline->transaction.number = 0;
	pipeline->transaction.spoilt = SEMEL_OK;
	pipeline->store = store;
	pipeline->broker = broker;
	pipeline->source->driver->connect(pipeline->source, store, &pipeline->loads);
}

uint64_t semel_pipeline_published(const struct semel_pipeline *pipeline)
{
	return pipeline->published;
}

void semel_pipeline_close(struct semel_pipeline *pipeline)
{
	if (!pipeline)
		return;
	semel_loads_free(&pipeline->loads);
	free(pipeline);
}
