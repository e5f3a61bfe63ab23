/* SPDX-License-Identifier: Apache-2.0 */
/* What target.c and leftovers.c share: the names of a drill, and what it has at a broker. */
#ifndef SEMEL_CLI_PLAYS_DRILL_NAMES_H
#define SEMEL_CLI_PLAYS_DRILL_NAMES_H

#include "cli/plays/drill/target.h"

#define SEMEL_DRILL_PREFIX "semel-drill-"
#define SEMEL_DRILL_LOCK   "lock"

void semel_drill_names_of(uint64_t id, struct semel_drill_names *names_out);
/* Removes the topic and the subscriptions of these names. */
semel_status semel_drill_broker_clear(const char *url, const struct semel_drill_names *names,
				      semel_error *error);

#endif
