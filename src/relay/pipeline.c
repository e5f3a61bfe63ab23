/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/pipeline.h"

#include "base/error.h"
#include "base/failpoint.h"
#include "base/plant.h"
#include "base/uuid.h"
#include "observe/log.h"
#include "relay/load.h"

#include <stdlib.h>
#include <string.h>

#define LOAD_MAX  500
#define LOAD_MIN  16
#define ROUND_MAX 16
#define POLL_MS   20

struct semel_pipeline {
	struct semel_pipeline_options options;
	const struct semel_env *env;
	struct semel_lanes *lanes;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_load *loads; /* in flight, oldest first */
	struct semel_load *spare;
	uint32_t load_max;  /* rows in a load */
	uint32_t room_min;  /* so much of the window is free before more is read */
	int32_t first_lane; /* where reading begins */
	uint32_t rows;      /* in flight: offered, and not marked */
	uint32_t unanswered;
	uint64_t bytes;
	bool refused; /* read nothing before it is marked */
	uint64_t published;
	semel_status heard; /* a failpoint's error, met while hearing answers */
};

/* ---- loads ----------------------------------------------------------------------------------- */

static struct semel_load *load_take(struct semel_pipeline *pipeline, struct semel_lane *lane)
{
	struct semel_load *load = pipeline->spare;
	if (load)
		pipeline->spare = load->next;
	else
		load = semel_load_new(pipeline->load_max);
	if (!load)
		return NULL;
	load->next = NULL;
	load->lane = lane;
	load->epoch = lane->lease.epoch;
	load->batch.arena = load->arena;
	load->batch.count = 0;
	load->unanswered = 0;
	load->refused = load->exceptions = load->settling = false;
	load->bytes = 0;
	return load;
}

static void load_give_back(struct semel_pipeline *pipeline, struct semel_load *load)
{
	semel_arena_reset(load->arena);
	load->next = pipeline->spare;
	pipeline->spare = load;
}

static void append(struct semel_pipeline *pipeline, struct semel_load *load)
{
	struct semel_load **end = &pipeline->loads;

	while (*end)
		end = &(*end)->next;
	*end = load;
	load->lane->in_flight++;
}

static void unlink_load(struct semel_pipeline *pipeline, struct semel_load *load)
{
	struct semel_load **at = &pipeline->loads;

	while (*at && *at != load)
		at = &(*at)->next;
	*at = load->next;
	load->lane->in_flight--;
}

/* ---- hearing --------------------------------------------------------------------------------- */

static void answer(struct semel_pipeline *pipeline, struct semel_flight *flight,
		   semel_status status, const char *reason)
{
	struct semel_load *load = flight->load;

	flight->answered = true;
	flight->answer = status;
	flight->reason = status == SEMEL_OK ? NULL : semel_arena_printf(load->arena, "%s", reason);
	load->unanswered--;
	pipeline->unanswered--;
	if (status != SEMEL_OK)
		load->refused = pipeline->refused = true;
}

static void hear(const struct semel_publish_outcome *outcome, void *user)
{
	struct semel_pipeline *pipeline = user;

	answer(pipeline, outcome->token, outcome->status, outcome->reason);
	if (outcome->status == SEMEL_OK && pipeline->heard == SEMEL_OK)
		pipeline->heard = semel_failpoint(SEMEL_FP_RELAY_AFTER_CONFIRM, NULL);
}

static semel_status poll_broker(struct semel_pipeline *pipeline, int64_t wait_ms,
				semel_error *error)
{
	pipeline->heard = SEMEL_OK;
	semel_status status =
		pipeline->broker->driver->poll(pipeline->broker, wait_ms, hear, pipeline, error);
	if (status == SEMEL_OK && pipeline->heard != SEMEL_OK)
		return semel_error_set(error, pipeline->heard, "failpoint relay.after-confirm");
	return status;
}

/* A broker that has told us to wait is not late. */
static void be_patient(struct semel_pipeline *pipeline, int64_t now_ms)
{
	if (!pipeline->broker->driver->blocked(pipeline->broker))
		return;
	for (struct semel_load *load = pipeline->loads; load; load = load->next)
		load->offered_at_ms = now_ms;
}

