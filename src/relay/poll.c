/* SPDX-License-Identifier: Apache-2.0 */
/* The source for any store: looks at all lanes, then reads stretches of those that have something,
 * several in one statement.
 *
 * - A lane is read from its cursor on. The cursor stops at the last number below which everything
 *   is visible; what lies above it is looked at again, without the rows in flight.
 * - The low mark never passes a row that is not marked.
 * - Where all lanes are read by one statement, that statement is the look: another one is made only
 *   now and then, and when exceptions are at work.
 */
#include "relay/poll.h"
#include "base/error.h"
#include "base/plant.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_MAX     16
#define LOOK_EVERY_MS 100 /* for exceptions that are due, while rows come anyway */
#define REREAD_MAX    8
#define LOADS_MAX     48 /* in flight: one of a single row takes as much memory as a full one */

struct poll {
	struct semel_source base;
	const struct semel_env *env;
	struct semel_lanes *lanes;
	semel_store *store;
	struct semel_loads *loads;
	struct semel_lane_probe looks[SEMEL_LANES_MAX];
	size_t look_count;
	int64_t look_at_ms; /* steady; until then a read is as good as a look */
	bool found;         /* rows, since the last look or guess */
	bool left;          /* rows were passed over that may hide others */
	size_t due_at;      /* the next look whose exceptions are read */
	size_t run_at;      /* the look that the next round begins with */
	int32_t first_lane; /* where the next look begins */
	size_t read_count;  /* loads of the last round, */
	size_t read_at;     /* and how many of them were handed out */
	struct semel_load *read[ROUND_MAX];
	struct semel_lane_probe *read_looks[ROUND_MAX];
};

static struct poll *poll_of(struct semel_source *source)
{
	return (struct poll *)source; /* base is its first member */
}

/* ---- looking --------------------------------------------------------------------------------- */

/* The lanes to read from; beginning after the one that was read last, so that a long one does not
 * keep the others waiting. */
static size_t choose_lanes(struct poll *poll)
{
	size_t count = 0;

	for (int32_t i = 0; i < poll->lanes->count; i++) {
		int32_t at = (poll->first_lane + i) % poll->lanes->count;
		const struct semel_lane *lane = &poll->lanes->lanes[at];
		if (lane->mine && !lane->leaving)
			poll->looks[count++] =
				(struct semel_lane_probe){ .lane = at, .after_seq = lane->cursor };
	}
	return count;
}

/* Nothing waits up to there: the next look begins behind it. */
static void pass_by(struct semel_lane *lane, const struct semel_lane_probe *look)
{
	if (!look->run && lane->in_flight == 0 && look->complete_seq > lane->cursor)
		lane->cursor = look->complete_seq;
	if (lane->read_to < lane->cursor)
		lane->read_to = lane->cursor;
}

static size_t begin_look(struct poll *poll)
{
	poll->look_count = poll->due_at = poll->run_at = 0;
	poll->found = poll->left = false;
	return choose_lanes(poll);
}

semel_status semel_poll_look(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);
	size_t count = begin_look(poll);

	if (count == 0)
		return SEMEL_OK;
	poll->look_at_ms = semel_steady_ms(poll->env) + LOOK_EVERY_MS;
	semel_status status = poll->store->driver->outbox_look(poll->store, poll->looks, count,
							       semel_now_ms(poll->env), error);
	if (status != SEMEL_OK)
		return status;
	poll->look_count = count;
	for (size_t i = 0; i < count; i++)
		pass_by(&poll->lanes->lanes[poll->looks[i].lane], &poll->looks[i]);
	return SEMEL_OK;
}

/* Where most rows above the cursor are marked, it takes long to find one that is not. */
semel_status semel_poll_look_for_due(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);
	size_t count = begin_look(poll);

	for (size_t i = 0; i < count; i++)
		poll->looks[i].after_seq = INT64_MAX;
	if (count == 0)
		return SEMEL_OK;
	semel_status status = poll->store->driver->outbox_look(poll->store, poll->looks, count,
							       semel_now_ms(poll->env), error);
	if (status == SEMEL_OK)
		poll->look_count = count;
	return status;
}

/* A look, or the guess that every lane has something. */
static semel_status look(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);

	if (!poll->store->driver->outbox_fetch_lanes ||
	    semel_steady_ms(poll->env) >= poll->look_at_ms)
		return semel_poll_look(source, error);
	poll->look_count = begin_look(poll);
	for (size_t i = 0; i < poll->look_count; i++)
		poll->looks[i].run = true;
	return SEMEL_OK;
}

/* ---- the run of the lanes -------------------------------------------------------------------- */

