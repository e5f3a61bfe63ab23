/* SPDX-License-Identifier: Apache-2.0 */
/* What was handed out and is not settled, per share. Log entries stand in the order in which they
 * were read; the cursor may move over the acked ones at the front, never over a gap. */
#include "broker/local/local.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

static bool grow(void **array, uint32_t *capacity, size_t size)
{
	uint32_t wanted = *capacity == 0 ? FIRST_CAPACITY : *capacity * 2;
	void *grown = realloc(*array, wanted * size);
	if (grown == NULL)
		return false;
	*array = grown;
	*capacity = wanted;
	return true;
}

bool semel_local_flight_add(struct semel_local_share *share, int64_t offset, uint64_t bytes)
{
	uint32_t end = share->flight_first + share->flight_count;
	if (end == share->flight_capacity && share->flight_first > 0) {
		memmove(share->flights, share->flights + share->flight_first,
			share->flight_count * sizeof(share->flights[0]));
		share->flight_first = 0;
		end = share->flight_count;
	}
	void *flights = share->flights;
	if (end == share->flight_capacity &&
	    !grow(&flights, &share->flight_capacity, sizeof(share->flights[0])))
		return false;
	share->flights = flights;
	assert(share->flight_count == 0 || share->flights[end - 1].offset < offset);
	share->flights[end] = (struct semel_local_flight){ .offset = offset, .bytes = bytes };
	share->flight_count++;
	return true;
}

struct semel_local_flight *semel_local_flight_find(struct semel_local_share *share, int64_t offset)
{
	struct semel_local_flight *flights = share->flights + share->flight_first;
	uint32_t low = 0, high = share->flight_count;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (flights[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low < share->flight_count && flights[low].offset == offset ? &flights[low] : NULL;
}

uint32_t semel_local_flight_run(const struct semel_local_share *share, int64_t *offset_out)
{
	uint32_t run = 0;
	while (run < share->flight_count && share->flights[share->flight_first + run].acked)
		*offset_out = share->flights[share->flight_first + run++].offset;
	return run;
}

void semel_local_flight_pop(struct semel_local_share *share, uint32_t count)
{
	assert(count <= share->flight_count);
	share->flight_count -= count;
	share->flight_first = share->flight_count == 0 ? 0 : share->flight_first + count;
}

bool semel_local_delayed_add(struct semel_local_share *share, int64_t number)
{
	void *delayed = share->delayed;
	if (share->delayed_count == share->delayed_capacity &&
	    !grow(&delayed, &share->delayed_capacity, sizeof(share->delayed[0])))
		return false;
	share->delayed = delayed;
	share->delayed[share->delayed_count++] = number;
	return true;
}

static uint32_t delayed_at(const struct semel_local_share *share, int64_t number)
{
	uint32_t at = 0;
	while (at < share->delayed_count && share->delayed[at] != number)
		at++;
	return at;
}

bool semel_local_delayed_has(const struct semel_local_share *share, int64_t number)
{
	return delayed_at(share, number) < share->delayed_count;
}

void semel_local_delayed_remove(struct semel_local_share *share, int64_t number)
{
	uint32_t at = delayed_at(share, number);
	if (at < share->delayed_count)
		share->delayed[at] = share->delayed[--share->delayed_count];
}

bool semel_local_share_is_idle(const struct semel_local_share *share)
{
	return share->flight_count == 0 && share->delayed_count == 0;
}

void semel_local_flight_forget(struct semel_local *local, struct semel_local_share *share)
{
	local->unacked -= share->delayed_count;
	for (uint32_t i = 0; i < share->flight_count; i++) {
		const struct semel_local_flight *flight = &share->flights[share->flight_first + i];
		if (flight->acked)
			continue;
		local->unacked--;
		local->unacked_bytes -= flight->bytes;
	}
	share->flight_first = share->flight_count = share->delayed_count = 0;
}

void semel_local_share_drop(struct semel_local *local, struct semel_local_share *share)
{
	semel_local_flight_forget(local, share);
	share->held = share->leaving = share->backward = share->touched = false;
}
