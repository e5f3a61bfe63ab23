/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at everything that delivery rests on, and says what to do about each finding. What can be
 * asked of one engine only is the driver's (examine); what is true of all of them is asked here.
 * Changes nothing. */
#ifndef SEMEL_DOCTOR_DOCTOR_H
#define SEMEL_DOCTOR_DOCTOR_H

#include "broker/broker.h"
#include "diagnose/finding.h"
#include "store/store.h"

struct semel_doctor_plan {
	const char *store, *broker; /* URLs */
	struct semel_examination examination;
	/* Subscriptions that the user has named, with all that he said of them; others are known
	 * to the store. */
	const struct semel_subscribe_options *required;
	size_t required_count;
	int64_t outbox_ms, inbox_ms; /* retention */
};

/* Tells every finding. Answers another status than OK only when it could not look at all (no
 * memory). */
semel_status semel_doctor_run(const struct semel_doctor_plan *plan, semel_error *error);

/* Of a store and a broker that can be reached: who is at work, what is stuck, which topics nobody
 * reads (work.c). */
void semel_doctor_check_subscriptions(const struct semel_doctor_plan *plan, semel_store *store,
				      struct semel_arena *arena);

#endif
