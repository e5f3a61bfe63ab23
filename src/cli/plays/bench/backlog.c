/* SPDX-License-Identifier: Apache-2.0 */
/* Does a long backlog make an event more expensive? One store has a thousand waiting events, the
 * other one many. Measures the time for the next thousand events in each, in turns; before every
 * turn another thousand are added to both. Then measures the memory of the program while it
 * processes all of them. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "consume/consumer.h"
#include "relay/pipeline.h"

#include <stdio.h>

#define TIMEOUT_MS   600000
#define TIMEOUT_TEXT "10m"
#define FILL_AT_ONCE 100000
#define SAMPLE       SEMEL_BENCH_SMALL
#define MEMORY_GOAL  10 /* MB */
#define GROWTH_GOAL  1.2
#define SCOPE        "bench"
#define WINDOW       1000 /* the relay's default, like those below */
#define WINDOW_BYTES ((uint64_t)16 * 1024 * 1024)
#define CONFIRM_MS   30000
#define LEASE_MS     5000

/* ---- a stepped relay ------------------------------------------------------------------------- */

/* A relay that stops after a number of events, to time a sample at the head of a long backlog. It
 * runs the relay's pipeline without the relay's sleep. */
struct stepped_relay {
	struct semel_bench *bench;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_lanes lanes;
	struct semel_source *source;
	struct semel_pipeline *pipeline;
};

