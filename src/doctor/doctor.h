/* SPDX-License-Identifier: Apache-2.0 */
/* src/doctor: checks everything that delivery depends on, and reports each finding with its remedy.
 *
 * To change here: checks of any store and broker are added here; checks of one engine
 * belong to its driver (examine). The names of checks and the members of `doctor --json` are a
 * contract and stay. Doctor changes nothing: what can be repaired without a decision belongs to
 * src/repair. */
#ifndef SEMEL_DOCTOR_DOCTOR_H
#define SEMEL_DOCTOR_DOCTOR_H

#include "broker/broker.h"
#include "diagnose/finding.h"
#include "store/store.h"

struct semel_doctor_plan {
	const char *store, *broker; /* URLs */
	struct semel_examination examination;
	/* Subscriptions of the config file, with all their settings; the others are read from the
	 * store. */
	const struct semel_subscribe_options *required;
	size_t required_count;
	int64_t outbox_ms, inbox_ms; /* retention */
};

/* Reports every finding. Not OK only if nothing could be checked (out of memory). */
semel_status semel_doctor_run(const struct semel_doctor_plan *plan, semel_error *error);

#endif
