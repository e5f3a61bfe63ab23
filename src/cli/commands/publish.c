/* SPDX-License-Identifier: Apache-2.0 */
/* `semel publish`: the business change and its event in one transaction.
 *
 * - The --sql statements come first, then the outbox row, then one commit: all of it or nothing.
 * - Nothing is printed before the commit, so that an id on stdout is an event that exists.
 * - Input is read and refused before the transaction begins: the lock is never held over a pipe.
 *
 * With --batch, many events:
 * - Lines are read, checked and written chunk by chunk, so memory is bounded by a chunk and the
 *   list of ids, not by the input.
 * - The transaction begins when the first chunk is complete: a short batch is read to its end
 *   before anything is locked.
 * - An invalid line rolls everything back. The message names the line, also when only the store
 *   could find it (an id that exists): the chunk is then tried again line by line.
 */
#include "base/arena.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"
#include "cli/arguments/command.h"
#include "cli/arguments/input.h"
#include "cli/process/progress.h"
#include "event/event.h"
#include "fault/failpoint.h"
#include "store/store.h"

#include <inttypes.h>
#include <jansson.h>
#include <semel/outbox.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_BLOCK ((size_t)16 * 1024)
#define CHUNK_LINES 500
#define CHUNK_BYTES ((size_t)1024 * 1024)
#define LINE_BYTES  (2 * SEMEL_PAYLOAD_MAX)

struct publishing {
	struct semel_invocation *invocation;
	semel_store *store;
	struct semel_text inherited; /* headers of every event that does not set them itself */
};

/* ---- one transaction ------------------------------------------------------------------------- */

/* Runs the --sql statements too. On failure nothing is open. */
static semel_status begin(struct publishing *publishing)
{
	semel_store *store = publishing->store;
	semel_error *error = &publishing->invocation->error;
	semel_status status = store->driver->begin(store, error);
	if (status != SEMEL_OK)
		return status;
	size_t count = 0;
	const char *const *statements =
		semel_args_list(publishing->invocation->args, "sql", &count);
	for (size_t i = 0; i < count; i++) {
		status = store->driver->execute(store, statements[i], error);
		if (status == SEMEL_OK)
			continue;
		semel_error_prefix(error, "--sql %zu of %zu", i + 1, count);
		store->driver->rollback(store);
		return status;
	}
	return SEMEL_OK;
}

/* Commits, with a failpoint before and one after. On failure before the commit it rolls back. */
static semel_status commit(struct publishing *publishing)
{
	semel_store *store = publishing->store;
	semel_error *error = &publishing->invocation->error;
	semel_status status = semel_failpoint(SEMEL_FP_PUBLISH_BEFORE_COMMIT, error);
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	status = store->driver->commit(store, error);
	if (status != SEMEL_OK)
		return status;
	return semel_failpoint(SEMEL_FP_PUBLISH_AFTER_COMMIT, error);
}

/* ---- headers --------------------------------------------------------------------------------- */

/* In an --exec handler the environment describes the event being handled; new events inherit its
 * headers. */
static struct semel_text inherited_headers(struct semel_arena *arena)
{
	const char *id = getenv("SEMEL_EVENT_ID");
	struct semel_text headers = semel_text_of(getenv("SEMEL_HEADERS"));
	if (!id || semel_string_is_blank(id))
		return SEMEL_TEXT("{}");
	if (!headers.data || !semel_json_is_valid(headers) || headers.data[0] != '{')
		headers = SEMEL_TEXT("{}");
	struct semel_event handled = { .id = semel_text_of(id), .headers = headers };
	return semel_event_flow_headers(&handled, arena);
}

/* Adds the inherited headers that given lacks. given may be NULL; if it is not a JSON object it is
 * returned unchanged, and the check of the event reports it. NULL: out of memory. */
