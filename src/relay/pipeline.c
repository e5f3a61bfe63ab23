/* SPDX-License-Identifier: Apache-2.0 */
/* One step of a relay: read batches, offer their events, poll outcomes, mark. It calls the others
 * in the right order: window.c (what is in flight, when to mark, how long to sleep) and marking.c
 * (from outcomes to marks). */
#include "relay/pipeline.h"

#include "base/error.h"
#include "base/uuid.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "observe/log.h"
#include "observe/metrics.h"
#include "observe/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_ROWS_MAX 500
#define BATCH_ROWS_MIN 16
#define POLL_MS        20

/* What the last step has done. */
struct progress {
	bool read;       /* at least one batch */
	bool unfinished; /* the source has work left */
	struct semel_marking_result marking;
};

/* The outcomes of one poll of the broker. */
struct poll_result {
	int64_t began_ms;    /* steady: the first outcome; 0: none yet */
	semel_status status; /* of an outcome that is about no event, or a failpoint's */
	char reason[160];
};

struct transactions {
	bool joined;            /* the broker has a session for them */
	uint64_t number;        /* of the row offered last; more of it may come. 0: none */
	semel_status rejection; /* of one of its events; OK: none */
};

struct semel_pipeline {
	struct semel_pipeline_options options;
	const struct semel_env *env;
	struct semel_source *source;
	struct semel_broker *broker;
	struct semel_window window;
	struct transactions transactions;
	struct semel_marking marking;
	struct poll_result poll;
	struct progress progress;
	bool more;        /* the last read has left rows */
	bool broker_lost; /* the last outage was the broker's: the store may still be connected */
};

/* ---- transactions ---------------------------------------------------------------------------- */

static bool has_open_transaction(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	return pipeline->transactions.joined && source->driver->in_transaction &&
	       source->driver->in_transaction(source);
}

/* The transaction number for this row, which is offered next; 0: none. */
static uint64_t enter_transaction(struct transactions *transactions,
				  const struct semel_outbox_row *row)
{
	uint64_t number = transactions->joined ? row->transaction : 0;

	if (number != transactions->number) {
		transactions->number = number;
		transactions->rejection = SEMEL_OK;
	}
	return number;
}

static semel_status begin_session(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_broker *broker = pipeline->broker;
	char name[SEMEL_SOURCE_LABEL_SIZE];

	if (!pipeline->options.transactions || pipeline->transactions.joined)
		return SEMEL_OK;
	semel_status status = pipeline->source->driver->label(pipeline->source, name, error);
	if (status != SEMEL_OK)
		return status;
	status = broker->driver->init_transactions(broker, name, error);
	pipeline->transactions.joined = status == SEMEL_OK;
	return status;
}

/* ---- polling outcomes ------------------------------------------------------------------------ */

static void record_outcome(struct semel_pipeline *pipeline, struct semel_relay_inflight *inflight,
			   semel_status status, const char *reason)
{
	struct transactions *transactions = &pipeline->transactions;
	uint64_t number = inflight->metadata.transaction;

	semel_window_record_outcome(&pipeline->window, inflight, status, reason);
	if (number != 0 && number == transactions->number &&
	    semel_status_class(status) == SEMEL_CLASS_REJECT)
		transactions->rejection = status;
}

/* The trace span of publishing one event whose outcome was reported. */
static void trace_outcome(const struct semel_relay_inflight *inflight, semel_status outcome,
			  const struct semel_env *env)
{
	const struct semel_relay_batch *batch = inflight->batch;
	const struct semel_event *event = &batch->fetched.rows[inflight - batch->inflight].event;
	struct semel_text traceparent = semel_event_header(event, "traceparent", batch->arena);
	struct semel_span_context parent = semel_span_context_of(traceparent, event->id);
	struct semel_span span =
		semel_span_make("semel.relay.publish", SEMEL_SPAN_PRODUCER, &parent, env);

	span.began_ms -= semel_steady_ms(env) - batch->offered_at_ms;
	span.failure = outcome == SEMEL_OK ? NULL : semel_status_name(outcome);
	semel_span_text(&span, "event.id", event->id);
	semel_span_text(&span, "messaging.destination.name", event->topic);
	semel_span_end(&span);
}

