/* SPDX-License-Identifier: Apache-2.0 */
/* `semel publish --batch`: many events, one transaction.
 *
 * - Lines are read, checked and written chunk by chunk, so memory is bounded by a chunk and the
 *   list of ids, not by the input.
 * - The transaction begins when the first chunk is complete: a short batch is read to its end
 *   before anything is locked.
 * - An invalid line rolls everything back. The message names the line, also when only the store
 *   could find it (an id that exists): the chunk is then tried again line by line.
 */
#include "base/error.h"
#include "cli/arguments/input.h"
#include "cli/commands/publish.h"
#include "cli/process/progress.h"

#include <inttypes.h>
#include <semel/outbox.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK_LINES 500
#define CHUNK_BYTES ((size_t)1024 * 1024)
#define LINE_BYTES  (2 * SEMEL_PAYLOAD_MAX)

struct batch {
	struct semel_publishing *publishing;
	struct semel_lines lines;
	struct semel_arena *arena;
	struct semel_buffer ids; /* of everything written, a line each */
	uint64_t total;
	bool begun;
	size_t count;
	semel_event_input inputs[CHUNK_LINES];
	uint64_t numbers[CHUNK_LINES]; /* of the lines */
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
	input->headers = semel_publishing_headers(batch->publishing->inherited, input->headers,
						  batch->arena);
	if (!input->headers)
		return semel_error_set(error_of(batch), SEMEL_INTERNAL, "no memory");
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
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the ids");
	return store->driver->release(store, error);
}

static semel_status begin_once(struct batch *batch)
{
	if (batch->begun)
		return SEMEL_OK;
	semel_status status = semel_publishing_begin(batch->publishing);
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

static semel_status run_batch(struct batch *batch)
{
	struct semel_publishing *publishing = batch->publishing;
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
	status = semel_publishing_commit(publishing);
	if (status != SEMEL_OK)
		return status;
	if (batch->ids.length > 0)
		fwrite(batch->ids.data, 1, batch->ids.length, stdout);
	return SEMEL_OK;
}

semel_status semel_publishing_batch(struct semel_publishing *publishing)
{
	semel_status status = SEMEL_INTERNAL;
	struct batch *batch = calloc(1, sizeof *batch);
	if (!batch)
		return semel_error_set(&publishing->invocation->error, status, "no memory");
	batch->publishing = publishing;
	batch->lines.fd = STDIN_FILENO;
	batch->lines.max = LINE_BYTES;
	batch->arena = semel_arena_new(CHUNK_BYTES / 16);
	if (batch->arena)
		status = run_batch(batch);
	semel_arena_free(batch->arena);
	semel_buffer_free(&batch->lines.line);
	semel_buffer_free(&batch->ids);
	free(batch);
	return status;
}