static const char *merge_headers(struct semel_text inherited, const char *given,
				 struct semel_arena *arena)
{
	if (!given)
		return semel_text_string(inherited);
	if (semel_text_equal(inherited, SEMEL_TEXT("{}")))
		return given;
	json_t *own = json_loads(given, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	json_t *all =
		json_loadb(semel_text_chars(inherited), inherited.length, JSON_ALLOW_NUL, NULL);
	const char *merged = given;
	if (json_is_object(own) && all) {
		char *text =
			json_object_update(all, own) == 0 ? json_dumps(all, JSON_COMPACT) : NULL;
		merged = text ? semel_text_string(semel_arena_text(arena, text, strlen(text)))
			      : NULL;
		free(text);
	}
	json_decref(own);
	json_decref(all);
	return merged;
}

static semel_status read_headers(const struct publishing *publishing, struct semel_arena *arena,
				 const char **headers_out)
{
	semel_error *error = &publishing->invocation->error;
	size_t count = 0;
	const char *const *given = semel_args_list(publishing->invocation->args, "header", &count);
	struct semel_text headers = publishing->inherited;
	for (size_t i = 0; i < count; i++) {
		const char *equals = strchr(given[i], '=');
		struct semel_text name =
			semel_arena_text(arena, given[i], (size_t)(equals - given[i]));
		if (!semel_text_is_utf8(semel_text_of(given[i])) || !semel_text_is_token(name))
			return semel_error_set(
				error, SEMEL_INVALID,
				"--header %zu: the name may contain only letters, digits and "
				"!#$%%&'*+-.^_`|~, and the value must be UTF-8",
				i + 1);
		headers = semel_json_with(headers, semel_text_string(name),
					  semel_text_of(equals + 1), arena);
		if (!headers.data)
			return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	}
	*headers_out = semel_text_string(headers);
	return SEMEL_OK;
}

/* ---- one event ------------------------------------------------------------------------------- */

/* The functions below check the values of options. */
static bool is_aggregate(const char *value)
{
	const char *colon = strchr(value, ':');
	return colon && colon != value && colon[1] != '\0';
}

static bool is_header(const char *value)
{
	const char *equals = strchr(value, '=');
	return equals && equals != value;
}

static bool is_time(const char *value)
{
	int64_t time_ms = 0;
	return semel_time_parse(value, &time_ms);
}

static semel_status read_payload(struct semel_invocation *invocation, struct semel_buffer *buffer,
				 semel_event_input *input)
{
	const char *given = semel_args_text(invocation->args, "payload");
	input->payload = given;
	if (given[0] != '@' && strcmp(given, "-") != 0)
		return SEMEL_OK;
	const char *path = given[0] == '@' ? given + 1 : given;
	semel_status status = semel_input_read(path, SEMEL_PAYLOAD_MAX, buffer, &invocation->error);
	if (status != SEMEL_OK) {
		semel_error_prefix(&invocation->error, "payload");
		return status;
	}
	input->payload = buffer->data;
	input->payload_size = buffer->length;
	return SEMEL_OK;
}

static void read_names(const struct semel_args *args, struct semel_arena *arena,
		       semel_event_input *input)
{
	const char *aggregate = semel_args_text(args, "aggregate");
	size_t colon = strcspn(aggregate, ":");
	input->type = semel_args_text(args, "type");
	input->aggregate_type = semel_text_string(semel_arena_text(arena, aggregate, colon));
	input->aggregate_id = aggregate + colon + 1;
	input->content_type = semel_args_text(args, "content-type");
	input->topic = semel_args_text(args, "topic");
	input->routing_key = semel_args_text(args, "routing-key");
	input->id = semel_args_text(args, "id");
	if (semel_args_has(args, "time") &&
	    !semel_time_parse(semel_args_text(args, "time"), &input->time_ms))
		input->time_ms = 0; /* impossible: is_time has checked it */
}

static semel_status publish_one(struct publishing *publishing, const semel_event_input *input)
{
	semel_store *store = publishing->store;
	char id[SEMEL_ID_SIZE];
	semel_status status = begin(publishing);
	if (status != SEMEL_OK)
		return status;
	status = semel_outbox_publish(store->driver->tx(store), input, id,
				      &publishing->invocation->error);
	if (status != SEMEL_OK) {
		store->driver->rollback(store);
		return status;
	}
	status = commit(publishing);
	if (status != SEMEL_OK)
		return status;
	puts(id);
	return SEMEL_OK;
}

static semel_status run_one(struct publishing *publishing, struct semel_arena *arena)
{
	struct semel_invocation *invocation = publishing->invocation;
	struct semel_buffer payload = { 0 };
	semel_event_input input = { 0 };
	read_names(invocation->args, arena, &input);
	semel_status status = read_headers(publishing, arena, &input.headers);
	if (status != SEMEL_OK)
		goto free_payload;
	status = read_payload(invocation, &payload, &input);
	if (status != SEMEL_OK)
		goto free_payload;
	status = semel_store_open(invocation->store, &publishing->store, &invocation->error);
	if (status != SEMEL_OK)
		goto free_payload;
	status = publish_one(publishing, &input);

free_payload:
	semel_buffer_free(&payload);
	return status;
}

/* ---- a batch --------------------------------------------------------------------------------- */

struct batch {
	struct publishing *publishing;
	struct semel_lines lines;
	struct semel_arena *arena;
	struct semel_buffer ids; /* of all events written, one per line */
	uint64_t total;
	bool begun;
	size_t count;
	semel_event_input inputs[CHUNK_LINES];
	uint64_t numbers[CHUNK_LINES]; /* line numbers of the inputs */
	char chunk_ids[CHUNK_LINES][SEMEL_ID_SIZE];
};

static semel_error *error_of(struct batch *batch)
{
	return &batch->publishing->invocation->error;
}

static semel_status prefix_line(struct batch *batch, uint64_t line, semel_status status)
{
	semel_error_prefix(error_of(batch), "nothing was written: line %" PRIu64, line);
	return status;
}

static semel_status add_line(struct batch *batch, struct semel_text line)
{
	semel_event_input *input = &batch->inputs[batch->count];
	semel_status status =
		semel_event_input_from_json(line, batch->arena, input, error_of(batch));
	if (status != SEMEL_OK)
		return status;
	input->headers = merge_headers(batch->publishing->inherited, input->headers, batch->arena);
	if (!input->headers)
		return semel_error_set(error_of(batch), SEMEL_INTERNAL, "out of memory");
	batch->numbers[batch->count++] = batch->lines.number;
	return SEMEL_OK;
}

/* ended_out: this is the last chunk. */
static semel_status read_chunk(struct batch *batch, bool *ended_out)
{
	semel_arena_reset(batch->arena);
	batch->count = 0;
	while (batch->count < CHUNK_LINES && semel_arena_used(batch->arena) < CHUNK_BYTES) {
		struct semel_text line = { 0 };
		semel_status status = semel_lines_next(&batch->lines, &line, error_of(batch));
		*ended_out = status == SEMEL_OK && !line.data;
		if (*ended_out)
			return SEMEL_OK;
		if (status != SEMEL_OK)
			return prefix_line(batch, batch->lines.number, status);
		if (semel_text_is_blank(line))
			continue;
		status = add_line(batch, line);
		if (status != SEMEL_OK)
			return prefix_line(batch, batch->lines.number, status);
	}
	return SEMEL_OK;
}

/* The chunk as a whole was refused and rolled back; finds the line that is the cause. */
static semel_status find_invalid_line(struct batch *batch, semel_tx tx, semel_status refused)
{
	semel_error *error = error_of(batch);
	semel_error whole = *error;
	for (size_t i = 0; i < batch->count; i++) {
		semel_status status = semel_outbox_publish(tx, &batch->inputs[i], NULL, error);
		if (status == refused)
			return prefix_line(batch, batch->numbers[i], status);
	}
	*error = whole;
	return refused;
}

static semel_status write_chunk(struct batch *batch)
{
	semel_store *store = batch->publishing->store;
	semel_error *error = error_of(batch);
	semel_tx tx = store->driver->tx(store);
	semel_status status = store->driver->savepoint(store, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_outbox_publish_all(tx, batch->inputs, batch->count, batch->chunk_ids, error);
	if (semel_status_class(status) == SEMEL_CLASS_REJECT) {
		semel_error undo = { 0 };
		if (store->driver->rollback_to(store, &undo) == SEMEL_OK)
			status = find_invalid_line(batch, tx, status);
	}
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < batch->count; i++)
		semel_buffer_printf(&batch->ids, "%s\n", batch->chunk_ids[i]);
	batch->total += batch->count;
	semel_progress_show("events written", batch->total);
	if (batch->ids.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the ids");
	return store->driver->release(store, error);
}

static semel_status begin_once(struct batch *batch)
{
	if (batch->begun)
		return SEMEL_OK;
	semel_status status = begin(batch->publishing);
	batch->begun = status == SEMEL_OK;
	return status;
}

static semel_status write_all(struct batch *batch)
{
	bool ended = false;
	while (!ended) {
		semel_status status = read_chunk(batch, &ended);
		if (status != SEMEL_OK)
			return status;
		status = begin_once(batch);
		if (status != SEMEL_OK)
			return status;
		if (batch->count > 0)
			status = write_chunk(batch);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status write_batch(struct batch *batch)
{
	struct publishing *publishing = batch->publishing;
	semel_status status = semel_store_open(publishing->invocation->store, &publishing->store,
					       error_of(batch));
	if (status != SEMEL_OK)
		return status;
	status = write_all(batch);
	semel_progress_end();
	if (status != SEMEL_OK) {
		if (batch->begun)
			publishing->store->driver->rollback(publishing->store);
		return status;
	}
	status = commit(publishing);
	if (status != SEMEL_OK)
		return status;
	if (batch->ids.length > 0)
		fwrite(batch->ids.data, 1, batch->ids.length, stdout);
	return SEMEL_OK;
}

static semel_status run_batch(struct publishing *publishing)
{
	semel_status status = SEMEL_INTERNAL;
	struct batch *batch = calloc(1, sizeof *batch);
	if (!batch)
		return semel_error_set(&publishing->invocation->error, status, "out of memory");
	batch->publishing = publishing;
	batch->lines.fd = STDIN_FILENO;
	batch->lines.max = LINE_BYTES;
	batch->arena = semel_arena_new(CHUNK_BYTES / 16);
	if (batch->arena)
		status = write_batch(batch);
	else
		semel_error_set(&publishing->invocation->error, status, "out of memory");
	semel_arena_free(batch->arena);
	semel_buffer_free(&batch->lines.line);
	semel_buffer_free(&batch->ids);
	free(batch);
	return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Options of a single event; in a batch each line has its own. */
static const char *const of_one_event[] = { "type",  "aggregate",   "payload",
					    "topic", "routing-key", "header",
					    "id",    "time",        "content-type" };

static semel_status check_options(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	bool batch = semel_args_flag(args, "batch");
	for (size_t i = 0; batch && i < sizeof of_one_event / sizeof *of_one_event; i++)
		if (semel_args_has(args, of_one_event[i]))
			return semel_error_set(&invocation->error, SEMEL_USAGE,
					       "--%s and --batch are mutually exclusive (each line "
					       "has its own)",
					       of_one_event[i]);
	if (!batch && !semel_args_has(args, "type"))
		return semel_error_set(&invocation->error, SEMEL_USAGE,
				       "publish needs --type TYPE (or --batch)");
	if (!batch && !semel_args_has(args, "aggregate"))
		return semel_error_set(&invocation->error, SEMEL_USAGE,
				       "publish needs --aggregate TYPE:ID (or --batch)");
	return SEMEL_OK;
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_status status = check_options(invocation);
	if (status != SEMEL_OK)
		return status;
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	if (!arena)
		return semel_error_set(&invocation->error, SEMEL_INTERNAL, "out of memory");
	struct publishing publishing = {
		.invocation = invocation,
		.inherited = inherited_headers(arena),
	};
	if (!publishing.inherited.data)
		status = semel_error_set(&invocation->error, SEMEL_INTERNAL, "out of memory");
	else if (semel_args_flag(invocation->args, "batch"))
		status = run_batch(&publishing);
	else
		status = run_one(&publishing, arena);
	semel_store_close(publishing.store);
	semel_arena_free(arena);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "type",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "TYPE",
	  .help = "event type, such as order.created.v1 (required without --batch)" },
	{ .name = "aggregate",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "TYPE:ID",
	  .is_valid = is_aggregate,
	  .expected = "TYPE:ID, as in order:ord-1",
	  .help = "aggregate of the event; events of one aggregate stay in order (required without "
		  "--batch)" },
	{ .name = "payload",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "JSON|@FILE|-",
	  .default_value = "{}",
	  .help = "payload: the text itself, a file, or - for stdin" },
	{ .name = "sql",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "STATEMENT",
	  .help = "SQL statement to execute before the event is written, in the same transaction" },
	{ .name = "batch",
	  .kind = SEMEL_OPTION_FLAG,
	  .help = "read events as JSON lines from stdin, all in one transaction" },
	{ .name = "topic",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "TOPIC",
	  .group = "More about the event",
	  .help = "topic (default: the aggregate's type and .events)" },
	{ .name = "routing-key",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "KEY",
	  .group = "More about the event",
	  .help = "routing key, for brokers that route by it (default: the type)" },
	{ .name = "header",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "NAME=VALUE",
	  .is_valid = is_header,
	  .expected = "NAME=VALUE",
	  .group = "More about the event",
	  .help = "header: correlationId, causationId, producer, schema, tenantId, idempotencyKey, "
		  "sagaId, traceparent, or any other" },
	{ .name = "id",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "UUID",
	  .group = "More about the event",
	  .help = "event id (default: a new UUIDv7)" },
	{ .name = "time",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "TIME",
	  .is_valid = is_time,
	  .expected = "a time like 2026-11-15T12:00:00Z",
	  .group = "More about the event",
	  .help = "time of the event, RFC 3339 (default: now)" },
	{ .name = "content-type",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "TYPE",
	  .group = "More about the event",
	  .help = "content type of the payload (default: application/json, which is validated)" },
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel publish --type order.created.v1 --aggregate order:ord-1 \\\n"
	  "      --payload '{\"total\": 5}' --sql \"INSERT INTO orders VALUES ('ord-1', 5)\"",
	  "the order and its event, or neither" },
	{ "semel publish --type report.made.v1 --aggregate report:7 --payload @report.json",
	  "a payload from a file" },
	{ "semel publish --batch < events.jsonl", "many events, all or none" },
	{ 0 },
};

const struct semel_command semel_command_publish = {
	.name = "publish",
	.run = run,
	.group = SEMEL_GROUP_DELIVER,
	.summary = "write an event and its business change in one transaction",
	.options = options,
	.details =
		"Prints the event's id after the commit. No broker is called: a relay publishes "
		"the "
		"event.\n\n"
		"A line of --batch is a JSON object with the members type, aggregateType, "
		"aggregateId, payload, and optionally id, topic, routingKey, time, contentType, "
		"headers. If a line is invalid, nothing is written, the exit code is 65, and the "
		"message names the line. The ids are printed in the order of the "
		"lines.\n\n"
		"Inside a program that consume --exec runs, correlationId, causationId, tenantId, "
		"sagaId and the trace are inherited from the event that is being handled, unless "
		"given.",
	.examples = examples,
};
