/* SPDX-License-Identifier: Apache-2.0 */
/* The change stream itself: PostgreSQL's replication protocol over libpq.
 *
 * - A transaction arrives only after its commit, as a whole, and its rows are returned as they
 *   arrive: however large it is, none of it has to be kept here.
 * - A position is returned to the caller when a transaction has ended, and from a keepalive when
 *   none is open; never from within one.
 * - libpq takes at most 16 kB from the socket at a time, and the server wakes up for each of these
 *   reads. While data arrives, a short pause before each read lets more of it accumulate: twice the
 *   speed for a seventh of the work. A row that arrives alone is returned at once.
 * - The server sends a transaction's begin, its rows, its end and a keepalive one by one. Only rows
 *   are worth waking for: unless a transaction has begun and its first row is missing, fewer bytes
 *   than any row has do not wake the relay; they are read with the next row, or when the caller
 *   reads.
 */
#include "store/postgres/changes.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define READ_DELAY_US  100
#define BURST_MIN      12  /* messages in one read that promise more */
#define PAUSES_MAX     8   /* in one call */
#define ROW_BYTES      200 /* the end of a transaction, two keepalives and a begin have fewer */
#define HEADER_SIZE    25  /* 'w', start, end, time */
#define KEEPALIVE_SIZE 18  /* 'k', end, time, reply */
#define BINARY_FROM    140000
#define EPOCH_MS       INT64_C(946684800000)

static const char set_up[] = "SET datestyle = ISO; SET timezone = 'UTC'";

static uint64_t number_at(const char *bytes)
{
	uint64_t number = 0;
	for (int i = 0; i < 8; i++)
		number = number << 8 | (unsigned char)bytes[i];
	return number;
}

static void put_number(char *bytes, uint64_t number)
{
	for (int i = 7; i >= 0; i--, number >>= 8)
		bytes[i] = (char)(number & 0xff);
}

/* ---- start and stop -------------------------------------------------------------------------- */

/* A poll of the socket returns when this many bytes have arrived, or it is closed. Where a system
 * does not support that it returns more often. */
static void wake_by(struct semel_pg_changes *changes, int bytes)
{
	if (changes->stream.wake_bytes == bytes)
		return;
	changes->stream.wake_bytes = bytes;
	(void)setsockopt(semel_libpq.socket(changes->stream.connection), SOL_SOCKET, SO_RCVLOWAT,
			 &bytes, sizeof(bytes));
}

void semel_pg_stream_stop(struct semel_changes *base)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	PGconn *connection = changes->stream.connection;
	if (connection == NULL)
		return;
	semel_pg_visible_reset(changes);
	if (changes->stream.wake != NULL)
		semel_wake_unwatch_fd(changes->stream.wake, semel_libpq.socket(connection));
	semel_libpq.finish(connection);
	changes->stream.connection = NULL;
}

int64_t semel_pg_stream_keepalive_timeout_ms(struct semel_changes *base)
{
	return semel_pg_changes_of(base)->stream.keepalive_timeout_ms;
}

static semel_status read_server_settings(struct semel_pg_changes *changes, semel_error *error)
{
	static const struct semel_pg_statement server_settings = {
		"read wal_sender_timeout and the outbox's number",
		"SELECT setting, 'semel_outbox'::regclass::oid"
		" FROM pg_settings WHERE name = 'wal_sender_timeout'"
	};
	PGresult *result = NULL;
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	changes->stream.decoder = (struct semel_pgoutput){ 0 };
	status = semel_pg_run(tx, &server_settings, NULL, &result, error);
	if (semel_pg_rows(result) > 0) {
		changes->stream.keepalive_timeout_ms = semel_pg_int(result, 0, 0);
		changes->stream.decoder.table = (uint32_t)semel_pg_int(result, 0, 1);
	}
	semel_pg_clear(result);
	return semel_pg_changes_failed(changes, status);
}

