/* SPDX-License-Identifier: Apache-2.0 */
/* What the page shows, once a second: one look at store and broker for all who watch. */
#ifndef SEMEL_ADMIN_SIGHT_H
#define SEMEL_ADMIN_SIGHT_H

#include "admin/context.h"

struct semel_dashboard *semel_dashboard_new(struct semel_admin_context *context);
/* dashboard may be NULL. */
void semel_dashboard_free(struct semel_dashboard *dashboard);
/* One JSON object, at most a second old. */
void semel_dashboard_write_json(struct semel_dashboard *dashboard, struct semel_buffer *text);

#endif
