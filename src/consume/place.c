/* SPDX-License-Identifier: Apache-2.0 */
/* Places in logs.
 *
 * - A place never passes an offset whose event is not settled for good. With its transaction are
 *   those that are done, duplicates, dead or parked; one under retry is so when its copy was
 *   confirmed, after the transaction, and its place is written with the next one.
 * - The place is written in the transaction of the effects, and the fence is checked there, also
 *   when the place has not moved: a reader that was replaced commits nothing.
 * - What is settled behind a place that is not comes again after a crash; the claims tell.
 */
#include "consume/place.h"

#include "base/error.h"
#include "consume/consumer.h"

#include <stdlib.h>
#include <string.h>

#define LEASE_MAX_MS 60000

enum mark { OPEN, WRITTEN, SETTLED }; /* WRITTEN: with a transaction that may have failed */

struct fetched {
	struct semel_anchor event;
	enum mark mark;
};

/* One log that this consumer reads. */
struct place {
	char *topic;
	struct semel_position position; /* as the store has it */
	bool held;
	int64_t next;               /* after the last one fetched */
	struct semel_anchor behind; /* the last one settled before those fetched */
	struct fetched *fetched;    /* ascending, since the first that is not settled */
	size_t start, length, capacity;
	int64_t renew_at_ms; /* steady */
};

struct semel_places {
	struct semel_consumer *consumer;
	struct semel_offset_store offset_store;
	struct place *places;
	size_t count;
	int64_t lease_ms;
};

/* ---- one place ------------------------------------------------------------------------------- */

static struct place *find_place(const struct semel_places *places, struct semel_text topic,
				int32_t partition)
{
	for (size_t i = 0; i < places->count; i++)
		if (places->places[i].position.partition == partition &&
		    semel_text_equal(places->places[i].position.topic, topic))
			return &places->places[i];
	return NULL;
}

static struct place *need_place(struct semel_places *places, const char *topic, int32_t partition)
{
	struct place *place = find_place(places, semel_text_of(topic), partition);
	if (place)
		return place;
	struct place *grown = realloc(places->places, (places->count + 1) * sizeof(*grown));
	if (grown)
		places->places = grown;
	char *copy = grown ? strdup(topic) : NULL;
	if (!copy)
		return NULL;
	place = &places->places[places->count++];
	*place = (struct place){ .topic = copy };
	place->position = (struct semel_position){ .scope = places->consumer->scope,
						   .topic = semel_text_of(copy),
						   .partition = partition };
	return place;
}

static struct fetched *find_fetched(const struct place *place, int64_t offset)
{
	size_t low = 0, high = place->length;
	if (!place->fetched)
		return NULL;
	struct fetched *first = place->fetched + place->start;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (first[middle].event.offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < place->length && first[low].event.offset == offset ? &first[low] : NULL;
}

static bool add_fetched(struct place *place, const struct semel_delivery *delivery)
{
	if (place->start > 0 && place->start + place->length == place->capacity) {
		memmove(place->fetched, place->fetched + place->start,
			place->length * sizeof(place->fetched[0]));
		place->start = 0;
	}
	if (place->length == place->capacity) {
		size_t capacity = place->capacity ? place->capacity * 2 : 1024;
		struct fetched *grown = realloc(place->fetched, capacity * sizeof(*grown));
		if (!grown)
			return false;
		place->fetched = grown;
		place->capacity = capacity;
	}
	place->fetched[place->start + place->length++] =
		(struct fetched){ .event = { .offset = delivery->offset,
					     .hash = semel_event_hash_id(delivery->event.id) } };
	place->next = delivery->offset + 1;
	return true;
}

/* The first offset that is not settled, if what has the lowest mark counts as settled; and the last
 * event before it. */
static int64_t first_open(const struct place *place, enum mark lowest,
			  struct semel_anchor *behind_out)
{
	*behind_out = place->behind;
	for (size_t i = 0; i < place->length; i++) {
		const struct fetched *one = &place->fetched[place->start + i];
		if (one->mark < lowest)
			return one->event.offset;
		*behind_out = one->event;
	}
	return place->next;
}

static void forget_settled(struct place *place)
{
	while (place->length > 0 && place->fetched[place->start].mark == SETTLED) {
		place->behind = place->fetched[place->start].event;
		place->start++;
		place->length--;
	}
}

/* ---- the offset store, for the broker -------------------------------------------------------- */

static bool is_free(const struct semel_places *places, const struct semel_position *position)
{
	return position->owner[0] == '\0' || semel_owner_is_dead(position->owner) ||
	       strcmp(position->owner, places->consumer->owner) == 0 ||
	       position->expires_at_ms <= semel_now_ms(places->consumer->env);
}

static void go_on_from(struct place *place, int64_t next)
{
	place->next = next;
	place->start = place->length = 0;
}

static semel_status take_over(struct semel_places *places, struct place *place, bool granted,
			      semel_error *error)
{
	const struct semel_consumer *consumer = places->consumer;
	const struct semel_store_driver *driver = consumer->store->driver;
	int64_t until_ms = semel_now_ms(consumer->env) + places->lease_ms;
	semel_status status = driver->position_get(consumer->store, &place->position, error);
	if (status != SEMEL_OK)
		return status;
	if (!granted && !is_free(places, &place->position))
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "another consumer of %s reads partition %d of %s",
				       semel_text_shown(consumer->scope),
				       (int)place->position.partition, place->topic);
	status = driver->position_take(consumer->store, &place->position, consumer->owner, until_ms,
				       error);
	if (status != SEMEL_OK)
		return status;
	place->held = true;
	place->renew_at_ms = semel_steady_ms(consumer->env) + places->lease_ms / 3;
	place->behind = place->position.anchor;
	go_on_from(place, place->position.next);
	return SEMEL_OK;
}

