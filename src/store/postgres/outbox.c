/* SPDX-License-Identifier: Apache-2.0 */
/* The outbox, written by producers and read by the relay and by replays.
 *
 * - A batch is a range of the primary key (lane, seq), read from the caller's cursor on; those of
 *   several lanes come in one statement, lane after lane.
 * - complete_seq says up to where no commit can appear late; see watermark.c.
 * - The rows of a lane are read without its exceptions, which are read separately when they are
 *   due.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <string.h>

#define BUSY_ROWS 16 /* with a batch this large the relay is busy, and need not be woken */

/* ---- producing ------------------------------------------------------------------------------- */

#define EVENT_INSERT                                                                               \
	"INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"           \
	" routing_key, content_type, headers, created_at, payload, payload_bytes) "

/* An id that exists writes nothing, and does not abort the caller's transaction. */
static const struct semel_pg_statement insert_event = {
	"write the event to the outbox",
	EVENT_INSERT "VALUES ($1, $2, $3, $4, $5, $6, $7, $8::json, $9::timestamptz, $10,"
		     " $11::bytea) ON CONFLICT (id) DO NOTHING"
};
static const struct semel_pg_statement set_savepoint = { "write events to the outbox",
							 "SAVEPOINT semel_publish" };
static const struct semel_pg_statement release_savepoint = { "write events to the outbox",
							     "RELEASE SAVEPOINT semel_publish" };
static const struct semel_pg_statement back_to_savepoint = {
	"write events to the outbox", "ROLLBACK TO SAVEPOINT semel_publish"
};

static void add_event(struct semel_pg_params *params, const struct semel_event *event)
{
	semel_pg_add_text(params, event->id);
	semel_pg_add_text(params, event->aggregate_type);
	semel_pg_add_text(params, event->aggregate_id);
	semel_pg_add_text(params, event->type);
	semel_pg_add_text(params, event->topic);
	semel_pg_add_text(params, event->routing_key);
	semel_pg_add_text(params, event->content_type);
	semel_pg_add_text(params, event->headers);
	semel_pg_add_time(params, event->time_ms);
	semel_pg_add_bytes(params, event->payload);
}

static semel_status insert_one(semel_tx tx, const struct semel_event *event, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	uint64_t written = 0;
	add_event(&params, event);
	semel_status status = semel_pg_change(tx, &insert_event, &params, &written, error);
	if (status != SEMEL_OK)
		return status;
	if (written == 0)
		return semel_error_set(error, SEMEL_DUPLICATE_ID,
				       "an event with the id %s is in the outbox already (publish "
				       "another event under an id of its own)",
				       semel_text_shown(event->id));
	return SEMEL_OK;
}

/* Inserts all or none: the savepoint is inside the caller's transaction, and is released
 * afterwards. */