static semel_status refused(struct semel_pg_changes *changes, PGresult *result, semel_error *error)
{
	const char *state = semel_libpq.resultErrorField(result, PG_DIAG_SQLSTATE);
	if (state == NULL || strcmp(state, "55006") != 0)
		return semel_pg_error(changes->stream.connection, result, "start the change stream",
				      error);
	semel_pg_changes_terminate_reader(changes);
	return semel_error_set(error, SEMEL_BUSY, "slot %s has another reader", changes->slot);
}

/* Requests text if the server does not support binary values. */
static semel_status begin_stream(struct semel_pg_changes *changes, uint64_t position,
				 semel_error *error)
{
	char command[256], from[24];
	PGconn *connection = changes->stream.connection;
	bool binary = semel_libpq.serverVersion(connection) >= BINARY_FROM;
	semel_status status =
		semel_pg_execute_plain(connection, set_up, "set up the change stream", error);
	if (status != SEMEL_OK)
		return status;
	semel_pg_lsn_format(position, from);
	snprintf(command, sizeof(command),
		 "START_REPLICATION SLOT \"%s\" LOGICAL %s (proto_version '1', publication_names "
		 "'" SEMEL_PG_PUBLICATION "'%s)",
		 changes->slot, from, binary ? ", binary 'true'" : "");
	PGresult *result = semel_libpq.exec(connection, command);
	if (semel_libpq.resultStatus(result) != PGRES_COPY_BOTH)
		status = refused(changes, result, error);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_stream_start(struct semel_changes *base, uint64_t position,
				   struct semel_wake *wake, bool ends, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	semel_pg_stream_stop(base);
	semel_status status = read_server_settings(changes, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pg_connect_stream(changes->url, &changes->stream.connection, error);
	if (status != SEMEL_OK)
		return status;
	changes->stream.wake = NULL;
	status = begin_stream(changes, position, error);
	if (status != SEMEL_OK) {
		semel_pg_stream_stop(base);
		return status;
	}
	changes->stream.wake = wake;
	changes->stream.confirmed = 0;
	changes->stream.delay_read = changes->stream.in_transaction = false;
	changes->stream.previous_loaded = changes->stream.awaits_row = false;
	semel_pg_previous_clear(changes->stream.previous);
	changes->stream.row_bytes = ends ? 1 : ROW_BYTES;
	changes->stream.wake_bytes = 0;
	wake_by(changes, changes->stream.row_bytes);
	if (wake != NULL)
		semel_wake_watch_fd(wake, semel_libpq.socket(changes->stream.connection));
	return SEMEL_OK;
}

/* ---- confirming ------------------------------------------------------------------------------ */

static semel_status ended(struct semel_pg_changes *changes, semel_error *error)
{
	PGconn *connection = changes->stream.connection;
	char message[256] = "";
	if (connection == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "the change stream is not started");
	wake_by(changes, 1);
	PGresult *result = semel_libpq.getResult(connection);
	if (result != NULL)
		snprintf(message, sizeof(message), "%s", semel_libpq.resultErrorMessage(result));
	if (message[0] == '\0')
		snprintf(message, sizeof(message), "%s", semel_libpq.errorMessage(connection));
	semel_pg_clear(result);
	message[strcspn(message, "\n")] = '\0';
	return semel_error_set(error, SEMEL_OUTAGE, "the change stream has ended: %s", message);
}

semel_status semel_pg_stream_confirm(struct semel_changes *base, uint64_t position, bool ask,
				     semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	PGconn *connection = changes->stream.connection;
	char report[34] = { 'r' };
	int64_t now_us = (semel_now_ms(base->env) - EPOCH_MS) * 1000;
	if (connection == NULL)
		return ended(changes, error);
	if (position > changes->stream.confirmed)
		changes->stream.confirmed = position;
	put_number(report + 1, changes->stream.confirmed);
	put_number(report + 9, changes->stream.confirmed);
	put_number(report + 17, changes->stream.confirmed);
	put_number(report + 25, (uint64_t)now_us);
	report[33] = ask ? 1 : 0;
	if (semel_libpq.putCopyData(connection, report, sizeof(report)) != 1 ||
	    semel_libpq.flush(connection) < 0)
		return ended(changes, error);
	return SEMEL_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static semel_status take_row(struct semel_pg_changes *changes, struct semel_outbox_batch *batch,
			     const struct semel_pgoutput_message *message)
{
	struct semel_outbox_row *row = &batch->rows[batch->count++];
	*row = message->row;
	row->transaction = changes->stream.transaction;
	row->xid = changes->stream.xid;
	row->commit_order = changes->stream.commit_order;
	changes->stream.awaits_row = false;
	return SEMEL_OK;
}

bool semel_pg_stream_is_in_transaction(const struct semel_changes *base)
{
	const struct semel_pg_changes *changes = (const struct semel_pg_changes *)base;
	return changes->stream.in_transaction && !changes->visible.waiting;
}

static semel_status take_data(struct semel_pg_changes *changes, const char *bytes, size_t length,
			      struct semel_outbox_batch *batch, uint64_t *position_out,
			      semel_error *error)
{
	struct semel_pgoutput_message message;
	char *copy = semel_arena_alloc(batch->arena, length + 1);
	if (copy == NULL)
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	memcpy(copy, bytes, length);
	semel_status status = semel_pgoutput_read(&changes->stream.decoder, copy, length,
						  batch->arena, &message, error);
	if (status != SEMEL_OK)
		return status;
	switch (message.kind) {
	case SEMEL_PGOUTPUT_ROW:
		return take_row(changes, batch, &message);
	case SEMEL_PGOUTPUT_BEGIN:
		changes->stream.in_transaction = changes->stream.awaits_row = true;
		changes->stream.transaction++;
		changes->stream.xid = message.xid;
		changes->stream.commit_order = (int64_t)message.position;
		return semel_pg_visible_begin(changes, message.xid, error);
	case SEMEL_PGOUTPUT_COMMIT:
		changes->stream.in_transaction = changes->stream.awaits_row = false;
		*position_out = message.position;
		break;
	case SEMEL_PGOUTPUT_TABLE:
		return semel_pg_changes_check_publication(changes, error);
	case SEMEL_PGOUTPUT_OTHER:
		break;
	}
	return SEMEL_OK;
}

static semel_status take_keepalive(struct semel_pg_changes *changes, const char *bytes,
				   uint64_t *position_out, semel_error *error)
{
	if (!changes->stream.in_transaction)
		*position_out = number_at(bytes + 1);
	if (bytes[KEEPALIVE_SIZE - 1] == 0)
		return SEMEL_OK;
	return semel_pg_stream_confirm(&changes->base, changes->stream.confirmed, false, error);
}

static semel_status take_message(struct semel_pg_changes *changes, const char *bytes, size_t length,
				 struct semel_outbox_batch *batch, uint64_t *position_out,
				 semel_error *error)
{
	if (length > HEADER_SIZE && bytes[0] == 'w')
		return take_data(changes, bytes + HEADER_SIZE, length - HEADER_SIZE, batch,
				 position_out, error);
	if (length == KEEPALIVE_SIZE && bytes[0] == 'k')
		return take_keepalive(changes, bytes, position_out, error);
	return semel_error_set(error, SEMEL_INTERNAL,
			       "cannot decode a message in the change stream");
}

static bool is_full(const struct semel_outbox_batch *batch, size_t used)
{
	return batch->count >= batch->capacity ||
	       semel_arena_used(batch->arena) - used >= batch->bytes_max;
}

/* Takes what libpq has in its buffer. */
static semel_status take_buffered(struct semel_pg_changes *changes,
				  struct semel_outbox_batch *batch, size_t used,
				  uint64_t *position_out, uint32_t *taken_out, semel_error *error)
{
	semel_status status = SEMEL_OK;
	*taken_out = 0;
	while (status == SEMEL_OK && !is_full(batch, used) && !changes->visible.waiting) {
		char *bytes = NULL;
		int length = semel_libpq.getCopyData(changes->stream.connection, &bytes, 1);
		if (length < 0)
			return ended(changes, error);
		if (length == 0)
			break;
		++*taken_out;
		status = take_message(changes, bytes, (size_t)length, batch, position_out, error);
		semel_libpq.freemem(bytes);
	}
	return status;
}

/* Called when nothing more has arrived. A few rows are returned at once; while many arrive, or have
 * just arrived, a pause lets more of them accumulate. */
static bool is_worth_a_pause(const struct semel_pg_changes *changes, uint32_t rows, uint32_t pauses)
{
	if (rows == 0)
		return changes->stream.delay_read && pauses == 0;
	return rows >= BURST_MIN && pauses < PAUSES_MAX;
}

/* The predecessor of the first row was published by another relay, or before the stream ended. */
static semel_status load_previous(struct semel_pg_changes *changes, int64_t first_seq,
				  semel_error *error)
{
	int32_t lanes[SEMEL_PG_LANES];
	int64_t after_seqs[SEMEL_PG_LANES];
	semel_tx tx = { 0 };
	semel_status status = semel_pg_changes_statement_tx(changes, &tx, error);
	if (status != SEMEL_OK)
		return status;
	for (int32_t i = 0; i < SEMEL_PG_LANES; i++) {
		lanes[i] = i;
		after_seqs[i] = first_seq - 1;
	}
	status = semel_pg_previous_load(&changes->stream.previous, tx, lanes, after_seqs,
					SEMEL_PG_LANES, error);
	changes->stream.previous_loaded = status == SEMEL_OK;
	return semel_pg_changes_failed(changes, status);
}

static semel_status name_predecessors(struct semel_pg_changes *changes,
				      struct semel_outbox_batch *batch, semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (batch->count > 0 && !changes->stream.previous_loaded)
		status = load_previous(changes, batch->rows[0].seq, error);
	for (uint32_t i = 0; status == SEMEL_OK && i < batch->count; i++)
		semel_pg_previous_fill(&changes->stream.previous, &batch->rows[i], batch->arena);
	return status;
}

semel_status semel_pg_stream_read(struct semel_changes *base, struct semel_outbox_batch *batch,
				  uint64_t *position_out, semel_error *error)
{
	struct semel_pg_changes *changes = semel_pg_changes_of(base);
	size_t used = semel_arena_used(batch->arena);
	uint32_t taken = 0, pauses = 0;
	batch->count = 0;
	*position_out = 0;
	if (changes->stream.connection == NULL)
		return ended(changes, error);
	/* A read with fewer messages than this has read everything. With TLS, one message is
	 * enough. */
	uint32_t dry = semel_libpq.sslInUse(changes->stream.connection) ? 1 : BURST_MIN;
	bool holds = false;
	semel_status status = semel_pg_visible_read(changes, &holds, error);
	if (status != SEMEL_OK || holds)
		return status;
	status = take_buffered(changes, batch, used, position_out, &taken, error);
	uint32_t came = taken;
	bool paused = false;
	while (status == SEMEL_OK && !is_full(batch, used) && !changes->visible.waiting) {
		if (semel_libpq.consumeInput(changes->stream.connection) == 0)
			return ended(changes, error);
		status = take_buffered(changes, batch, used, position_out, &taken, error);
		came += taken;
		if (taken >= dry)
			continue;
		if ((paused && taken == 0) || !is_worth_a_pause(changes, batch->count, pauses))
			break;
		semel_sleep_us(READ_DELAY_US);
		paused = true;
		pauses++;
	}
	changes->stream.delay_read = came >= BURST_MIN;
	batch->cut = is_full(batch, used);
	wake_by(changes, changes->stream.awaits_row ? 1 : changes->stream.row_bytes);
	if (status != SEMEL_OK)
		return status;
	return name_predecessors(changes, batch, error);
}
