/* SPDX-License-Identifier: Apache-2.0 */
/* The source for any store: probes all lanes, then reads ranges of rows from those that have rows,
 * several lanes in one statement.
 *
 * - A lane is read from its cursor on. The cursor stops at the last number below which every row is
 *   visible; rows above it are read again, without those in flight.
 * - The low mark never passes a row that is not marked.
 * - Where one statement reads all lanes, that statement serves as the probe: a real probe is made
 *   only from time to time, and while there are exceptions.
 */
#include "relay/poll.h"

#include "base/error.h"
#include "fault/plant.h"

#include <stdlib.h>
#include <string.h>

#define ROUND_MAX      16
#define PROBE_EVERY_MS 100 /* for exceptions that are due, while rows keep coming */
#define REREAD_MAX     8
#define BATCHES_MAX    48 /* in flight: a batch of one row takes as much memory as a full one */

struct poll {
	struct semel_source base;
	const struct semel_env *env;
	struct semel_lanes *lanes;
	semel_store *store;
	struct semel_relay_batches *batches;
	struct semel_lane_probe probes[SEMEL_LANES_MAX];
	size_t probe_count;
	int64_t probe_at_ms; /* steady; until then a read is as good as a probe */
	bool found;          /* rows were found since the last probe */
	bool left;           /* rows were skipped that may hide others */
	size_t due_at;       /* index of the next probe whose exceptions are read */
	size_t run_at;       /* index of the probe that the next round begins with */
	int32_t first_lane;  /* where the next probe begins */
	size_t read_count;   /* batches of the last round, */
	size_t read_at;      /* and how many of them were returned */
	struct semel_relay_batch *read[ROUND_MAX];
	struct semel_lane_probe *read_probes[ROUND_MAX];
};

static struct poll *poll_of(struct semel_source *source)
{
	return (struct poll *)source; /* base is its first member */
}

/* ---- probing --------------------------------------------------------------------------------- */

/* The lanes to read from, beginning after the one that was read last, so that a lane with many rows
 * does not block the others. */
static size_t choose_lanes(struct poll *poll)
{
	size_t count = 0;

	for (int32_t i = 0; i < poll->lanes->count; i++) {
		int32_t at = (poll->first_lane + i) % poll->lanes->count;
		const struct semel_lane *lane = &poll->lanes->lanes[at];
		if (lane->mine && !lane->leaving)
			poll->probes[count++] =
				(struct semel_lane_probe){ .lane = at, .after_seq = lane->cursor };
	}
	return count;
}

/* No row waits up to complete_seq: the next probe begins after it. */
static void skip_complete(struct semel_lane *lane, const struct semel_lane_probe *probe)
{
	if (!probe->run && lane->in_flight == 0 && probe->complete_seq > lane->cursor)
		lane->cursor = probe->complete_seq;
	if (lane->read_to < lane->cursor)
		lane->read_to = lane->cursor;
}

static size_t begin_probe(struct poll *poll)
{
	poll->probe_count = poll->due_at = poll->run_at = 0;
	poll->found = poll->left = false;
	return choose_lanes(poll);
}

semel_status semel_poll_probe(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);
	size_t count = begin_probe(poll);

	if (count == 0)
		return SEMEL_OK;
	poll->probe_at_ms = semel_steady_ms(poll->env) + PROBE_EVERY_MS;
	semel_status status = poll->store->driver->outbox->probe(poll->store, poll->probes, count,
								 semel_now_ms(poll->env), error);
	if (status != SEMEL_OK)
		return status;
	poll->probe_count = count;
	for (size_t i = 0; i < count; i++)
		skip_complete(&poll->lanes->lanes[poll->probes[i].lane], &poll->probes[i]);
	return SEMEL_OK;
}

/* Probes for exceptions only: where most rows above the cursor are marked, finding one that is not
 * takes long. */
semel_status semel_poll_probe_due(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);
	size_t count = begin_probe(poll);

	for (size_t i = 0; i < count; i++)
		poll->probes[i].after_seq = INT64_MAX;
	if (count == 0)
		return SEMEL_OK;
	semel_status status = poll->store->driver->outbox->probe(poll->store, poll->probes, count,
								 semel_now_ms(poll->env), error);
	if (status != SEMEL_OK)
		return status;
	poll->probe_count = count;
	return SEMEL_OK;
}

/* A probe, or the assumption that every lane has rows. */
static semel_status probe(struct semel_source *source, semel_error *error)
{
	struct poll *poll = poll_of(source);

	if (!poll->store->driver->outbox->fetch_lanes ||
	    semel_steady_ms(poll->env) >= poll->probe_at_ms)
		return semel_poll_probe(source, error);
	poll->probe_count = begin_probe(poll);
	for (size_t i = 0; i < poll->probe_count; i++)
		poll->probes[i].run = true;
	return SEMEL_OK;
}

