/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer's life: connect, fetch, process, sleep until woken; after an outage start over. What
 * was fetched and not acked comes again, and the claims tell what was done. */
#include "consume/consumer.h"

#include "base/backoff.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "observe/log.h"
#include "observe/meter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK     (64 * 1024)
#define POLL_MS         1000
#define PAUSE_LOOK_MS   1000
#define GRACE_MS        10000
#define SETTLE_MS       20000
#define SETTLE_PAUSE_US 100000

static const semel_consumer_options defaults = {
	.store = "sqlite:semel.db",
	.broker = "local:semel-broker.db",
	.attempts = 5,
	.immediate = 2,
	.first_delay_ms = 1000,
	.delay_max_ms = 60000,
	.batch = 500,
	.concurrency = 1,
	.timeout_ms = 30000,
	.lease_ms = 5000,
	.strict_wait_ms = 30000,
};

#define OR_DEFAULT(options, field)                                                                 \
	((options)->field = (options)->field ? (options)->field : defaults.field)

static void complete(semel_consumer_options *options)
{
	OR_DEFAULT(options, store);
	OR_DEFAULT(options, broker);
	OR_DEFAULT(options, attempts);
	OR_DEFAULT(options, immediate);
	OR_DEFAULT(options, first_delay_ms);
	OR_DEFAULT(options, delay_max_ms);
	OR_DEFAULT(options, batch);
	OR_DEFAULT(options, concurrency);
	OR_DEFAULT(options, timeout_ms);
	OR_DEFAULT(options, lease_ms);
	OR_DEFAULT(options, strict_wait_ms);
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
	return (struct semel_text){ copy, copy ? strlen(copy) : 0 };
}

static bool copy_options(struct semel_consumer *consumer, const semel_consumer_options *options)
{
	consumer->options = *options;
	complete(&consumer->options);
	consumer->store_url = strdup(consumer->options.store);
	consumer->broker_url = strdup(consumer->options.broker);
	consumer->scope = text_copy(options->scope);
	consumer->breaker.consumer = consumer->scope.data;
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
	consumer->places = semel_places_new(consumer);
	consumer->retry = (struct semel_retry_policy){
		.attempts_max = consumer->options.attempts,
		.immediate_max = consumer->options.immediate,
		.immediate = { .first_ms = 20, .cap_ms = 500 },
		.delayed = { consumer->options.first_delay_ms, consumer->options.delay_max_ms },
	};
	return consumer->store_url && consumer->broker_url && consumer->scope.data &&
	       consumer->topics && consumer->arena && consumer->upcasters && consumer->places &&
	       (!options->dedup_header || consumer->dedup_header) &&
	       (!options->id_header || consumer->id_header) && (!options->bind || consumer->bind);
}

static semel_status subscribe(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_subscribe_options options = {
		.scope = consumer->scope.data,
		.topics = (const char *const *)consumer->topics,
		.prefetch = consumer->options.batch * 2 + consumer->options.concurrency * 16 + 64,
		.lease_ms = consumer->options.lease_ms,
		.from_latest = consumer->options.from_latest,
		.total_order = consumer->options.order == SEMEL_ORDER_TOTAL,
		.delay_max_ms = consumer->options.delay_max_ms,
		.partitions = consumer->options.partitions,
		.bind = consumer->bind,
	};

	return consumer->broker->driver->subscribe(consumer->broker, &options, error);
}

static semel_status connect_all(struct semel_consumer *consumer, semel_error *error)
{
	semel_status status = SEMEL_OK;

	if (consumer->store && consumer->broker)
		return SEMEL_OK;
	status = semel_store_open(consumer->store_url, &consumer->store, error);
	if (status == SEMEL_OK)
		status = semel_guard_open_inbox(consumer->store, &consumer->guard, error);
	if (status == SEMEL_OK && consumer->kind == SEMEL_HANDLER_SQL)
		status = consumer->store->driver->effect_prepare(
			consumer->store, (const char *const *)consumer->statements,
			consumer->statement_count, error);
	if (status == SEMEL_OK)
		status = semel_broker_open(consumer->broker_url, consumer->env, 1,
					   &consumer->broker, error);
	if (status == SEMEL_OK) {
		semel_broker_keep(consumer->broker, semel_places_keeper(consumer->places));
		status = subscribe(consumer, error);
	}
	if (status == SEMEL_OK)
		consumer->broker->driver->watch(consumer->broker, consumer->wake);
	return status;
}