static bool has_row(const struct semel_load *load, int64_t seq)
{
	uint32_t low = 0, high = load->batch.count;

	for (uint32_t i = 0; load->batch.by_commit && i < high; i++)
		if (load->batch.rows[i].seq == seq)
			return true;
	if (load->batch.by_commit)
		return false;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (load->batch.rows[middle].seq < seq)
			low = middle + 1;
		else
			high = middle;
	}
	return low < load->batch.count && load->batch.rows[low].seq == seq;
}

/* What was read under an older lease is never marked, so it is read again. */
static bool is_of_lane(const struct semel_load *load, const struct semel_lane *lane)
{
	return load->lane == lane && load->epoch == lane->lease.epoch;
}

static bool is_in_flight(const struct poll *poll, const struct semel_lane *lane, int64_t seq)
{
	for (const struct semel_load *load = poll->loads->flying; load; load = load->next)
		if (is_of_lane(load, lane) && !load->exceptions && has_row(load, seq))
			return true;
	return false;
}

static int64_t lowest(const struct semel_outbox_batch *batch)
{
	int64_t seq = batch->rows[0].seq;

	for (uint32_t i = 1; batch->by_commit && i < batch->count; i++)
		if (batch->rows[i].seq < seq)
			seq = batch->rows[i].seq;
	return seq;
}

static int64_t highest(const struct semel_outbox_batch *batch)
{
	int64_t seq = batch->rows[batch->count - 1].seq;

	for (uint32_t i = 0; batch->by_commit && i < batch->count; i++)
		if (batch->rows[i].seq > seq)
			seq = batch->rows[i].seq;
	return seq;
}

/* The cursor stops at the last number below which everything is visible; above it a late commit
 * may still appear, so those rows are looked at again, and what is in flight is left out. */
static void move_cursor(const struct poll *poll, struct semel_load *load)
{
	struct semel_lane *lane = load->lane;
	struct semel_outbox_batch *batch = &load->batch;
	int64_t first = lowest(batch), last = highest(batch);
	uint32_t kept = 0;

	if (first <= lane->read_to) {
		for (uint32_t i = 0; i < batch->count; i++)
			if (!is_in_flight(poll, lane, batch->rows[i].seq))
				batch->rows[kept++] = batch->rows[i];
		batch->count = kept;
	}
	lane->cursor = last < batch->complete_seq ? last : batch->complete_seq;
	lane->read_to = last > lane->read_to ? last : lane->read_to;
	if (SEMEL_PLANTED("high-water-mark"))
		lane->lease.low_seq = last;
}

static semel_status round_add(struct poll *poll, struct semel_lane_probe *at, semel_error *error)
{
	struct semel_load *load = semel_load_take(poll->loads, &poll->lanes->lanes[at->lane]);

	if (!load)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch of events");
	poll->read_looks[poll->read_count] = at;
	poll->read[poll->read_count++] = load;
	return SEMEL_OK;
}

/* The room that there is, shared evenly. */
static void round_share(struct poll *poll, const struct semel_room *room)
{
	uint32_t rows = room->rows / (uint32_t)poll->read_count;

	if (rows > poll->loads->rows_max)
		rows = poll->loads->rows_max;
	for (size_t i = 0; i < poll->read_count; i++) {
		poll->read[i]->batch.capacity = rows;
		poll->read[i]->batch.bytes_max = room->bytes / poll->read_count;
	}
}

static void round_forget(struct poll *poll)
{
	while (poll->read_at < poll->read_count)
		semel_load_give_back(poll->loads, poll->read[poll->read_at++]);
	poll->read_count = poll->read_at = 0;
}

static uint32_t rows_in_flight(const struct poll *poll, const struct semel_lane *lane)
{
	uint32_t rows = 0;

	for (const struct semel_load *load = poll->loads->flying; load; load = load->next)
		if (is_of_lane(load, lane))
			rows += load->batch.count;
	return rows;
}

/* Rows that are in flight and may be joined by late ones are read again with them; many of them
 * not before they are marked, for until then most of what came would be left out. */
static bool may_read_on(const struct poll *poll, const struct semel_lane *lane)
{
	return lane->in_flight == 0 || lane->cursor >= lane->read_to ||
	       rows_in_flight(poll, lane) <= REREAD_MAX;
}

/* A load from each of as many lanes as there is room for: side by side they hold more aggregates
 * than one lane does, and a broker may have room for only one event of each. */
static semel_status round_choose(struct poll *poll, const struct semel_room *room,
				 semel_error *error)
{
	size_t most = (room->rows + poll->loads->rows_max - 1) / poll->loads->rows_max;
	size_t begin = poll->run_at;
	semel_status status = SEMEL_OK;

	most = most < 1 ? 1 : most > ROUND_MAX ? ROUND_MAX : most;
	for (size_t i = 0; i < poll->look_count && poll->read_count < most; i++) {
		size_t at = (begin + i) % poll->look_count;
		struct semel_lane_probe *found = &poll->looks[at];
		if (!found->run || !may_read_on(poll, &poll->lanes->lanes[found->lane]))
			continue;
		poll->run_at = (at + 1) % poll->look_count;
		status = round_add(poll, found, error);
		if (status != SEMEL_OK)
			break;
	}
	return status;
}

