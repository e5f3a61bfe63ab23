/* SPDX-License-Identifier: Apache-2.0 */
/* A circuit breaker per subscription. Deterministic: time and randomness are parameters; it logs
 * each transition.
 *
 * - Closed: deliveries are fetched freely. An outage opens it at once; so do many failures without
 *   a success between them, which suggest that a dependency is down.
 * - Open: nothing is fetched until the pause is over; the pause doubles while runs keep failing.
 * - Half-open: one delivery is let through as a probe; its success closes the breaker.
 */
#ifndef SEMEL_CONSUME_BREAKER_H
#define SEMEL_CONSUME_BREAKER_H

#include "base/backoff.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_breaker_state { SEMEL_BREAKER_CLOSED, SEMEL_BREAKER_HALF_OPEN, SEMEL_BREAKER_OPEN };

struct semel_breaker {
	const char *consumer; /* for the log; borrowed, may be NULL */
	enum semel_breaker_state state;
	uint32_t failures;     /* in a row */
	uint32_t openings;     /* in a row */
	int64_t open_until_ms; /* steady */
	char reason[256];      /* why it was last opened; empty: it is closed */
};

/* Deliveries that may be fetched now: all of wanted, one, or none. */
uint32_t semel_breaker_allow(struct semel_breaker *breaker, uint32_t wanted, int64_t now_ms);
/* The outcome of one run; reason is for the log, and may be NULL. A rejected event says nothing
 * about the dependency. */
void semel_breaker_report(struct semel_breaker *breaker, semel_status status, const char *reason,
			  int64_t now_ms, uint64_t chance);

#endif
