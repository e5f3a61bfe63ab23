/* SPDX-License-Identifier: Apache-2.0 */
/* `semel trace`: the history of one event. */
#include "proof/trace.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/commands/stores.h"
#include "cli/process/output.h"

#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)16 * 1024)

static int widest_scope(const struct semel_trace *trace)
{
	size_t widest = 1;
	for (size_t i = 0; i < trace->count; i++) {
		size_t length = trace->entries[i].scope ? strlen(trace->entries[i].scope) : 0;
		widest = length > widest ? length : widest;
	}
	return (int)widest;
}

static void trace_text(const struct semel_trace *trace, struct semel_buffer *buffer)
{
	int width = widest_scope(trace);
	for (size_t i = 0; i < trace->count; i++) {
		const struct semel_trace_entry *entry = &trace->entries[i];
		char time[SEMEL_TIME_SIZE];
		semel_time_format(entry->time_ms, time);
		semel_buffer_printf(buffer, "%s  %-*s  %-13s  ", time, width,
				    entry->scope ? entry->scope : "-", entry->what);
		size_t from = buffer->length;
		semel_trace_entry_describe(entry, buffer);
		for (size_t at = from; at < buffer->length; at++)
			if ((unsigned char)buffer->data[at] < 0x20)
				buffer->data[at] = ' ';
		while (buffer->length > 0 && buffer->data[buffer->length - 1] == ' ')
			buffer->data[--buffer->length] = '\0';
		semel_buffer_string(buffer, "\n");
	}
	for (size_t i = 0; i < trace->state_count; i++) {
		const struct semel_trace_state *state = &trace->states[i];
		semel_buffer_printf(buffer, "%s%s%s%s", i ? "" : "\n",
				    state->scope ? state->scope : "", state->scope ? ": " : "",
				    state->text);
		if (state->command)
			semel_buffer_printf(buffer, " (run: %s)", state->command);
		semel_buffer_string(buffer, "\n");
	}
}

static semel_status print_trace(const struct semel_invocation *invocation,
				const struct semel_trace *trace, const char *event_id,
				semel_error *error)
{
	struct semel_buffer buffer = { 0 };
	if (invocation->json)
		semel_trace_to_json(trace, event_id, &buffer);
	else
		trace_text(trace, &buffer);
	return semel_output_print(&buffer, error);
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	const char *event_id = semel_args_positionals(invocation->args, NULL)[0];
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");

	struct semel_stores stores = { 0 };
	semel_status status = semel_stores_open(invocation, &stores);
	if (status != SEMEL_OK)
		goto close_stores;
	struct semel_trace_plan plan = { .stores = stores.all,
					 .store_count = stores.count,
					 .broker_url = invocation->broker,
					 .env = semel_env_system() };
	struct semel_trace trace = { 0 };
	status = semel_trace_run(&plan, event_id, arena, &trace, error);
	if (status != SEMEL_OK)
		goto close_stores;
	status = print_trace(invocation, &trace, event_id, error);

close_stores:
	semel_stores_close(&stores);
	semel_arena_free(arena);
	return status;
}

static const struct semel_option options[] = {
	SEMEL_OPTION_CONSUMER_STORE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel trace 01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41", "show the history of this event" },
	{ 0 },
};

const struct semel_command semel_command_trace = {
	.name = "trace",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary = "show the history of one event",
	.positionals = "EVENT_ID",
	.positionals_min = 1,
	.positionals_max = 1,
	.options = options,
	.details = "Prints when the event was committed, attempted and confirmed, which consumer "
		   "claimed it, whether it was retried, dead-lettered or replayed, and where it "
		   "waits, in chronological order; then the state of the event at each "
		   "subscription that receives the event: done, waiting and for what, a dead "
		   "letter, parked behind which event, stuck. Exit 65 if the event is not found.",
	.examples = examples,
};
