/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer consists of: its options, its handler and its connections. Store, guard and
 * broker are opened and closed together. */
#include "consume/consumer.h"

#include "base/defaults.h"
#include "base/error.h"
#include "consume/batch.h"
#include "consume/claims.h"
#include "fault/failpoint.h"
#include "observe/metrics.h"
#include "store/rules.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK            (64 * 1024)
#define FIRST_CONNECT_MS       20000
#define FIRST_CONNECT_PAUSE_MS 100
#define GRACE_MS               10000

/* ---- options --------------------------------------------------------------------------------- */

static const semel_consumer_options defaults = {
	.store = "sqlite:semel.db",
	.broker = "local:semel-broker.db",
	.attempts = 5,
	.immediate = 2,
	.first_delay_ms = 1000,
	.delay_max_ms = 60000,
	.batch = 500,
	.prefetch_bytes = SEMEL_PREFETCH_BYTES,
	.concurrency = 1,
	.timeout_ms = 30000,
	.lease_ms = 5000,
	.strict_wait_ms = 30000,
};

static void complete(semel_consumer_options *options)
{
	SEMEL_OR_DEFAULT(options, defaults, store);
	SEMEL_OR_DEFAULT(options, defaults, broker);
	SEMEL_OR_DEFAULT(options, defaults, attempts);
	SEMEL_OR_DEFAULT(options, defaults, immediate);
	SEMEL_OR_DEFAULT(options, defaults, first_delay_ms);
	SEMEL_OR_DEFAULT(options, defaults, delay_max_ms);
	SEMEL_OR_DEFAULT(options, defaults, batch);
	SEMEL_OR_DEFAULT(options, defaults, prefetch_bytes);
	SEMEL_OR_DEFAULT(options, defaults, concurrency);
	SEMEL_OR_DEFAULT(options, defaults, timeout_ms);
	SEMEL_OR_DEFAULT(options, defaults, lease_ms);
	SEMEL_OR_DEFAULT(options, defaults, strict_wait_ms);
}

/* INVALID or CONFIG: the options are incomplete, or contradict each other. */
static semel_status check_options(const semel_consumer_options *options, semel_error *error)
{
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID,
				       "scope is blank (for example: billing)");
	if (strcmp(options->scope, SEMEL_SCOPE_RELAY) == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope \"" SEMEL_SCOPE_RELAY
				       "\" is reserved (choose another)");
	if (!options->topics || !options->topics[0])
		return semel_error_set(error, SEMEL_INVALID,
				       "no topic given (for example: order.events)");
	for (size_t i = 0; options->topics[i]; i++)
		if (semel_string_is_blank(options->topics[i]))
			return semel_error_set(error, SEMEL_INVALID,
					       "topic is blank (for example: order.events)");
	if (options->order == SEMEL_ORDER_STRICT && options->guarantee == SEMEL_AT_LEAST_ONCE)
		return semel_error_set(error, SEMEL_CONFIG,
				       "order strict requires claims, which at-least-once does not "
				       "record (use effectively-once)");
	if (options->order == SEMEL_ORDER_TOTAL && options->poison == SEMEL_POISON_PARK_KEY)
		return semel_error_set(error, SEMEL_CONFIG,
				       "order total does not support the poison policy park-key "
				       "(use block or skip)");
	return SEMEL_OK;
}

static void free_list(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}

/* NULL-terminated; NULL: out of memory. */
static char **copy_list(const char *const *list, size_t length)
{
	char **copy = calloc(length + 1, sizeof *copy);

	for (size_t i = 0; copy && i < length; i++) {
		copy[i] = strdup(list[i]);
		if (!copy[i]) {
			free_list(copy);
			return NULL;
		}
	}
	return copy;
}

static size_t list_length(const char *const *list)
{
	size_t length = 0;

	while (list && list[length])
		length++;
	return length;
}

/* NULL stays NULL. False: out of memory. */
static bool copy_string(const char *from, char **to)
{
	*to = from ? strdup(from) : NULL;
	return *to || !from;
}

static bool copy_text(const char *from, struct semel_text *to)
{
	char *copy = NULL;
	bool copied = copy_string(from, &copy);

	if (copy)
		*to = semel_text_from(copy, strlen(copy));
	return copied;
}

/* False: out of memory; what was copied is freed by free_config. */
static bool copy_config(struct semel_consumer_config *config, const semel_consumer_options *options)
{
	config->options = *options;
	complete(&config->options);
	config->topics = copy_list(options->topics, list_length(options->topics));
	return config->topics && copy_string(config->options.store, &config->store_url) &&
	       copy_string(config->options.broker, &config->broker_url) &&
	       copy_text(options->scope, &config->scope) &&
	       copy_text(options->handler_version, &config->handler_version) &&
	       copy_string(options->dedup_header, &config->dedup_header) &&
	       copy_string(options->id_header, &config->id_header) &&
	       copy_string(options->bind, &config->bind);
}

