/* SPDX-License-Identifier: Apache-2.0 */
/* A relay that stops after a number of events, to time a sample at the head of a long backlog. It
 * is the pipeline of the relay, without its sleep. */
#ifndef SEMEL_CLI_PLAYS_BENCH_STEPPED_RELAY_H
#define SEMEL_CLI_PLAYS_BENCH_STEPPED_RELAY_H

#include "cli/plays/bench/bench.h"
#include "relay/pipeline.h"

struct semel_stepped_relay {
	struct semel_bench *bench;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_lanes lanes;
	struct semel_source *source;
	struct semel_pipeline *pipeline;
};

/* Close it also after a failure. */
semel_status semel_stepped_relay_open(struct semel_bench *bench, const char *store,
				      const char *broker, struct semel_stepped_relay *stepped);
/* Runs until at least count more events are marked. */
semel_status semel_stepped_relay_run(struct semel_stepped_relay *stepped, uint64_t count);
void semel_stepped_relay_close(struct semel_stepped_relay *stepped);

#endif
