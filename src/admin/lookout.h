/* SPDX-License-Identifier: Apache-2.0 */
/* What the page shows, without a server: for `semel top`. One thread. */
#ifndef SEMEL_ADMIN_LOOKOUT_H
#define SEMEL_ADMIN_LOOKOUT_H

#include "admin/admin.h"
#include "base/buffer.h"

struct semel_lookout;

/* Of the options store, broker, slot, slot_budget and ready_stall_ms count; their texts outlive the
 * lookout. Store and broker may be away. */
semel_status semel_lookout_open(const struct semel_admin_options *options,
				struct semel_lookout **lookout_out, semel_error *error);
/* One JSON object, as the page gets it; at most a second old. */
void semel_lookout_tell(struct semel_lookout *lookout, struct semel_buffer *text);
/* lookout may be NULL. */
void semel_lookout_close(struct semel_lookout *lookout);

#endif
