/* SPDX-License-Identifier: Apache-2.0 */
/* Under which keys an event can be held in a scope: its aggregate, or its whole topic where the
 * subscription keeps total order. If the subscription is unknown, check both. */
#ifndef SEMEL_STORE_HOLD_KEY_H
#define SEMEL_STORE_HOLD_KEY_H

#include "store/store.h"

enum semel_hold_by { SEMEL_HOLD_BY_AGGREGATE, SEMEL_HOLD_BY_TOPIC, SEMEL_HOLD_BY_COUNT };

/* Texts of the event: they live as long as its own. */
static inline struct semel_hold_key semel_hold_key_of(const struct semel_event *event,
						      enum semel_hold_by by)
{
	if (by == SEMEL_HOLD_BY_TOPIC)
		return (struct semel_hold_key){ .type = SEMEL_TEXT(""), .id = event->topic };
	return (struct semel_hold_key){ .type = event->aggregate_type, .id = event->aggregate_id };
}

#endif
