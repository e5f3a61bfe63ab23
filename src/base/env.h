/* SPDX-License-Identifier: Apache-2.0 */
/* Time and random numbers as parameters: the rules never read them from the machine, so that they
 * can be tested without sleeping. */
#ifndef SEMEL_BASE_ENV_H
#define SEMEL_BASE_ENV_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct semel_env {
	int64_t (*now_ms)(void *user); /* since 1970, UTC */
	/* Never goes back; for waiting and leases held in memory. */
	int64_t (*steady_ms)(void *user);
	uint64_t (*random)(void *user);
	void *user;
	/* NULL: waiting means sleeping. If set, it is called instead, and advances the clock by
	 * wait_ms. */
	void (*advance)(void *user, int64_t wait_ms);
};

/* The machine's clock and random source. random() does not block and is not predictable. */
const struct semel_env *semel_env_system(void);

/* The machine's steady clock, for measuring; no rule uses it. */
int64_t semel_steady_us(void);
/* Initialises a condition variable whose timed waits use that clock. */
void semel_cond_init(pthread_cond_t *cond);
/* Sleeps briefly, where there is no wakeup to wait for. A signal ends the sleep. */
void semel_sleep_us(int64_t sleep_us);
/* The same for the rules, which sleep in their environment. */
void semel_env_sleep_ms(const struct semel_env *env, int64_t sleep_ms);

static inline int64_t semel_now_ms(const struct semel_env *env)
{
	return env->now_ms(env->user);
}

static inline int64_t semel_steady_ms(const struct semel_env *env)
{
	return env->steady_ms(env->user);
}

static inline uint64_t semel_random(const struct semel_env *env)
{
	return env->random(env->user);
}

#endif