static void fail_poll(struct poll_result *poll, semel_status status, const char *reason)
{
	if (poll->status != SEMEL_OK)
		return;
	poll->status = status;
	snprintf(poll->reason, sizeof poll->reason, "%s", reason);
}

static void handle_outcome(const struct semel_publish_outcome *outcome, void *user)
{
	struct semel_pipeline *pipeline = user;
	struct poll_result *poll = &pipeline->poll;
	const struct semel_relay_inflight *inflight = outcome->token;
	int64_t took_us = outcome->took_us;

	if (outcome->status != SEMEL_OK && !semel_outcome_is_about_event(outcome->status)) {
		fail_poll(poll, outcome->status, outcome->reason);
		return;
	}
	if (poll->began_ms == 0)
		poll->began_ms = semel_steady_ms(pipeline->env);
	if (took_us <= 0)
		took_us = (poll->began_ms - inflight->batch->offered_at_ms) * 1000;
	semel_relay_counters_add_outcome(&pipeline->marking.counters, outcome->status, took_us);
	if (semel_spans_are_enabled())
		trace_outcome(inflight, outcome->status, pipeline->env);
	record_outcome(pipeline, outcome->token, outcome->status, outcome->reason);
	if (outcome->status != SEMEL_OK || poll->status != SEMEL_OK)
		return;
	fail_poll(poll, semel_failpoint(SEMEL_FP_RELAY_AFTER_CONFIRM, NULL),
		  "failpoint relay.after-confirm");
}

static semel_status poll_broker(struct semel_pipeline *pipeline, int64_t wait_ms,
				semel_error *error)
{
	struct semel_broker *broker = pipeline->broker;

	pipeline->poll = (struct poll_result){ .status = SEMEL_OK };
	int64_t began_us = semel_step_timer_begin();
	semel_status status =
		broker->driver->poll(broker, wait_ms, handle_outcome, pipeline, error);
	semel_step_timer_end(SEMEL_TIMED_CONFIRM, began_us);
	pipeline->broker_lost = true;
	if (status != SEMEL_OK)
		return status;
	if (pipeline->poll.status != SEMEL_OK)
		return semel_error_set(error, pipeline->poll.status, "%s", pipeline->poll.reason);
	status = semel_window_check_timeout(&pipeline->window, broker->driver->blocked(broker),
					    error);
	pipeline->broker_lost = status != SEMEL_OK;
	return status;
}

/* ---- offering -------------------------------------------------------------------------------- */

/* The event must not be offered: an earlier one was refused. */
static bool must_wait(const struct semel_pipeline *pipeline, const struct semel_relay_batch *batch,
		      uint32_t at)
{
	return pipeline->transactions.rejection != SEMEL_OK ||
	       semel_window_is_behind_refused(&pipeline->window, batch, at);
}

/* The refusals of a transaction are marked once all of it was refused: a part that another relay
 * publishes again would be visible without the rest. */
static semel_status mark_refusals(struct semel_pipeline *pipeline, semel_error *error)
{
	if (pipeline->window.unmarked_refusals == 0 || has_open_transaction(pipeline))
		return SEMEL_OK;
	return semel_marking_mark_refusals(&pipeline->marking, &pipeline->progress.marking, error);
}

/* The broker's window is full: polls outcomes for a while. This may take up to the confirm timeout,
 * and the leases are shorter than that. */
static semel_status close_answered_batches(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_marking *marking = &pipeline->marking;
	semel_status status = poll_broker(pipeline, POLL_MS, error);

	if (pipeline->source->driver->keepalive)
		pipeline->source->driver->keepalive(pipeline->source);
	if (status != SEMEL_OK)
		return status;
	if (!pipeline->transactions.joined) {
		status = mark_refusals(pipeline, error);
		if (status != SEMEL_OK)
			return status;
	}
	return semel_lanes_renew(marking->lanes, marking->store, error);
}

