/* SPDX-License-Identifier: Apache-2.0 */
/* Parked followers whose head is settled: read from the store, run in order, removed together with
 * their effect. */
#ifndef SEMEL_CONSUME_FOLLOWERS_H
#define SEMEL_CONSUME_FOLLOWERS_H

#include "base/arena.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_consumer;
struct semel_item;

/* How the next followers run, after a transaction with several of them has failed. */
struct semel_follower_runs {
	bool single_round; /* a handler has ended the transaction in a later round */
	uint32_t single;   /* how many of the next ones run in transactions of their own */
};

/* *ran_out: there were followers to run. */
semel_status semel_followers_run(struct semel_consumer *consumer, bool *ran_out,
				 semel_error *error);
/* In the open transaction: the first followers of at most max ready holds, as items in the arena.
 */
semel_status semel_followers_read(struct semel_consumer *consumer, uint32_t max,
				  struct semel_arena *arena, struct semel_item **items_out,
				  uint32_t *count_out, semel_error *error);

#endif
