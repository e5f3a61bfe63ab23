/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that the model runs on: a clock and random numbers that the test controls, and a disk
 * on which a party (a relay, a consumer, an operator) can die between any two commits.
 *
 * Everything durable is in two SQLite files. So after a kill the first commits of a party have
 * happened, and the next one and everything after it have not. The party is not even stopped: it
 * runs on, and its writes fail until it gives up; no other party can observe the difference.
 */
#ifndef SEMEL_TESTS_MODEL_DISK_H
#define SEMEL_TESTS_MODEL_DISK_H

#include "base/env.h"
#include "fault/failpoint.h"

#include <stdbool.h>
#include <stdint.h>

enum { DISK_NEVER = -1 };

/* Registers the disk as SQLite's default, and watches the failpoints. Once per process. */
void disk_setup(void);

/* The clock, in milliseconds since 1970, which SQL's 'now' uses too; and the seed of the random
 * numbers. */
extern int64_t disk_clock_ms;
void disk_seed(uint64_t seed);
uint64_t disk_chance(void); /* a seed that continues from here */
const struct semel_env *disk_env(void);

/* The next party acts, and is alive. Only one party acts at a time. */
void disk_act(void);
/* The party dies at the commit after this number of commits, or when the failpoint is hit for the
 * nth time. DISK_NEVER: it does not. */
void disk_kill_after(int commits);
void disk_kill_at(int failpoint, int nth);
/* When the failpoint is hit, the party pauses once, while act() runs another one. */
void disk_meanwhile(int failpoint, void (*act)(void *user), void *user);
/* Do the party's writes fail, because it was killed? */
bool disk_is_dead(void);

#endif
