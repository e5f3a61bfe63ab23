/* SPDX-License-Identifier: Apache-2.0 */
/* The relay and the consumer of the library against those of the baseline. Both sides get the same
 * events; connections are open before the clock starts. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "consume/consumer.h"

#include <semel/relay.h>

#define TIMEOUT_MS 600000

struct sides {
	struct semel_bench *bench;
	struct semel_bench_database semel; /* the application's connection to Semel's store */
	struct semel_bench_database bare;
	semel_relay *relay;
	semel_consumer *consumer;
};

static semel_status open_relay(struct sides *sides, const char *store, const char *broker)
{
	const semel_relay_options options = { .store = store, .broker = broker };
	return semel_relay_open(&options, &sides->relay, sides->bench->error);
}

static semel_status open_consumer(struct sides *sides, const char *store, const char *broker)
{
	static const char *const topics[] = { SEMEL_BASELINE_TOPIC, NULL };
	static const char *const effect[] = { SEMEL_BASELINE_EFFECT };
	const semel_consumer_options options = {
		.store = store, .broker = broker, .scope = "bench", .topics = topics
	};
	semel_error *error = sides->bench->error;
	semel_status status = semel_consumer_open(&options, &sides->consumer, error);
	if (status != SEMEL_OK)
		return status;
	return semel_consumer_use_sql(sides->consumer, effect, 1, error);
}

static semel_status open_databases(struct sides *sides)
{
	struct semel_bench *bench = sides->bench;
	semel_status status = semel_bench_open_database(bench, "bare.db", &sides->bare);
	if (status != SEMEL_OK)
		return status;
	const char *log = semel_sandbox_path(bench->sandbox, "", "bare-log.db");
	if (!log)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "out of memory");
	status = bench->baseline->open_log(sides->bare.connection, log, bench->error);
	if (status != SEMEL_OK)
		return status;
	return semel_bench_open_database(bench, "semel.db", &sides->semel);
}

static semel_status open_sides(struct semel_bench *bench, struct sides *sides)
{
	const char *store = semel_sandbox_path(bench->sandbox, "sqlite:", "semel.db");
	const char *broker = semel_sandbox_path(bench->sandbox, "local:", "semel-broker.db");
	*sides = (struct sides){ .bench = bench };
	if (!store || !broker)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "out of memory");
	semel_status status = open_databases(sides);
	if (status != SEMEL_OK)
		return status;
	status = open_relay(sides, store, broker);
	if (status != SEMEL_OK)
		return status;
	return open_consumer(sides, store, broker);
}

static void close_sides(struct sides *sides)
{
	semel_consumer_close(sides->consumer);
	semel_relay_close(sides->relay);
	semel_bench_close_database(sides->bench, &sides->semel);
	semel_bench_close_database(sides->bench, &sides->bare);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static semel_status fill(void *user)
{
	struct sides *sides = user;
	struct semel_bench *bench = sides->bench;
	semel_status status = semel_bench_fill(bench, &sides->semel, bench->events);
	if (status != SEMEL_OK)
		return status;
	return semel_bench_fill(bench, &sides->bare, bench->events);
}

static semel_status relay(void *user)
{
	struct sides *sides = user;
	return semel_relay_drain(sides->relay, TIMEOUT_MS, sides->bench->error);
}

static semel_status bare_relay(void *user)
{
	struct sides *sides = user;
	struct semel_bench *bench = sides->bench;
	return bench->baseline->relay(sides->bare.connection, bench->error);
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
	struct sides *sides = user;
	return semel_consumer_drain(sides->consumer, TIMEOUT_MS, 0, sides->bench->error);
}

static semel_status bare_consume(void *user)
{
	struct sides *sides = user;
	struct semel_bench *bench = sides->bench;
	return bench->baseline->consume(sides->bare.connection, bench->error);
}

static semel_status compare_sides(struct sides *sides, const char *name,
				  const struct semel_bench_comparison *comparison)
{
	struct semel_bench *bench = sides->bench;
	struct semel_bench_row *row = &bench->rates[bench->rate_count];
	*row = (struct semel_bench_row){ .name = name, .kind = SEMEL_BENCH_AT_LEAST, .goal = 0.8 };
	semel_status status = semel_bench_compare(bench, comparison, row);
	bench->rate_count += status == SEMEL_OK;
	return status;
}

static semel_status measure(struct sides *sides)
{
	const struct semel_bench_comparison relaying = { .user = sides,
							 .events = sides->bench->events,
							 .prepare = fill,
							 .left = relay,
							 .right = bare_relay };
	const struct semel_bench_comparison consuming = { .user = sides,
							  .events = sides->bench->events,
							  .prepare = fill_and_relay,
							  .left = consume,
							  .right = bare_consume };
	semel_status status = compare_sides(sides, "relay to the local broker", &relaying);
	if (status != SEMEL_OK)
		return status;
	/* What these rounds have left in the logs is consumed first, so that it is not timed. */
	status = consume(sides);
	if (status != SEMEL_OK)
		return status;
	status = bare_consume(sides);
	if (status != SEMEL_OK)
		return status;
	return compare_sides(sides, "consume effectively once, SQL handler", &consuming);
}

semel_status semel_bench_deliver(struct semel_bench *bench)
{
	struct sides sides;
	semel_status status = open_sides(bench, &sides);
	if (status != SEMEL_OK)
		goto close;
	status = measure(&sides);
close:
	close_sides(&sides);
	return status;
}
