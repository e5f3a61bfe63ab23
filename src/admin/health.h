/* SPDX-License-Identifier: Apache-2.0 */
/* Readiness. A thread reads the store about once a second and records when an event last moved, and
 * when every lane last had a relay. So it is also right for a server that was just started, and for
 * one whose work other processes do. */
#ifndef SEMEL_ADMIN_HEALTH_H
#define SEMEL_ADMIN_HEALTH_H

#include "admin/context.h"

/* What was read from the store at one time. */
struct semel_health_sample {
	uint64_t waiting;
	int64_t oldest_ms; /* since 1970; 0: nothing waits */
	struct semel_lanes_state lanes;
	struct semel_slot_status slot;
};

/* Pure: did an event move between two samples? */
bool semel_health_has_progress(const struct semel_health_sample *before,
			       const struct semel_health_sample *now);

/* Writes every reason not to be ready, from the last sample, as JSON strings with commas between
 * them, and returns their number. detailed: sentences, which may name hosts and users; otherwise
 * one code for each reason: store, stalled, slot, part. Waits for neither store nor broker. */
uint32_t semel_health_write_reasons(struct semel_admin_context *context, bool detailed,
				    struct semel_buffer *text);

/* Returns after the first sample, or after a second. */
semel_status semel_health_monitor_start(struct semel_admin_context *context,
					struct semel_health_monitor **monitor_out,
					semel_error *error);
/* Takes a sample now, in addition to those of the thread. */
void semel_health_monitor_check(struct semel_health_monitor *monitor);
/* monitor may be NULL. */
void semel_health_monitor_stop(struct semel_health_monitor *monitor);

#endif
