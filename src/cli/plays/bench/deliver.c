/* SPDX-License-Identifier: Apache-2.0 */
/* The relay and the consumer of the library against the bare side. Both sides get the same events;
 * connections are open before the clock starts. */
#include "cli/plays/bench/bare.h"

#include "base/error.h"
#include "consume/consumer.h"

#include <semel/relay.h>

#define TIMEOUT_MS 600000

struct delivery {
	struct semel_bench *bench;
	struct semel_bare bare;
	sqlite3 *store; /* the application's own connection to the store that Semel works on */
	semel_relay *relay;
	semel_consumer *consumer;
	uint64_t next, bare_next; /* number of the next event */
};

static semel_status open_relay(struct delivery *delivery, const char *store, const char *broker)
{
	const semel_relay_options options = { .store = store, .broker = broker };
	return semel_relay_open(&options, &delivery->relay, delivery->bench->error);
}

static semel_status open_consumer(struct delivery *delivery, const char *store, const char *broker)
{
	static const char *const topics[] = { SEMEL_BENCH_TOPIC, NULL };
	static const char *const effect[] = { SEMEL_BENCH_EFFECT };
	const semel_consumer_options options = {
		.store = store, .broker = broker, .scope = "bench", .topics = topics
	};
	semel_error *error = delivery->bench->error;
	semel_status status = semel_consumer_open(&options, &delivery->consumer, error);
	return status == SEMEL_OK ? semel_consumer_use_sql(delivery->consumer, effect, 1, error)
				  : status;
}

static semel_status open_delivery(struct semel_bench *bench, struct delivery *delivery)
{
	const char *store = semel_sandbox_path(bench->sandbox, "sqlite:", "semel.db");
	const char *broker = semel_sandbox_path(bench->sandbox, "local:", "semel-broker.db");
	*delivery = (struct delivery){ .bench = bench };
	if (!store || !broker)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
	semel_status status = semel_bare_open(bench, &delivery->bare);
	if (status == SEMEL_OK)
		status = semel_bench_open_application(bench, "semel.db", &delivery->store);
	if (status == SEMEL_OK)
		status = open_relay(delivery, store, broker);
	return status == SEMEL_OK ? open_consumer(delivery, store, broker) : status;
}

static void close_delivery(struct delivery *delivery)
{
	semel_consumer_close(delivery->consumer);
	semel_relay_close(delivery->relay);
	sqlite3_close(delivery->store);
	semel_bare_close(&delivery->bare);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static semel_status fill(void *user)
{
	struct delivery *delivery = user;
	struct semel_bench *bench = delivery->bench;
	semel_status status =
		semel_bench_fill(bench, delivery->store, &delivery->next, bench->events);
	return status == SEMEL_OK ? semel_bench_fill(bench, delivery->bare.store,
						     &delivery->bare_next, bench->events)
				  : status;
}

static semel_status relay(void *user)
{
	struct delivery *delivery = user;
	return semel_relay_drain(delivery->relay, TIMEOUT_MS, delivery->bench->error);
}

static semel_status bare_relay(void *user)
{
	struct delivery *delivery = user;
	return semel_bare_relay(&delivery->bare);
}

static semel_status fill_and_relay(void *user)
{
	semel_status status = fill(user);
	if (status == SEMEL_OK)
		status = relay(user);
	return status == SEMEL_OK ? bare_relay(user) : status;
}

static semel_status consume(void *user)
{
	struct delivery *delivery = user;
	return semel_consumer_drain(delivery->consumer, TIMEOUT_MS, 0, delivery->bench->error);
}

static semel_status bare_consume(void *user)
{
	struct delivery *delivery = user;
	return semel_bare_consume(&delivery->bare);
}

static semel_status compare_sides(struct delivery *delivery, const char *name,
				  const struct semel_bench_comparison *comparison)
{
	struct semel_bench *bench = delivery->bench;
	struct semel_bench_row *row = &bench->rates[bench->rate_count];
	*row = (struct semel_bench_row){ .name = name, .kind = SEMEL_BENCH_AT_LEAST, .goal = 0.8 };
	semel_status status = semel_bench_compare(bench, comparison, row);
	bench->rate_count += status == SEMEL_OK;
	return status;
}

semel_status semel_bench_deliver(struct semel_bench *bench)
{
	struct delivery delivery;
	semel_status status = open_delivery(bench, &delivery);
	const struct semel_bench_comparison relaying = { .user = &delivery,
							 .events = bench->events,
							 .prepare = fill,
							 .left = relay,
							 .right = bare_relay };
	if (status == SEMEL_OK)
		status = compare_sides(&delivery, "relay to the local broker", &relaying);
	/* What the rounds above have left in the logs is not to be timed. */
	if (status == SEMEL_OK)
		status = consume(&delivery);
	if (status == SEMEL_OK)
		status = bare_consume(&delivery);
	const struct semel_bench_comparison consuming = { .user = &delivery,
							  .events = bench->events,
							  .prepare = fill_and_relay,
							  .left = consume,
							  .right = bare_consume };
	if (status == SEMEL_OK)
		status = compare_sides(&delivery, "consume effectively once, SQL handler",
				       &consuming);
	close_delivery(&delivery);
	return status;
}
