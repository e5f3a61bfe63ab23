/* SPDX-License-Identifier: Apache-2.0 */
/* - A position never passes an offset whose event is not settled for good. Events that are done,
 *   duplicate, dead or parked are settled by their transaction. An event under retry is settled
 *   when its copy has been confirmed, after the transaction; its position is written with the next
 *   transaction.
 * - The position is written in the transaction of the effects, and the fence is checked there, even
 *   if the position has not moved: a reader that was replaced commits nothing.
 * - After a crash, an event that was settled after an unsettled one is redelivered; the claims show
 *   what was done.
 */
#include "consume/positions.h"

#include "base/error.h"
#include "consume/consumer.h"

#include <stdlib.h>
#include <string.h>

#define LEASE_MAX_MS 60000

enum progress { OPEN, WRITTEN, SETTLED }; /* WRITTEN: in a transaction that may have failed */

struct fetched {
	struct semel_anchor event;
	enum progress progress;
};

/* One log that this consumer reads. */
struct reader {
	char *topic;
	struct semel_position position; /* as the store has it */
	bool held;
	int64_t next;               /* the offset after the last one fetched */
	struct semel_anchor behind; /* the last one settled before those in fetched */
	struct fetched *fetched;    /* ascending, from the first that is not settled */
	size_t start, length, capacity;
	int64_t renew_at_ms; /* steady */
};

struct semel_positions {
	struct semel_consumer *consumer;
	struct semel_offset_store offset_store;
	struct reader *readers;
	size_t count;
	int64_t lease_ms;
};

/* ---- one log --------------------------------------------------------------------------------- */

static struct reader *find_reader(const struct semel_positions *positions, struct semel_text topic,
				  int32_t partition)
{
	for (size_t i = 0; i < positions->count; i++)
		if (positions->readers[i].position.partition == partition &&
		    semel_text_equal(positions->readers[i].position.topic, topic))
			return &positions->readers[i];
	return NULL;
}

static struct reader *find_or_add_reader(struct semel_positions *positions, const char *topic,
					 int32_t partition)
{
	struct reader *reader = find_reader(positions, semel_text_of(topic), partition);
	if (reader)
		return reader;
	struct reader *grown = realloc(positions->readers, (positions->count + 1) * sizeof(*grown));
	if (grown)
		positions->readers = grown;
	char *copy = grown ? strdup(topic) : NULL;
	if (!copy)
		return NULL;
	reader = &positions->readers[positions->count++];
	*reader = (struct reader){ .topic = copy };
	reader->position = (struct semel_position){ .scope = positions->consumer->config.scope,
						    .topic = semel_text_of(copy),
						    .partition = partition };
	return reader;
}

static struct fetched *find_fetched(const struct reader *reader, int64_t offset)
{
	size_t low = 0, high = reader->length;
	if (!reader->fetched)
		return NULL;
	struct fetched *first = reader->fetched + reader->start;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (first[middle].event.offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < reader->length && first[low].event.offset == offset ? &first[low] : NULL;
}

static bool add_fetched(struct reader *reader, const struct semel_delivery *delivery)
{
	if (reader->start > 0 && reader->start + reader->length == reader->capacity) {
		memmove(reader->fetched, reader->fetched + reader->start,
			reader->length * sizeof(reader->fetched[0]));
		reader->start = 0;
	}
	if (reader->length == reader->capacity) {
		size_t capacity = reader->capacity ? reader->capacity * 2 : 1024;
		struct fetched *grown = realloc(reader->fetched, capacity * sizeof(*grown));
		if (!grown)
			return false;
		reader->fetched = grown;
		reader->capacity = capacity;
	}
	reader->fetched[reader->start + reader->length++] =
		(struct fetched){ .event = { .offset = delivery->offset,
					     .hash = semel_event_hash_id(delivery->event.id) } };
	reader->next = delivery->offset + 1;
	return true;
}

/* The first offset that is not settled, if progress `lowest` and above counts as settled;
 * *behind_out: the last event before that offset. */
static int64_t first_open(const struct reader *reader, enum progress lowest,
			  struct semel_anchor *behind_out)
{
	*behind_out = reader->behind;
	for (size_t i = 0; i < reader->length; i++) {
		const struct fetched *one = &reader->fetched[reader->start + i];
		if (one->progress < lowest)
			return one->event.offset;
		*behind_out = one->event;
	}
	return reader->next;
}

static void forget_settled(struct reader *reader)
{
	while (reader->length > 0 && reader->fetched[reader->start].progress == SETTLED) {
		reader->behind = reader->fetched[reader->start].event;
		reader->start++;
		reader->length--;
	}
}

/* ---- the offset store, for the broker -------------------------------------------------------- */

static bool is_free(const struct semel_positions *positions, const struct semel_position *position)
{
	return position->owner[0] == '\0' ||
	       strcmp(position->owner, positions->consumer->owner) == 0 ||
	       semel_owner_is_gone(position->owner, position->expires_at_ms,
				   semel_now_ms(positions->consumer->env));
}

static void resume_from(struct reader *reader, int64_t next)
{
	reader->next = next;
	reader->start = reader->length = 0;
}

static semel_status take_over(struct semel_positions *positions, struct reader *reader,
			      bool granted, semel_error *error)
{
	const struct semel_consumer *consumer = positions->consumer;
	const struct semel_store_driver *driver = consumer->store->driver;
	int64_t until_ms = semel_now_ms(consumer->env) + positions->lease_ms;
	semel_status status =
		driver->inbox->position_get(consumer->store, &reader->position, error);
	if (status != SEMEL_OK)
		return status;
	if (!granted && !is_free(positions, &reader->position))
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "another consumer of %s reads partition %d of %s",
				       semel_text_shown(consumer->config.scope),
				       (int)reader->position.partition, reader->topic);
	status = driver->inbox->position_acquire(consumer->store, &reader->position,
						 consumer->owner, until_ms, error);
	if (status != SEMEL_OK)
		return status;
	reader->held = true;
	reader->renew_at_ms = semel_steady_ms(consumer->env) + positions->lease_ms / 3;
	reader->behind = reader->position.anchor;
	resume_from(reader, reader->position.next);
	return SEMEL_OK;
}