static semel_status fetch_round(struct poll *poll, semel_error *error)
{
	const struct semel_store_driver *driver = poll->store->driver;
	struct semel_lane_read reads[ROUND_MAX];
	semel_status status = SEMEL_OK;

	for (size_t i = 0; i < poll->read_count; i++) {
		struct semel_load *load = poll->read[i];
		reads[i] = (struct semel_lane_read){ &load->lane->lease, load->lane->cursor,
						     &load->batch };
	}
	if (driver->outbox_fetch_lanes)
		return driver->outbox_fetch_lanes(poll->store, reads, poll->read_count, error);
	for (size_t i = 0; i < poll->read_count && status == SEMEL_OK; i++)
		status = driver->outbox_fetch(poll->store, reads[i].lease, reads[i].after_seq,
					      reads[i].batch, error);
	return status;
}

static semel_status read_round(struct poll *poll, const struct semel_room *room, semel_error *error)
{
	poll->read_count = poll->read_at = 0;
	semel_status status = round_choose(poll, room, error);
	if (status == SEMEL_OK && poll->read_count > 0) {
		round_share(poll, room);
		status = fetch_round(poll, error);
	}
	if (status != SEMEL_OK)
		round_forget(poll);
	return status;
}

/* A store that reads all lanes at once also tells when it has left something out. */
static bool is_exhausted(const struct poll *poll, const struct semel_outbox_batch *batch)
{
	if (!poll->store->driver->outbox_fetch_lanes)
		return batch->count == 0;
	return batch->count < batch->capacity && !batch->cut;
}

/* The next load of the round that has rows; looks of lanes that have no more say so afterwards. */
static struct semel_load *hand_out(struct poll *poll)
{
	while (poll->read_at < poll->read_count) {
		struct semel_lane_probe *found = poll->read_looks[poll->read_at];
		struct semel_load *load = poll->read[poll->read_at++];
		bool exhausted = is_exhausted(poll, &load->batch);
		/* Of an older epoch: the lane has gone back since, and is read from there. */
		if (load->batch.count > 0 && load->epoch == load->lane->lease.epoch)
			move_cursor(poll, load);
		found->run = !exhausted && load->batch.count > 0;
		poll->left = poll->left || (!exhausted && !found->run);
		if (load->batch.count > 0) {
			poll->found = true;
			poll->first_lane = found->lane + 1;
			return load;
		}
		semel_load_give_back(poll->loads, load);
	}
	return NULL;
}

/* ---- the exceptions -------------------------------------------------------------------------- */

static bool exceptions_in_flight(const struct poll *poll, const struct semel_lane *lane)
{
	for (const struct semel_load *load = poll->loads->flying; load; load = load->next)
		if (load->exceptions && is_of_lane(load, lane))
			return true;
	return false;
}

/* Those of a lane that are due. */
static semel_status read_due(struct poll *poll, struct semel_lane_probe *found,
			     const struct semel_room *room, struct semel_load **load_out,
			     semel_error *error)
{
	struct semel_lane *lane = &poll->lanes->lanes[found->lane];

	if (!found->due)
		return SEMEL_OK;
	poll->look_at_ms = 0; /* once they are marked, more of their aggregates may be due */
	if (exceptions_in_flight(poll, lane))
		return SEMEL_OK;
	struct semel_load *load = semel_load_take(poll->loads, lane);
	if (!load)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch of events");
	load->exceptions = true;
	load->batch.capacity =
		room->rows < poll->loads->rows_max ? room->rows : poll->loads->rows_max;
	load->batch.bytes_max = room->bytes;
	semel_status status = poll->store->driver->outbox_fetch_due(
		poll->store, &lane->lease, semel_now_ms(poll->env), &load->batch, error);
	found->due = load->batch.count > 0;
	if (status == SEMEL_OK && found->due)
		*load_out = load;
	else
		semel_load_give_back(poll->loads, load);
	return status;
}

semel_status semel_poll_read_due(struct semel_source *source, const struct semel_room *room,
				 struct semel_load **load_out, semel_error *error)
{
	struct poll *poll = poll_of(source);
	semel_status status = SEMEL_OK;

	*load_out = NULL;
	while (room->rows > 0 && !*load_out && status == SEMEL_OK &&
	       poll->due_at < poll->look_count)
		status = read_due(poll, &poll->looks[poll->due_at++], room, load_out, error);
	return status;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static semel_status read_next(struct semel_source *source, const struct semel_room *room,
			      struct semel_load **load_out, semel_error *error)
{
	struct poll *poll = poll_of(source);
	semel_status status = SEMEL_OK;