static void free_config(struct semel_consumer_config *config)
{
	free_list(config->topics);
	free(config->dedup_header);
	free(config->id_header);
	free(config->bind);
	free((char *)(uintptr_t)config->handler_version.data);
	free((char *)(uintptr_t)config->scope.data);
	free(config->store_url);
	free(config->broker_url);
}

bool semel_consumer_has_claims(const struct semel_consumer *consumer)
{
	return consumer->config.options.guarantee != SEMEL_AT_LEAST_ONCE;
}

bool semel_consumer_is_at_most_once(const struct semel_consumer *consumer)
{
	const semel_consumer_options *options = &consumer->config.options;

	return options->guarantee == SEMEL_AT_MOST_ONCE ||
	       (options->claim == SEMEL_CLAIM_SEPARATE && semel_consumer_has_claims(consumer));
}

bool semel_consumer_is_same_tx(const struct semel_consumer *consumer)
{
	const semel_consumer_options *options = &consumer->config.options;

	return consumer->guard_joins && consumer->handler.kind != SEMEL_HANDLER_OUTSIDE &&
	       options->guarantee != SEMEL_AT_MOST_ONCE &&
	       (options->claim == SEMEL_CLAIM_SAME_TX || !semel_consumer_has_claims(consumer));
}

/* ---- the handler: one, chosen before it runs ------------------------------------------------- */

static semel_status choose_kind(struct semel_consumer *consumer, enum semel_handler_kind kind,
				semel_error *error)
{
	if (consumer->handler.kind != SEMEL_HANDLER_NONE)
		return semel_error_set(
			error, SEMEL_INVALID,
			"the consumer of %s has a handler already; it can have only one",
			semel_text_shown(consumer->config.scope));
	consumer->handler.kind = kind;
	return SEMEL_OK;
}

/* After a failure, so that a reconnect does not prepare the handler, and another may be chosen. */
static void forget_choice(struct semel_consumer_handler *handler)
{
	free_list(handler->statements);
	free(handler->target);
	handler->statements = NULL;
	handler->statement_count = 0;
	handler->outside = NULL;
	handler->target = NULL;
	handler->kind = SEMEL_HANDLER_NONE;
}

semel_status semel_consumer_handle(semel_consumer *consumer, semel_handler handler, void *user,
				   semel_error *error)
{
	if (!handler)
		return semel_error_set(error, SEMEL_INVALID, "the handler is NULL");
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_FUNCTION, error);
	if (status != SEMEL_OK)
		return status;
	consumer->handler.function = handler;
	consumer->handler.user = user;
	return SEMEL_OK;
}

semel_status semel_consumer_use_sql(semel_consumer *consumer, const char *const *statements,
				    size_t count, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_SQL, error);
	if (status != SEMEL_OK)
		return status;
	handler->statements = copy_list(statements, count);
	handler->statement_count = count;
	status = handler->statements ? consumer->store->driver->inbox->effect_prepare(
					       consumer->store, statements, count, error)
				     : semel_error_set(error, SEMEL_INTERNAL,
						       "out of memory for the statements");
	if (status != SEMEL_OK)
		forget_choice(handler);
	return status;
}

semel_status semel_consumer_use_outside(semel_consumer *consumer,
					const struct semel_outside_kind *kind, const char *target,
					semel_error *error)
{
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_OUTSIDE, error);
	if (status != SEMEL_OK)
		return status;
	consumer->handler.outside = kind;
	status = copy_string(target, &consumer->handler.target)
			 ? semel_dispatch_open(consumer, error)
			 : semel_error_set(error, SEMEL_INTERNAL, "out of memory for the handler");
	if (status != SEMEL_OK)
		forget_choice(&consumer->handler);
	return status;
}

semel_status semel_consumer_pass_env(semel_consumer *consumer, const char *const *names,
				     size_t count, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;

	free_list(handler->passed);
	handler->passed = copy_list(names, count);
	semel_upcasters_pass_env(handler->upcasters, (const char *const *)handler->passed);
	return handler->passed ? SEMEL_OK
			       : semel_error_set(error, SEMEL_INTERNAL, "out of memory for a list");
}

struct semel_upcasters *semel_consumer_upcasters(semel_consumer *consumer)
{
	return consumer->handler.upcasters;
}

semel_status semel_consumer_upcast(semel_consumer *consumer, const char *from_type,
				   const char *to_type, semel_upcaster upcaster, void *user,
				   semel_error *error)
{
	struct semel_upcast_step step = { .from_type = from_type,
					  .to_type = to_type,
					  .kind = SEMEL_UPCAST_C,
					  .function = upcaster,
					  .user = user };

	return semel_upcasters_add(consumer->handler.upcasters, &step, error);
}

