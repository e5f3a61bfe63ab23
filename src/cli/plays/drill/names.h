/* SPDX-License-Identifier: Apache-2.0 */
/* What target.c and sweep.c share: how things of a drill are called, locked and taken away. */
#ifndef SEMEL_CLI_PLAYS_DRILL_NAMES_H
#define SEMEL_CLI_PLAYS_DRILL_NAMES_H

#include "cli/plays/drill/target.h"

#define SEMEL_DRILL_PREFIX     "semel-drill-"
#define SEMEL_DRILL_LOCK       "lock"
#define SEMEL_DRILL_LOCK_CLASS "1936026980" /* of advisory locks; nobody else's in Semel */
#define SEMEL_DRILL_COMMENT    "made by semel drill"

void semel_drill_names_of(uint64_t id, struct semel_drill_names *names_out);
/* False: its drill is alive. */
semel_status semel_drill_schema_lock(void *connection, uint64_t id, bool *had_out,
				     semel_error *error);
semel_status semel_drill_schema_drop(void *connection, const struct semel_drill_names *names,
				     semel_error *error);
semel_status semel_drill_broker_clear(const char *url, const struct semel_drill_names *names,
				      semel_error *error);

#endif