static semel_status offset_store_acquire(void *user, const char *topic, int32_t partition,
					 bool granted, int64_t *next_out, semel_error *error)
{
	struct semel_places *places = user;
	struct place *place = need_place(places, topic, partition);
	semel_status status = SEMEL_OK;
	if (!place)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a position");
	if (place->held)
		go_on_from(place, first_open(place, SETTLED, &place->behind));
	else
		status = take_over(places, place, granted, error);
	*next_out = place->next;
	return status;
}

static struct semel_anchor offset_store_anchor(void *user, const char *topic, int32_t partition)
{
	const struct place *place = find_place(user, semel_text_of(topic), partition);
	return place ? place->behind : SEMEL_ANCHOR_NONE;
}

/* With what has the lowest mark as settled. */
static semel_status write_place(struct semel_places *places, struct place *place, enum mark lowest,
				semel_error *error)
{
	const struct semel_consumer *consumer = places->consumer;
	const struct semel_store_driver *driver = consumer->store->driver;
	struct semel_position position = place->position;
	position.next = first_open(place, lowest, &position.anchor);
	position.expires_at_ms = semel_now_ms(consumer->env) + places->lease_ms;
	semel_status status = driver->position_put(driver->tx(consumer->store), &position, error);
	if (status == SEMEL_OK)
		place->renew_at_ms = semel_steady_ms(consumer->env) + places->lease_ms / 3;
	return status;
}

static semel_status write_settled(struct semel_places *places, struct place *place,
				  semel_error *error)
{
	semel_status status = write_place(places, place, SETTLED, error);
	if (status == SEMEL_OK)
		place->position.next = first_open(place, SETTLED, &place->position.anchor);
	return status;
}

static semel_status offset_store_reset(void *user, const char *topic, int32_t partition,
				       int64_t next, semel_error *error)
{
	struct semel_places *places = user;
	struct place *place = find_place(places, semel_text_of(topic), partition);
	if (!place || !place->held)
		return SEMEL_OK;
	go_on_from(place, next);
	place->behind = SEMEL_ANCHOR_NONE;
	return write_settled(places, place, error);
}

static void offset_store_release(void *user, const char *topic, int32_t partition)
{
	struct semel_places *places = user;
	struct place *place = find_place(places, semel_text_of(topic), partition);
	semel_store *store = places->consumer->store;
	if (!place || !place->held)
		return;
	place->held = false;
	if (store && write_settled(places, place, NULL) == SEMEL_OK)
		store->driver->position_release(store, &place->position);
}