static semel_status open_stepped_relay(struct semel_bench *bench, const char *store,
				       const char *broker, struct stepped_relay *stepped)
{
	const struct semel_env *env = semel_env_system();
	const struct semel_pipeline_options options = {
		.window = WINDOW,
		.window_bytes = WINDOW_BYTES,
		.confirm_timeout_ms = CONFIRM_MS,
		.refusal = { .attempts_max = 1 },
	};
	*stepped = (struct stepped_relay){ .bench = bench };
	semel_status status = semel_store_open(store, &stepped->store, bench->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_broker_open(broker, env, WINDOW, &stepped->broker, bench->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_lanes_open(&stepped->lanes, stepped->store, env, LEASE_MS, bench->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_source_open_poll(env, &stepped->lanes, &stepped->source, bench->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pipeline_open(&options, env, &stepped->lanes, stepped->source,
				     &stepped->pipeline, bench->error);
	if (status != SEMEL_OK)
		return status;
	semel_pipeline_connect(stepped->pipeline, stepped->store, stepped->broker);
	return SEMEL_OK;
}

static semel_status run_stepped_relay(struct stepped_relay *stepped, uint64_t count)
{
	semel_error *error = stepped->bench->error;
	uint64_t until = semel_pipeline_published(stepped->pipeline) + count;
	bool busy = true;
	while (semel_pipeline_published(stepped->pipeline) < until) {
		semel_status status = semel_lanes_maintain(&stepped->lanes, stepped->store, error);
		if (status != SEMEL_OK)
			return status;
		status = semel_pipeline_step(stepped->pipeline, SEMEL_STEP_READ, &busy, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static void close_stepped_relay(struct stepped_relay *stepped)
{
	semel_source_close(stepped->source);
	semel_pipeline_close(stepped->pipeline);
	semel_lanes_close(&stepped->lanes, stepped->store);
	semel_broker_close(stepped->broker);
	semel_store_close(stepped->store);
}

/* ---- a workload ------------------------------------------------------------------------------ */

struct workload {
	const char *store, *broker;           /* URLs */
	const char *store_file, *broker_file; /* relative, for the children */
	struct semel_bench_database database;
	struct stepped_relay relay;
	semel_consumer *consumer;
};

struct backlog {
	struct semel_bench *bench;
	struct workload small, big;
};

static semel_status open_workload(struct semel_bench *bench, const char *const files[2],
				  struct workload *workload)
{
	workload->store_file = semel_arena_printf(bench->sandbox->arena, "sqlite:%s", files[0]);
	workload->broker_file = semel_arena_printf(bench->sandbox->arena, "local:%s", files[1]);
	workload->store = semel_sandbox_path(bench->sandbox, "sqlite:", files[0]);
	workload->broker = semel_sandbox_path(bench->sandbox, "local:", files[1]);
	if (!workload->store_file || !workload->broker_file || !workload->store ||
	    !workload->broker)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "out of memory");
	return semel_bench_open_database(bench, files[0], &workload->database);
}

static void close_workers(struct workload *workload)
{
	close_stepped_relay(&workload->relay);
	semel_consumer_close(workload->consumer);
	workload->relay = (struct stepped_relay){ 0 };
	workload->consumer = NULL;
}

static void close_workload(struct semel_bench *bench, struct workload *workload)
{
	close_workers(workload);
	semel_bench_close_database(bench, &workload->database);
}

static semel_status fill(struct semel_bench *bench, struct workload *workload, uint64_t count)
{
	while (count > 0) {
		uint64_t part = count < FILL_AT_ONCE ? count : FILL_AT_ONCE;
		semel_status status = semel_bench_fill(bench, &workload->database, part);
		if (status != SEMEL_OK)
			return status;
		status = semel_sandbox_check(bench->sandbox, bench->error);
		if (status != SEMEL_OK)
			return status;
		count -= part;
	}
	return SEMEL_OK;
}

/* ---- workers --------------------------------------------------------------------------------- */

static semel_status open_relay(struct semel_bench *bench, struct workload *workload)
{
	return open_stepped_relay(bench, workload->store, workload->broker, &workload->relay);
}

static semel_status open_consumer(struct semel_bench *bench, struct workload *workload)
{
	static const char *const topics[] = { SEMEL_BASELINE_TOPIC, NULL };
	static const char *const effect[] = { SEMEL_BASELINE_EFFECT };
	const semel_consumer_options options = { .store = workload->store,
						 .broker = workload->broker,
						 .scope = SCOPE,
						 .topics = topics };
	semel_status status = semel_consumer_open(&options, &workload->consumer, bench->error);
	if (status != SEMEL_OK)
		return status;
	return semel_consumer_use_sql(workload->consumer, effect, 1, bench->error);
}

static semel_status open_both(struct backlog *backlog,
			      semel_status (*open)(struct semel_bench *bench,
						   struct workload *workload))
{
	semel_status status = open(backlog->bench, &backlog->small);
	if (status != SEMEL_OK)
		return status;
	return open(backlog->bench, &backlog->big);
}

/* ---- time ------------------------------------------------------------------------------------ */

static semel_status fill_both(void *user)
{
	struct backlog *backlog = user;
	semel_status status = fill(backlog->bench, &backlog->small, SAMPLE);
	if (status != SEMEL_OK)
		return status;
	return fill(backlog->bench, &backlog->big, SAMPLE);
}

static semel_status relay_small(void *user)
{
	struct backlog *backlog = user;
	return run_stepped_relay(&backlog->small.relay, SAMPLE);
}

static semel_status relay_big(void *user)
{
	struct backlog *backlog = user;
	return run_stepped_relay(&backlog->big.relay, SAMPLE);
}

static semel_status relay_both(void *user)
{
	semel_status status = fill_both(user);
	if (status != SEMEL_OK)
		return status;
	status = relay_small(user);
	if (status != SEMEL_OK)
		return status;
	return relay_big(user);
}

static semel_status consume_small(void *user)
{
	struct backlog *backlog = user;
	return semel_consumer_drain(backlog->small.consumer, TIMEOUT_MS, SAMPLE,
				    backlog->bench->error);
}

static semel_status consume_big(void *user)
{
	struct backlog *backlog = user;
	return semel_consumer_drain(backlog->big.consumer, TIMEOUT_MS, SAMPLE,
				    backlog->bench->error);
}

static semel_status compare_time(struct backlog *backlog, const char *name,
				 const struct semel_bench_comparison *comparison)
{
	struct semel_bench *bench = backlog->bench;
	struct semel_bench_row *row = &bench->growth[bench->growth_count];
	*row = (struct semel_bench_row){
		.name = name, .unit = "µs", .kind = SEMEL_BENCH_AT_MOST, .goal = GROWTH_GOAL
	};
	semel_status status = semel_bench_compare(bench, comparison, row);
	if (status != SEMEL_OK)
		return status;
	row->left = 1e6 / row->left;
	row->right = 1e6 / row->right;
	bench->growth_count++;
	return SEMEL_OK;
}

static semel_status compare_relay_time(struct backlog *backlog)
{
	const struct semel_bench_comparison comparison = { .user = backlog,
							   .events = SAMPLE,
							   .prepare = fill_both,
							   .left = relay_small,
							   .right = relay_big };
	semel_status status = open_both(backlog, open_relay);
	if (status != SEMEL_OK)
		return status;
	return compare_time(backlog, "relay, time per event", &comparison);
}

static semel_status compare_consumer_time(struct backlog *backlog)
{
	const struct semel_bench_comparison comparison = { .user = backlog,
							   .events = SAMPLE,
							   .prepare = relay_both,
							   .left = consume_small,
							   .right = consume_big };
	semel_status status = open_both(backlog, open_relay);
	if (status != SEMEL_OK)
		return status;
	status = open_both(backlog, open_consumer);
	if (status != SEMEL_OK)
		return status;
	/* What the relay's rounds have left is consumed first: the small backlog must stay
	 * small. */
	status =
		semel_consumer_drain(backlog->small.consumer, TIMEOUT_MS, 0, backlog->bench->error);
	if (status != SEMEL_OK)
		return status;
	return compare_time(backlog, "consume, time per event", &comparison);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static semel_status peak_of(struct semel_bench *bench, const char *const *words, double *peak_out)
{
	struct semel_sandbox_exit end;
	semel_status status = semel_sandbox_run(bench->sandbox, words, NULL, &end, bench->error);
	*peak_out = (double)end.peak_kib * 1024 / 1e6;
	if (status != SEMEL_OK)
		return status;
	if (end.exit_code != 0)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "semel %s exited with %d: %s",
				       words[0], end.exit_code, end.error_output);
	return SEMEL_OK;
}

static semel_status peak_of_relay(struct semel_bench *bench, const struct workload *workload,
				  double *peak_out)
{
	const char *const words[] = {
		"relay",   "--store",   workload->store_file, "--broker", workload->broker_file,
		"--drain", "--timeout", TIMEOUT_TEXT,         NULL
	};
	return peak_of(bench, words, peak_out);
}

static semel_status peak_of_consumer(struct semel_bench *bench, const struct workload *workload,
				     double *peak_out)
{
	const char *const words[] = { "consume",
				      "--store",
				      workload->store_file,
				      "--broker",
				      workload->broker_file,
				      "--scope",
				      SCOPE,
				      "--topic",
				      SEMEL_BASELINE_TOPIC,
				      "--sql",
				      SEMEL_BASELINE_EFFECT,
				      "--drain",
				      "--timeout",
				      TIMEOUT_TEXT,
				      NULL };
	return peak_of(bench, words, peak_out);
}

static semel_status compare_memory(struct backlog *backlog, const char *name,
				   semel_status (*measure)(struct semel_bench *bench,
							   const struct workload *workload,
							   double *peak_out))
{
	struct semel_bench *bench = backlog->bench;
	struct semel_bench_row *row = &bench->growth[bench->growth_count];
	*row = (struct semel_bench_row){
		.name = name, .unit = "MB", .kind = SEMEL_BENCH_BELOW, .goal = MEMORY_GOAL
	};
	close_workers(&backlog->small);
	close_workers(&backlog->big);
	semel_status status = measure(bench, &backlog->small, &row->left);
	if (status != SEMEL_OK)
		return status;
	status = measure(bench, &backlog->big, &row->right);
	if (status != SEMEL_OK)
		return status;
	row->ratio = row->right / row->left;
	bench->growth_count++;
	return SEMEL_OK;
}

static semel_status measure(struct backlog *backlog)
{
	semel_status status = compare_relay_time(backlog);
	if (status != SEMEL_OK)
		return status;
	status = fill_both(backlog);
	if (status != SEMEL_OK)
		return status;
	status = compare_memory(backlog, "relay, resident memory", peak_of_relay);
	if (status != SEMEL_OK)
		return status;
	status = compare_consumer_time(backlog);
	if (status != SEMEL_OK)
		return status;
	status = relay_both(backlog);
	if (status != SEMEL_OK)
		return status;
	return compare_memory(backlog, "consume, resident memory", peak_of_consumer);
}

semel_status semel_bench_backlog(struct semel_bench *bench)
{
	static const char *const small_files[] = { "small.db", "small-broker.db" };
	static const char *const big_files[] = { "big.db", "big-broker.db" };
	struct backlog backlog = { .bench = bench };
	semel_status status = open_workload(bench, small_files, &backlog.small);
	if (status != SEMEL_OK)
		goto close_workloads;
	status = open_workload(bench, big_files, &backlog.big);
	if (status != SEMEL_OK)
		goto close_workloads;
	status = fill(bench, &backlog.big, bench->backlog - SAMPLE);
	if (status != SEMEL_OK)
		goto close_workloads;
	status = measure(&backlog);

close_workloads:
	close_workload(bench, &backlog.small);
	close_workload(bench, &backlog.big);
	return status;
}
