/* SPDX-License-Identifier: Apache-2.0 */
/* The dashboard without a server, for `semel top`. One thread. */
#ifndef SEMEL_ADMIN_DASHBOARD_READER_H
#define SEMEL_ADMIN_DASHBOARD_READER_H

#include "admin/admin.h"
#include "base/buffer.h"

struct semel_dashboard_reader;

/* Uses the options store, broker, slot, slot_budget and ready_stall_ms, whose texts outlive the
 * reader. Store and broker may be unreachable. */
semel_status semel_dashboard_reader_open(const struct semel_admin_options *options,
					 struct semel_dashboard_reader **reader_out,
					 semel_error *error);
/* One JSON object, as the page gets it; at most a second old. */
void semel_dashboard_reader_write_json(struct semel_dashboard_reader *reader,
				       struct semel_buffer *text);
/* reader may be NULL. */
void semel_dashboard_reader_close(struct semel_dashboard_reader *reader);

#endif
