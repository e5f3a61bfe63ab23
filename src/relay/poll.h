/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the polling source that the change stream's source uses. */
#ifndef SEMEL_RELAY_POLL_H
#define SEMEL_RELAY_POLL_H

#include "relay/source.h"

/* Probes; the driver's own function mostly assumes a result. */
semel_status semel_poll_probe(struct semel_source *source, semel_error *error);
/* The same for exceptions alone: the rows come through the change stream. */
semel_status semel_poll_probe_due(struct semel_source *source, semel_error *error);
/* After a probe: the next batch of exceptions that are due; NULL: there are no more. */
semel_status semel_poll_read_due(struct semel_source *source,
				 const struct semel_read_limits *limits,
				 struct semel_relay_batch **batch_out, semel_error *error);
/* Starts again at the low marks, over the same connection. */
void semel_poll_restart(struct semel_source *source);
/* Every row up to this number was read, in all lanes. */
int64_t semel_poll_read_to(const struct semel_source *source);
/* At the last probe every row up to this number was visible, or never will be. */
int64_t semel_poll_complete_seq(const struct semel_source *source);

#endif