semel_status semel_pg_outbox_insert(semel_tx tx, const struct semel_event *events, size_t count,
				    semel_error *error)
{
	semel_status status = semel_pg_require_transaction(tx, insert_event.what, error);
	if (status != SEMEL_OK)
		return status;
	if (count == 1)
		return insert_one(tx, events, error);
	status = semel_pg_run(tx, &set_savepoint, NULL, NULL, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		status = insert_one(tx, &events[i], error);
		if (status != SEMEL_OK)
			goto roll_back;
	}
	return semel_pg_run(tx, &release_savepoint, NULL, NULL, error);

roll_back:
	(void)semel_pg_run(tx, &back_to_savepoint, NULL, NULL, NULL);
	(void)semel_pg_run(tx, &release_savepoint, NULL, NULL, NULL);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The size of a batch in bytes is not known before it is read; so large payloads are read
 * separately, once it is known which are needed. Their size is reported without reading them. */
#define SMALL_BYTES      "16384"
#define IF_SMALL(column) "CASE WHEN octet_length(" column ") <= " SMALL_BYTES " THEN " column " END"
#define IF_LARGE(column)                                                                           \
	"CASE WHEN octet_length(" column ") > " SMALL_BYTES " THEN octet_length(" column ") END"
#define SMALL_PAYLOAD IF_SMALL("o.payload") ", " IF_SMALL("o.payload_bytes")
#define LARGE_SIZE    "coalesce(" IF_LARGE("o.payload") ", " IF_LARGE("o.payload_bytes") ", 0)"
#define CREATED_AT_MS SEMEL_PG_MS("o.created_at")

#define EVENT_COLUMNS                                                                              \
	"o.seq, o.attempts, o.id, o.event_type, o.aggregate_type, o.aggregate_id,"                 \
	" coalesce(o.topic, o.aggregate_type || '.events'), coalesce(o.routing_key, "              \
	"o.event_type), o.content_type, o.headers, " CREATED_AT_MS ", " SMALL_PAYLOAD              \
	", " LARGE_SIZE

enum {
	SEQ,
	ATTEMPTS,
	ID,
	TYPE,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	TOPIC,
	ROUTING_KEY,
	CONTENT_TYPE,
	HEADERS,
	CREATED_AT,
	PAYLOAD,
	PAYLOAD_BYTES,
	LARGE, /* the size of a payload that is read separately; 0: it is in the row */
	HELD,
	EXCEPTION,
	REPLAY,
	PLACE,
	XMIN,            /* of rows that are not exceptions */
	PREVIOUS = XMIN, /* of exceptions */
	DRAWN,
	NUMBER /* of the lane, in the order of the parameters */
};

/* The place of a polled row, as places are compared. */
#define RUN_COMMIT_ORDER(known) "CASE WHEN " known " THEN " SEMEL_PG_COMMIT_ORDER("o") " ELSE 0 END"
#define EARLIER_EXCEPTION(known)                                                                   \
	"EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.aggregate_type = o.aggregate_type" \
	" AND e.aggregate_id = o.aggregate_id AND CASE WHEN " known " AND e.place < 0"             \
	" THEN (e.place, e.seq) < (" SEMEL_PG_COMMIT_ORDER("o") ", o.seq)"                         \
								" ELSE e.seq < o.seq END)"
#define EXCEPTION_BEFORE                                                                           \
	"EXISTS (SELECT 1 FROM semel_outbox_exception e WHERE e.aggregate_type = x.aggregate_type" \
	" AND e.aggregate_id = x.aggregate_id AND (e.place, e.seq) < (x.place, x.seq))"
#define XMIN_AND_DRAWN                                                                             \
	"(SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint),"                          \
	" (SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM semel_outbox_seq)"

/* Searches only the last rows of the lane, and only for the few rows that are exceptions. */
#define PREVIOUS_NEARBY                                                                            \
	"(SELECT n.id FROM (SELECT p.id, p.seq, p.aggregate_type, p.aggregate_id"                  \
	" FROM semel_outbox p WHERE p.lane = o.lane AND p.seq < o.seq"                             \
	" ORDER BY p.lane DESC, p.seq DESC LIMIT 1000) AS n WHERE n.aggregate_type = "             \
	"o.aggregate_type"                                                                         \
	" AND n.aggregate_id = o.aggregate_id ORDER BY n.seq DESC LIMIT 1)"

static const struct semel_pg_statement fetch_run = {
	"read the outbox",
	"SELECT " EVENT_COLUMNS ", " EARLIER_EXCEPTION("$4") ", false, 0, " RUN_COMMIT_ORDER(
		"$4") ", " XMIN_AND_DRAWN ", l.number"
		      " FROM unnest($1::smallint[], $2::bigint[], $3::integer[])"
		      " WITH ORDINALITY AS l (lane, after, most, number),"
		      " LATERAL (SELECT w.*, w.xmin FROM semel_outbox w WHERE w.lane = l.lane AND "
		      "w.seq > l.after"
		      " AND w.status = 'NEW' AND NOT EXISTS (SELECT 1 FROM semel_outbox_exception x"
		      " WHERE x.lane = w.lane AND x.seq = w.seq) ORDER BY w.lane, w.seq LIMIT "
		      "l.most) AS o"
};
static const struct semel_pg_statement probe_lanes = {
	"probe the outbox",
	"SELECT EXISTS (SELECT 1 FROM semel_outbox o WHERE o.lane = l.lane AND o.seq > l.after"
	" AND o.status = 'NEW'),"
	" EXISTS (SELECT 1 FROM semel_outbox_exception x WHERE x.lane = l.lane"
	" AND x.state IN ('retry', 'due') AND (x.state = 'due' OR x.due_at <= "
	"$3::timestamptz)), " XMIN_AND_DRAWN
	" FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS l (lane, after, number)"
	" ORDER BY l.number"
};
static const struct semel_pg_statement fetch_due = {
	"read the due events of the outbox",
	"SELECT " EVENT_COLUMNS ", false, true, x.replay, x.place, " PREVIOUS_NEARBY
	" FROM semel_outbox_exception x JOIN semel_outbox o ON o.lane = x.lane AND o.seq = x.seq"
	" WHERE x.lane = $1 AND x.state IN ('retry', 'due')"
	" AND (x.state = 'due' OR x.due_at <= $2::timestamptz)"
	" AND o.status = 'NEW' AND NOT " EXCEPTION_BEFORE " ORDER BY x.lane, x.seq LIMIT $3"
};
/* The server stores microseconds, and everything else uses milliseconds, rounded: a row belongs to
 * the rounded time. */
#define IN_TIME                                                                                    \
	" AND ($5::timestamptz IS NULL OR o.created_at >= $5 - interval '500 microseconds')"       \
	" AND ($6::timestamptz IS NULL OR o.created_at < $6 - interval '500 microseconds')"

static const struct semel_pg_statement select_rows = {
	"select events of the outbox",
	"SELECT " EVENT_COLUMNS ", false, false, 0, 0 FROM semel_outbox o WHERE o.seq > $1"
	" AND o.status = 'PUBLISHED' AND ($2::text IS NULL OR o.event_type = $2)"
	" AND ($3::text IS NULL OR o.aggregate_type = $3)"
	" AND ($4::text IS NULL OR o.aggregate_id = $4)" IN_TIME " ORDER BY o.seq LIMIT $7"
};
static const struct semel_pg_statement select_one = {
	"select an event of the outbox",
	"SELECT " EVENT_COLUMNS ", false, false, 0, 0 FROM semel_outbox o WHERE o.seq > $1"
	" AND o.id = $2 AND o.status = 'PUBLISHED'"
};
static const struct semel_pg_statement select_aggregate = {
	"select events of an aggregate",
	"SELECT " EVENT_COLUMNS ", false, false, 0, 0 FROM semel_outbox o WHERE o.seq > $1"
	" AND o.lane = semel_lane($3, $4)"
	" AND o.status = 'PUBLISHED' AND ($2::text IS NULL OR o.event_type = $2)"
	" AND o.aggregate_type = $3 AND o.aggregate_id = $4" IN_TIME
	" ORDER BY o.lane, o.seq LIMIT $7"
};

static const struct semel_pg_statement fetch_seqs = {
	"read events of the outbox",
	"SELECT " EVENT_COLUMNS ", " EARLIER_EXCEPTION("true") ", false, 0, " RUN_COMMIT_ORDER(
		"true") " FROM semel_outbox o WHERE o.lane = $1 AND o.seq = ANY ($2::bigint[])"
			" AND o.status = 'NEW'"
};
static const struct semel_pg_statement fetch_large = {
	"read large events of the outbox",
	"SELECT id, payload, payload_bytes FROM semel_outbox WHERE id = ANY ($1::text[])"
};

static semel_status read_row(const PGresult *result, int at, struct semel_arena *arena,
			     struct semel_outbox_row *row, semel_error *error)
{
	struct semel_event *event = &row->event;
	*row = (struct semel_outbox_row){ .seq = semel_pg_int(result, at, SEQ) };
	event->id = semel_pg_text(result, at, ID, arena);
	event->type = semel_pg_text(result, at, TYPE, arena);
	event->aggregate_type = semel_pg_text(result, at, AGGREGATE_TYPE, arena);
	event->aggregate_id = semel_pg_text(result, at, AGGREGATE_ID, arena);
	event->topic = semel_pg_text(result, at, TOPIC, arena);
	event->routing_key = semel_pg_text(result, at, ROUTING_KEY, arena);
	event->content_type = semel_pg_text(result, at, CONTENT_TYPE, arena);
	event->headers = semel_pg_text(result, at, HEADERS, arena);
	if (semel_pg_int(result, at, LARGE) == 0)
		event->payload = semel_pg_bytes(result, at, PAYLOAD, arena);
	else
		event->payload.length = (size_t)semel_pg_int(result, at, LARGE);
	event->time_ms = semel_pg_int(result, at, CREATED_AT);
	row->attempts = (uint32_t)semel_pg_int(result, at, ATTEMPTS);
	row->held = semel_pg_bool(result, at, HELD);
	row->exception = semel_pg_bool(result, at, EXCEPTION);
	row->replay = (uint32_t)semel_pg_int(result, at, REPLAY);
	row->commit_order = semel_pg_int(result, at, PLACE);
	if (row->exception)
		row->previous = semel_pg_text(result, at, PREVIOUS, arena);
	if (event->id.data == NULL || event->type.data == NULL || event->topic.data == NULL ||
	    event->headers.data == NULL ||
	    (event->payload.data == NULL && event->payload.length == 0))
		return semel_error_set(error, SEMEL_INTERNAL,
				       "out of memory for a batch of events");
	return SEMEL_OK;
}

static bool is_large(const struct semel_outbox_row *row)
{
	return row->event.payload.data == NULL;
}

/* The rows come in any order, and are few. */
static void assign_payloads(const PGresult *result, struct semel_outbox_batch *batch)
{
	for (int at = 0; at < semel_pg_rows(result); at++)
		for (uint32_t i = 0; i < batch->count; i++) {
			struct semel_event *event = &batch->rows[i].event;
			if (is_large(&batch->rows[i]) &&
			    semel_text_equals_string(event->id, semel_pg_value(result, at, 0)))
				event->payload = semel_pg_bytes(result, at, 1, batch->arena);
		}
}

/* A row that was pruned between the two statements is left out. */
static void drop_pruned(struct semel_outbox_batch *batch)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < batch->count; i++)
		if (!is_large(&batch->rows[i]))
			batch->rows[kept++] = batch->rows[i];
	batch->count = kept;
}