/* Nothing is at work here any more: what was claimed and not finished need not wait for its lease
 * to run out. An event may have come to another consumer meanwhile. */
static void let_claims_go(struct semel_consumer *consumer)
{
	if (!consumer->guard || !semel_consumer_claims(consumer) || semel_consumer_joins(consumer))
		return;
	(void)consumer->guard->driver->renew(consumer->guard, consumer->owner,
					     semel_now_ms(consumer->env), NULL);
}

static void disconnect_all(struct semel_consumer *consumer)
{
	semel_dispatch_close(consumer);
	let_claims_go(consumer);
	semel_broker_close(consumer->broker);
	if (consumer->places)
		semel_places_forget(consumer->places, false);
	if (consumer->guard)
		consumer->guard->driver->close(consumer->guard);
	semel_store_close(consumer->store);
	consumer->broker = NULL;
	consumer->guard = NULL;
	consumer->store = NULL;
}

/* Who was reached once is waited for here too: a broker that is about to restart still lets us in,
 * and one that has just restarted does so before it can do everything. */
static semel_status connect_first(struct semel_consumer *consumer, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(consumer->env) + SETTLE_MS;
	semel_status status = connect_all(consumer, error);
	bool reached = consumer->broker != NULL;

	while (status == SEMEL_OUTAGE && reached && semel_steady_ms(consumer->env) < until_ms) {
		disconnect_all(consumer);
		semel_wake_pause_us(SETTLE_PAUSE_US);
		status = connect_all(consumer, error);
	}
	return status;
}

semel_status semel_consumer_open(const semel_consumer_options *options,
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
	consumer->env = semel_env_system();
	semel_tally_open(&consumer->tally, consumer->scope.data);
	semel_owner_make(consumer->env, consumer->owner);
	status = semel_wake_new(&consumer->wake, error);
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
	disconnect_all(consumer);
	semel_wake_free(consumer->wake);
	semel_upcasters_free(consumer->upcasters);
	semel_places_free(consumer->places);
	semel_arena_free(consumer->arena);
	list_free(consumer->topics);
	list_free(consumer->statements);
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
				       consumer->scope.data);
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
	return consumer->store->driver->effect_prepare(consumer->store, statements, count, error);
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

/* ---- the subscription, for people and for verify ----------------------------------------------
 */

static const char *const guarantees[] = { "effectively-once", "at-least-once", "at-most-once" };
static const char *const claim_modes[] = { "same-tx", "separate" };
static const char *const poisons[] = { "park-key", "block", "skip" };
static const char *const orders[] = { "aggregate", "strict", "total" };

static const char *handler_name(const struct semel_consumer *consumer)
{
	switch (consumer->kind) {
	case SEMEL_HANDLER_FUNCTION:
		return "c";
	case SEMEL_HANDLER_SQL:
		return "sql";
	case SEMEL_HANDLER_OUTSIDE:
		return consumer->outside->name;
	case SEMEL_HANDLER_NONE:
		break;
	}
	return "none";
}

static semel_status register_subscription(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_buffer topics = { 0 };
	char dedup_by[SEMEL_NAME_MAX + 8] = "id";

	for (size_t i = 0; consumer->topics[i]; i++) {
		semel_buffer_string(&topics, i == 0 ? "[" : ",");
		semel_buffer_json(&topics, semel_text_of(consumer->topics[i]));
	}
	semel_buffer_string(&topics, "]");
	if (consumer->dedup_header)
		snprintf(dedup_by, sizeof dedup_by, "header:%s", consumer->dedup_header);
	struct semel_subscription_row row = {
		.scope = consumer->scope,
		.topics = semel_buffer_text(&topics),
		.guarantee = semel_text_of(guarantees[consumer->options.guarantee]),
		.claim = semel_text_of(claim_modes[consumer->options.claim]),
		.poison = semel_text_of(poisons[consumer->options.poison]),
		.order = semel_text_of(orders[consumer->options.order]),
		.dedup_by = semel_text_of(dedup_by),
		.handler = semel_text_of(handler_name(consumer)),
		.from_latest = consumer->options.from_latest,
	};
	semel_status status = consumer->store->driver->subscription_put(
		consumer->store, &row, semel_now_ms(consumer->env), error);
	semel_buffer_free(&topics);
	return status;
}

