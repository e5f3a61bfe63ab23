/* SPDX-License-Identifier: Apache-2.0 */
/* The relay and the consumer of the library against those of the baseline. Both sides get the same
 * events; connections are open before the clock starts. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "consume/consumer.h"

#include <semel/relay.h>

#define TIMEOUT_MS 600000

struct delivery {
	struct semel_bench *bench;
	struct semel_bench_database semel; /* the application's connection to Semel's store */
	struct semel_bench_database bare;
	semel_relay *relay;
	semel_consumer *consumer;
};

static semel_status open_relay(struct delivery *delivery, const char *store, const char *broker)
{
	const semel_relay_options options = { .store = store, .broker = broker };
	return semel_relay_open(&options, &delivery->relay, delivery->bench->error);
}

static semel_status open_consumer(struct delivery *delivery, const char *store, const char *broker)
{
	static const char *const topics[] = { SEMEL_BASELINE_TOPIC, NULL };
	static const char *const effect[] = { SEMEL_BASELINE_EFFECT };
	const semel_consumer_options options = {
		.store = store, .broker = broker, .scope = "bench", .topics = topics
	};
	semel_error *error = delivery->bench->error;
	semel_status status = semel_consumer_open(&options, &delivery->consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_consumer_use_sql(delivery->consumer, effect, 1, error);
}

static semel_status open_databases(struct delivery *delivery)
{
	struct semel_bench *bench = delivery->bench;
	semel_status status = semel_bench_open_database(bench, "bare.db", &delivery->bare);
	if (status != SEMEL_OK)
		return status;
	const char *log = semel_sandbox_path(bench->sandbox, "", "bare-log.db");
	if (!log)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
	status = bench->baseline->open_log(delivery->bare.connection, log, bench->error);
	if (status != SEMEL_OK)
		return status;
	return semel_bench_open_database(bench, "semel.db", &delivery->semel);
}

static semel_status open_delivery(struct semel_bench *bench, struct delivery *delivery)
{
	const char *store = semel_sandbox_path(bench->sandbox, "sqlite:", "semel.db");
	const char *broker = semel_sandbox_path(bench->sandbox, "local:", "semel-broker.db");
	*delivery = (struct delivery){ .bench = bench };
	if (!store || !broker)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
	semel_status status = open_databases(delivery);
	if (status != SEMEL_OK)
		return status;
	status = open_relay(delivery, store, broker);
	if (status != SEMEL_OK)
		return status;
	return open_consumer(delivery, store, broker);
}

static void close_delivery(struct delivery *delivery)
{
	semel_consumer_close(delivery->consumer);
	semel_relay_close(delivery->relay);
	semel_bench_close_database(delivery->bench, &delivery->semel);
	semel_bench_close_database(delivery->bench, &delivery->bare);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static semel_status fill(void *user)
{
	struct delivery *delivery = user;
	struct semel_bench *bench = delivery->bench;
	semel_status status = semel_bench_fill(bench, &delivery->semel, bench->events);
	if (status != SEMEL_OK)
		return status;
	return semel_bench_fill(bench, &delivery->bare, bench->events);
}

static semel_status relay(void *user)
{
	struct delivery *delivery = user;
	return semel_relay_drain(delivery->relay, TIMEOUT_MS, delivery->bench->error);
}

static semel_status bare_relay(void *user)
{
	struct delivery *delivery = user;
	struct semel_bench *bench = delivery->bench;
	return bench->baseline->relay(delivery->bare.connection, bench->error);
}

static semel_status fill_and_relay(void *user)
{
	semel_status status = fill(user);
	if (status != SEMEL_OK)
		return status;
	status = relay(user);
	if (status != SEMEL_OK)
		return status;
	return bare_relay(user);
}

static semel_status consume(void *user)
{
	struct delivery *delivery = user;
	return semel_consumer_drain(delivery->consumer, TIMEOUT_MS, 0, delivery->bench->error);
}

static semel_status bare_consume(void *user)
{
	struct delivery *delivery = user;
	struct semel_bench *bench = delivery->bench;
	return bench->baseline->consume(delivery->bare.connection, bench->error);
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

static semel_status measure(struct delivery *delivery)
{
	const struct semel_bench_comparison relaying = { .user = delivery,
							 .events = delivery->bench->events,
							 .prepare = fill,
							 .left = relay,
							 .right = bare_relay };
	const struct semel_bench_comparison consuming = { .user = delivery,
							  .events = delivery->bench->events,
							  .prepare = fill_and_relay,
							  .left = consume,
							  .right = bare_consume };
	semel_status status = compare_sides(delivery, "relay to the local broker", &relaying);
	if (status != SEMEL_OK)
		return status;
	/* What these rounds have left in the logs is consumed first, so that it is not timed. */
	status = consume(delivery);
	if (status != SEMEL_OK)
		return status;
	status = bare_consume(delivery);
	if (status != SEMEL_OK)
		return status;
	return compare_sides(delivery, "consume effectively once, SQL handler", &consuming);
}

semel_status semel_bench_deliver(struct semel_bench *bench)
{
	struct delivery delivery;
	semel_status status = open_delivery(bench, &delivery);
	if (status != SEMEL_OK)
		goto close;
	status = measure(&delivery);
close:
	close_delivery(&delivery);
	return status;
}