static semel_status check_patience(struct semel_pipeline *pipeline, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(pipeline->env);

	be_patient(pipeline, now_ms);
	for (const struct semel_load *load = pipeline->loads; load; load = load->next)
		if (load->unanswered > 0 &&
		    now_ms - load->offered_at_ms > pipeline->options.confirm_timeout_ms)
			return semel_error_set(
				error, SEMEL_OUTAGE,
				"the broker has not answered for %u events in %lld ms",
				load->unanswered, (long long)pipeline->options.confirm_timeout_ms);
	return SEMEL_OK;
}

/* ---- offering -------------------------------------------------------------------------------- */

static bool same_aggregate(const struct semel_event *left, const struct semel_event *right)
{
	return semel_text_equal(left->aggregate_id, right->aggregate_id) &&
	       semel_text_equal(left->aggregate_type, right->aggregate_type);
}

/* A sibling before it was refused, and the broker need not know that this one is behind it. */
static bool behind_refused(const struct semel_pipeline *pipeline, const struct semel_load *mine,
			   uint32_t at)
{
	const struct semel_event *event = &mine->batch.rows[at].event;

	for (const struct semel_load *load = pipeline->loads; load; load = load->next) {
		uint32_t count = load == mine ? at : load->batch.count;
		for (uint32_t i = 0; load->refused && i < count; i++)
			if (load->flights[i].answered && load->flights[i].answer != SEMEL_OK &&
			    same_aggregate(&load->batch.rows[i].event, event))
				return true;
	}
	return false;
}

static semel_status publish(struct semel_pipeline *pipeline, struct semel_flight *flight,
			    struct semel_outbox_row *row, semel_error *error)
{
	struct semel_broker *broker = pipeline->broker;
	semel_status status;

	if (SEMEL_PLANTED("new-id-on-retry")) {
		char id[SEMEL_UUID_SIZE];
		semel_uuid_make(pipeline->env, id);
		row->event.id = semel_arena_text(flight->load->arena, id, strlen(id));
	}
	while ((status = broker->driver->publish(broker, &row->event, &flight->passage, flight,
						 error)) == SEMEL_FULL) {
		status = poll_broker(pipeline, POLL_MS, error);
		if (status == SEMEL_OK)
			status = check_patience(pipeline, error);
		if (status != SEMEL_OK)
			return status;
	}
	return status;
}

/* Said at once instead of later; nobody else's event is the worse for it. */
static bool is_about_event(semel_status status)
{
	semel_class class = semel_status_class(status);

	return class == SEMEL_CLASS_REJECT || class == SEMEL_CLASS_RETRY;
}

static semel_status offer_row(struct semel_pipeline *pipeline, struct semel_load *load, uint32_t at,
			      semel_error *error)
{
	struct semel_outbox_row *row = &load->batch.rows[at];
	struct semel_flight *flight = &load->flights[at];

	flight->passage =
		(struct semel_passage){ .replay = row->replay, .previous = row->previous };
	if (row->held || behind_refused(pipeline, load, at)) {
		answer(pipeline, flight, SEMEL_FULL, "waits behind an earlier event");
		return SEMEL_OK;
	}
	semel_status status = semel_failpoint(SEMEL_FP_RELAY_BEFORE_PUBLISH, error);
	if (status != SEMEL_OK) {
		answer(pipeline, flight, SEMEL_NACKED, "failpoint relay.before-publish");
		return SEMEL_OK;
	}
	status = publish(pipeline, flight, row, error);
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

	append(pipeline, load);
	load->offered_at_ms = semel_steady_ms(pipeline->env);
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

static bool exceptions_in_flight(const struct semel_pipeline *pipeline,
				 const struct semel_lane *lane)
{
	for (const struct semel_load *load = pipeline->loads; load; load = load->next)
		if (load->exceptions && load->lane == lane)
			return true;
	return false;
}

/* Everything unmarked counts, for all of it would be repeated after a crash. */
static bool window_has_room(const struct semel_pipeline *pipeline)
{
	return pipeline->rows < pipeline->options.window &&
	       pipeline->bytes < pipeline->options.window_bytes && !pipeline->refused;
}

/* A window that is nearly full is not topped up row by row: a statement for a few rows costs nearly
 * as much as one for many. */
static bool is_worth_reading(const struct semel_pipeline *pipeline)
{
	return pipeline->rows + pipeline->room_min <= pipeline->options.window &&
	       window_has_room(pipeline);
}

static bool has_row(const struct semel_load *load, int64_t seq)
{
	uint32_t low = 0, high = load->batch.count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (load->batch.rows[middle].seq < seq)
			low = middle + 1;
		else
			high = middle;
	}
	return low < load->batch.count && load->batch.rows[low].seq == seq;
}

