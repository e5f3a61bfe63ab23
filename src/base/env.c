/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's own clock and random source.
 *
 * Random numbers are drawn from the kernel in batches and kept per thread. A child of fork must not
 * continue its parent's batch, or both would create the same ids: a generation counter detects the
 * fork. */
#include "base/env.h"

#include <stdatomic.h>
#include <sys/random.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

enum { BATCH_LENGTH = 32 };

static atomic_uint fork_generation = 1;
static pthread_once_t fork_watch_once = PTHREAD_ONCE_INIT;

static thread_local struct {
	uint64_t numbers[BATCH_LENGTH];
	size_t remaining;
	unsigned generation;
} batch;

static int64_t clock_ms(clockid_t clock)
{
	struct timespec now = { 0 };
	clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t semel_steady_us(void)
{
	struct timespec now = { 0 };
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int64_t system_now_ms(void *user)
{
	(void)user;
	return clock_ms(CLOCK_REALTIME);
}

static int64_t system_steady_ms(void *user)
{
	(void)user;
	return clock_ms(CLOCK_MONOTONIC);
}

static void count_fork(void)
{
	atomic_fetch_add(&fork_generation, 1);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

/* The fallback just after boot, before the kernel has gathered randomness. */
static uint64_t from_clock(void)
{
	static atomic_uint_fast64_t calls;
	struct timespec now = { 0 };
	clock_gettime(CLOCK_MONOTONIC, &now);
	uint64_t mixed = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^
			 (uint64_t)getpid() << 44 ^
			 atomic_fetch_add(&calls, 1) * UINT64_C(0x9e3779b97f4a7c15);
	mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ mixed >> 31;
}

static uint64_t system_random(void *user)
{
	(void)user;
	unsigned generation = atomic_load_explicit(&fork_generation, memory_order_relaxed);
	if (batch.remaining == 0 || batch.generation != generation) {
		pthread_once(&fork_watch_once, watch_forks);
		ssize_t got = getrandom(batch.numbers, sizeof(batch.numbers), GRND_NONBLOCK);
		if (got != (ssize_t)sizeof(batch.numbers))
			return from_clock();
		batch.remaining = BATCH_LENGTH;
		batch.generation = generation;
	}
	return batch.numbers[--batch.remaining];
}

void semel_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attributes);
	pthread_condattr_destroy(&attributes);
}

void semel_sleep_us(int64_t sleep_us)
{
	nanosleep(&(struct timespec){ .tv_sec = sleep_us / 1000000,
				      .tv_nsec = sleep_us % 1000000 * 1000 },
		  NULL);
}

void semel_env_sleep_ms(const struct semel_env *env, int64_t sleep_ms)
{
	if (env->advance)
		env->advance(env->user, sleep_ms);
	else
		semel_sleep_us(sleep_ms * 1000);
}

const struct semel_env *semel_env_system(void)
{
	static const struct semel_env env = { .now_ms = system_now_ms,
					      .steady_ms = system_steady_ms,
					      .random = system_random };
	return &env;
}
