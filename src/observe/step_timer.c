/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/step_timer.h"

#include "base/env.h"
#include "observe/metrics.h"

#include <stdatomic.h>
#include <stddef.h>

static const char *const names[SEMEL_TIMED_COUNT] = {
	[SEMEL_TIMED_READ] = "read",       [SEMEL_TIMED_PUBLISH] = "publish",
	[SEMEL_TIMED_CONFIRM] = "confirm", [SEMEL_TIMED_MARK] = "mark",
	[SEMEL_TIMED_RECEIVE] = "receive", [SEMEL_TIMED_CLAIM] = "claim",
	[SEMEL_TIMED_EFFECT] = "effect",   [SEMEL_TIMED_COMMIT] = "commit",
	[SEMEL_TIMED_ACK] = "ack",
};

static _Atomic(struct semel_series *) totals[SEMEL_TIMED_COUNT];

int64_t semel_step_timer_begin(void)
{
	return semel_steady_us();
}

void semel_step_timer_end(enum semel_timed_step work, int64_t began_us)
{
	struct semel_series *series = atomic_load_explicit(&totals[work], memory_order_acquire);

	if (!series) {
		series = semel_series(SEMEL_METRIC_STEP_TIME, names[work], NULL);
		atomic_store_explicit(&totals[work], series, memory_order_release);
	}
	semel_series_add(series, (uint64_t)(semel_steady_us() - began_us));
}