static semel_status fetch_payloads(semel_store *store, struct semel_outbox_batch *batch,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer ids = { 0 };
	PGresult *result = NULL;
	for (uint32_t i = 0; i < batch->count; i++)
		if (is_large(&batch->rows[i]))
			semel_pg_array_text(&ids, batch->rows[i].event.id);
	if (ids.length == 0)
		return SEMEL_OK;
	semel_pg_add_array(&params, &ids);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &fetch_large, &params, &result, error);
	semel_buffer_free(&ids);
	assign_payloads(result, batch);
	semel_pg_clear(result);
	if (status != SEMEL_OK)
		return status;
	drop_pruned(batch);
	return SEMEL_OK;
}

/* Rows until the batch is full by count or by bytes; at least one. */
static semel_status fill_from(semel_store *store, const PGresult *result, int first, int rows,
			      struct semel_outbox_batch *batch, semel_error *error)
{
	uint64_t bytes = 0;
	batch->count = 0;
	batch->cut = false;
	for (int at = first; at < first + rows; at++) {
		struct semel_outbox_row *row = &batch->rows[batch->count];
		semel_status status = read_row(result, at, batch->arena, row, error);
		if (status != SEMEL_OK)
			return status;
		bytes += row->event.payload.length;
		batch->cut = batch->count > 0 && bytes > batch->bytes_max;
		if (batch->cut)
			break;
		batch->count++;
	}
	return fetch_payloads(store, batch, error);
}

