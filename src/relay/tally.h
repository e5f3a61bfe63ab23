/* SPDX-License-Identifier: Apache-2.0 */
/* What a relay counts for others to see. Per event it is a plain addition; the series hear of it
 * once per step. */
#ifndef SEMEL_RELAY_TALLY_H
#define SEMEL_RELAY_TALLY_H

#include "relay/load.h"

struct semel_series;

struct semel_relay_tally {
	uint64_t offered, published, nacked, returned, failed; /* since the last time */
	struct semel_series *attempts, *done, *refused, *unroutable, *letters, *outstanding;
	struct semel_series *confirm;
};

void semel_relay_tally_open(struct semel_relay_tally *tally);
/* The broker answered for one event, so long after it was offered. */
void semel_relay_tally_answer(struct semel_relay_tally *tally, semel_status answer,
			      int64_t took_us);
void semel_relay_tally_mark(struct semel_relay_tally *tally, const struct semel_mark *mark);
/* The span of publishing one event that the broker has answered for. */
void semel_relay_span(const struct semel_flight *flight, semel_status answer,
		      const struct semel_env *env);
void semel_relay_tally_tell(struct semel_relay_tally *tally, uint32_t outstanding);

#endif
