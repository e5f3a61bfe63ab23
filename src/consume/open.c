/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a consumer. */
#include "base/error.h"
#include "consume/batch.h"
#include "consume/claims.h"
#include "consume/consumer.h"

#include <stdlib.h>

#define ARENA_BLOCK            (64 * 1024)
#define FIRST_CONNECT_MS       20000
#define FIRST_CONNECT_PAUSE_MS 100
#define GRACE_MS               10000

static struct semel_retry_policy retry_policy(const semel_consumer_options *options)
{
	return (struct semel_retry_policy){
		.attempts_max = options->attempts,
		.immediate_max = options->immediate,
		.immediate = { .first_ms = 20, .cap_ms = 500 },
		.delayed = { options->first_delay_ms, options->delay_max_ms },
	};
}

/* False: no memory. */
static bool make_parts(struct semel_consumer *consumer, const semel_consumer_options *options)
{
	if (!semel_consumer_config_copy(&consumer->config, options))
		return false;
	consumer->breaker.consumer = semel_text_string(consumer->config.scope);
	consumer->retry = retry_policy(&consumer->config.options);
	consumer->loop.grace_ms = GRACE_MS;
	consumer->arena = semel_arena_new(ARENA_BLOCK);
	consumer->handler.upcasters = semel_upcasters_new();
	consumer->positions = semel_positions_new(consumer);
	return consumer->arena && consumer->handler.upcasters && consumer->positions;
}

/* A broker that was reached once is waited for: one that is about to restart still lets us in, and
 * one that has just restarted does so before it can do everything. */
static semel_status connect_first(struct semel_consumer *consumer, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(consumer->env) + FIRST_CONNECT_MS;
	semel_status status = semel_consumer_connect(consumer, error);
	bool reached = consumer->broker != NULL;

	while (status == SEMEL_OUTAGE && reached && semel_steady_ms(consumer->env) < until_ms) {
		semel_consumer_disconnect(consumer);
		semel_env_sleep_ms(consumer->env, FIRST_CONNECT_PAUSE_MS);
		status = semel_consumer_connect(consumer, error);
	}
	return status;
}

static semel_status start(struct semel_consumer *consumer, semel_error *error)
{
	semel_consumer_counters_open(&consumer->counters,
				     semel_text_string(consumer->config.scope));
	semel_owner_make(consumer->env, consumer->owner);
	semel_status status = semel_wake_new(&consumer->wake, error);
	if (status != SEMEL_OK)
		return status;
	semel_wake_set_env(consumer->wake, consumer->env);
	status = connect_first(consumer, error);
	if (status != SEMEL_OK)
		return status;
	consumer->store->driver->watch(consumer->store, consumer->wake);
	return SEMEL_OK;
}

semel_status semel_consumer_open_in(const struct semel_env *env,
				    const semel_consumer_options *options,
				    semel_consumer **consumer_out, semel_error *error)
{
	*consumer_out = NULL;
	semel_status status = semel_consumer_config_check(options, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_consumer *consumer = calloc(1, sizeof *consumer);
	if (!consumer)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a consumer");
	consumer->env = env;
	if (!make_parts(consumer, options)) {
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory for a consumer");
		goto close_consumer;
	}
	status = start(consumer, error);
	if (status != SEMEL_OK)
		goto close_consumer;
	*consumer_out = consumer;
	return SEMEL_OK;

close_consumer:
	semel_consumer_close(consumer);
	return status;
}

semel_status semel_consumer_open(const semel_consumer_options *options,
				 semel_consumer **consumer_out, semel_error *error)
{
	return semel_consumer_open_in(semel_env_system(), options, consumer_out, error);
}

void semel_consumer_close(semel_consumer *consumer)
{
	if (!consumer)
		return;
	semel_presence_end(consumer);
	semel_dispatch_close(consumer);
	semel_claims_expire(consumer);
	semel_consumer_disconnect(consumer);
	semel_wake_free(consumer->wake);
	semel_consumer_handler_clear(&consumer->handler);
	semel_positions_free(consumer->positions);
	semel_unfinished_claim_free(consumer->unfinished);
	semel_arena_free(consumer->arena);
	semel_consumer_config_clear(&consumer->config);
	free(consumer);
}

/* ---- small things ---------------------------------------------------------------------------- */

bool semel_consumer_claims(const struct semel_consumer *consumer)
{
	return semel_config_claims(&consumer->config);
}

bool semel_consumer_runs_once(const struct semel_consumer *consumer)
{
	return semel_config_runs_once(&consumer->config);
}

bool semel_consumer_joins(const struct semel_consumer *consumer)
{
	const semel_consumer_options *options = &consumer->config.options;

	return consumer->guard_joins && consumer->handler.kind != SEMEL_HANDLER_OUTSIDE &&
	       options->guarantee != SEMEL_AT_MOST_ONCE &&
	       (options->claim == SEMEL_CLAIM_SAME_TX || !semel_consumer_claims(consumer));
}

void semel_consumer_set_grace(semel_consumer *consumer, int64_t grace_ms)
{
	consumer->loop.grace_ms = grace_ms;
}

void semel_consumer_stop(semel_consumer *consumer)
{
	semel_wake_notify(consumer->wake);
}

semel_consumer_counts semel_consumer_count(const semel_consumer *consumer)
{
	return consumer->counts;
}
