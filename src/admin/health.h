/* SPDX-License-Identifier: Apache-2.0 */
/* Is anything stuck? A thread looks at the store now and then and remembers when something last
 * moved, and when every lane last had a relay: so a server that was just started, and one that
 * looks on while another process works, can tell too. */
#ifndef SEMEL_ADMIN_HEALTH_H
#define SEMEL_ADMIN_HEALTH_H

#include "admin/context.h"

/* What one look at the store has seen. */
struct semel_health_sample {
	uint64_t waiting;
	int64_t oldest_ms; /* since 1970; 0: nothing waits */
	struct semel_lanes_state lanes;
	struct semel_slot_status slot;
};

/* Pure: did an event move on between two looks? */
bool semel_health_has_progress(const struct semel_health_sample *before,
			       const struct semel_health_sample *now);

/* Every reason not to be ready that the last look gives, as JSON texts with commas between them;
 * how many. in_full: sentences, which may name hosts and users; else one word each: store, stalled,
 * slot, part. Waits for neither store nor broker. */
uint32_t semel_health_write_reasons(struct semel_admin_context *context, bool in_full,
				    struct semel_buffer *text);

/* Returns after the first look, or after a second. */
semel_status semel_health_monitor_start(struct semel_admin_context *context,
					struct semel_health_monitor **watch_out,
					semel_error *error);
/* One look now, beside those of its thread. */
void semel_health_monitor_check(struct semel_health_monitor *watch);
/* watch may be NULL. */
void semel_health_monitor_stop(struct semel_health_monitor *watch);

#endif