static semel_status offset_store_acquire(void *user, const char *topic, int32_t partition,
					 bool granted, int64_t *next_out, semel_error *error)
{
	struct semel_positions *positions = user;
	struct reader *reader = find_or_add_reader(positions, topic, partition);
	semel_status status = SEMEL_OK;
	if (!reader)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a position");
	if (reader->held)
		resume_from(reader, first_open(reader, SETTLED, &reader->behind));
	else
		status = take_over(positions, reader, granted, error);
	*next_out = reader->next;
	return status;
}

static struct semel_anchor offset_store_anchor(void *user, const char *topic, int32_t partition)
{
	const struct reader *reader = find_reader(user, semel_text_of(topic), partition);
	return reader ? reader->behind : SEMEL_ANCHOR_NONE;
}

/* Progress `lowest` and above counts as settled. */
static semel_status write_position(struct semel_positions *positions, struct reader *reader,
				   enum progress lowest, semel_error *error)
{
	const struct semel_consumer *consumer = positions->consumer;
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_position position = reader->position;
	position.next = first_open(reader, lowest, &position.anchor);
	position.expires_at_ms = semel_now_ms(consumer->env) + positions->lease_ms;
	semel_status status =
		driver->inbox->position_put(driver->tx(consumer->store), &position, error);
	if (status != SEMEL_OK)
		return status;
	reader->renew_at_ms = semel_steady_ms(consumer->env) + positions->lease_ms / 3;
	return SEMEL_OK;
}

static semel_status write_settled(struct semel_positions *positions, struct reader *reader,
				  semel_error *error)
{
	semel_status status = write_position(positions, reader, SETTLED, error);
	if (status != SEMEL_OK)
		return status;
	reader->position.next = first_open(reader, SETTLED, &reader->position.anchor);
	return SEMEL_OK;
}

static semel_status offset_store_reset(void *user, const char *topic, int32_t partition,
				       int64_t next, semel_error *error)
{
	struct semel_positions *positions = user;
	struct reader *reader = find_reader(positions, semel_text_of(topic), partition);
	if (!reader || !reader->held)
		return SEMEL_OK;
	resume_from(reader, next);
	reader->behind = SEMEL_ANCHOR_NONE;
	return write_settled(positions, reader, error);
}

static void offset_store_release(void *user, const char *topic, int32_t partition)
{
	struct semel_positions *positions = user;
	struct reader *reader = find_reader(positions, semel_text_of(topic), partition);
	semel_store *store = positions->consumer->store;
	if (!reader || !reader->held)
		return;
	reader->held = false;
	if (store && write_settled(positions, reader, NULL) == SEMEL_OK)
		store->driver->inbox->position_release(store, &reader->position);
}

