/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/meter.h"

#include "base/env.h"
#include "observe/metrics.h"

#include <stdatomic.h>
#include <stddef.h>

static const char *const names[SEMEL_WORK_COUNT] = {
	[SEMEL_WORK_READ] = "read",       [SEMEL_WORK_PUBLISH] = "publish",
	[SEMEL_WORK_CONFIRM] = "confirm", [SEMEL_WORK_MARK] = "mark",
	[SEMEL_WORK_RECEIVE] = "receive", [SEMEL_WORK_CLAIM] = "claim",
	[SEMEL_WORK_EFFECT] = "effect",   [SEMEL_WORK_COMMIT] = "commit",
	[SEMEL_WORK_ACK] = "ack",
};

static _Atomic(struct semel_series *) totals[SEMEL_WORK_COUNT];

int64_t semel_meter_begin(void)
{
	return semel_steady_us();
}

void semel_meter_end(enum semel_work work, int64_t began_us)
{
	struct semel_series *series = atomic_load_explicit(&totals[work], memory_order_acquire);

	if (!series) {
		series = semel_series(SEMEL_METRIC_STEP_TIME, names[work], NULL);
		atomic_store_explicit(&totals[work], series, memory_order_release);
	}
	semel_series_add(series, (uint64_t)(semel_steady_us() - began_us));
}