static bool is_in_flight(const struct semel_pipeline *pipeline, const struct semel_lane *lane,
			 int64_t seq)
{
	for (const struct semel_load *load = pipeline->loads; load; load = load->next)
		if (load->lane == lane && !load->exceptions && has_row(load, seq))
			return true;
	return false;
}

/* The cursor stops at the last number below which everything is visible; above it a late commit
 * may still appear, so those rows are looked at again, and what is in flight is left out. */
static void move_cursor(const struct semel_pipeline *pipeline, struct semel_load *load)
{
	struct semel_lane *lane = load->lane;
	struct semel_outbox_batch *batch = &load->batch;
	int64_t first = batch->rows[0].seq, last = batch->rows[batch->count - 1].seq;
	uint32_t kept = 0;

	if (first <= lane->read_to) {
		for (uint32_t i = 0; i < batch->count; i++)
			if (!is_in_flight(pipeline, lane, batch->rows[i].seq))
				batch->rows[kept++] = batch->rows[i];
		batch->count = kept;
	}
	lane->cursor = last < batch->complete_seq ? last : batch->complete_seq;
	lane->read_to = last > lane->read_to ? last : lane->read_to;
	if (SEMEL_PLANTED("high-water-mark"))
		lane->lease.low_seq = last;
}

/* Loads that are read by one statement. */
struct round {
	size_t count;
	struct semel_load *loads[ROUND_MAX];
	struct semel_lane_look *looks[ROUND_MAX];
};

static void round_give_back(struct semel_pipeline *pipeline, struct round *round)
{
	while (round->count > 0)
		load_give_back(pipeline, round->loads[--round->count]);
}

static semel_status round_add(struct semel_pipeline *pipeline, struct round *round,
			      struct semel_lane_look *look, semel_error *error)
{
	struct semel_load *load = load_take(pipeline, &pipeline->lanes->lanes[look->lane]);

	if (!load)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch of events");
	round->looks[round->count] = look;
	round->loads[round->count++] = load;
	return SEMEL_OK;
}

/* The room that there is, shared evenly. */
static void round_share(const struct semel_pipeline *pipeline, struct round *round)
{
	uint32_t room = (pipeline->options.window - pipeline->rows) / (uint32_t)round->count;
	uint64_t bytes = (pipeline->options.window_bytes - pipeline->bytes) / round->count;

	if (room > pipeline->load_max)
		room = pipeline->load_max;
	for (size_t i = 0; i < round->count; i++) {
		round->loads[i]->batch.capacity = room;
		round->loads[i]->batch.bytes_max = bytes;
	}
}

static semel_status read_run(struct semel_pipeline *pipeline, struct round *round,
			     semel_error *error)
{
	const struct semel_store_driver *driver = pipeline->store->driver;
	struct semel_lane_read reads[ROUND_MAX];
	semel_status status = SEMEL_OK;

	for (size_t i = 0; i < round->count; i++) {
		struct semel_load *load = round->loads[i];
		reads[i] = (struct semel_lane_read){ &load->lane->lease, load->lane->cursor,
						     &load->batch };
	}
	if (driver->outbox_fetch_lanes)
		return driver->outbox_fetch_lanes(pipeline->store, reads, round->count, error);
	for (size_t i = 0; i < round->count && status == SEMEL_OK; i++)
		status = driver->outbox_fetch(pipeline->store, reads[i].lease, reads[i].after_seq,
					      reads[i].batch, error);
	return status;
}