	*load_out = hand_out(poll);
	if (*load_out || room->rows == 0)
		return SEMEL_OK;
	status = semel_poll_read_due(source, room, load_out, error);
	if (*load_out || status != SEMEL_OK)
		return status;
	if (poll->loads->count >= LOADS_MAX) {
		poll->left = true;
		return SEMEL_OK;
	}
	do {
		status = read_round(poll, room, error);
		if (status == SEMEL_OK)
			*load_out = hand_out(poll);
	} while (status == SEMEL_OK && !*load_out && poll->read_count > 0);
	if (!*load_out && !poll->found)
		poll->look_at_ms = 0; /* something else may be waiting, or nothing: look */
	return status;
}

/* The lowest row of the lane that is not marked yet, less one; what was read counts as settled
 * unless it is in another load. */
static int64_t low_seq(struct semel_source *source, const struct semel_load *settled)
{
	const struct poll *poll = poll_of(source);
	int64_t low = settled->lane->cursor;

	/* As if what is read ahead were settled with what was sent. */
	if (SEMEL_PLANTED("high-water-mark"))
		return settled->lane->lease.low_seq + settled->batch.count;
	for (const struct semel_load *load = poll->loads->flying; load; load = load->next)
		if (load != settled && load->lane == settled->lane && !load->exceptions &&
		    !load->settling && lowest(&load->batch) - 1 < low)
			low = lowest(&load->batch) - 1;
	return low;
}

int64_t semel_poll_read_to(const struct semel_source *source)
{
	const struct semel_lanes *lanes = ((const struct poll *)source)->lanes;
	int64_t lowest = INT64_MAX;

	for (int32_t i = 0; i < lanes->count; i++)
		if (lanes->lanes[i].cursor < lowest)
			lowest = lanes->lanes[i].cursor;
	return lowest;
}

int64_t semel_poll_complete_seq(const struct semel_source *source)
{
	const struct poll *poll = (const struct poll *)source;
	int64_t lowest = INT64_MAX;

	for (size_t i = 0; i < poll->look_count; i++)
		if (poll->looks[i].complete_seq < lowest)
			lowest = poll->looks[i].complete_seq;
	return poll->look_count > 0 ? lowest : 0;
}

static void connect_to(struct semel_source *source, semel_store *store, struct semel_loads *loads)
{
	struct poll *poll = poll_of(source);

	poll->loads = loads;
	round_forget(poll);
	poll->store = store;
	poll->look_count = poll->due_at = poll->run_at = 0;
	poll->look_at_ms = 0;
	semel_lanes_rewind(poll->lanes);
}

void semel_poll_restart(struct semel_source *source)
{
	struct poll *poll = poll_of(source);

	round_forget(poll);
	poll->look_count = poll->due_at = poll->run_at = 0;
	poll->look_at_ms = 0;
	for (int32_t i = 0; i < poll->lanes->count; i++) {
		struct semel_lane *lane = &poll->lanes->lanes[i];
		lane->cursor = lane->read_to = lane->lease.low_seq;
	}
}

static bool doze(struct semel_source *source, bool lightly)
{
	semel_store *store = poll_of(source)->store;
	return store->driver->doze(store, lightly);
}

static bool rouse(struct semel_source *source)
{
	semel_store *store = poll_of(source)->store;
	return store->driver->rouse(store);
}

static bool is_dry(const struct semel_source *source)
{
	const struct poll *poll = (const struct poll *)source;

	for (size_t i = 0; i < poll->look_count; i++)
		if (poll->looks[i].run || poll->looks[i].due)
			return false;
	return !poll->left;
}

static void close_poll(struct semel_source *source)
{
	struct poll *poll = poll_of(source);
	if (poll->loads)
		round_forget(poll);
	free(poll);
}

static const struct semel_source_driver driver = {
	.name = "poll",
	.wait_ms = 20,
	.connect = connect_to,
	.look = look,
	.read = read_next,
	.low_seq = low_seq,
	.doze = doze,
	.rouse = rouse,
	.is_dry = is_dry,
	.close = close_poll,
};

semel_status semel_source_open_poll(const struct semel_env *env, struct semel_lanes *lanes,
				    struct semel_source **source_out, semel_error *error)
{
	struct poll *poll = calloc(1, sizeof *poll);
	*source_out = NULL;
	if (!poll)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the relay");
	poll->base.driver = &driver;
	poll->env = env;
	poll->lanes = lanes;
	*source_out = &poll->base;
	return SEMEL_OK;
}

void semel_source_close(struct semel_source *source)
{
	if (source)
		source->driver->close(source);
}