/* The rows come in any order, and are few. */
static semel_status assign_rows(const PGresult *result, struct semel_outbox_batch *batch,
				semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (int at = 0; at < semel_pg_rows(result); at++)
		for (uint32_t i = 0; i < batch->count && status == SEMEL_OK; i++)
			if (batch->rows[i].event.id.data == NULL &&
			    batch->rows[i].seq == semel_pg_int(result, at, SEQ))
				status = read_row(result, at, batch->arena, &batch->rows[i], error);
	return status;
}

semel_status semel_pg_outbox_fetch_seqs(struct semel_pg_store *store, int32_t lane,
					struct semel_buffer *seqs, struct semel_outbox_batch *batch,
					semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	uint32_t kept = 0;
	semel_pg_add_int(&params, lane);
	semel_pg_add_array(&params, seqs);
	semel_status status =
		semel_pg_run(semel_pg_tx(&store->base), &fetch_seqs, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	status = assign_rows(result, batch, error);
	semel_pg_clear(result);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < batch->count; i++)
		if (batch->rows[i].event.id.data != NULL)
			batch->rows[kept++] = batch->rows[i];
	batch->count = kept;
	return fetch_payloads(&store->base, batch, error);
}

static semel_status fill(semel_store *store, const PGresult *result,
			 struct semel_outbox_batch *batch, semel_error *error)
{
	return fill_from(store, result, 0, semel_pg_rows(result), batch, error);
}