/* ---- rounds over the lanes ----------------------------------------------------------------- */

static bool has_row(const struct semel_relay_batch *batch, int64_t seq)
{
	uint32_t low = 0, high = batch->fetched.count;

	for (uint32_t i = 0; batch->fetched.by_commit && i < high; i++)
		if (batch->fetched.rows[i].seq == seq)
			return true;
	if (batch->fetched.by_commit)
		return false;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (batch->fetched.rows[middle].seq < seq)
			low = middle + 1;
		else
			high = middle;
	}
	return low < batch->fetched.count && batch->fetched.rows[low].seq == seq;
}

/* A batch that was read under an older lease is never marked, so its rows are read again. */
static bool is_of_lane(const struct semel_relay_batch *batch, const struct semel_lane *lane)
{
	return batch->lane == lane && batch->epoch == lane->lease.epoch;
}

static bool is_in_flight(const struct poll *poll, const struct semel_lane *lane, int64_t seq)
{
	for (const struct semel_relay_batch *batch = poll->batches->in_flight; batch;
	     batch = batch->next)
		if (is_of_lane(batch, lane) && !batch->exceptions && has_row(batch, seq))
			return true;
	return false;
}

static int64_t lowest(const struct semel_outbox_batch *fetched)
{
	int64_t seq = fetched->rows[0].seq;

	for (uint32_t i = 1; fetched->by_commit && i < fetched->count; i++)
		if (fetched->rows[i].seq < seq)
			seq = fetched->rows[i].seq;
	return seq;
}

static int64_t highest(const struct semel_outbox_batch *fetched)
{
	int64_t seq = fetched->rows[fetched->count - 1].seq;

	for (uint32_t i = 0; fetched->by_commit && i < fetched->count; i++)
		if (fetched->rows[i].seq > seq)
			seq = fetched->rows[i].seq;
	return seq;
}

/* The cursor stops at the last number below which every row is visible. Above it a late commit may
 * still appear, so rows there are read again, and those in flight are left out. */
static void move_cursor(const struct poll *poll, struct semel_relay_batch *batch)
{
	struct semel_lane *lane = batch->lane;
	struct semel_outbox_batch *fetched = &batch->fetched;
	int64_t first = lowest(fetched), last = highest(fetched);
	uint32_t kept = 0;

	if (first <= lane->read_to) {
		for (uint32_t i = 0; i < fetched->count; i++)
			if (!is_in_flight(poll, lane, fetched->rows[i].seq))
				fetched->rows[kept++] = fetched->rows[i];
		fetched->count = kept;
	}
	lane->cursor = last < fetched->complete_seq ? last : fetched->complete_seq;
	lane->read_to = last > lane->read_to ? last : lane->read_to;
	if (SEMEL_PLANTED("high-water-mark"))
		lane->lease.low_seq = last;
}

static semel_status round_add(struct poll *poll, struct semel_lane_probe *at, semel_error *error)
{
	struct semel_relay_batch *batch =
		semel_relay_batch_acquire(poll->batches, &poll->lanes->lanes[at->lane]);

	if (!batch)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	poll->read_probes[poll->read_count] = at;
	poll->read[poll->read_count++] = batch;
	return SEMEL_OK;
}

/* Divides the limits evenly. */
static void round_divide(struct poll *poll, const struct semel_read_limits *limits)
{
	uint32_t rows = limits->rows / (uint32_t)poll->read_count;

	if (rows > poll->batches->rows_max)
		rows = poll->batches->rows_max;
	for (size_t i = 0; i < poll->read_count; i++) {
		poll->read[i]->fetched.capacity = rows;
		poll->read[i]->fetched.bytes_max = limits->bytes / poll->read_count;
	}
}

static void round_release(struct poll *poll)
{
	while (poll->read_at < poll->read_count)
		semel_relay_batch_release(poll->batches, poll->read[poll->read_at++]);
	poll->read_count = poll->read_at = 0;
}

static uint32_t rows_in_flight(const struct poll *poll, const struct semel_lane *lane)
{
	uint32_t rows = 0;

	for (const struct semel_relay_batch *batch = poll->batches->in_flight; batch;
	     batch = batch->next)
		if (is_of_lane(batch, lane))
			rows += batch->fetched.count;
	return rows;
}

/* Rows in flight above the cursor are read again, together with late commits. If there are many,
 * that waits until they are marked, because most of the rows read would be left out. */
static bool may_read_on(const struct poll *poll, const struct semel_lane *lane)
{
	return lane->in_flight == 0 || lane->cursor >= lane->read_to ||
	       rows_in_flight(poll, lane) <= REREAD_MAX;
}

/* Takes a batch from each of as many lanes as the limits allow: together they contain more
 * aggregates than one lane does, and a broker may accept only one event of each at a time. */