/* ---- turns ----------------------------------------------------------------------------------- */

uint32_t semel_consumer_room(const struct semel_consumer *consumer, uint32_t wanted_count,
			     uint32_t at_hand)
{
	uint64_t taken = consumer->settled + at_hand;

	if (consumer->max == 0)
		return wanted_count;
	uint64_t left = consumer->max > taken ? consumer->max - taken : 0;
	return left < wanted_count ? (uint32_t)left : wanted_count;
}

/* Has a person paused the subscription? Looked at now and then: to pause is not urgent. */
static semel_status look_for_pause(struct semel_consumer *consumer, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(consumer->env);
	bool before = consumer->paused;

	if (now_ms < consumer->look_for_pause_ms)
		return SEMEL_OK;
	consumer->look_for_pause_ms = now_ms + PAUSE_LOOK_MS;
	semel_status status = consumer->store->driver->subscription_paused(
		consumer->store, consumer->scope, &consumer->paused, error);
	if (status == SEMEL_OK && consumer->paused != before)
		semel_log(SEMEL_LOG_WARN,
			  consumer->paused ? "the subscription is paused: nothing is taken"
					   : "the subscription goes on",
			  &(struct semel_log_fields){ .consumer = consumer->scope.data });
	return status;
}

static uint32_t wanted(struct semel_consumer *consumer)
{
	int64_t steady_ms = semel_steady_ms(consumer->env);
	uint32_t batch = semel_consumer_room(consumer, consumer->options.batch, 0);

	if (consumer->paused || steady_ms < consumer->pause_until_ms)
		return 0;
	return semel_breaker_allow(&consumer->breaker, batch, steady_ms);
}

semel_status semel_consumer_take(struct semel_consumer *consumer, uint32_t max,
				 struct semel_arena *arena, struct semel_item **items_out,
				 uint32_t *count_out, semel_error *error)
{
	struct semel_delivery *deliveries =
		semel_arena_alloc(arena, (max + 1) * sizeof *deliveries);

	*count_out = 0;
	if (!deliveries)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for deliveries");
	int64_t began_us = semel_meter_begin();
	semel_status status = consumer->broker->driver->fetch(consumer->broker, max, arena,
							      deliveries, count_out, error);
	semel_meter_end(SEMEL_WORK_RECEIVE, began_us);
	if (status != SEMEL_OK || *count_out == 0)
		return status;
	status = semel_places_note(consumer->places, deliveries, *count_out, error);
	if (status == SEMEL_OK)
		status = semel_failpoint(SEMEL_FP_CONSUME_AFTER_RECEIVE, error);
	if (status != SEMEL_OK)
		return status;
	*items_out = semel_items_make(consumer, deliveries, *count_out, arena);
	return *items_out ? SEMEL_OK
			  : semel_error_set(error, SEMEL_INTERNAL, "no memory for a batch");
}

static semel_status take_batch(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	struct semel_item *items = NULL;
	uint32_t count = 0;
	semel_status status = semel_consumer_take(consumer, wanted(consumer), consumer->arena,
						  &items, &count, error);

	*busy_out = *busy_out || count > 0;
	if (status != SEMEL_OK || count == 0)
		return status;
	consumer->put_off = false;
	status = semel_batch_process(consumer, items, count, error);
	if (status == SEMEL_OK && consumer->put_off)
		status = consumer->broker->driver->rewind(consumer->broker, error);
	return status;
}

static semel_status inside_turn(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool holds = false, ran = false;
	semel_status status =
		driver->hold_any(driver->tx(consumer->store), consumer->scope, &holds, error);

	if (status == SEMEL_OK && holds && !consumer->paused &&
	    semel_steady_ms(consumer->env) >= consumer->pause_until_ms)
		status = semel_batch_released(consumer, &ran, error);
	if (status == SEMEL_OK)
		status = take_batch(consumer, busy_out, error);
	*busy_out = *busy_out || ran;
	return status;
}