/* An empty load is nothing to offer. From here on it is the pipeline's. */
static semel_status carry(struct semel_pipeline *pipeline, struct semel_load *load,
			  semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (load->batch.count > 0)
		status = semel_failpoint(SEMEL_FP_RELAY_AFTER_CLAIM, error);
	if (status == SEMEL_OK && load->batch.count > 0)
		return offer(pipeline, load, error);
	load_give_back(pipeline, load);
	return status;
}

/* looks of lanes that have no more say so afterwards. */
static semel_status carry_round(struct semel_pipeline *pipeline, struct round *round,
				bool *read_out, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (round->count == 0)
		return SEMEL_OK;
	round_share(pipeline, round);
	status = read_run(pipeline, round, error);
	for (size_t i = 0; i < round->count; i++) {
		struct semel_load *load = round->loads[i];
		if (status != SEMEL_OK) {
			load_give_back(pipeline, load);
			continue;
		}
		if (load->batch.count > 0)
			move_cursor(pipeline, load);
		round->looks[i]->run = load->batch.count > 0;
		if (load->batch.count > 0)
			pipeline->first_lane = round->looks[i]->lane + 1;
		*read_out = *read_out || load->batch.count > 0;
		status = carry(pipeline, load, error);
	}
	return status;
}

/* Rows that are in flight and may be joined by late ones are read again with them, but not before
 * they are marked: until then most of what came would be left out. */
static bool may_read_on(const struct semel_lane *lane)
{
	return lane->in_flight == 0 || lane->cursor >= lane->read_to;
}

/* The lanes to read from; beginning after the one that was read last, so that a long one does not
 * keep the others waiting. */
static size_t choose_lanes(struct semel_pipeline *pipeline, struct semel_lane_look *looks)
{
	size_t count = 0;

	for (int32_t i = 0; i < pipeline->lanes->count; i++) {
		int32_t at = (pipeline->first_lane + i) % pipeline->lanes->count;
		const struct semel_lane *lane = &pipeline->lanes->lanes[at];
		if (lane->mine && !lane->leaving)
			looks[count++] =
				(struct semel_lane_look){ .lane = at, .after_seq = lane->cursor };
	}
	return count;
}

/* Nothing waits up to there: the next look begins behind it. */
static void pass_by(struct semel_lane *lane, const struct semel_lane_look *look)
{
	if (!look->run && lane->in_flight == 0 && look->complete_seq > lane->cursor)
		lane->cursor = look->complete_seq;
	if (lane->read_to < lane->cursor)
		lane->read_to = lane->cursor;
}

