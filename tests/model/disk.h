/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that the model runs on: a clock and chance that the test owns, and a disk on which a
 * party (a relay, a consumer, an operator) can die between any two commits.
 *
 * Everything that lasts is in two SQLite files. So a kill is this: the first commits of a party
 * happened, the next one and everything after it did not. The party is not even stopped: it
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

/* The clock, in milliseconds since 1970, and the seed of chance. SQL's 'now' goes by it too. */
extern int64_t disk_clock_ms;
void disk_seed(uint64_t seed);
uint64_t disk_chance(void); /* a seed that continues from here */
const struct semel_env *disk_env(void);

/* The next party is at work, and lives. One is at work at a time. */
void disk_act(void);
/* It dies before its next commit but `after`; or at the failpoint, when it is hit for the nth
 * time. DISK_NEVER: not so. */
void disk_kill_after(int commits);
void disk_kill_at(int failpoint, int nth);
/* When the failpoint is hit, it is paused, and another one is at work meanwhile, once. */
void disk_meanwhile(int failpoint, void (*act)(void *user), void *user);
/* Its writes fail from now on. */
bool disk_is_dead(void);

#endif