/* The rest of a transaction that cannot be published is refused as well. */
static void hold(struct semel_pipeline *pipeline, struct semel_relay_inflight *inflight)
{
	if (pipeline->transactions.rejection != SEMEL_OK)
		record_outcome(pipeline, inflight, pipeline->transactions.rejection,
			       "an earlier event of its transaction was refused");
	else
		record_outcome(pipeline, inflight, SEMEL_HELD,
			       "an earlier event of its aggregate was refused");
}

/* For a planted bug. */
static void make_new_id(const struct semel_pipeline *pipeline, struct semel_relay_batch *batch,
			struct semel_outbox_row *row)
{
	char id[SEMEL_UUID_SIZE];

	semel_uuid_make(pipeline->env, id);
	row->event.id = semel_arena_text(batch->arena, id, strlen(id));
}

/* While the broker's window is full, an earlier event may be refused: then this one must wait. */
static semel_status offer_row(struct semel_pipeline *pipeline, struct semel_relay_batch *batch,
			      uint32_t at, semel_error *error)
{
	struct semel_broker *broker = pipeline->broker;
	struct semel_outbox_row *row = &batch->fetched.rows[at];
	struct semel_relay_inflight *inflight = &batch->inflight[at];
	semel_status outcome;

	inflight->metadata = (struct semel_publish_metadata){
		.replay = row->replay,
		.previous = row->previous,
		.transaction = enter_transaction(&pipeline->transactions, row),
	};
	if (row->held || must_wait(pipeline, batch, at)) {
		hold(pipeline, inflight);
		return SEMEL_OK;
	}
	if (semel_failpoint(SEMEL_FP_RELAY_BEFORE_PUBLISH, error) != SEMEL_OK) {
		record_outcome(pipeline, inflight, SEMEL_NACKED, "failpoint relay.before-publish");
		return SEMEL_OK;
	}
	if (SEMEL_PLANTED("new-id-on-retry"))
		make_new_id(pipeline, batch, row);
	outcome = semel_event_check_names(&row->event, error);
	if (outcome != SEMEL_OK) {
		record_outcome(pipeline, inflight, outcome, error->text);
		return SEMEL_OK;
	}
	while ((outcome = broker->driver->publish(broker, &row->event, &inflight->metadata,
						  inflight, error)) == SEMEL_FULL) {
		semel_status status = close_answered_batches(pipeline, error);
		if (status != SEMEL_OK)
			return status;
		if (must_wait(pipeline, batch, at)) {
			hold(pipeline, inflight);
			return SEMEL_OK;
		}
	}
	if (outcome != SEMEL_OK && !semel_outcome_is_about_event(outcome)) {
		pipeline->broker_lost = true;
		return outcome;
	}
	if (outcome != SEMEL_OK) {
		record_outcome(pipeline, inflight, outcome, error->text);
		return SEMEL_OK;
	}
	return semel_failpoint(SEMEL_FP_RELAY_AFTER_PUBLISH, error);
}

/* Waits at most the confirm timeout for the broker's transactional session. */
static semel_status join(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_marking *marking = &pipeline->marking;
	int64_t until_ms = semel_steady_ms(pipeline->env) + pipeline->options.confirm_timeout_ms;
	semel_status status;

	while ((status = begin_session(pipeline, error)) == SEMEL_FULL) {
		if (semel_steady_ms(pipeline->env) >= until_ms)
			return SEMEL_OUTAGE; /* the broker has filled in the error */
		if (pipeline->source->driver->keepalive)
			pipeline->source->driver->keepalive(pipeline->source);
		status = semel_lanes_renew(marking->lanes, marking->store, error);
		if (status != SEMEL_OK)
			return status;
	}
	return status;
}