/* The exceptions of a lane that are due. */
static semel_status fill_due(struct semel_pipeline *pipeline, struct semel_lane_look *look,
			     bool *read_out, semel_error *error)
{
	struct round round = { 0 };
	struct semel_lane *lane = &pipeline->lanes->lanes[look->lane];

	if (!look->due || !window_has_room(pipeline) || exceptions_in_flight(pipeline, lane))
		return SEMEL_OK;
	semel_status status = round_add(pipeline, &round, look, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_load *load = round.loads[0];
	load->exceptions = true;
	round_share(pipeline, &round);
	status = pipeline->store->driver->outbox_fetch_due(
		pipeline->store, &lane->lease, semel_now_ms(pipeline->env), &load->batch, error);
	if (status != SEMEL_OK) {
		load_give_back(pipeline, load);
		return status;
	}
	*read_out = *read_out || load->batch.count > 0;
	return carry(pipeline, load, error);
}

/* A load from each of as many lanes as there is room for: side by side they hold more aggregates
 * than one lane does, and a broker may have room for only one event of each. *at_out: where the
 * next round begins. */
static semel_status fill_round(struct semel_pipeline *pipeline, struct semel_lane_look *looks,
			       size_t count, size_t *at_out, bool *read_out, semel_error *error)
{
	struct round round = { 0 };
	size_t most = (pipeline->options.window - pipeline->rows) / pipeline->load_max;
	size_t begin = *at_out;

	most = most < 1 ? 1 : most > ROUND_MAX ? ROUND_MAX : most;
	for (size_t i = 0; i < count && round.count < most; i++) {
		struct semel_lane_look *look = &looks[(begin + i) % count];
		if (!look->run || !may_read_on(&pipeline->lanes->lanes[look->lane]))
			continue;
		*at_out = (begin + i + 1) % count;
		semel_status status = round_add(pipeline, &round, look, error);
		if (status != SEMEL_OK) {
			round_give_back(pipeline, &round);
			return status;
		}
	}
	return carry_round(pipeline, &round, read_out, error);
}

static semel_status fill(struct semel_pipeline *pipeline, bool *busy_out, semel_error *error)
{
	struct semel_lane_look looks[SEMEL_LANES_MAX];
	size_t count = choose_lanes(pipeline, looks);
	size_t at = 0;
	bool read = true;

	if (count == 0 || !is_worth_reading(pipeline))
		return SEMEL_OK;
	semel_status status = pipeline->store->driver->outbox_look(
		pipeline->store, looks, count, semel_now_ms(pipeline->env), error);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++) {
		pass_by(&pipeline->lanes->lanes[looks[i].lane], &looks[i]);
		status = fill_due(pipeline, &looks[i], busy_out, error);
	}
	while (read && status == SEMEL_OK && window_has_room(pipeline)) {
		read = false;
		status = fill_round(pipeline, looks, count, &at, &read, error);
		*busy_out = *busy_out || read;
	}
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

/* The lowest row of the lane that is not marked yet, less one; what was read counts as settled
 * unless it is in another load. */
static int64_t low_seq_after(const struct semel_pipeline *pipeline,
			     const struct semel_load *settled)
{
	int64_t low = settled->lane->cursor;

	if (SEMEL_PLANTED("high-water-mark"))
		return settled->lane->lease.low_seq;
	for (const struct semel_load *load = pipeline->loads; load; load = load->next)
		if (load != settled && load->lane == settled->lane && !load->exceptions &&
		    !load->settling && load->batch.rows[0].seq - 1 < low)
			low = load->batch.rows[0].seq - 1;
	return low;
}

static void count_published(struct semel_pipeline *pipeline, const struct semel_load *load)
{
	for (uint32_t i = 0; i < load->batch.count; i++)
		pipeline->published += load->marks[i].kind == SEMEL_MARK_PUBLISHED;
}

static struct semel_mark_batch marks_of(struct semel_pipeline *pipeline, struct semel_load *load)
{
	int64_t now_ms = semel_now_ms(pipeline->env);

	judge(pipeline, load, now_ms);
	return (struct semel_mark_batch){ .marks = load->marks,
					  .count = load->batch.count,
					  .low_seq = low_seq_after(pipeline, load),
					  .now_ms = now_ms,
					  .expires_at_ms = semel_lanes_expiry(pipeline->lanes) };
}

/* A lane that was lost and taken again has a new epoch: another relay has had the rows meanwhile,
 * and what was heard of them here is not the last word. */
static bool is_of_this_lease(const struct semel_load *load)
{
	return load->lane->mine && load->epoch == load->lane->lease.epoch;
}

static semel_status mark_load(struct semel_pipeline *pipeline, struct semel_load *load,
			      semel_error *error)
{
	if (!is_of_this_lease(load))
		return SEMEL_LEASE_LOST;
	struct semel_mark_batch batch = marks_of(pipeline, load);
	return pipeline->store->driver->outbox_mark(pipeline->store, &load->lane->lease, &batch,
						    error);
}

static bool any_refused(const struct semel_pipeline *pipeline)
{
	for (const struct semel_load *load = pipeline->loads; load; load = load->next)
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
		status = semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
	} else if (status == SEMEL_LEASE_LOST) {
		/* The new owner sends them again; the inbox knows them. */
		if (is_of_this_lease(load)) {
			load->lane->mine = false;
			pipeline->lanes->tend_at_ms = 0;
		}
		status = SEMEL_OK;
	}
	pipeline->bytes -= load->bytes;
	pipeline->rows -= load->batch.count;
	unlink_load(pipeline, load);
	load_give_back(pipeline, load);
	pipeline->refused = any_refused(pipeline);
	return status;
}

