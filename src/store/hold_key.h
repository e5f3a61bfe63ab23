/* SPDX-License-Identifier: Apache-2.0 */
/* Under which keys an event can be held in a scope: its aggregate, or its whole topic where the
 * subscription keeps total order. Whoever does not know the subscription looks under both. */
#ifndef SEMEL_STORE_HOLD_KEY_H
#define SEMEL_STORE_HOLD_KEY_H

#include "event/event.h"

enum semel_hold_key { SEMEL_HOLD_KEY_AGGREGATE, SEMEL_HOLD_KEY_TOPIC, SEMEL_HOLD_KEY_COUNT };

/* What hold_get asks with. */
static inline struct semel_event semel_hold_key_of(const struct semel_event *event,
						   enum semel_hold_key key)
{
	if (key == SEMEL_HOLD_KEY_TOPIC)
		return (struct semel_event){ .aggregate_type = SEMEL_TEXT(""),
					     .aggregate_id = event->topic };
	return (struct semel_event){ .aggregate_type = event->aggregate_type,
				     .aggregate_id = event->aggregate_id };
}

#endif
