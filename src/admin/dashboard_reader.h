/* SPDX-License-Identifier: Apache-2.0 */
/* What the page shows, without a server: for `semel top`. One thread. */
#ifndef SEMEL_ADMIN_LOOKOUT_H
#define SEMEL_ADMIN_LOOKOUT_H

#include "admin/admin.h"
#include "base/buffer.h"

struct semel_dashboard_reader;

/* Of the options store, broker, slot, slot_budget and ready_stall_ms count; their texts outlive the
 * dashboard_reader. Store and broker may be away. */
semel_status semel_dashboard_reader_open(const struct semel_admin_options *options,
					 struct semel_dashboard_reader **dashboard_reader_out,
					 semel_error *error);
/* One JSON object, as the page gets it; at most a second old. */
void semel_dashboard_reader_write_json(struct semel_dashboard_reader *dashboard_reader,
				       struct semel_buffer *text);
/* dashboard_reader may be NULL. */
void semel_dashboard_reader_close(struct semel_dashboard_reader *dashboard_reader);

#endif