static void free_handler(struct semel_consumer_handler *handler)
{
	semel_upcasters_free(handler->upcasters);
	free_list(handler->statements);
	free_list(handler->passed);
	free(handler->target);
}

/* ---- connections ----------------------------------------------------------------------------- */

static semel_status open_store(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;
	semel_status status = semel_store_open_in(consumer->env, consumer->config.store_url,
						  &consumer->store, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_guard_open_default(consumer->store, &consumer->guard, error);
	if (status != SEMEL_OK)
		return status;
	consumer->guard_joins = consumer->guard->driver->joins;
	if (handler->kind != SEMEL_HANDLER_SQL)
		return SEMEL_OK;
	return consumer->store->driver->inbox->effect_prepare(
		consumer->store, (const char *const *)handler->statements, handler->statement_count,
		error);
}

static semel_status open_broker(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = semel_broker_open(consumer->config.broker_url, consumer->env, 1,
						&consumer->broker, error);

	if (status != SEMEL_OK)
		return status;
	semel_broker_set_offset_store(consumer->broker,
				      semel_positions_offset_store(consumer->positions));
	status = semel_consumer_subscribe(consumer, error);
	if (status != SEMEL_OK)
		return status;
	consumer->broker->driver->watch(consumer->broker, consumer->wake);
	return SEMEL_OK;
}

semel_status semel_consumer_connect(struct semel_consumer *consumer, semel_error *error)
{
	if (consumer->connected)
		return SEMEL_OK;
	semel_status status = open_store(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = open_broker(consumer, error);
	if (status != SEMEL_OK)
		return status;
	consumer->connected = true;
	return SEMEL_OK;
}

void semel_consumer_disconnect(struct semel_consumer *consumer)
{
	semel_dispatch_detach(consumer);
	semel_broker_close(consumer->broker);
	if (consumer->positions)
		semel_positions_forget(consumer->positions, false);
	semel_guard_close(consumer->guard);
	semel_store_close(consumer->store);
	consumer->connected = false;
	consumer->broker = NULL;
	consumer->guard = NULL;
	consumer->store = NULL;
}

/* ---- transactions ---------------------------------------------------------------------------- */

semel_status semel_consumer_begin(struct semel_consumer *consumer, semel_error *error)
{
	return consumer->store->driver->begin(consumer->store, error);
}

semel_status semel_consumer_commit_metered(struct semel_consumer *consumer, semel_error *error)
{
	int64_t began_us = semel_step_timer_begin();
	semel_status status = consumer->store->driver->commit(consumer->store, error);

	semel_step_timer_end(SEMEL_TIMED_COMMIT, began_us);
	return status;
}

semel_status semel_consumer_commit(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = semel_consumer_commit_metered(consumer, error);

	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_CONSUME_AFTER_COMMIT, error);
}

void semel_consumer_rollback(struct semel_consumer *consumer)
{
	consumer->store->driver->rollback(consumer->store);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static struct semel_retry_policy retry_policy(const semel_consumer_options *options)
{
	return (struct semel_retry_policy){
		.attempts_max = options->attempts,
		.immediate_max = options->immediate,
		.immediate = { .first_ms = 20, .cap_ms = 500 },
		.delayed = { options->first_delay_ms, options->delay_max_ms },
	};
}

/* False: out of memory. */
static bool make_parts(struct semel_consumer *consumer, const semel_consumer_options *options)
{
	if (!copy_config(&consumer->config, options))
		return false;
	consumer->breaker.consumer = semel_text_string(consumer->config.scope);
	consumer->retry = retry_policy(&consumer->config.options);
	consumer->loop.grace_ms = GRACE_MS;
	consumer->arena = semel_arena_new(ARENA_BLOCK);
	consumer->handler.upcasters = semel_upcasters_new();
	consumer->positions = semel_positions_new(consumer);
	return consumer->arena && consumer->handler.upcasters && consumer->positions;
}

/* Once the broker has been reached, waits for it: a broker that is about to restart still accepts
 * connections, and one that has just restarted accepts them before it can serve every request. */
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
	semel_status status = check_options(options, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_consumer *consumer = calloc(1, sizeof *consumer);
	if (!consumer)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a consumer");
	consumer->env = env;
	if (!make_parts(consumer, options)) {
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for a consumer");
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
	free_handler(&consumer->handler);
	semel_positions_free(consumer->positions);
	semel_unfinished_claim_free(consumer->unfinished);
	semel_arena_free(consumer->arena);
	free_config(&consumer->config);
	free(consumer);
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
