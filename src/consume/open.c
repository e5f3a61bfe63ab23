/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a consumer: its options, its connections, its handler. */
#include "consume/consumer.h"

#include "base/backoff.h"
#include "base/defaults.h"
#include "base/error.h"
#include "store/subscription.h"

#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK            (64 * 1024)
#define FIRST_CONNECT_MS       20000
#define FIRST_CONNECT_PAUSE_MS 100
#define GRACE_MS               10000

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

/* ---- opening --------------------------------------------------------------------------------- */

static semel_status check_options(const semel_consumer_options *options, semel_error *error)
{
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope is blank; name the subscription, e.g. billing");
	if (strcmp(options->scope, "relay") == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope \"relay\" is the relay's own; choose another");
	if (!options->topics || !options->topics[0])
		return semel_error_set(error, SEMEL_INVALID,
				       "no topic is named; e.g. order.events");
	for (size_t i = 0; options->topics[i]; i++)
		if (semel_string_is_blank(options->topics[i]))
			return semel_error_set(error, SEMEL_INVALID, "a topic is blank");
	if (options->order == SEMEL_ORDER_STRICT && options->guarantee == SEMEL_AT_LEAST_ONCE)
		return semel_error_set(error, SEMEL_CONFIG,
				       "strict order has to know which events were processed, and "
				       "at-least-once keeps no record of them; choose "
				       "effectively-once");
	if (options->order == SEMEL_ORDER_TOTAL && options->poison == SEMEL_POISON_PARK_KEY)
		return semel_error_set(error, SEMEL_CONFIG,
				       "total order cannot park a key aside; choose the poison "
				       "policy block (stop at the failed event) or skip");
	return SEMEL_OK;
}

static size_t list_length(const char *const *list)
{
	size_t length = 0;

	while (list && list[length])
		length++;
	return length;
}

static void list_free(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}

/* All of it, or NULL. */
static char **list_copy(const char *const *list, size_t length)
{
	char **copy = calloc(length + 1, sizeof *copy);

	for (size_t i = 0; copy && i < length; i++) {
		copy[i] = strdup(list[i]);
		if (!copy[i]) {
			list_free(copy);
			return NULL;
		}
	}
	return copy;
}

static struct semel_text text_copy(const char *string)
{
	char *copy = strdup(string);
	return semel_text_from(copy, copy ? strlen(copy) : 0);
}

static bool copy_options(struct semel_consumer *consumer, const semel_consumer_options *options)
{
	consumer->options = *options;
	complete(&consumer->options);
	consumer->store_url = strdup(consumer->options.store);
	consumer->broker_url = strdup(consumer->options.broker);
	consumer->scope = text_copy(options->scope);
	consumer->breaker.consumer = semel_text_string(consumer->scope);
	consumer->grace_ms = GRACE_MS;
	if (options->handler_version)
		consumer->handler_version = text_copy(options->handler_version);
	if (options->dedup_header)
		consumer->dedup_header = strdup(options->dedup_header);
	if (options->id_header)
		consumer->id_header = strdup(options->id_header);
	if (options->bind)
		consumer->bind = strdup(options->bind);
	consumer->topics = list_copy(options->topics, list_length(options->topics));
	consumer->arena = semel_arena_new(ARENA_BLOCK);
	consumer->upcasters = semel_upcasters_new();
	consumer->positions = semel_positions_new(consumer);
	consumer->retry = (struct semel_retry_policy){
		.attempts_max = consumer->options.attempts,
		.immediate_max = consumer->options.immediate,
		.immediate = { .first_ms = 20, .cap_ms = 500 },
		.delayed = { consumer->options.first_delay_ms, consumer->options.delay_max_ms },
	};
	return consumer->store_url && consumer->broker_url && consumer->scope.data &&
	       consumer->topics && consumer->arena && consumer->upcasters && consumer->positions &&
	       (!options->dedup_header || consumer->dedup_header) &&
	       (!options->id_header || consumer->id_header) && (!options->bind || consumer->bind);
}

