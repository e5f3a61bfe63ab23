/* SPDX-License-Identifier: Apache-2.0 */
/* How long to wait before the next try: doubling up to a cap, with jitter over the upper half, so
 * that clients do not retry at the same moment. Pure. */
#ifndef SEMEL_BASE_BACKOFF_H
#define SEMEL_BASE_BACKOFF_H

#include <stdint.h>

struct semel_backoff {
	int64_t first_ms, cap_ms;
};

/* number: 1 for the first wait. The result lies in [half, whole] of the doubled delay. */
static inline int64_t semel_backoff_ms(struct semel_backoff backoff, uint32_t number,
				       uint64_t chance)
{
	int64_t whole_ms = backoff.first_ms;

	for (uint32_t i = 1; i < number && whole_ms < backoff.cap_ms; i++)
		whole_ms = whole_ms > INT64_MAX / 2 ? INT64_MAX : whole_ms * 2;
	if (whole_ms > backoff.cap_ms)
		whole_ms = backoff.cap_ms;
	int64_t half_ms = whole_ms / 2;
	return half_ms + (int64_t)(chance % (uint64_t)(whole_ms - half_ms + 1));
}

#endif
