/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/broker_offset_store.h"

#include "contract/broker_steps.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POSITIONS   32
#define ATTACHMENTS 64
#define OFFSETS     8192

/* One log as one scope reads it. */
struct position {
	char scope[64], topic[96];
	int32_t partition;
	pid_t process; /* 0: not read */
	const struct semel_broker *reader;
	int64_t next;               /* after the last one fetched */
	struct semel_anchor behind; /* the last one acked before those fetched */
	size_t count;
	int64_t offsets[OFFSETS];
	uint64_t hashes[OFFSETS];
	bool acked[OFFSETS];
};

struct attachment {
	const struct semel_broker *broker;
	char scope[64];
	struct semel_offset_store offset_store;
};

static struct position *positions;
static struct attachment attachments[ATTACHMENTS];
static size_t attachment_count;

void offset_store_clear(void)
{
	if (!positions)
		positions = mmap(NULL, POSITIONS * sizeof(positions[0]), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(positions != MAP_FAILED);
	memset(positions, 0, POSITIONS * sizeof(positions[0]));
}

static struct position *position_of(const char *scope, const char *topic, int32_t partition)
{
	for (size_t i = 0; i < POSITIONS; i++) {
		struct position *position = &positions[i];
		if (!position->scope[0]) {
			snprintf(position->scope, sizeof(position->scope), "%s", scope);
			snprintf(position->topic, sizeof(position->topic), "%s", topic);
			position->partition = partition;
			position->next = -1;
			position->behind = SEMEL_ANCHOR_NONE;
		}
		if (strcmp(position->scope, scope) == 0 && strcmp(position->topic, topic) == 0 &&
		    position->partition == partition)
			return position;
	}
	fail_msg("too many");
	return NULL;
}

static int64_t first_open(const struct position *position)
{
	for (size_t i = 0; i < position->count; i++)
		if (!position->acked[i])
			return position->offsets[i];
	return position->next;
}

static void forget_acked(struct position *position)
{
	position->next = first_open(position);
	for (size_t i = 0; i < position->count && position->acked[i]; i++)
		position->behind = (struct semel_anchor){ .offset = position->offsets[i],
							  .hash = position->hashes[i] };
	position->count = 0;
}

static semel_status take(void *user, const char *topic, int32_t partition, bool granted,
			 int64_t *next_out, semel_error *error)
{
	const struct attachment *attachment = user;
	struct position *position = position_of(attachment->scope, topic, partition);
	bool ours = position->process == getpid() && position->reader == attachment->broker;
	(void)error;
	if (!granted && !ours && position->process != 0 && kill(position->process, 0) == 0)
		return SEMEL_LEASE_LOST;
	position->process = getpid();
	position->reader = attachment->broker;
	forget_acked(position);
	*next_out = position->next;
	return SEMEL_OK;
}

static struct semel_anchor anchor(void *user, const char *topic, int32_t partition)
{
	const struct attachment *attachment = user;
	return position_of(attachment->scope, topic, partition)->behind;
}

static semel_status restart(void *user, const char *topic, int32_t partition, int64_t next,
			    semel_error *error)
{
	const struct attachment *attachment = user;
	struct position *position = position_of(attachment->scope, topic, partition);
	(void)error;
	position->count = 0;
	position->next = next;
	position->behind = SEMEL_ANCHOR_NONE;
	return SEMEL_OK;
}

static void release(void *user, const char *topic, int32_t partition)
{
	const struct attachment *attachment = user;
	struct position *position = position_of(attachment->scope, topic, partition);
	if (position->process == getpid() && position->reader == attachment->broker)
		position->process = 0;
}

static semel_status get_next(void *user, const char *scope, const char *topic, int32_t partition,
			     int64_t *next_out, semel_error *error)
{
	(void)user;
	(void)error;
	*next_out = first_open(position_of(scope, topic, partition));
	return SEMEL_OK;
}

static struct attachment *attachment_of(const struct semel_broker *broker)
{
	for (size_t i = attachment_count; i-- > 0 && i + ATTACHMENTS >= attachment_count;)
		if (attachments[i % ATTACHMENTS].broker == broker)
			return &attachments[i % ATTACHMENTS];
	fail_msg("too many");
	return NULL;
}

void offset_store_attach(struct semel_broker *broker)
{
	struct attachment *attachment = &attachments[attachment_count++ % ATTACHMENTS];
	if (!positions)
		offset_store_clear();
	*attachment = (struct attachment){ .broker = broker };
	attachment->offset_store = (struct semel_offset_store){ .user = attachment,
								.acquire = take,
								.anchor = anchor,
								.reset = restart,
								.release = release,
								.get = get_next };
	semel_broker_set_offset_store(broker, &attachment->offset_store);
}

void offset_store_set_scope(const struct semel_broker *broker, const char *scope)
{
	snprintf(attachment_of(broker)->scope, sizeof(attachments[0].scope), "%s", scope);
}

static struct position *position_of_delivery(const struct semel_broker *broker,
					     const struct semel_delivery *delivery)
{
	return position_of(attachment_of(broker)->scope, semel_text_string(delivery->event.topic),
			   delivery->partition);
}

void offset_store_record_fetched(const struct semel_broker *broker,
				 const struct semel_delivery *deliveries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct position *position = position_of_delivery(broker, &deliveries[i]);
		assert_true(position->count < OFFSETS);
		position->offsets[position->count] = deliveries[i].offset;
		position->hashes[position->count] = semel_event_hash_id(deliveries[i].event.id);
		position->acked[position->count++] = false;
		position->next = deliveries[i].offset + 1;
	}
}

void offset_store_record_acked(const struct semel_broker *broker,
			       const struct semel_delivery *deliveries, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!deliveries[i].offset_in_store)
			continue;
		struct position *position = position_of_delivery(broker, &deliveries[i]);
		for (size_t j = 0; j < position->count; j++)
			if (position->offsets[j] == deliveries[i].offset)
				position->acked[j] = true;
	}
}