/* The topics that this scope has read before, as far as the store tells; NULL: none. */
static semel_status read_known_topics(struct semel_consumer *consumer,
				      const char *const **topics_out, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	struct semel_topics topics = { 0 };
	uint32_t count = 0;
	semel_status status =
		semel_subscriptions_read(consumer->store, consumer->arena, &rows, &count, error);

	if (status != SEMEL_OK)
		return status;
	const struct semel_subscription_row *row =
		semel_subscription_find(rows, count, semel_text_string(consumer->scope));
	if (row)
		status = semel_subscription_topics(row, consumer->arena, &topics, error);
	*topics_out = topics.names;
	return status;
}

static semel_status subscribe(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_subscribe_options options = {
		.scope = semel_text_string(consumer->scope),
		.topics = (const char *const *)consumer->topics,
		.prefetch = consumer->options.batch * 2 + consumer->options.concurrency * 16 + 64,
		.prefetch_bytes = consumer->options.prefetch_bytes,
		.lease_ms = consumer->options.lease_ms,
		.from_latest = consumer->options.from_latest,
		.total_order = consumer->options.order == SEMEL_ORDER_TOTAL,
		.delay_max_ms = consumer->options.delay_max_ms,
		.partitions = consumer->options.partitions,
		.bind = consumer->bind,
	};
	semel_status status = SEMEL_OK;

	if (options.from_latest)
		status = read_known_topics(consumer, &options.previously_read, error);
	if (status != SEMEL_OK)
		return status;
	return consumer->broker->driver->subscribe(consumer->broker, &options, error);
}

semel_status semel_consumer_connect(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (consumer->connected)
		return SEMEL_OK;
	status = semel_store_open_in(consumer->env, consumer->store_url, &consumer->store, error);
	if (status == SEMEL_OK)
		status = semel_guard_open(SEMEL_GUARD_DEFAULT_URL, consumer->store,
					  &consumer->guard, error);
	if (status == SEMEL_OK)
		consumer->guard_joins = consumer->guard->driver->joins;
	if (status == SEMEL_OK && consumer->kind == SEMEL_HANDLER_SQL)
		status = consumer->store->driver->inbox->effect_prepare(
			consumer->store, (const char *const *)consumer->statements,
			consumer->statement_count, error);
	if (status == SEMEL_OK)
		status = semel_broker_open(consumer->broker_url, consumer->env, 1,
					   &consumer->broker, error);
	if (status == SEMEL_OK) {
		semel_broker_set_offset_store(consumer->broker,
					      semel_places_offset_store(consumer->positions));
		status = subscribe(consumer, error);
	}
	if (status == SEMEL_OK)
		consumer->broker->driver->watch(consumer->broker, consumer->wake);
	consumer->connected = status == SEMEL_OK;
	return status;
}

/* Nothing is at work here any more: what was claimed and not finished need not wait for its lease
 * to run out. An event may have come to another consumer meanwhile. */