static semel_status turn(struct semel_consumer *consumer, bool *busy_out, semel_error *error)
{
	semel_arena_reset(consumer->arena);
	*busy_out = false;
	consumer->turned_at_ms = semel_now_ms(consumer->env);
	semel_tally_breaker(consumer);
	semel_status status = connect_all(consumer, error);
	if (status == SEMEL_OK && consumer->kind == SEMEL_HANDLER_OUTSIDE && !consumer->dispatch)
		status = semel_dispatch_open(consumer, error);
	if (status == SEMEL_OK)
		status = semel_places_tend(consumer->places, error);
	if (status == SEMEL_OK)
		status = look_for_pause(consumer, error);
	if (status != SEMEL_OK)
		return status;
	status = consumer->kind == SEMEL_HANDLER_OUTSIDE
			 ? semel_dispatch_turn(consumer, busy_out, error)
			 : inside_turn(consumer, busy_out, error);
	if (status == SEMEL_OK)
		consumer->outages = 0;
	return status;
}

/* A share that moved on is no outage: what was fetched of it comes again elsewhere. */
static semel_status survive(struct semel_consumer *consumer, semel_status status,
			    const semel_error *error)
{
	struct semel_backoff backoff = { .first_ms = 50, .cap_ms = 5000 };

	if (status == SEMEL_OK || semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	int64_t wait_ms =
		semel_backoff_ms(backoff, ++consumer->outages, semel_random(consumer->env));
	snprintf(consumer->trouble, sizeof consumer->trouble, "%s", error->text);
	semel_log(SEMEL_LOG_WARN, "the consumer starts over",
		  &(struct semel_log_fields){ .consumer = consumer->scope.data,
					      .error = error->text,
					      .attempt = consumer->outages });
	if (status == SEMEL_LEASE_LOST)
		semel_places_forget(consumer->places, true);
	disconnect_all(consumer);
	int64_t until_ms = semel_steady_ms(consumer->env) + wait_ms;
	while (!semel_wake_rung(consumer->wake) && semel_steady_ms(consumer->env) < until_ms)
		semel_wake_sleep(consumer->wake, until_ms - semel_steady_ms(consumer->env));
	return SEMEL_OK;
}

/* ---- what is left ------------------------------------------------------------------------------
 */

struct left {
	struct semel_backlog backlog;
	struct semel_hold_counts holds;
	int64_t looked_ms; /* steady */
	uint64_t failures; /* when looked */
};

static uint64_t failures_of(const struct semel_consumer *consumer)
{
	return consumer->counts.retried + consumer->counts.dead + consumer->counts.parked;
}

static bool is_past(int64_t then_ms, int64_t now_ms)
{
	return then_ms > 0 && then_ms <= now_ms;
}

/* To look costs calls to broker and store. Without it nothing is missed but the time of delayed
 * events, and those are made by failures, or by somebody else. */
static bool looks_stale(const struct semel_consumer *consumer, const struct left *left)
{
	int64_t now_ms = semel_now_ms(consumer->env);

	return semel_steady_ms(consumer->env) - left->looked_ms >= POLL_MS ||
	       left->failures != failures_of(consumer) ||
	       is_past(left->backlog.next_due_ms, now_ms) ||
	       is_past(left->holds.next_due_ms, now_ms);
}

/* One who drains has to know how much is left; one who goes on, only when to wake. */
static semel_status look_at_broker(struct semel_consumer *consumer, bool draining,
				   struct semel_backlog *backlog, semel_error *error)
{
	const struct semel_broker_driver *driver = consumer->broker->driver;
	const char *const *topics = (const char *const *)consumer->topics;

	if (draining || !driver->next_due)
		return driver->backlog(consumer->broker, consumer->scope.data, topics, backlog,
				       error);
	return driver->next_due(consumer->broker, consumer->scope.data, topics,
				&backlog->next_due_ms, error);
}

/* What is held is counted only for those who ask: there may be a million behind a dead letter. */
static semel_status look(struct semel_consumer *consumer, bool draining, struct left *left_out,
			 semel_error *error)
{
	const struct semel_store_driver *store = consumer->store->driver;

	left_out->looked_ms = semel_steady_ms(consumer->env);
	left_out->failures = failures_of(consumer);
	semel_status status = look_at_broker(consumer, draining, &left_out->backlog, error);
	if (status == SEMEL_OK && draining)
		return store->hold_counts(consumer->store, consumer->scope, &left_out->holds,
					  error);
	if (status == SEMEL_OK)
		status = store->hold_due(consumer->store, consumer->scope,
					 &left_out->holds.next_due_ms, error);
	return status;
}

static bool is_drained(const struct semel_consumer *consumer, const struct left *left)
{
	return left->backlog.waiting == 0 && left->holds.waiting == 0 && left->holds.blocked == 0 &&
	       semel_dispatch_load(consumer) == 0;
}

static void sooner(int64_t *wait_ms, int64_t then_ms, int64_t now_ms)
{
	if (then_ms > 0 && then_ms - now_ms < *wait_ms)
		*wait_ms = then_ms - now_ms;
}

/* What was due when the last turn began and was not taken is at work here, or somebody else's, or
 * waits for the breaker: it is no reason to wake. */
static int64_t unless_missed(const struct semel_consumer *consumer, int64_t due_ms)
{
	return due_ms > consumer->turned_at_ms ? due_ms : 0;
}

static int64_t sleep_ms(const struct semel_consumer *consumer, const struct left *left)
{
	int64_t now_ms = semel_now_ms(consumer->env), steady_ms = semel_steady_ms(consumer->env);
	int64_t wait_ms = consumer->options.lease_ms / 3;

	if (wait_ms > POLL_MS)
		wait_ms = POLL_MS;
	sooner(&wait_ms, unless_missed(consumer, left->backlog.next_due_ms), now_ms);
	sooner(&wait_ms, unless_missed(consumer, left->holds.next_due_ms), now_ms);
	if (consumer->breaker.state == SEMEL_BREAKER_OPEN)
		sooner(&wait_ms, consumer->breaker.open_until_ms, steady_ms);
	if (consumer->pause_until_ms > steady_ms)
		sooner(&wait_ms, consumer->pause_until_ms, steady_ms);
	sooner(&wait_ms, semel_dispatch_next_ms(consumer), steady_ms);
	return wait_ms > 1 ? wait_ms : 1;
}

/* In total order nothing is parked: a dead letter holds the topic where it is. */
static bool topic_is_blocked(const struct semel_consumer *consumer)
{
	const struct semel_store_driver *driver = consumer->store ? consumer->store->driver : NULL;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };

	if (!driver || consumer->options.order != SEMEL_ORDER_TOTAL)
		return false;
	for (size_t i = 0; consumer->topics[i] && hold.state != SEMEL_HOLD_DEAD; i++) {
		struct semel_event key = { .aggregate_type = SEMEL_TEXT(""),
					   .aggregate_id = semel_text_of(consumer->topics[i]) };
		if (driver->hold_get(driver->tx(consumer->store), consumer->scope, &key,
				     consumer->arena, &hold, NULL) != SEMEL_OK)
			return false;
	}
	return hold.state == SEMEL_HOLD_DEAD;
}