/* The batch belongs to the pipeline from here on. */
static semel_status offer(struct semel_pipeline *pipeline, struct semel_relay_batch *batch,
			  semel_error *error)
{
	semel_status status = semel_failpoint(SEMEL_FP_RELAY_AFTER_CLAIM, error);

	if (status != SEMEL_OK)
		goto release_batch;
	status = join(pipeline, error);
	if (status != SEMEL_OK)
		goto release_batch;
	semel_window_add(&pipeline->window, batch);
	for (uint32_t i = 0; i < batch->fetched.count && status == SEMEL_OK; i++)
		status = offer_row(pipeline, batch, i, error);
	return status;

release_batch:
	semel_relay_batch_release(&pipeline->window.batches, batch);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static struct semel_read_limits read_limits_of(const struct semel_pipeline *pipeline)
{
	bool transaction_open = pipeline->window.refused && has_open_transaction(pipeline);

	return semel_window_read_limits(&pipeline->window, transaction_open);
}

bool semel_pipeline_can_read(const struct semel_pipeline *pipeline)
{
	uint32_t rows = read_limits_of(pipeline).rows;

	return rows > 0 && rows >= pipeline->window.limits.free_min;
}

static bool is_listening(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	return source->driver->is_listening && source->driver->is_listening(source);
}

static bool is_exhausted(const struct semel_pipeline *pipeline)
{
	const struct semel_source *source = pipeline->source;

	if (is_listening(pipeline))
		return true;
	return source->driver->is_exhausted ? source->driver->is_exhausted(source)
					    : !pipeline->progress.read;
}

static semel_status fill(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_source *source = pipeline->source;
	struct semel_relay_batch *batch = NULL;

	if (!semel_pipeline_can_read(pipeline)) {
		pipeline->more = true;
		return SEMEL_OK;
	}
	int64_t began_us = semel_step_timer_begin();
	semel_status status = source->driver->probe(source, error);
	while (status == SEMEL_OK) {
		struct semel_read_limits limits = read_limits_of(pipeline);
		status = source->driver->read(source, &limits, &batch, error);
		if (status != SEMEL_OK || !batch)
			break;
		semel_step_timer_end(SEMEL_TIMED_READ, began_us);
		pipeline->progress.read = true;
		began_us = semel_step_timer_begin();
		status = offer(pipeline, batch, error);
		semel_step_timer_end(SEMEL_TIMED_PUBLISH, began_us);
		began_us = semel_step_timer_begin();
	}
	semel_step_timer_end(SEMEL_TIMED_READ, began_us);
	pipeline->more = !is_exhausted(pipeline);
	return status;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Steady; when the batches that are answered must be marked. */
static int64_t mark_at_ms(const struct semel_pipeline *pipeline)
{
	struct semel_mark_facts facts = {
		.rows_min = pipeline->window.limits.free_min,
		.batches_max = SEMEL_MARKING_BATCHES_MAX,
		.delay_ms = pipeline->options.mark_delay_ms,
	};

	semel_window_mark_facts(&pipeline->window, &facts);
	return semel_pacing_mark_at_ms(&facts);
}

static enum semel_outcome_mode outcome_mode(const struct semel_pipeline *pipeline)
{
	const struct semel_broker_driver *broker = pipeline->broker->driver;
	struct semel_outcome_facts facts = {
		.broker_wakes = broker->watch_outcomes != NULL,
		.broker_works_in_background = broker->works_in_background,
		.source_reports_exhausted = pipeline->source->driver->is_exhausted != NULL,
		.source_listens = is_listening(pipeline),
		.can_read = semel_pipeline_can_read(pipeline),
		.transactional = pipeline->transactions.joined,
		.sparse = pipeline->window.sparse,
	};

	return semel_pacing_outcome_mode(&facts);
}

/* The broker commits between two transactions. A transaction that fills the window alone would
 * never be committed otherwise. */
static void complete_transaction(struct semel_pipeline *pipeline)
{
	const struct semel_window *window = &pipeline->window;
	bool transaction_open = has_open_transaction(pipeline);

	if (!pipeline->transactions.joined ||
	    (transaction_open &&
	     (read_limits_of(pipeline).rows > 0 || semel_window_has_answered_batch(window))))
		return;
	if (pipeline->broker->driver->complete_transaction(pipeline->broker, !transaction_open) &&
	    transaction_open)
		semel_log_detail(SEMEL_LOG_WARN,
				 "transaction exceeds the window, publishing it in parts",
				 "more than %u events or %llu bytes (raise --window and "
				 "--window-bytes to twice its size)",
				 window->unanswered, (unsigned long long)window->bytes);
}

/* Also with nothing in flight: polling keeps the connection alive. */
static semel_status poll_outcomes(struct semel_pipeline *pipeline, enum semel_step kind,
				  semel_error *error)
{
	bool wait = !pipeline->progress.read && pipeline->window.unanswered > 0 &&
		    (kind == SEMEL_STEP_FINISH || outcome_mode(pipeline) == SEMEL_OUTCOMES_POLLED);

	complete_transaction(pipeline);
	return poll_broker(pipeline, wait ? pipeline->source->driver->wait_ms : 0, error);
}

static semel_status mark_answered(struct semel_pipeline *pipeline, enum semel_step kind,
				  semel_error *error)
{
	semel_status status = mark_refusals(pipeline, error);

	if (status != SEMEL_OK)
		return status;
	if (kind != SEMEL_STEP_FINISH && mark_at_ms(pipeline) > semel_steady_ms(pipeline->env))
		return SEMEL_OK;
	int64_t began_us = semel_step_timer_begin();
	status = semel_marking_mark_batches(&pipeline->marking, &pipeline->progress.marking, error);
	semel_step_timer_end(SEMEL_TIMED_MARK, began_us);
	return status;
}

static semel_status poll_and_mark(struct semel_pipeline *pipeline, enum semel_step kind,
				  semel_error *error)
{
	semel_status status = poll_outcomes(pipeline, kind, error);

	if (status != SEMEL_OK)
		return status;
	return mark_answered(pipeline, kind, error);
}

static bool is_busy(const struct semel_pipeline *pipeline, enum semel_step kind)
{
	/* A batch that was finished just now may be the source's to mark, in its next step. */
	if (kind == SEMEL_STEP_FINISH && pipeline->progress.marking.marked)
		return true;
	/* The rest of a transaction is not read any more; the part read is not committed. */
	if (kind == SEMEL_STEP_FINISH && has_open_transaction(pipeline))
		return pipeline->progress.unfinished ||
		       semel_window_has_answered_batch(&pipeline->window);
	return pipeline->progress.read || pipeline->progress.unfinished ||
	       semel_pipeline_has_in_flight(pipeline);
}

semel_status semel_pipeline_step(struct semel_pipeline *pipeline, enum semel_step kind,
				 bool *busy_out, semel_error *error)
{
	struct semel_source *source = pipeline->source;
	semel_status status = SEMEL_OK;

	*busy_out = false;
	pipeline->progress = (struct progress){ 0 };
	if (source->driver->maintain)
		status = source->driver->maintain(source, kind == SEMEL_STEP_FINISH,
						  &pipeline->progress.unfinished, error);
	if (status != SEMEL_OK)
		return status;
	if (kind == SEMEL_STEP_READ) {
		status = fill(pipeline, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (SEMEL_PLANTED("mark-before-confirm"))
		semel_marking_mark_unconfirmed(&pipeline->marking, error);
	status = poll_and_mark(pipeline, kind, error);
	semel_relay_counters_report(&pipeline->marking.counters, pipeline->window.unanswered);
	*busy_out = is_busy(pipeline, kind);
	return status;
}

bool semel_pipeline_has_in_flight(const struct semel_pipeline *pipeline)
{
	return pipeline->window.batches.in_flight != NULL;
}

bool semel_pipeline_has_more(const struct semel_pipeline *pipeline)
{
	return pipeline->more;
}

int64_t semel_pipeline_sleep_ms(const struct semel_pipeline *pipeline, int64_t most_ms)
{
	struct semel_pacing_facts facts = {
		.now_ms = semel_steady_ms(pipeline->env),
		.most_ms = most_ms,
		.mark_at_ms = mark_at_ms(pipeline),
		.unanswered = pipeline->window.unanswered,
		.outcomes = outcome_mode(pipeline),
		.progressed = pipeline->progress.read || pipeline->progress.marking.marked,
		.may_read = pipeline->more && semel_pipeline_can_read(pipeline),
		.unfinished = pipeline->progress.unfinished || pipeline->progress.marking.deferred,
	};

	return semel_pacing_sleep_ms(&facts);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* The window is divided by the lanes, but no batch gets smaller than BATCH_ROWS_MIN. */
static uint32_t batch_max_for(uint32_t window, uint32_t lanes)
{
	uint32_t rows = window / lanes;

	if (rows < BATCH_ROWS_MIN)
		rows = BATCH_ROWS_MIN;
	if (rows > BATCH_ROWS_MAX)
		rows = BATCH_ROWS_MAX;
	return rows < window ? rows : window;
}

static void assemble(struct semel_pipeline *pipeline, struct semel_lanes *lanes)
{
	const struct semel_pipeline_options *options = &pipeline->options;

	pipeline->window = (struct semel_window){
		.env = pipeline->env,
		.batches.rows_max = batch_max_for(options->window, (uint32_t)lanes->count),
		.limits = { .rows_max = options->window,
			    .bytes_max = options->window_bytes,
			    .free_min = options->transactions ? 1 : options->window / 4,
			    .confirm_timeout_ms = options->confirm_timeout_ms },
	};
	pipeline->marking = (struct semel_marking){
		.env = pipeline->env,
		.policy = &pipeline->options.refusal,
		.lanes = lanes,
		.source = pipeline->source,
		.window = &pipeline->window,
	};
	semel_relay_counters_open(&pipeline->marking.counters);
}

semel_status semel_pipeline_open(const struct semel_pipeline_options *options,
				 const struct semel_env *env, struct semel_lanes *lanes,
				 struct semel_source *source, struct semel_pipeline **pipeline_out,
				 semel_error *error)
{
	struct semel_pipeline *pipeline = calloc(1, sizeof *pipeline);
	*pipeline_out = NULL;
	if (!pipeline)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the relay");
	pipeline->options = *options;
	pipeline->env = env;
	pipeline->source = source;
	assemble(pipeline, lanes);
	*pipeline_out = pipeline;
	return SEMEL_OK;
}

void semel_pipeline_connect(struct semel_pipeline *pipeline, semel_store *store,
			    struct semel_broker *broker)
{
	semel_window_reset(&pipeline->window);
	pipeline->transactions = (struct transactions){ 0 }; /* a new session is needed */
	pipeline->progress.read = pipeline->more = pipeline->broker_lost = false;
	pipeline->broker = broker;
	pipeline->marking.store = store;
	pipeline->source->driver->connect(pipeline->source, store, &pipeline->window.batches);
}

void semel_pipeline_mark_answered(struct semel_pipeline *pipeline)
{
	semel_error error = { .status = SEMEL_OK };

	if (!pipeline->window.batches.in_flight || has_open_transaction(pipeline))
		return;
	if (semel_marking_mark_answered(&pipeline->marking, &error) != SEMEL_OK)
		semel_log(SEMEL_LOG_WARN, "cannot mark answered events, publishing them again",
			  &(struct semel_log_fields){ .error = error.text });
}

bool semel_pipeline_has_lost_broker(const struct semel_pipeline *pipeline)
{
	return pipeline->broker_lost;
}

uint64_t semel_pipeline_published(const struct semel_pipeline *pipeline)
{
	return pipeline->marking.published;
}

void semel_pipeline_close(struct semel_pipeline *pipeline)
{
	if (!pipeline)
		return;
	semel_relay_batches_free(&pipeline->window.batches);
	free(pipeline);
}
