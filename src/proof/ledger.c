/* SPDX-License-Identifier: Apache-2.0 */
/* An entry takes 24 bytes plus its id: a million events take about 60 MB. */
#include "proof/ledger.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ENTRIES  1024
#define FIRST_TOPICS   16
#define ARENA_BLOCK    4096
#define PROGRESS_EVERY 4096

static bool grow(void **array, size_t count, size_t *capacity, size_t item_size, size_t first)
{
	if (count < *capacity)
		return true;
	size_t bigger_capacity = *capacity ? *capacity * 2 : first;
	void *bigger = realloc(*array, bigger_capacity * item_size);
	if (!bigger)
		return false;
	*array = bigger;
	*capacity = bigger_capacity;
	return true;
}

/* Topics are few, so a linear search is cheap. */
static bool topic_number(struct semel_ledger *ledger, struct semel_text topic, uint16_t *number_out)
{
	size_t at = 0;
	while (at < ledger->topic_count && !semel_text_equal(ledger->topics[at], topic))
		at++;
	*number_out = (uint16_t)at;
	if (at < ledger->topic_count)
		return true;
	if (at > UINT16_MAX || !grow((void **)&ledger->topics, at, &ledger->topic_capacity,
				     sizeof(*ledger->topics), FIRST_TOPICS))
		return false;
	ledger->topics[at] = semel_arena_text(ledger->arena, topic.data, topic.length);
	ledger->topic_count++;
	return ledger->topics[at].data != NULL;
}

static uint8_t status_of(const char *status)
{
	if (strcmp(status, "PUBLISHED") == 0)
		return SEMEL_LEDGER_PUBLISHED;
	return strcmp(status, "FAILED") == 0 ? SEMEL_LEDGER_FAILED : SEMEL_LEDGER_NEW;
}

static semel_status add_entry(struct semel_text id, const char *status, struct semel_text topic,
			      int64_t time_ms, void *user)
{
	struct semel_ledger *ledger = user;
	struct semel_ledger_entry entry = { .id_at = ledger->ids.length,
					    .time_ms = time_ms,
					    .id_length = (uint8_t)id.length,
					    .status = status_of(status) };
	if (id.length > UINT8_MAX)
		return SEMEL_INVALID;
	if (!topic_number(ledger, topic, &entry.topic) ||
	    !grow((void **)&ledger->entries, ledger->count, &ledger->capacity, sizeof(entry),
		  FIRST_ENTRIES))
		return SEMEL_INTERNAL;
	semel_buffer_append(&ledger->ids, id.data, id.length);
	semel_buffer_append(&ledger->ids, "", 1); /* so that an id is a C string in place */
	ledger->entries[ledger->count++] = entry;
	if (ledger->progress && ledger->count % PROGRESS_EVERY == 0)
		ledger->progress("events read", ledger->count, ledger->user);
	return ledger->ids.failed ? SEMEL_INTERNAL : SEMEL_OK;
}

semel_status semel_ledger_read(struct semel_ledger *ledger, semel_store *producer,
			       semel_error *error)
{
	ledger->arena = semel_arena_new(ARENA_BLOCK);
	if (!ledger->arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	semel_error_clear(error);
	semel_status status = producer->driver->outbox->each(producer, add_entry, ledger, error);
	if (status == SEMEL_INVALID)
		return semel_error_set(error, status,
				       "the outbox contains an event id of more than 255 bytes");
	if (status == SEMEL_INTERNAL && (!error || !error->text[0]))
		return semel_error_set(error, status, "out of memory for %zu events",
				       ledger->count);
	return status;
}

static semel_status update_entry(struct semel_text id, const char *status, struct semel_text topic,
				 int64_t time_ms, void *user)
{
	(void)topic;
	(void)time_ms;
	struct semel_ledger_entry *entry = semel_ledger_seek(user, id);
	if (entry)
		entry->status = status_of(status);
	return SEMEL_OK;
}

semel_status semel_ledger_refresh(struct semel_ledger *ledger, semel_store *producer,
				  semel_error *error)
{
	semel_ledger_clear_flags(ledger);
	return producer->driver->outbox->each(producer, update_entry, ledger, error);
}

void semel_ledger_free(struct semel_ledger *ledger)
{
	free(ledger->entries);
	free(ledger->topics);
	semel_buffer_free(&ledger->ids);
	semel_arena_free(ledger->arena);
}

struct semel_text semel_ledger_id(const struct semel_ledger *ledger,
				  const struct semel_ledger_entry *entry)
{
	return semel_text_from(ledger->ids.data + entry->id_at, entry->id_length);
}

struct semel_text semel_ledger_topic(const struct semel_ledger *ledger,
				     const struct semel_ledger_entry *entry)
{
	return ledger->topics[entry->topic];
}

bool semel_ledger_has_topic(const struct semel_ledger *ledger, struct semel_text topic)
{
	for (size_t i = 0; i < ledger->topic_count; i++)
		if (semel_text_equal(ledger->topics[i], topic))
			return true;
	return false;
}

void semel_ledger_rewind(struct semel_ledger *ledger)
{
	ledger->cursor = 0;
}

void semel_ledger_clear_flags(struct semel_ledger *ledger)
{
	ledger->cursor = 0;
	for (size_t i = 0; i < ledger->count; i++)
		ledger->entries[i].flags = 0;
}

int semel_ledger_compare(struct semel_text left, struct semel_text right)
{
	size_t shorter = left.length < right.length ? left.length : right.length;
	int order = shorter ? memcmp(left.data, right.data, shorter) : 0;
	if (order != 0)
		return order;
	return (left.length > right.length) - (left.length < right.length);
}

struct semel_ledger_entry *semel_ledger_seek(struct semel_ledger *ledger, struct semel_text id)
{
	while (ledger->cursor < ledger->count) {
		struct semel_ledger_entry *entry = &ledger->entries[ledger->cursor];
		int order = semel_ledger_compare(semel_ledger_id(ledger, entry), id);
		if (order == 0)
			return entry;
		if (order > 0)
			return NULL;
		ledger->cursor++;
	}
	return NULL;
}

struct semel_ledger_entry *semel_ledger_find(const struct semel_ledger *ledger,
					     struct semel_text id)
{
	size_t low = 0, high = ledger->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		struct semel_ledger_entry *entry = &ledger->entries[middle];
		int order = semel_ledger_compare(semel_ledger_id(ledger, entry), id);
		if (order == 0)
			return entry;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}