/* Nothing in it needs more than one plain mark. */
static bool is_plain(const struct semel_load *load)
{
	return load->unanswered == 0 && !load->refused && !load->exceptions &&
	       is_of_this_lease(load);
}

/* Loads without a hitch, as many as one statement takes. */
static semel_status settle_plain(struct semel_pipeline *pipeline, semel_error *error)
{
	struct semel_lane_marks marks[ROUND_MAX];
	struct semel_load *settled[ROUND_MAX];
	size_t count = 0;

	for (struct semel_load *load = pipeline->loads; load && count < ROUND_MAX;
	     load = load->next) {
		load->settling = is_plain(load);
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
	return status;
}

static semel_status settle(struct semel_pipeline *pipeline, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (pipeline->store->driver->outbox_mark_lanes)
		status = settle_plain(pipeline, error);
	for (struct semel_load *load = pipeline->loads, *next; load && status == SEMEL_OK;
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
	for (struct semel_load *load = pipeline->loads; load; load = load->next)
		(void)mark_load(pipeline, load, error);
	(void)semel_failpoint(SEMEL_FP_RELAY_AFTER_MARK, error);
}

/* ---- the whole ------------------------------------------------------------------------------- */

semel_status semel_pipeline_step(struct semel_pipeline *pipeline, bool finishing, bool *busy_out,
				 semel_error *error)
{
	semel_status status = SEMEL_OK;

	*busy_out = false;
	if (!finishing)
		status = fill(pipeline, busy_out, error);
	if (status != SEMEL_OK)
		return status;
	if (SEMEL_PLANTED("mark-before-confirm"))
		pretend_confirmed(pipeline, error);
	/* With nothing to hear of, too: it keeps the connection alive. */
	status = poll_broker(pipeline, *busy_out || pipeline->unanswered == 0 ? 0 : POLL_MS, error);
	if (status == SEMEL_OK)
		status = check_patience(pipeline, error);
	if (status == SEMEL_OK)
		status = settle(pipeline, error);
	*busy_out = *busy_out || pipeline->loads != NULL;
	return status;
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
				 struct semel_pipeline **pipeline_out, semel_error *error)
{
	struct semel_pipeline *pipeline = calloc(1, sizeof *pipeline);
	*pipeline_out = NULL;
	if (!pipeline)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the relay");
	pipeline->options = *options;
	pipeline->env = env;
	pipeline->lanes = lanes;
	pipeline->load_max = load_max_for(options->window, (uint32_t)lanes->count);
	pipeline->room_min = options->window / 4;
	*pipeline_out = pipeline;
	return SEMEL_OK;
}

void semel_pipeline_connect(struct semel_pipeline *pipeline, semel_store *store,
			    struct semel_broker *broker)
{
	while (pipeline->loads) {
		struct semel_load *load = pipeline->loads;
		pipeline->loads = load->next;
		load_give_back(pipeline, load);
	}
	pipeline->rows = pipeline->unanswered = 0;
	pipeline->bytes = 0;
	pipeline->refused = false;
	pipeline->store = store;
	pipeline->broker = broker;
	semel_lanes_rewind(pipeline->lanes);
}

uint64_t semel_pipeline_published(const struct semel_pipeline *pipeline)
{
	return pipeline->published;
}

static void free_all(struct semel_load *load)
{
	while (load) {
		struct semel_load *next = load->next;
		semel_load_free(load);
		load = next;
	}
}

void semel_pipeline_close(struct semel_pipeline *pipeline)
{
	if (!pipeline)
		return;
	free_all(pipeline->loads);
	free_all(pipeline->spare);
	free(pipeline);
}
