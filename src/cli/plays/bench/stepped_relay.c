/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plays/bench/stepped_relay.h"

#define WINDOW       1000 /* the relay's default, as the rest here */
#define WINDOW_BYTES ((uint64_t)16 * 1024 * 1024)
#define TIMEOUT_MS   30000
#define LEASE_MS     5000

semel_status semel_steady_open(struct semel_bench *bench, const char *store, const char *broker,
			       struct semel_steady *steady)
{
	const struct semel_env *env = semel_env_system();
	const struct semel_pipeline_options options = {
		.window = WINDOW,
		.window_bytes = WINDOW_BYTES,
		.confirm_timeout_ms = TIMEOUT_MS,
		.refusal = { .attempts_max = 1 },
	};
	*steady = (struct semel_steady){ .bench = bench };
	semel_status status = semel_store_open(store, &steady->store, bench->error);
	if (status == SEMEL_OK)
		status = semel_broker_open(broker, env, WINDOW, &steady->broker, bench->error);
	if (status == SEMEL_OK)
		status = semel_lanes_open(&steady->lanes, steady->store, env, LEASE_MS,
					  bench->error);
	if (status == SEMEL_OK)
		status = semel_source_open_poll(env, &steady->lanes, &steady->source, bench->error);
	if (status == SEMEL_OK)
		status = semel_pipeline_open(&options, env, &steady->lanes, steady->source,
					     &steady->pipeline, bench->error);
	if (status == SEMEL_OK)
		semel_pipeline_connect(steady->pipeline, steady->store, steady->broker);
	return status;
}

semel_status semel_steady_relay(struct semel_steady *steady, uint64_t count)
{
	semel_error *error = steady->bench->error;
	uint64_t until = semel_pipeline_published(steady->pipeline) + count;
	semel_status status = SEMEL_OK;
	bool busy = true;
	while (status == SEMEL_OK && semel_pipeline_published(steady->pipeline) < until) {
		status = semel_lanes_maintain(&steady->lanes, steady->store, error);
		if (status == SEMEL_OK)
			status = semel_pipeline_step(steady->pipeline, SEMEL_STEP_READ, &busy,
						     error);
	}
	return status;
}

void semel_steady_close(struct semel_steady *steady)
{
	semel_source_close(steady->source);
	semel_pipeline_close(steady->pipeline);
	semel_lanes_close(&steady->lanes, steady->store);
	semel_broker_close(steady->broker);
	semel_store_close(steady->store);
}
