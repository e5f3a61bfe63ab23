/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/plays/bench/stepped_relay.h"

#define WINDOW       1000 /* the relay's default, as the rest here */
#define WINDOW_BYTES ((uint64_t)16 * 1024 * 1024)
#define TIMEOUT_MS   30000
#define LEASE_MS     5000

semel_status semel_stepped_relay_open(struct semel_bench *bench, const char *store,
				      const char *broker, struct semel_stepped_relay *stepped)
{
	const struct semel_env *env = semel_env_system();
	const struct semel_pipeline_options options = {
		.window = WINDOW,
		.window_bytes = WINDOW_BYTES,
		.confirm_timeout_ms = TIMEOUT_MS,
		.refusal = { .attempts_max = 1 },
	};
	*stepped = (struct semel_stepped_relay){ .bench = bench };
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

semel_status semel_stepped_relay_run(struct semel_stepped_relay *stepped, uint64_t count)
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

void semel_stepped_relay_close(struct semel_stepped_relay *stepped)
{
	semel_source_close(stepped->source);
	semel_pipeline_close(stepped->pipeline);
	semel_lanes_close(&stepped->lanes, stepped->store);
	semel_broker_close(stepped->broker);
	semel_store_close(stepped->store);
}
