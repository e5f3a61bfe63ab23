/* SPDX-License-Identifier: Apache-2.0 */
/* The dashboard: what the page, its stream and `semel top` show. Store and broker are read at most
 * once a second, however many clients watch. */
#ifndef SEMEL_ADMIN_DASHBOARD_H
#define SEMEL_ADMIN_DASHBOARD_H

#include "admin/context.h"

struct semel_dashboard *semel_dashboard_new(struct semel_admin_context *context);
/* dashboard may be NULL. */
void semel_dashboard_free(struct semel_dashboard *dashboard);
/* One JSON object, at most a second old. */
void semel_dashboard_write_json(struct semel_dashboard *dashboard, struct semel_buffer *text);

#endif
