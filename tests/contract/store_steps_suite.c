/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the tests of stores. */
#include "contract/store_steps.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char store_url[STORE_SUITE_URL_SIZE];

semel_store *store_open_one(void)
{
	semel_store *store = NULL;
	semel_error error = { 0 };
	if (semel_store_init(store_url, &error) != SEMEL_OK ||
	    semel_store_open(store_url, &store, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	return store;
}

void store_begin(semel_store *store)
{
	assert_ok(store->driver->begin(store, NULL));
}

void store_commit(semel_store *store)
{
	assert_ok(store->driver->commit(store, NULL));
}

semel_tx store_tx(semel_store *store)
{
	return store->driver->tx(store);
}

void store_execute(semel_store *store, const char *sql)
{
	semel_error error = { 0 };
	store_begin(store);
	if (store->driver->execute(store, sql, &error) != SEMEL_OK)
		fail_msg("%s", error.text);
	store_commit(store);
}

struct semel_event store_event(const char *id, const char *aggregate)
{
	return (struct semel_event){ .id = semel_text_of(id),
				     .type = SEMEL_TEXT("order.created.v1"),
				     .aggregate_type = SEMEL_TEXT("order"),
				     .aggregate_id = semel_text_of(aggregate),
				     .topic = SEMEL_TEXT("order.events"),
				     .routing_key = SEMEL_TEXT("order.created.v1"),
				     .content_type = SEMEL_TEXT("application/json"),
				     .headers = SEMEL_TEXT("{}"),
				     .payload = SEMEL_TEXT("{\"total\":5}"),
				     .time_ms = STORE_NOW };
}

void store_publish(semel_store *store, ...)
{
	va_list pairs;
	va_start(pairs, store);
	store_begin(store);
	const char *id = NULL;
	while ((id = va_arg(pairs, const char *)) != NULL) {
		struct semel_event event = store_event(id, va_arg(pairs, const char *));
		assert_ok(store->driver->outbox->insert(store_tx(store), &event, 1, NULL));
	}
	store_commit(store);
	va_end(pairs);
}

/* ---- relay ----------------------------------------------------------------------------------- */

struct store_leases store_leases(semel_store *store)
{
	struct store_leases leases = { .count = store->driver->outbox->lane_count(store) };
	assert_true(leases.count >= 1 && leases.count <= STORE_LANES_MAX);
	assert_ok(store->driver->outbox->lease_list(store, leases.all, NULL));
	return leases;
}

void store_relay_open(struct store_relay *relay, semel_store *store, const char *owner)
{
	*relay = (struct store_relay){ .store = store, .arena = semel_arena_new(4096) };
	relay->batch = (struct semel_outbox_batch){ .arena = relay->arena,
						    .rows = relay->rows,
						    .capacity = STORE_MAX,
						    .bytes_max = 1 << 20 };
	relay->leases = store_leases(store);
	for (int32_t i = 0; i < relay->leases.count; i++)
		assert_ok(store->driver->outbox->lease_acquire(store, &relay->leases.all[i], owner,
							       STORE_NOW + 5000, NULL));
}

struct semel_lease *store_relay_lease(struct store_relay *relay, uint32_t row)
{
	return &relay->leases.all[relay->lanes[row]];
}

void store_relay_close(struct store_relay *relay)
{
	semel_arena_free(relay->arena);
}

static const char *joined_ids(const struct store_relay *relay)
{
	static char text[1024];
	text[0] = '\0';
	for (uint32_t i = 0; i < relay->batch.count; i++) {
		const struct semel_outbox_row *row = &relay->rows[i];
		size_t length = strlen(text);
		snprintf(text + length, sizeof(text) - length, row->held ? "%s[%s]" : "%s%s",
			 i == 0 ? "" : " ", semel_text_shown(row->event.id));
	}
	return text;
}

/* Puts the rows of one lane into the run, by their numbers. */
static void merge(struct store_relay *relay, int32_t lane, const struct semel_outbox_batch *batch)
{
	for (uint32_t i = 0; i < batch->count; i++) {
		uint32_t at = relay->batch.count++;
		assert_true(at < STORE_MAX);
		for (; at > 0 && relay->rows[at - 1].seq > batch->rows[i].seq; at--) {
			relay->rows[at] = relay->rows[at - 1];
			relay->lanes[at] = relay->lanes[at - 1];
		}
		relay->rows[at] = batch->rows[i];
		relay->lanes[at] = lane;
	}
	if (batch->count > 0 && batch->complete_seq > relay->batch.complete_seq)
		relay->batch.complete_seq = batch->complete_seq;
}

/* now_ms 0: the run above after_seq; else what is due. */
static const char *fetch_lanes(struct store_relay *relay, int64_t after_seq, int64_t now_ms)
{
	const struct semel_store_driver *driver = relay->store->driver;
	struct semel_outbox_row rows[STORE_MAX];
	semel_arena_reset(relay->arena);
	relay->batch.count = 0;
	relay->batch.complete_seq = after_seq;
	for (int32_t i = 0; i < relay->leases.count; i++) {
		struct semel_outbox_batch batch = relay->batch;
		const struct semel_lease *lease = &relay->leases.all[i];
		batch.rows = rows;
		assert_ok(now_ms == 0 ? driver->outbox->fetch(relay->store, lease, after_seq,
							      &batch, NULL)
				      : driver->outbox->fetch_due(relay->store, lease, now_ms,
								  &batch, NULL));
		merge(relay, i, &batch);
	}
	return joined_ids(relay);
}

const char *store_relay_fetch(struct store_relay *relay, int64_t after_seq)
{
	return fetch_lanes(relay, after_seq, 0);
}

const char *store_relay_due(struct store_relay *relay, int64_t now_ms)
{
	const char *ids = fetch_lanes(relay, 0, now_ms);
	for (uint32_t i = 0; i < relay->batch.count; i++)
		assert_true(relay->rows[i].exception);
	return ids;
}

semel_status store_relay_mark(struct store_relay *relay, const char *id, struct semel_mark mark)
{
	struct semel_lease *lease = NULL;
	for (uint32_t i = 0; i < relay->batch.count; i++)
		if (strcmp(semel_text_string(relay->rows[i].event.id), id) == 0) {
			mark.row = &relay->rows[i];
			lease = store_relay_lease(relay, i);
		}
	assert_non_null(mark.row);
	const struct semel_mark_batch batch = { .marks = &mark,
						.count = 1,
						.low_seq = lease->low_seq,
						.now_ms = STORE_NOW,
						.expires_at_ms = STORE_NOW + 5000 };
	return relay->store->driver->outbox->mark(relay->store, lease, &batch, NULL);
}

void store_relay_published(struct store_relay *relay, const char *id)
{
	assert_ok(store_relay_mark(relay, id, (struct semel_mark){ .kind = SEMEL_MARK_PUBLISHED }));
}

void store_relay_retry(struct store_relay *relay, const char *id, int64_t due_ms)
{
	assert_ok(store_relay_mark(relay, id,
				   (struct semel_mark){ .kind = SEMEL_MARK_RETRY,
							.attempts = 1,
							.due_ms = due_ms,
							.reason = "no route" }));
}

void store_relay_parked(struct store_relay *relay, const char *id)
{
	assert_ok(store_relay_mark(relay, id, (struct semel_mark){ .kind = SEMEL_MARK_PARKED }));
}

void store_relay_failed(struct store_relay *relay, const char *id, bool holds)
{
	assert_ok(store_relay_mark(relay, id,
				   (struct semel_mark){ .kind = SEMEL_MARK_FAILED,
							.attempts = 10,
							.reason = "too large",
							.holds = holds }));
}

/* ---- inbox ----------------------------------------------------------------------------------- */

struct semel_inbox_claim store_claim(const char *id)
{
	return (struct semel_inbox_claim){ .scope = SEMEL_TEXT("billing"),
					   .event_id = semel_text_of(id),
					   .topic = SEMEL_TEXT("order.events"),
					   .event_time_ms = STORE_NOW,
					   .status = SEMEL_INBOX_PROCESSED };
}

struct semel_claim_result store_claim_now(semel_store *store, struct semel_inbox_claim claim)
{
	struct semel_claim_result answer = { 0 };
	semel_error error = { 0 };
	store_begin(store);
	if (store->driver->inbox->claim(store_tx(store), &claim, 1, STORE_NOW, &answer, &error) !=
	    SEMEL_OK)
		fail_msg("%s", error.text);
	store_commit(store);
	return answer;
}

bool store_change_now(semel_store *store, struct semel_inbox_claim claim,
		      struct semel_inbox_change change)
{
	bool taken = false;
	change.now_ms = STORE_NOW;
	store_begin(store);
	assert_ok(store->driver->inbox->change(store_tx(store), &claim, &change, &taken, NULL));
	store_commit(store);
	return taken;
}

/* ---- dead letters ---------------------------------------------------------------------------- */

struct semel_dead_letter_row store_dead(const char *entry_id, const struct semel_event *event)
{
	return (struct semel_dead_letter_row){ .entry_id = semel_text_of(entry_id),
					       .event = *event,
					       .scope = SEMEL_TEXT("billing"),
					       .reason = SEMEL_TEXT("no such customer"),
					       .failed_at_ms = STORE_NOW,
					       .attempts = 3 };
}

const char *store_add_dead_letter(semel_store *store, struct semel_dead_letter_row entry)
{
	static char used[64];
	struct semel_arena *arena = semel_arena_new(1024);
	store_begin(store);
	assert_ok(store->driver->dead_letters->add(store_tx(store), &entry, arena, NULL));
	store_commit(store);
	snprintf(used, sizeof(used), "%s", semel_text_shown(entry.entry_id));
	semel_arena_free(arena);
	return used;
}

/* ---- processes ------------------------------------------------------------------------------- */

void store_in_processes(int count, bool (*body)(int number))
{
	int start_pipe[2];
	pid_t children[STORE_MAX];
	assert_int_equal(pipe(start_pipe), 0);
	for (int i = 0; i < count; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			char byte;
			close(start_pipe[1]);
			(void)!read(start_pipe[0], &byte,
				    1); /* all start when the pipe is closed */
			_exit(body(i) ? 0 : 1);
		}
		assert_true(children[i] > 0);
	}
	close(start_pipe[0]);
	close(start_pipe[1]);
	for (int i = 0; i < count; i++) {
		int ended = 0;
		assert_int_equal(waitpid(children[i], &ended, 0), children[i]);
		assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
	}
}