static semel_status not_drained(const struct semel_consumer *consumer, const struct left *left,
				semel_error *error)
{
	const char *blocked =
		consumer->broker ? consumer->broker->driver->blocked(consumer->broker) : NULL;
	const char *why = blocked ? blocked : consumer->trouble;

	if (consumer->paused)
		why = "the subscription is paused by a person";
	else if (consumer->breaker.state != SEMEL_BREAKER_CLOSED)
		why = "the breaker is open: the handler's dependency does not answer";
	else if (left->holds.blocked > 0)
		why = "a dead letter blocks its aggregate (see: semel dlq list)";
	else if (topic_is_blocked(consumer))
		why = "a dead letter blocks the topic (see: semel dlq list)";
	else if (!why[0])
		why = "the time was too short, or another consumer holds a share (try a longer "
		      "--timeout)";
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "%s is not drained: %llu wait (%llu of them delayed), %llu held, "
			       "%llu blocked: %s",
			       consumer->scope.data, (unsigned long long)left->backlog.waiting,
			       (unsigned long long)left->backlog.delayed,
			       (unsigned long long)left->holds.waiting,
			       (unsigned long long)left->holds.blocked, why);
}

/* ---- running -----------------------------------------------------------------------------------
 */

static bool is_over(const struct semel_consumer *consumer)
{
	return semel_wake_rung(consumer->wake) ||
	       (consumer->max > 0 && consumer->settled >= consumer->max);
}