static void expire_claims(struct semel_consumer *consumer)
{
	if (!consumer->guard || !semel_consumer_claims(consumer) || semel_consumer_joins(consumer))
		return;
	(void)consumer->guard->driver->renew(consumer->guard, consumer->owner,
					     semel_now_ms(consumer->env), NULL);
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

/* Who was reached once is waited for here too: a broker that is about to restart still lets us in,
 * and one that has just restarted does so before it can do everything. */
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

semel_status semel_consumer_open(const semel_consumer_options *options,
				 semel_consumer **consumer_out, semel_error *error)
{
	return semel_consumer_open_in(semel_env_system(), options, consumer_out, error);
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
	if (!consumer || !copy_options(consumer, options)) {
		semel_consumer_close(consumer);
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a consumer");
	}
	consumer->env = env;
	semel_consumer_counters_open(&consumer->counters, semel_text_string(consumer->scope));
	semel_owner_make(consumer->env, consumer->owner);
	status = semel_wake_new(&consumer->wake, error);
	if (status == SEMEL_OK)
		semel_wake_set_env(consumer->wake, env);
	if (status == SEMEL_OK)
		status = connect_first(consumer, error);
	if (status != SEMEL_OK) {
		semel_consumer_close(consumer);
		return status;
	}
	consumer->store->driver->watch(consumer->store, consumer->wake);
	*consumer_out = consumer;
	return SEMEL_OK;
}

void semel_consumer_close(semel_consumer *consumer)
{
	if (!consumer)
		return;
	semel_presence_end(consumer);
	semel_dispatch_close(consumer);
	expire_claims(consumer);
	semel_consumer_disconnect(consumer);
	semel_wake_free(consumer->wake);
	semel_upcasters_free(consumer->upcasters);
	semel_positions_free(consumer->positions);
	semel_unfinished_claim_free(consumer->unfinished);
	semel_arena_free(consumer->arena);
	list_free(consumer->topics);
	list_free(consumer->statements);
	list_free(consumer->passed);
	free(consumer->target);
	free(consumer->dedup_header);
	free(consumer->id_header);
	free(consumer->bind);
	free((char *)(uintptr_t)consumer->handler_version.data);
	free((char *)(uintptr_t)consumer->scope.data);
	free(consumer->store_url);
	free(consumer->broker_url);
	free(consumer);
}

/* ---- handlers -------------------------------------------------------------------------------- */

static semel_status choose_kind(struct semel_consumer *consumer, enum semel_handler_kind kind,
				semel_error *error)
{
	if (consumer->kind != SEMEL_HANDLER_NONE)
		return semel_error_set(error, SEMEL_INVALID,
				       "the consumer of %s has a handler already; one is all it "
				       "can have",
				       semel_text_shown(consumer->scope));
	consumer->kind = kind;
	return SEMEL_OK;
}

semel_status semel_consumer_handle(semel_consumer *consumer, semel_handler handler, void *user,
				   semel_error *error)
{
	if (!handler)
		return semel_error_set(error, SEMEL_INVALID, "the handler is NULL");
	consumer->function = handler;
	consumer->user = user;
	return choose_kind(consumer, SEMEL_HANDLER_FUNCTION, error);
}

semel_status semel_consumer_use_sql(semel_consumer *consumer, const char *const *statements,
				    size_t count, semel_error *error)
{
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_SQL, error);
	if (status != SEMEL_OK)
		return status;
	consumer->statements = list_copy(statements, count);
	consumer->statement_count = count;
	if (!consumer->statements)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the statements");
	return consumer->store->driver->inbox->effect_prepare(consumer->store, statements, count,
							      error);
}

semel_status semel_consumer_use_outside(semel_consumer *consumer,
					const struct semel_outside_kind *kind, const char *target,
					semel_error *error)
{
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_OUTSIDE, error);
	if (status != SEMEL_OK)
		return status;
	consumer->outside = kind;
	consumer->target = target ? strdup(target) : NULL;
	return semel_dispatch_open(consumer, error);
}

semel_status semel_consumer_pass_env(semel_consumer *consumer, const char *const *names,
				     size_t count, semel_error *error)
{
	list_free(consumer->passed);
	consumer->passed = list_copy(names, count);
	semel_upcasters_pass_env(consumer->upcasters, (const char *const *)consumer->passed);
	return consumer->passed ? SEMEL_OK
				: semel_error_set(error, SEMEL_INTERNAL, "no memory for a list");
}

void semel_consumer_set_grace(semel_consumer *consumer, int64_t grace_ms)
{
	consumer->grace_ms = grace_ms;
}

struct semel_upcasters *semel_consumer_upcasters(semel_consumer *consumer)
{
	return consumer->upcasters;
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

	return semel_upcasters_add(consumer->upcasters, &step, error);
}
