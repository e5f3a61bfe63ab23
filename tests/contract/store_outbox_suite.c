/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: producing, and reading what was produced. */
#include "contract/store_steps.h"

#include "base/uuid.h"

#include <semel/outbox.h>

#include <string.h>
#include <unistd.h>

#define TEXT_EQUAL(text, expected) assert_string_equal((text).data, (expected))

static void publishing_without_a_transaction_fails_and_writes_nothing(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	semel_error error = { 0 };
	const semel_event_input input = { .type = "order.created.v1",
					  .aggregate_type = "order",
					  .aggregate_id = "a",
					  .payload = "{}" };
	struct semel_event event = store_event("e1", "a");
	assert_int_equal(semel_outbox_publish(store_tx(store), &input, NULL, &error),
			 SEMEL_NO_TRANSACTION);
	assert_non_null(strstr(error.text, "BEGIN"));
	assert_int_equal(store->driver->outbox->insert(store_tx(store), &event, 1, &error),
			 SEMEL_NO_TRANSACTION);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void an_event_comes_out_as_it_went_in(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct semel_event event = store_event("e1", "a");
	const char bytes[] = "\xff\0\xfe and text";
	event.topic = SEMEL_TEXT("billing");
	event.routing_key = SEMEL_TEXT("eu.order");
	event.content_type = SEMEL_TEXT("application/octet-stream");
	event.headers = SEMEL_TEXT("{\"tenantId\":\"t1\"}");
	event.payload = semel_text_from(bytes, sizeof(bytes) - 1);
	event.time_ms = STORE_NOW + 123;
	store_begin(store);
	assert_ok(store->driver->outbox->insert(store_tx(store), &event, 1, NULL));
	store_commit(store);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	const struct semel_outbox_row *row = &relay.rows[0];
	TEXT_EQUAL(row->event.id, "e1");
	TEXT_EQUAL(row->event.type, "order.created.v1");
	TEXT_EQUAL(row->event.aggregate_type, "order");
	TEXT_EQUAL(row->event.aggregate_id, "a");
	TEXT_EQUAL(row->event.topic, "billing");
	TEXT_EQUAL(row->event.routing_key, "eu.order");
	TEXT_EQUAL(row->event.content_type, "application/octet-stream");
	TEXT_EQUAL(row->event.headers, "{\"tenantId\":\"t1\"}");
	assert_true(semel_text_equal(row->event.payload, event.payload));
	assert_int_equal(row->event.time_ms, STORE_NOW + 123);
	assert_int_equal(row->attempts, 0);
	assert_false(row->held || row->exception);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_hand_written_row_is_completed(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_execute(store, "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type,"
			     " payload) VALUES ('order', 'ord-1', 'order.created.v1', '{}')");
	store_execute(store, "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id,"
			     " event_type, payload) VALUES ('mine', 'order', 'ord-2',"
			     " 'order.created.v1', '{\"total\": 5}')");
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	assert_int_equal(relay.batch.count, 2);
	const struct semel_event *event = &relay.rows[0].event;
	assert_true(semel_uuid_is_valid(semel_text_string(event->id)));
	assert_int_equal(event->id.data[14], '7');
	TEXT_EQUAL(event->topic, "order.events");
	TEXT_EQUAL(event->routing_key, "order.created.v1");
	TEXT_EQUAL(event->content_type, "application/json");
	TEXT_EQUAL(event->headers, "{}");
	assert_true(event->time_ms > STORE_NOW - 2 * 366 * INT64_C(86400000));
	TEXT_EQUAL(relay.rows[1].event.id, "mine");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_hand_written_row_that_cannot_be_an_event_is_refused(void **state)
{
	(void)state;
	static const char *const rows[] = {
		"VALUES (' ', 'a', 't', '{}', '{}')",     "VALUES ('order', '', 't', '{}', '{}')",
		"VALUES ('order', 'a', ' ', '{}', '{}')", "VALUES ('order', 'a', 't', NULL, '{}')",
		"VALUES ('order', 'a', 't', '{}', '[]')", "VALUES ('order', 'a', 't', '{}', '{')"
	};
	semel_store *store = store_open_one();
	char sql[256] = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type,"
			" payload, headers) ";
	size_t length = strlen(sql);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		strcpy(sql + length, rows[i]);
		store_begin(store);
		assert_int_equal(store->driver->execute(store, sql, NULL), SEMEL_INVALID);
		store->driver->rollback(store);
	}
	semel_store_close(store);
}

static void an_event_does_not_change_once_it_is_written(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	store_publish(store, "e1", "a", NULL);
	store_begin(store);
	assert_int_equal(
		store->driver->execute(store, "UPDATE semel_outbox SET payload = '{}'", &error),
		SEMEL_INVALID);
	assert_non_null(strstr(error.text, "does not change"));
	store->driver->rollback(store);
	semel_store_close(store);
}

static void an_id_is_published_once(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	semel_error error = { 0 };
	struct semel_event again = store_event("e1", "b");
	store_publish(store, "e1", "a", NULL);
	store_begin(store);
	assert_int_equal(store->driver->outbox->insert(store_tx(store), &again, 1, &error),
			 SEMEL_DUPLICATE_ID);
	assert_non_null(strstr(error.text, "e1"));
	store->driver->rollback(store);
	semel_store_close(store);
}

static void a_batch_with_a_known_id_leaves_nothing_of_itself(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct semel_event events[] = { store_event("e2", "a"), store_event("e3", "a"),
					store_event("e1", "a") };
	store_publish(store, "e1", "a", NULL);
	store_begin(store);
	assert_int_equal(store->driver->outbox->insert(store_tx(store), events, 3, NULL),
			 SEMEL_DUPLICATE_ID);
	assert_true(store->driver->in_transaction(store_tx(store)));
	store_commit(store);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "e1");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void publishing_many_gives_their_ids_in_order(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	semel_event_input inputs[3];
	char ids[3][SEMEL_ID_SIZE];
	for (int i = 0; i < 3; i++)
		inputs[i] = (semel_event_input){ .type = "order.created.v1",
						 .aggregate_type = "order",
						 .aggregate_id = "a",
						 .payload = "{}" };
	store_begin(store);
	assert_ok(semel_outbox_publish_all(store_tx(store), inputs, 3, ids, NULL));
	store_commit(store);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	assert_int_equal(relay.batch.count, 3);
	for (int i = 0; i < 3; i++)
		TEXT_EQUAL(relay.rows[i].event.id, ids[i]);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void one_bad_event_of_many_is_named_and_none_is_written(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	semel_error error = { 0 };
	semel_event_input inputs[2] = { { .type = "order.created.v1",
					  .aggregate_type = "order",
					  .aggregate_id = "a",
					  .payload = "{}" } };
	inputs[1] = inputs[0];
	inputs[1].payload = "{";
	store_begin(store);
	assert_int_equal(semel_outbox_publish_all(store_tx(store), inputs, 2, NULL, &error),
			 SEMEL_INVALID);
	assert_non_null(strstr(error.text, "event 2"));
	store_commit(store);
	store_relay_open(&relay, store, "r");
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

static void a_batch_is_bounded_by_count_and_by_bytes(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", "e2", "a", "e3", "a", "e4", "a", NULL);
	store_relay_open(&relay, store, "r");
	relay.batch.capacity = 3;
	assert_string_equal(store_relay_fetch(&relay, 0), "e1 e2 e3");
	assert_string_equal(store_relay_fetch(&relay, relay.rows[1].seq), "e3 e4");
	relay.batch.bytes_max = 25; /* two payloads of eleven bytes */
	assert_string_equal(store_relay_fetch(&relay, 0), "e1 e2");
	relay.batch.bytes_max = 1;
	assert_string_equal(store_relay_fetch(&relay, 0), "e1");
	/* Another session's transaction may be open for a moment. */
	for (int i = 0; i < 6000 && relay.batch.complete_seq < relay.rows[0].seq; i++) {
		usleep(10000);
		store_relay_fetch(&relay, 0);
	}
	assert_true(relay.batch.complete_seq >= relay.rows[0].seq);
	store_relay_close(&relay);
	semel_store_close(store);
}

static void what_is_not_committed_is_not_read(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct store_relay relay;
	struct semel_event event = store_event("e1", "a");
	store_relay_open(&relay, store, "r");
	store_begin(other);
	assert_ok(other->driver->outbox->insert(store_tx(other), &event, 1, NULL));
	assert_string_equal(store_relay_fetch(&relay, 0), "");
	int64_t complete = relay.batch.complete_seq;
	store_commit(other);
	assert_string_equal(store_relay_fetch(&relay, complete), "e1");
	store_relay_close(&relay);
	semel_store_close(other);
	semel_store_close(store);
}

static void the_predecessor_is_the_one_before_in_the_aggregate(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", "e2", "b", "e3", "a", NULL);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	TEXT_EQUAL(relay.rows[2].previous, "e1");
	assert_null(relay.rows[1].previous.data);
	store_relay_close(&relay);
	semel_store_close(store);
}

static semel_status note_id(struct semel_text id, const char *status, struct semel_text topic,
			    int64_t time_ms, void *user)
{
	char *notes = user;
	(void)time_ms;
	strcat(strcat(strcat(notes, semel_text_string(id)), status), semel_text_string(topic));
	return strcmp(semel_text_string(id), "stop") == 0 ? SEMEL_STOPPED : SEMEL_OK;
}

static void every_row_is_visited_in_the_order_of_ids(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	char notes[256] = "";
	store_publish(store, "e2", "a", "e1", "b", NULL);
	assert_ok(store->driver->outbox->each(store, note_id, notes, NULL));
	assert_string_equal(notes, "e1NEWorder.eventse2NEWorder.events");
	store_publish(store, "stop", "a", "under", "a", NULL);
	notes[0] = '\0';
	assert_int_equal(store->driver->outbox->each(store, note_id, notes, NULL), SEMEL_STOPPED);
	assert_null(strstr(notes, "under"));
	semel_store_close(store);
}

static const char *select_ids(struct store_relay *relay, struct semel_outbox_filter filter)
{
	static char ids[256];
	ids[0] = '\0';
	assert_ok(relay->store->driver->outbox->select(relay->store, &filter, 0, &relay->batch,
						       NULL));
	for (uint32_t i = 0; i < relay->batch.count; i++)
		strcat(ids, semel_text_string(relay->rows[i].event.id));
	return ids;
}

static void published_rows_are_selected_by_type_aggregate_and_time(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	store_publish(store, "e1", "a", "e2", "b", "e3", "a", NULL);
	store_relay_open(&relay, store, "r");
	assert_string_equal(select_ids(&relay, (struct semel_outbox_filter){ 0 }), "");
	store_relay_fetch(&relay, 0);
	store_relay_published(&relay, "e1");
	store_relay_published(&relay, "e2");
	assert_string_equal(select_ids(&relay, (struct semel_outbox_filter){ 0 }), "e1e2");
	assert_string_equal(
		select_ids(&relay, (struct semel_outbox_filter){ .aggregate_type = "order",
								 .aggregate_id = "a" }),
		"e1");
	assert_string_equal(select_ids(&relay, (struct semel_outbox_filter){ .type = "no" }), "");
	assert_string_equal(
		select_ids(&relay, (struct semel_outbox_filter){ .type = "order.created.v1",
								 .since_ms = STORE_NOW,
								 .until_ms = STORE_NOW + 1 }),
		"e1e2");
	assert_string_equal(
		select_ids(&relay, (struct semel_outbox_filter){ .until_ms = STORE_NOW }), "");
	assert_string_equal(
		select_ids(&relay, (struct semel_outbox_filter){ .since_ms = STORE_NOW + 1 }), "");
	store_relay_close(&relay);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(publishing_without_a_transaction_fails_and_writes_nothing),
	cmocka_unit_test(an_event_comes_out_as_it_went_in),
	cmocka_unit_test(a_hand_written_row_is_completed),
	cmocka_unit_test(a_hand_written_row_that_cannot_be_an_event_is_refused),
	cmocka_unit_test(an_event_does_not_change_once_it_is_written),
	cmocka_unit_test(an_id_is_published_once),
	cmocka_unit_test(a_batch_with_a_known_id_leaves_nothing_of_itself),
	cmocka_unit_test(publishing_many_gives_their_ids_in_order),
	cmocka_unit_test(one_bad_event_of_many_is_named_and_none_is_written),
	cmocka_unit_test(a_batch_is_bounded_by_count_and_by_bytes),
	cmocka_unit_test(what_is_not_committed_is_not_read),
	cmocka_unit_test(the_predecessor_is_the_one_before_in_the_aggregate),
	cmocka_unit_test(every_row_is_visited_in_the_order_of_ids),
	cmocka_unit_test(published_rows_are_selected_by_type_aggregate_and_time),
};
const struct store_tests store_outbox_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