semel_status semel_pg_outbox_probe(semel_store *base, struct semel_lane_probe *probes, size_t count,
				   int64_t now_ms, semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	struct semel_pg_params params = { 0 };
	struct semel_buffer lanes = { 0 }, after_seqs = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lanes, probes[i].lane);
		semel_pg_array_int(&after_seqs, probes[i].after_seq);
	}
	semel_pg_add_array(&params, &lanes);
	semel_pg_add_array(&params, &after_seqs);
	semel_pg_add_time(&params, now_ms);
	semel_status status =
		semel_pg_run(semel_pg_tx(base), &probe_lanes, &params, &result, error);
	semel_buffer_free(&lanes);
	semel_buffer_free(&after_seqs);
	if (status != SEMEL_OK)
		return status;
	for (int i = 0; i < semel_pg_rows(result); i++) {
		semel_pg_watermark_observe(store, semel_pg_int(result, i, 3));
		int64_t complete =
			semel_pg_watermark_advance(store, (uint64_t)semel_pg_int(result, i, 2));
		bool run_asked = probes[i].after_seq != INT64_MAX;
		probes[i].run = !run_asked || semel_pg_bool(result, i, 0);
		probes[i].due = semel_pg_bool(result, i, 1);
		probes[i].complete_seq = complete;
		if (run_asked && complete < probes[i].after_seq)
			probes[i].complete_seq = probes[i].after_seq;
	}
	semel_pg_clear(result);
	semel_pg_wakeup_collect(store);
	return semel_pg_watermark_maintain(store, error);
}

/* Once for each lane that was taken over: the predecessors of its rows were published by another
 * relay. */
static semel_status load_previous(struct semel_pg_store *store, const struct semel_lane_read *reads,
				  size_t count, semel_error *error)
{
	int32_t lanes[SEMEL_PG_LANES];
	int64_t after_seqs[SEMEL_PG_LANES];
	size_t fresh = 0;
	for (size_t i = 0; i < count && fresh < SEMEL_PG_LANES; i++) {
		if ((store->previous_loaded & UINT32_C(1) << reads[i].lease->lane) != 0)
			continue;
		lanes[fresh] = reads[i].lease->lane;
		after_seqs[fresh++] = reads[i].after_seq;
	}
	semel_status status = semel_pg_previous_load(&store->previous, semel_pg_tx(&store->base),
						     lanes, after_seqs, fresh, error);
	for (size_t i = 0; status == SEMEL_OK && i < fresh; i++)
		store->previous_loaded |= UINT32_C(1) << lanes[i];
	return status;
}

static semel_status fetch_runs(semel_store *store, const struct semel_lane_read *reads,
			       size_t count, PGresult **result_out, semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer lanes = { 0 }, after_seqs = { 0 }, row_limits = { 0 };
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lanes, reads[i].lease->lane);
		semel_pg_array_int(&after_seqs, reads[i].after_seq);
		semel_pg_array_int(&row_limits, reads[i].batch->capacity);
		reads[i].batch->count = 0;
		reads[i].batch->cut = reads[i].batch->by_commit = false;
		reads[i].batch->complete_seq = reads[i].after_seq;
	}
	semel_pg_add_array(&params, &lanes);
	semel_pg_add_array(&params, &after_seqs);
	semel_pg_add_array(&params, &row_limits);
	semel_pg_add_bool(&params, semel_pg_of(store)->commit_times);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &fetch_run, &params, result_out, error);
	semel_buffer_free(&lanes);
	semel_buffer_free(&after_seqs);
	semel_buffer_free(&row_limits);
	return status;
}