static semel_status round_choose(struct poll *poll, const struct semel_read_limits *limits,
				 semel_error *error)
{
	size_t most = (limits->rows + poll->batches->rows_max - 1) / poll->batches->rows_max;
	size_t begin = poll->run_at;
	semel_status status = SEMEL_OK;

	most = most < 1 ? 1 : most > ROUND_MAX ? ROUND_MAX : most;
	for (size_t i = 0; i < poll->probe_count && poll->read_count < most; i++) {
		size_t at = (begin + i) % poll->probe_count;
		struct semel_lane_probe *found = &poll->probes[at];
		if (!found->run || !may_read_on(poll, &poll->lanes->lanes[found->lane]))
			continue;
		poll->run_at = (at + 1) % poll->probe_count;
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
		struct semel_relay_batch *batch = poll->read[i];
		reads[i] = (struct semel_lane_read){ &batch->lane->lease, batch->lane->cursor,
						     &batch->fetched };
	}
	if (driver->outbox->fetch_lanes)
		return driver->outbox->fetch_lanes(poll->store, reads, poll->read_count, error);
	for (size_t i = 0; i < poll->read_count && status == SEMEL_OK; i++)
		status = driver->outbox->fetch(poll->store, reads[i].lease, reads[i].after_seq,
					       reads[i].batch, error);
	return status;
}

static semel_status read_round(struct poll *poll, const struct semel_read_limits *limits,
			       semel_error *error)
{
	poll->read_count = poll->read_at = 0;
	semel_status status = round_choose(poll, limits, error);
	if (status != SEMEL_OK)
		goto release_round;
	if (poll->read_count == 0)
		return SEMEL_OK;
	round_divide(poll, limits);
	status = fetch_round(poll, error);
	if (status == SEMEL_OK)
		return SEMEL_OK;

release_round:
	round_release(poll);
	return status;
}

/* A store that reads all lanes in one statement also reports rows that it has left out. */
static bool is_lane_exhausted(const struct poll *poll, const struct semel_outbox_batch *fetched)
{
	if (!poll->store->driver->outbox->fetch_lanes)
		return fetched->count == 0;
	return fetched->count < fetched->capacity && !fetched->cut;
}

/* The next batch of the round that has rows. A lane without more rows is recorded as such in its
 * probe. */
static struct semel_relay_batch *take_from_round(struct poll *poll)
{
	while (poll->read_at < poll->read_count) {
		struct semel_lane_probe *found = poll->read_probes[poll->read_at];
		struct semel_relay_batch *batch = poll->read[poll->read_at++];
		bool exhausted = is_lane_exhausted(poll, &batch->fetched);
		/* Read under an older epoch: the low mark has moved back, and reading starts there.
		 */
		if (batch->fetched.count > 0 && batch->epoch == batch->lane->lease.epoch)
			move_cursor(poll, batch);
		found->run = !exhausted && batch->fetched.count > 0;
		poll->left = poll->left || (!exhausted && !found->run);
		if (batch->fetched.count > 0) {
			poll->found = true;
			poll->first_lane = found->lane + 1;
			return batch;
		}
		semel_relay_batch_release(poll->batches, batch);
	}
	return NULL;
}

/* ---- the exceptions -------------------------------------------------------------------------- */

static bool exceptions_in_flight(const struct poll *poll, const struct semel_lane *lane)
{
	for (const struct semel_relay_batch *batch = poll->batches->in_flight; batch;
	     batch = batch->next)
		if (batch->exceptions && is_of_lane(batch, lane))
			return true;
	return false;
}

/* The exceptions of a lane that are due. */
static semel_status read_due(struct poll *poll, struct semel_lane_probe *found,
			     const struct semel_read_limits *limits,
			     struct semel_relay_batch **batch_out, semel_error *error)
{
	struct semel_lane *lane = &poll->lanes->lanes[found->lane];

	if (!found->due)
		return SEMEL_OK;
	poll->probe_at_ms = 0; /* once they are marked, others of their aggregates may be due */
	if (exceptions_in_flight(poll, lane))
		return SEMEL_OK;
	struct semel_relay_batch *batch = semel_relay_batch_acquire(poll->batches, lane);
	if (!batch)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	batch->exceptions = true;
	batch->fetched.capacity =
		limits->rows < poll->batches->rows_max ? limits->rows : poll->batches->rows_max;
	batch->fetched.bytes_max = limits->bytes;
	semel_status status = poll->store->driver->outbox->fetch_due(
		poll->store, &lane->lease, semel_now_ms(poll->env), &batch->fetched, error);
	found->due = batch->fetched.count > 0;
	if (status == SEMEL_OK && found->due)
		*batch_out = batch;
	else
		semel_relay_batch_release(poll->batches, batch);
	return status;
}

