/* SPDX-License-Identifier: Apache-2.0 */
/* What was delivered and is not acked, per assignment. Log entries are in the order in which they
 * were read; the cursor may move over the acked ones at the front, never over a gap. */
#include "broker/local/local.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

static bool grow(void **array, uint32_t *capacity, size_t size)
{
	uint32_t grown_capacity = *capacity == 0 ? FIRST_CAPACITY : *capacity * 2;
	void *grown = realloc(*array, grown_capacity * size);
	if (grown == NULL)
		return false;
	*array = grown;
	*capacity = grown_capacity;
	return true;
}

bool semel_local_unacked_add(struct semel_local_assignment *assignment, int64_t offset,
			     uint64_t bytes)
{
	uint32_t end = assignment->unacked_first + assignment->unacked_count;
	if (end == assignment->unacked_capacity && assignment->unacked_first > 0) {
		memmove(assignment->unacked, assignment->unacked + assignment->unacked_first,
			assignment->unacked_count * sizeof(assignment->unacked[0]));
		assignment->unacked_first = 0;
		end = assignment->unacked_count;
	}
	void *unacked = assignment->unacked;
	if (end == assignment->unacked_capacity &&
	    !grow(&unacked, &assignment->unacked_capacity, sizeof(assignment->unacked[0])))
		return false;
	assignment->unacked = unacked;
	assert(assignment->unacked_count == 0 || assignment->unacked[end - 1].offset < offset);
	assignment->unacked[end] = (struct semel_local_unacked){ .offset = offset, .bytes = bytes };
	assignment->unacked_count++;
	return true;
}

struct semel_local_unacked *semel_local_unacked_find(struct semel_local_assignment *assignment,
						     int64_t offset)
{
	struct semel_local_unacked *unacked = assignment->unacked + assignment->unacked_first;
	uint32_t low = 0, high = assignment->unacked_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (unacked[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < assignment->unacked_count && unacked[low].offset == offset ? &unacked[low]
										: NULL;
}

uint32_t semel_local_unacked_front(const struct semel_local_assignment *assignment,
				   int64_t *offset_out)
{
	uint32_t run = 0;
	while (run < assignment->unacked_count &&
	       assignment->unacked[assignment->unacked_first + run].acked)
		*offset_out = assignment->unacked[assignment->unacked_first + run++].offset;
	return run;
}

void semel_local_unacked_pop(struct semel_local_assignment *assignment, uint32_t count)
{
	assert(count <= assignment->unacked_count);
	assignment->unacked_count -= count;
	assignment->unacked_first =
		assignment->unacked_count == 0 ? 0 : assignment->unacked_first + count;
}

bool semel_local_delayed_add(struct semel_local_assignment *assignment, int64_t number)
{
	void *delayed = assignment->delayed;
	if (assignment->delayed_count == assignment->delayed_capacity &&
	    !grow(&delayed, &assignment->delayed_capacity, sizeof(assignment->delayed[0])))
		return false;
	assignment->delayed = delayed;
	assignment->delayed[assignment->delayed_count++] = number;
	return true;
}

static uint32_t delayed_at(const struct semel_local_assignment *assignment, int64_t number)
{
	uint32_t at = 0;
	while (at < assignment->delayed_count && assignment->delayed[at] != number)
		at++;
	return at;
}

bool semel_local_delayed_has(const struct semel_local_assignment *assignment, int64_t number)
{
	return delayed_at(assignment, number) < assignment->delayed_count;
}

void semel_local_delayed_remove(struct semel_local_assignment *assignment, int64_t number)
{
	uint32_t at = delayed_at(assignment, number);
	if (at < assignment->delayed_count)
		assignment->delayed[at] = assignment->delayed[--assignment->delayed_count];
}

bool semel_local_assignment_is_idle(const struct semel_local_assignment *assignment)
{
	return assignment->unacked_count == 0 && assignment->delayed_count == 0;
}

void semel_local_unacked_clear(struct semel_local *local, struct semel_local_assignment *assignment)
{
	local->unacked_count -= assignment->delayed_count;
	for (uint32_t i = 0; i < assignment->unacked_count; i++) {
		const struct semel_local_unacked *unacked =
			&assignment->unacked[assignment->unacked_first + i];
		if (unacked->acked)
			continue;
		local->unacked_count--;
		local->unacked_bytes -= unacked->bytes;
	}
	assignment->unacked_first = assignment->unacked_count = assignment->delayed_count = 0;
}

void semel_local_assignment_end(struct semel_local *local,
				struct semel_local_assignment *assignment)
{
	semel_local_unacked_clear(local, assignment);
	assignment->owned = assignment->releasing = assignment->backward = assignment->touched =
		false;
}