/* The rows of one lane are adjacent and ascending: the statement reads one lane after the other. */
static semel_status take_run(struct semel_pg_store *store, const PGresult *result, int first,
			     const struct semel_lane_read *read, semel_error *error)
{
	struct semel_outbox_batch *batch = read->batch;
	int rows = 1, all = semel_pg_rows(result);
	int64_t number = semel_pg_int(result, first, NUMBER);
	while (first + rows < all && semel_pg_int(result, first + rows, NUMBER) == number)
		rows++;
	if (store->watermark.complete_seq > read->after_seq)
		batch->complete_seq = store->watermark.complete_seq;
	semel_status status = fill_from(&store->base, result, first, rows, batch, error);
	if (status != SEMEL_OK)
		return status;
	if (store->commit_times) {
		bool full = batch->cut || rows >= (int)batch->capacity;
		status = semel_pg_order_by_commit(store, read->lease->lane, full, batch, error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < batch->count; i++)
		semel_pg_previous_fill(&store->previous, &batch->rows[i], batch->arena);
	return SEMEL_OK;
}

semel_status semel_pg_outbox_fetch_lanes(semel_store *base, const struct semel_lane_read *reads,
					 size_t count, semel_error *error)
{
	struct semel_pg_store *store = semel_pg_of(base);
	PGresult *result = NULL;
	semel_status status = load_previous(store, reads, count, error);
	if (status != SEMEL_OK)
		return status;
	status = fetch_runs(base, reads, count, &result, error);
	if (status != SEMEL_OK)
		return status;
	int rows = semel_pg_rows(result);
	if (rows > 0) {
		semel_pg_watermark_observe(store, semel_pg_int(result, 0, DRAWN));
		(void)semel_pg_watermark_advance(store, (uint64_t)semel_pg_int(result, 0, XMIN));
	}
	for (int at = 0, last = 0; at < rows && status == SEMEL_OK; at++) {
		int number = (int)semel_pg_int(result, at, NUMBER);
		if (number != last)
			status = take_run(store, result, at, &reads[number - 1], error);
		last = number;
	}
	if (rows >= BUSY_ROWS)
		semel_pg_wakeup_disarm(store);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_fetch(semel_store *store, const struct semel_lease *lease,
				   int64_t after_seq, struct semel_outbox_batch *batch,
				   semel_error *error)
{
	struct semel_lane_read read = { lease, after_seq, batch };
	return semel_pg_outbox_fetch_lanes(store, &read, 1, error);
}

semel_status semel_pg_outbox_fetch_due(semel_store *store, const struct semel_lease *lease,
				       int64_t now_ms, struct semel_outbox_batch *batch,
				       semel_error *error)
{
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, lease->lane);
	semel_pg_add_time(&params, now_ms);
	semel_pg_add_int(&params, batch->capacity);
	batch->count = 0;
	semel_status status = semel_pg_run(semel_pg_tx(store), &fetch_due, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	status = fill(store, result, batch, error);
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_select(semel_store *store, const struct semel_outbox_filter *filter,
				    int64_t after_seq, struct semel_outbox_batch *batch,
				    semel_error *error)
{
	bool aggregate = filter->aggregate_type != NULL && filter->aggregate_id != NULL;
	const struct semel_pg_statement *statement = filter->id  ? &select_one
						     : aggregate ? &select_aggregate
								 : &select_rows;
	struct semel_pg_params params = { 0 };
	PGresult *result = NULL;
	semel_pg_add_int(&params, after_seq);
	if (filter->id) {
		semel_pg_add_string(&params, filter->id);
	} else {
		semel_pg_add_string(&params, filter->type);
		semel_pg_add_string(&params, filter->aggregate_type);
		semel_pg_add_string(&params, filter->aggregate_id);
		semel_pg_add_time(&params, filter->since_ms);
		semel_pg_add_time(&params, filter->until_ms);
		semel_pg_add_int(&params, batch->capacity);
	}
	batch->count = 0;
	semel_status status = semel_pg_run(semel_pg_tx(store), statement, &params, &result, error);
	if (status != SEMEL_OK)
		return status;
	status = fill(store, result, batch, error);
	semel_pg_clear(result);
	return status;
}

/* ---- rows of the change stream --------------------------------------------------------------- */

/* What the table has of the stream's rows. If the stream repeats itself, some were published or set
 * aside before. Some wait behind an exception of their aggregate that was committed before them; an
 * exception that was polled always was, since polling ends before the stream begins. */
static const struct semel_pg_statement check_rows = {
	"find events of the change stream",
	"SELECT CASE WHEN o.seq IS NULL THEN r.seq <= l.low_seq"
	" ELSE o.status <> 'NEW' OR x.seq IS NOT NULL END,"
	" EXISTS (SELECT 1 FROM semel_outbox_exception e"
	" WHERE e.aggregate_type = r.aggregate_type"
	" AND e.aggregate_id = r.aggregate_id AND (e.place, e.seq) < (r.place, r.seq))"
	" FROM unnest($1::smallint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[])"
	" WITH ORDINALITY AS r (lane, seq, aggregate_type, aggregate_id, place, number)"
	" JOIN semel_lease l ON l.lane = r.lane"
	" LEFT JOIN semel_outbox o ON o.lane = r.lane AND o.seq = r.seq"
	" LEFT JOIN semel_outbox_exception x ON x.lane = r.lane AND x.seq = r.seq"
	" ORDER BY r.number"
};
static const struct semel_pg_statement list_aggregates = {
	"list aggregates with exceptions",
	"SELECT DISTINCT aggregate_type, aggregate_id FROM semel_outbox_exception"
};

/* A missing row at or below the low mark was published and then pruned. A missing row above it is
 * not visible yet: a commit is in the WAL before other sessions can see it. */
semel_status semel_pg_outbox_check(semel_store *store, struct semel_outbox_row *rows, size_t count,
				   semel_error *error)
{
	struct semel_pg_params params = { 0 };
	struct semel_buffer lanes = { 0 }, seqs = { 0 }, types = { 0 }, ids = { 0 }, places = { 0 };
	PGresult *result = NULL;
	for (size_t i = 0; i < count; i++) {
		semel_pg_array_int(&lanes, rows[i].lane);
		semel_pg_array_int(&seqs, rows[i].seq);
		semel_pg_array_text(&types, rows[i].event.aggregate_type);
		semel_pg_array_text(&ids, rows[i].event.aggregate_id);
		semel_pg_array_int(&places, rows[i].commit_order);
	}
	semel_pg_add_array(&params, &lanes);
	semel_pg_add_array(&params, &seqs);
	semel_pg_add_array(&params, &types);
	semel_pg_add_array(&params, &ids);
	semel_pg_add_array(&params, &places);
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &check_rows, &params, &result, error);
	semel_buffer_free(&lanes);
	semel_buffer_free(&seqs);
	semel_buffer_free(&types);
	semel_buffer_free(&ids);
	semel_buffer_free(&places);
	for (int i = 0; i < semel_pg_rows(result); i++) {
		rows[i].marked = semel_pg_bool(result, i, 0);
		rows[i].held = semel_pg_bool(result, i, 1);
	}
	semel_pg_clear(result);
	return status;
}

semel_status semel_pg_outbox_exceptions_each(semel_store *store, semel_aggregate_visitor seen,
					     void *user, semel_error *error)
{
	PGresult *result = NULL;
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &list_aggregates, NULL, &result, error);
	for (int i = 0; i < semel_pg_rows(result); i++)
		seen(semel_text_of(semel_pg_value(result, i, 0)),
		     semel_text_of(semel_pg_value(result, i, 1)), user);
	semel_pg_clear(result);
	return status;
}
