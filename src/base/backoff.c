/* SPDX-License-Identifier: Apache-2.0 */
#include "base/backoff.h"

static int64_t doubled(struct semel_backoff backoff, uint32_t number)
{
	int64_t delay_ms = backoff.first_ms;

	for (uint32_t i = 1; i < number && delay_ms < backoff.cap_ms; i++)
		delay_ms = delay_ms > INT64_MAX / 2 ? INT64_MAX : delay_ms * 2;
	return delay_ms < backoff.cap_ms ? delay_ms : backoff.cap_ms;
}

int64_t semel_backoff_ms(struct semel_backoff backoff, uint32_t number, uint64_t chance)
{
	int64_t whole_ms = doubled(backoff, number);
	int64_t half_ms = whole_ms / 2;

	return half_ms + (int64_t)(chance % (uint64_t)(whole_ms - half_ms + 1));
}
