/* SPDX-License-Identifier: Apache-2.0 */
/* The dashboard: what the page, its stream and `semel top` show; and the page itself. Store and
 * broker are read at most once a second, however many clients watch. */
#ifndef SEMEL_ADMIN_DASHBOARD_H
#define SEMEL_ADMIN_DASHBOARD_H

#include "admin/context.h"

struct semel_dashboard *semel_dashboard_new(struct semel_admin_context *context);
/* dashboard may be NULL. */
void semel_dashboard_free(struct semel_dashboard *dashboard);
/* One JSON object, at most a second old. */
void semel_dashboard_write_json(struct semel_dashboard *dashboard, struct semel_buffer *text);

/* The dashboard without a server, for `semel top`. One thread. */
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