/* One turn, and a sleep when there was nothing to do. until_ms < 0: for ever. */
static semel_status turn_or_sleep(struct semel_consumer *consumer, bool draining, bool *drained_out,
				  struct left *left, semel_error *error)
{
	bool busy = false;
	semel_status status = turn(consumer, &busy, error);

	if (status != SEMEL_OK || busy || is_over(consumer))
		return status;
	if (draining || looks_stale(consumer, left))
		status = look(consumer, draining, left, error);
	if (status != SEMEL_OK)
		return status;
	*drained_out = draining && is_drained(consumer, left);
	if (!*drained_out)
		semel_wake_sleep(consumer->wake, sleep_ms(consumer, left));
	return SEMEL_OK;
}

/* Calls under way are concluded within the grace. */
static void finish(struct semel_consumer *consumer)
{
	int64_t until_ms = semel_steady_ms(consumer->env) + GRACE_MS;
	semel_error error = { .status = SEMEL_OK };
	bool busy = false;

	while (consumer->dispatch && semel_dispatch_at_work(consumer) > 0 &&
	       semel_steady_ms(consumer->env) < until_ms) {
		semel_arena_reset(consumer->arena);
		if (semel_dispatch_turn(consumer, &busy, &error) != SEMEL_OK)
			return;
		if (!busy)
			semel_dispatch_wait(consumer, 20);
	}
}

static semel_status prepare(struct semel_consumer *consumer, uint64_t max, semel_error *error)
{
	if (consumer->kind == SEMEL_HANDLER_NONE)
		return semel_error_set(error, SEMEL_INVALID,
				       "the consumer of %s has no handler; give it one before it "
				       "runs",
				       consumer->scope.data);
	consumer->max = max > 0 ? consumer->settled + max : 0;
	semel_status status = connect_all(consumer, error);
	return status == SEMEL_OK ? register_subscription(consumer, error) : status;
}

static semel_status run_until(struct semel_consumer *consumer, int64_t until_ms, uint64_t max,
			      semel_error *error)
{
	bool draining = until_ms >= 0, drained = false;
	semel_error trouble = { .status = SEMEL_OK };
	struct left left = { 0 };
	semel_status status = prepare(consumer, max, error);
	if (status != SEMEL_OK)
		return status;

	while (status == SEMEL_OK && !drained && !is_over(consumer)) {
		status = turn_or_sleep(consumer, draining, &drained, &left, &trouble);
		status = survive(consumer, status, &trouble);
		if (status == SEMEL_OK && draining && !drained && !is_over(consumer) &&
		    semel_steady_ms(consumer->env) >= until_ms) {
			finish(consumer);
			if (consumer->store && consumer->broker)
				(void)look(consumer, draining, &left, &trouble);
			return not_drained(consumer, &left, error);
		}
	}
	if (status != SEMEL_OK)
		return semel_error_set(error, status, "%s", trouble.text);
	finish(consumer);
	return SEMEL_OK;
}

semel_status semel_consumer_run(semel_consumer *consumer, uint64_t max, semel_error *error)
{
	return run_until(consumer, -1, max, error);
}

semel_status semel_consumer_drain(semel_consumer *consumer, int64_t timeout_ms, uint64_t max,
				  semel_error *error)
{
	return run_until(consumer, semel_steady_ms(consumer->env) + timeout_ms, max, error);
}

void semel_consumer_stop(semel_consumer *consumer)
{
	semel_wake_ring(consumer->wake);
}

semel_consumer_counts semel_consumer_count(const semel_consumer *consumer)
{
	return consumer->counts;
}