static semel_status offset_store_get(void *user, const char *scope, const char *topic,
				     int32_t partition, int64_t *next_out, semel_error *error)
{
	struct semel_places *places = user;
	semel_store *store = places->consumer->store;
	struct place *place = find_place(places, semel_text_of(topic), partition);
	struct semel_anchor anchor;
	struct semel_position position = { .scope = semel_text_of(scope),
					   .topic = semel_text_of(topic),
					   .partition = partition };
	if (place && place->held && semel_text_equal(position.scope, place->position.scope)) {
		*next_out = first_open(place, SETTLED, &anchor);
		return SEMEL_OK;
	}
	semel_status status = store->driver->position_get(store, &position, error);
	*next_out = position.next;
	return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

struct semel_places *semel_places_new(struct semel_consumer *consumer)
{
	struct semel_places *places = calloc(1, sizeof(*places));
	if (!places)
		return NULL;
	places->consumer = consumer;
	places->lease_ms = consumer->options.lease_ms;
	places->offset_store = (struct semel_offset_store){
		.user = places,
		.acquire = offset_store_acquire,
		.anchor = offset_store_anchor,
		.reset = offset_store_reset,
		.release = offset_store_release,
		.get = offset_store_get,
	};
	return places;
}

void semel_places_free(struct semel_places *places)
{
	if (!places)
		return;
	for (size_t i = 0; i < places->count; i++) {
		free(places->places[i].topic);
		free(places->places[i].fetched);
	}
	free(places->places);
	free(places);
}

const struct semel_offset_store *semel_places_offset_store(const struct semel_places *places)
{
	return &places->offset_store;
}

void semel_places_forget(struct semel_places *places, bool lost)
{
	bool held = false;
	for (size_t i = 0; i < places->count; i++) {
		held = held || places->places[i].held;
		places->places[i].held = false;
		go_on_from(&places->places[i], -1);
	}
	if (held && lost && places->lease_ms < LEASE_MAX_MS)
		places->lease_ms *= 2;
}

semel_status semel_places_note(struct semel_places *places, const struct semel_delivery *deliveries,
			       uint32_t count, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct place *place =
			find_place(places, deliveries[i].event.topic, deliveries[i].partition);
		if (place && !add_fetched(place, &deliveries[i]))
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for a position");
	}
	return SEMEL_OK;
}

static bool is_settled_by_commit(const struct semel_item *item)
{
	return item->fate >= SEMEL_FATE_DONE && (item->fate != SEMEL_FATE_RETRY || item->kept);
}

/* What an earlier transaction wrote, and was not settled after it, was rolled back. */
void semel_places_begin(struct semel_places *places)
{
	for (size_t i = 0; i < places->count; i++) {
		struct place *place = &places->places[i];
		for (size_t j = place->start; j < place->start + place->length; j++)
			if (place->fetched[j].mark == WRITTEN)
				place->fetched[j].mark = OPEN;
	}
}

void semel_places_mark(struct semel_places *places, const struct semel_item *item)
{
	const struct semel_delivery *delivery = item->delivery;
	if (!delivery->offset_in_store || item->entry_id.data || !is_settled_by_commit(item))
		return;
	struct place *place = find_place(places, delivery->event.topic, delivery->partition);
	struct fetched *one = place ? find_fetched(place, delivery->offset) : NULL;
	if (one && one->mark == OPEN)
		one->mark = WRITTEN;
}

semel_status semel_places_write(struct semel_places *places, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < places->count && status == SEMEL_OK; i++)
		if (places->places[i].held && places->places[i].length > 0)
			status = write_place(places, &places->places[i], WRITTEN, error);
	return status;
}

void semel_places_settle(struct semel_places *places, const struct semel_delivery *deliveries,
			 uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct place *place = deliveries[i].offset_in_store
					      ? find_place(places, deliveries[i].event.topic,
							   deliveries[i].partition)
					      : NULL;
		struct fetched *one = place ? find_fetched(place, deliveries[i].offset) : NULL;
		if (!one)
			continue;
		one->mark = SETTLED;
		forget_settled(place);
	}
}

semel_status semel_places_tend(struct semel_places *places, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(places->consumer->env);
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < places->count && status == SEMEL_OK; i++)
		if (places->places[i].held && places->places[i].renew_at_ms <= now_ms)
			status = write_settled(places, &places->places[i], error);
	return status;
}
