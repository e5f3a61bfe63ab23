/* SPDX-License-Identifier: Apache-2.0 */
/* What a relay counts for the metrics. Per event it is a plain addition; the series are updated
 * once per step. */
#ifndef SEMEL_RELAY_COUNTERS_H
#define SEMEL_RELAY_COUNTERS_H

#include "relay/batch.h"

struct semel_series;

struct semel_relay_counters {
	uint64_t offered, published, nacked, returned, failed; /* since the last report */
	struct semel_series *attempts, *done, *refused, *unroutable, *letters, *outstanding;
	struct semel_series *confirm;
};

void semel_relay_counters_open(struct semel_relay_counters *counters);
/* The broker reported the outcome of one event, took_us after it was offered. */
void semel_relay_counters_add_outcome(struct semel_relay_counters *counters, semel_status outcome,
				      int64_t took_us);
void semel_relay_counters_add_mark(struct semel_relay_counters *counters,
				   const struct semel_mark *mark);
/* The trace span of publishing one event whose outcome was reported. */
void semel_relay_span(const struct semel_relay_inflight *inflight, semel_status outcome,
		      const struct semel_env *env);
void semel_relay_counters_report(struct semel_relay_counters *counters, uint32_t outstanding);

#endif