semel_status semel_poll_read_due(struct semel_source *source,
				 const struct semel_read_limits *limits,
				 struct semel_relay_batch **batch_out, semel_error *error)
{
	struct poll *poll = poll_of(source);
	semel_status status = SEMEL_OK;

	*batch_out = NULL;
	while (limits->rows > 0 && !*batch_out && status == SEMEL_OK &&
	       poll->due_at < poll->probe_count)
		status = read_due(poll, &poll->probes[poll->due_at++], limits, batch_out, error);
	return status;
}

/* ---- the driver ------------------------------------------------------------------------------ */

static semel_status read_next(struct semel_source *source, const struct semel_read_limits *limits,
			      struct semel_relay_batch **batch_out, semel_error *error)
{
	struct poll *poll = poll_of(source);
	semel_status status = SEMEL_OK;

	*batch_out = take_from_round(poll);
	if (*batch_out || limits->rows == 0)
		return SEMEL_OK;
	status = semel_poll_read_due(source, limits, batch_out, error);
	if (*batch_out || status != SEMEL_OK)
		return status;
	if (poll->batches->count >= BATCHES_MAX) {
		poll->left = true;
		return SEMEL_OK;
	}
	do {
		status = read_round(poll, limits, error);
		if (status != SEMEL_OK)
			return status;
		*batch_out = take_from_round(poll);
	} while (!*batch_out && poll->read_count > 0);
	if (!*batch_out && !poll->found)
		poll->probe_at_ms = 0; /* there may be exceptions: probe */
	return SEMEL_OK;
}

/* The lowest row of the lane that is not marked yet, minus one; a row that was read counts as
 * marked unless it is in another batch. */
static int64_t low_seq(struct semel_source *source, const struct semel_relay_batch *marked)
{
	const struct poll *poll = poll_of(source);
	int64_t low = marked->lane->cursor;

	/* The planted bug: rows that were read ahead count as marked. */
	if (SEMEL_PLANTED("high-water-mark"))
		return marked->lane->lease.low_seq + marked->fetched.count;
	for (const struct semel_relay_batch *batch = poll->batches->in_flight; batch;
	     batch = batch->next)
		if (batch != marked && batch->lane == marked->lane && !batch->exceptions &&
		    !batch->being_marked && lowest(&batch->fetched) - 1 < low)
			low = lowest(&batch->fetched) - 1;
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

	for (size_t i = 0; i < poll->probe_count; i++)
		if (poll->probes[i].complete_seq < lowest)
			lowest = poll->probes[i].complete_seq;
	return poll->probe_count > 0 ? lowest : 0;
}

static void connect_to(struct semel_source *source, semel_store *store,
		       struct semel_relay_batches *batches)
{
	struct poll *poll = poll_of(source);

	poll->batches = batches;
	round_release(poll);
	poll->store = store;
	poll->probe_count = poll->due_at = poll->run_at = 0;
	poll->probe_at_ms = 0;
	semel_lanes_rewind(poll->lanes);
}

void semel_poll_restart(struct semel_source *source)
{
	struct poll *poll = poll_of(source);

	round_release(poll);
	poll->probe_count = poll->due_at = poll->run_at = 0;
	poll->probe_at_ms = 0;
	for (int32_t i = 0; i < poll->lanes->count; i++) {
		struct semel_lane *lane = &poll->lanes->lanes[i];
		lane->cursor = lane->read_to = lane->lease.low_seq;
	}
}

static bool arm_wakeup(struct semel_source *source, bool only_if_armed)
{
	semel_store *store = poll_of(source)->store;
	return store->driver->outbox->arm_wakeup(store, only_if_armed);
}

static bool check_wakeup(struct semel_source *source)
{
	semel_store *store = poll_of(source)->store;
	return store->driver->outbox->check_wakeup(store);
}

static bool is_exhausted(const struct semel_source *source)
{
	const struct poll *poll = (const struct poll *)source;

	for (size_t i = 0; i < poll->probe_count; i++)
		if (poll->probes[i].run || poll->probes[i].due)
			return false;
	return !poll->left;
}

static void close_poll(struct semel_source *source)
{
	struct poll *poll = poll_of(source);
	if (poll->batches)
		round_release(poll);
	free(poll);
}

static const struct semel_source_driver driver = {
	.name = "poll",
	.wait_ms = 20,
	.connect = connect_to,
	.probe = probe,
	.read = read_next,
	.low_seq = low_seq,
	.arm_wakeup = arm_wakeup,
	.check_wakeup = check_wakeup,
	.is_exhausted = is_exhausted,
	.close = close_poll,
};

semel_status semel_source_open_poll(const struct semel_env *env, struct semel_lanes *lanes,
				    struct semel_source **source_out, semel_error *error)
{
	struct poll *poll = calloc(1, sizeof *poll);
	*source_out = NULL;
	if (!poll)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the relay");
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