static semel_status offset_store_get(void *user, const char *scope, const char *topic,
				     int32_t partition, int64_t *next_out, semel_error *error)
{
	struct semel_positions *positions = user;
	semel_store *store = positions->consumer->store;
	struct reader *reader = find_reader(positions, semel_text_of(topic), partition);
	struct semel_anchor anchor;
	struct semel_position position = { .scope = semel_text_of(scope),
					   .topic = semel_text_of(topic),
					   .partition = partition };
	if (reader && reader->held && semel_text_equal(position.scope, reader->position.scope)) {
		*next_out = first_open(reader, SETTLED, &anchor);
		return SEMEL_OK;
	}
	semel_status status = store->driver->inbox->position_get(store, &position, error);
	*next_out = position.next;
	return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct semel_positions *semel_positions_new(struct semel_consumer *consumer)
{
	struct semel_positions *positions = calloc(1, sizeof(*positions));
	if (!positions)
		return NULL;
	positions->consumer = consumer;
	positions->lease_ms = consumer->config.options.lease_ms;
	positions->offset_store = (struct semel_offset_store){
		.user = positions,
		.acquire = offset_store_acquire,
		.anchor = offset_store_anchor,
		.reset = offset_store_reset,
		.release = offset_store_release,
		.get = offset_store_get,
	};
	return positions;
}

void semel_positions_free(struct semel_positions *positions)
{
	if (!positions)
		return;
	for (size_t i = 0; i < positions->count; i++) {
		free(positions->readers[i].topic);
		free(positions->readers[i].fetched);
	}
	free(positions->readers);
	free(positions);
}

const struct semel_offset_store *semel_positions_offset_store(
	const struct semel_positions *positions)
{
	return &positions->offset_store;
}

void semel_positions_forget(struct semel_positions *positions, bool lost)
{
	bool held = false;
	for (size_t i = 0; i < positions->count; i++) {
		held = held || positions->readers[i].held;
		positions->readers[i].held = false;
		resume_from(&positions->readers[i], -1);
	}
	if (held && lost && positions->lease_ms < LEASE_MAX_MS)
		positions->lease_ms *= 2;
}

semel_status semel_positions_note_fetched(struct semel_positions *positions,
					  const struct semel_delivery *deliveries, uint32_t count,
					  semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct reader *reader =
			find_reader(positions, deliveries[i].event.topic, deliveries[i].partition);
		if (reader && !add_fetched(reader, &deliveries[i]))
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for a position");
	}
	return SEMEL_OK;
}

static bool is_settled_by_commit(const struct semel_item *item)
{
	return semel_item_is_settled(item) && (item->state != SEMEL_ITEM_RETRYING || item->stored);
}

/* Offsets that an earlier transaction wrote, and that were not settled after it, were rolled
 * back. */
void semel_positions_begin(struct semel_positions *positions)
{
	for (size_t i = 0; i < positions->count; i++) {
		struct reader *reader = &positions->readers[i];
		for (size_t j = reader->start; j < reader->start + reader->length; j++)
			if (reader->fetched[j].progress == WRITTEN)
				reader->fetched[j].progress = OPEN;
	}
}

void semel_positions_include(struct semel_positions *positions, const struct semel_item *item)
{
	const struct semel_delivery *delivery = item->delivery;
	if (!delivery->offset_in_store || item->entry_id.data || !is_settled_by_commit(item))
		return;
	struct reader *reader = find_reader(positions, delivery->event.topic, delivery->partition);
	struct fetched *one = reader ? find_fetched(reader, delivery->offset) : NULL;
	if (one && one->progress == OPEN)
		one->progress = WRITTEN;
}

semel_status semel_positions_write(struct semel_positions *positions, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < positions->count && status == SEMEL_OK; i++)
		if (positions->readers[i].held && positions->readers[i].length > 0)
			status = write_position(positions, &positions->readers[i], WRITTEN, error);
	return status;
}

void semel_positions_acknowledged(struct semel_positions *positions,
				  const struct semel_delivery *deliveries, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct reader *reader = deliveries[i].offset_in_store
						? find_reader(positions, deliveries[i].event.topic,
							      deliveries[i].partition)
						: NULL;
		struct fetched *one = reader ? find_fetched(reader, deliveries[i].offset) : NULL;
		if (!one)
			continue;
		one->progress = SETTLED;
		forget_settled(reader);
	}
}

semel_status semel_positions_renew(struct semel_positions *positions, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(positions->consumer->env);
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < positions->count && status == SEMEL_OK; i++)
		if (positions->readers[i].held && positions->readers[i].renew_at_ms <= now_ms)
			status = write_settled(positions, &positions->readers[i], error);
	return status;
}
