/* SPDX-License-Identifier: Apache-2.0 */
/* JSON forms that several responses share. */
#ifndef SEMEL_ADMIN_RESOURCES_H
#define SEMEL_ADMIN_RESOURCES_H

#include "admin/context.h"

void semel_outbox_to_json(const struct semel_admin_context *context,
			  const struct semel_outbox_counts *counts, struct semel_buffer *text);
/* False: the store or the broker could not be read; its members are zero or null. broker may be
 * NULL. */
bool semel_subscription_to_json(struct semel_admin_request *request, struct semel_broker *broker,
				const struct semel_subscription_row *row,
				struct semel_buffer *text);

#endif
