/* SPDX-License-Identifier: Apache-2.0 */
/* How long to wait before the next try: doubling up to a cap, spread by chance over the upper half,
 * so that a herd does not return at once. Pure. */
#ifndef SEMEL_BASE_BACKOFF_H
#define SEMEL_BASE_BACKOFF_H

#include <stdint.h>

struct semel_backoff {
	int64_t first_ms, cap_ms;
};

/* number: 1 for the first wait. The answer lies in [half, whole] of the doubled delay. */
int64_t semel_backoff_ms(struct semel_backoff backoff, uint32_t number, uint64_t chance);

#endif
