/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/broker_offset_store.h"

#include "contract/broker_steps.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PLACES        32
#define REGISTRATIONS 64
#define OFFSETS       8192

/* One log as one scope reads it. */
struct place {
	char scope[64], topic[96];
	int32_t partition;
	pid_t process; /* 0: nobody reads it */
	const struct semel_broker *reader;
	int64_t next;               /* after the last one fetched */
	struct semel_anchor behind; /* the last one acked before those fetched */
	size_t count;
	int64_t offsets[OFFSETS];
	uint64_t hashes[OFFSETS];
	bool acked[OFFSETS];
};

struct registration {
	const struct semel_broker *broker;
	char scope[64];
	struct semel_offset_store offset_store;
};

static struct place *places;
static struct registration registrations[REGISTRATIONS];
static size_t registration_count;

void offset_store_clear(void)
{
	if (!places)
		places = mmap(NULL, PLACES * sizeof(places[0]), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(places != MAP_FAILED);
	memset(places, 0, PLACES * sizeof(places[0]));
}

static struct place *place_of(const char *scope, const char *topic, int32_t partition)
{
	for (size_t i = 0; i < PLACES; i++) {
		struct place *place = &places[i];
		if (!place->scope[0]) {
			snprintf(place->scope, sizeof(place->scope), "%s", scope);
			snprintf(place->topic, sizeof(place->topic), "%s", topic);
			place->partition = partition;
			place->next = -1;
			place->behind = SEMEL_ANCHOR_NONE;
		}
		if (strcmp(place->scope, scope) == 0 && strcmp(place->topic, topic) == 0 &&
		    place->partition == partition)
			return place;
	}
	fail_msg("too many");
	return NULL;
}

static int64_t first_open(const struct place *place)
{
	for (size_t i = 0; i < place->count; i++)
		if (!place->acked[i])
			return place->offsets[i];
	return place->next;
}

static void forget_acked(struct place *place)
{
	place->next = first_open(place);
	for (size_t i = 0; i < place->count && place->acked[i]; i++)
		place->behind = (struct semel_anchor){ .offset = place->offsets[i],
						       .hash = place->hashes[i] };
	place->count = 0;
}

static semel_status take(void *user, const char *topic, int32_t partition, bool granted,
			 int64_t *next_out, semel_error *error)
{
	const struct registration *registration = user;
	struct place *place = place_of(registration->scope, topic, partition);
	bool ours = place->process == getpid() && place->reader == registration->broker;
	(void)error;
	if (!granted && !ours && place->process != 0 && kill(place->process, 0) == 0)
		return SEMEL_LEASE_LOST;
	place->process = getpid();
	place->reader = registration->broker;
	forget_acked(place);
	*next_out = place->next;
	return SEMEL_OK;
}

static struct semel_anchor anchor(void *user, const char *topic, int32_t partition)
{
	const struct registration *registration = user;
	return place_of(registration->scope, topic, partition)->behind;
}

static semel_status restart(void *user, const char *topic, int32_t partition, int64_t next,
			    semel_error *error)
{
	const struct registration *registration = user;
	struct place *place = place_of(registration->scope, topic, partition);
	(void)error;
	place->count = 0;
	place->next = next;
	place->behind = SEMEL_ANCHOR_NONE;
	return SEMEL_OK;
}

static void release(void *user, const char *topic, int32_t partition)
{
	const struct registration *registration = user;
	struct place *place = place_of(registration->scope, topic, partition);
	if (place->process == getpid() && place->reader == registration->broker)
		place->process = 0;
}

static semel_status look(void *user, const char *scope, const char *topic, int32_t partition,
			 int64_t *next_out, semel_error *error)
{
	(void)user;
	(void)error;
	*next_out = first_open(place_of(scope, topic, partition));
	return SEMEL_OK;
}

static struct registration *seat_of(const struct semel_broker *broker)
{
	for (size_t i = registration_count; i-- > 0 && i + REGISTRATIONS >= registration_count;)
		if (registrations[i % REGISTRATIONS].broker == broker)
			return &registrations[i % REGISTRATIONS];
	fail_msg("too many");
	return NULL;
}

void offset_store_attach(struct semel_broker *broker)
{
	struct registration *registration = &registrations[registration_count++ % REGISTRATIONS];
	if (!places)
		offset_store_clear();
	*registration = (struct registration){ .broker = broker };
	registration->offset_store = (struct semel_offset_store){ .user = registration,
								  .acquire = take,
								  .anchor = anchor,
								  .reset = restart,
								  .release = release,
								  .get = look };
	semel_broker_set_offset_store(broker, &registration->offset_store);
}

void offset_store_set_scope(const struct semel_broker *broker, const char *scope)
{
	snprintf(seat_of(broker)->scope, sizeof(registrations[0].scope), "%s", scope);
}

static struct place *place_of_delivery(const struct semel_broker *broker,
				       const struct semel_delivery *delivery)
{
	return place_of(seat_of(broker)->scope, semel_text_string(delivery->event.topic),
			delivery->partition);
}

void offset_store_record_fetched(const struct semel_broker *broker,
				 const struct semel_delivery *deliveries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct place *place = place_of_delivery(broker, &deliveries[i]);
		assert_true(place->count < OFFSETS);
		place->offsets[place->count] = deliveries[i].offset;
		place->hashes[place->count] = semel_event_hash_id(deliveries[i].event.id);
		place->acked[place->count++] = false;
		place->next = deliveries[i].offset + 1;
	}
}

void offset_store_record_acked(const struct semel_broker *broker,
			       const struct semel_delivery *deliveries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct place *place = place_of_delivery(broker, &deliveries[i]);
		for (size_t j = 0; j < place->count; j++)
			if (place->offsets[j] == deliveries[i].offset)
				place->acked[j] = true;
	}
}
