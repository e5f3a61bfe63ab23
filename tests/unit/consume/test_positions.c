/* SPDX-License-Identifier: Apache-2.0 */
/* Places in logs: never past what is not settled for good, and written by one reader only. */
#include "unit/fixture.h"

#include "consume/consumer.h"

#define TOPIC "order.events"

struct reader {
	struct semel_consumer consumer;
	struct fixture *fixture;
	int64_t next; /* where the offset store sent the broker to */
};

static semel_status take(struct reader *reader, bool granted)
{
	const struct semel_offset_store *offset_store =
		semel_positions_offset_store(reader->consumer.positions);
	return offset_store->acquire(offset_store->user, TOPIC, 0, granted, &reader->next, NULL);
}

static void make_reader(struct reader *reader, struct fixture *fixture)
{
	*reader = (struct reader){ .fixture = fixture };
	reader->consumer.env = semel_env_system();
	reader->consumer.config.scope = SEMEL_TEXT("billing");
	reader->consumer.config.options.lease_ms = 60000;
	semel_owner_make(reader->consumer.env, reader->consumer.owner);
	fixture_ok(fixture,
		   semel_store_open(fixture->store_url, &reader->consumer.store, &fixture->error));
	reader->consumer.positions = semel_positions_new(&reader->consumer);
	assert_non_null(reader->consumer.positions);
}

static void drop_reader(struct reader *reader)
{
	semel_positions_free(reader->consumer.positions);
	semel_store_close(reader->consumer.store);
}

static struct semel_delivery delivery_at(int64_t offset)
{
	return (struct semel_delivery){ .event = { .topic = SEMEL_TEXT(TOPIC) },
					.offset = offset,
					.offset_in_store = true };
}

static void fetch(struct reader *reader, int64_t first, int64_t last)
{
	for (int64_t offset = first; offset <= last; offset++) {
		struct semel_delivery delivery = delivery_at(offset);
		assert_int_equal(semel_positions_note_fetched(reader->consumer.positions, &delivery,
							      1, NULL),
				 SEMEL_OK);
	}
}

static void mark(struct reader *reader, int64_t offset, enum semel_item_state state)
{
	struct semel_delivery delivery = delivery_at(offset);
	struct semel_item item = { .delivery = &delivery, .state = state };
	semel_positions_include(reader->consumer.positions, &item);
}

static void settle(struct reader *reader, int64_t offset)
{
	struct semel_delivery delivery = delivery_at(offset);
	semel_positions_acknowledged(reader->consumer.positions, &delivery, 1);
}

static semel_status write_place(struct reader *reader)
{
	return semel_positions_write(reader->consumer.positions, NULL);
}

static int64_t kept(const struct reader *reader)
{
	const struct semel_offset_store *offset_store =
		semel_positions_offset_store(reader->consumer.positions);
	char *text = fixture_ask(reader->fixture, "SELECT next_offset FROM semel_position");
	int64_t next = text ? atoll(text) : -2, unread = -2;
	free(text);
	assert_int_equal(offset_store->get(offset_store->user, "audit", TOPIC, 0, &unread, NULL),
			 SEMEL_OK);
	assert_int_equal(unread, -1); /* of a scope that has never read */
	return next;
}

/* The offset of the event that stands in the store beside the place. */
static int64_t anchored(const struct reader *reader)
{
	char *text = fixture_ask(reader->fixture, "SELECT anchor_offset FROM semel_position");
	int64_t offset = text ? atoll(text) : -2;
	free(text);
	return offset;
}

static void the_last_event_before_a_place_is_kept_with_it(void **state)
{
	struct reader reader, next;
	struct semel_delivery named = delivery_at(21);
	named.event.id = SEMEL_TEXT("the one");
	make_reader(&reader, fixture_of(state));
	assert_int_equal(take(&reader, false), SEMEL_OK);
	const struct semel_offset_store *offset_store =
		semel_positions_offset_store(reader.consumer.positions);
	assert_int_equal(offset_store->anchor(offset_store->user, TOPIC, 0).offset, -1);
	fetch(&reader, 20, 20);
	assert_int_equal(semel_positions_note_fetched(reader.consumer.positions, &named, 1, NULL),
			 SEMEL_OK);
	fetch(&reader, 25, 26); /* what lies between is no event */
	semel_positions_begin(reader.consumer.positions);
	mark(&reader, 20, SEMEL_ITEM_DONE);
	mark(&reader, 21, SEMEL_ITEM_DONE);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	assert_int_equal(kept(&reader), 25);
	assert_int_equal(anchored(&reader), 21);
	settle(&reader, 20);
	assert_int_equal(offset_store->anchor(offset_store->user, TOPIC, 0).offset, 20);
	offset_store->release(offset_store->user, TOPIC, 0);
	assert_int_equal(anchored(&reader), 20);
	drop_reader(&reader);

	make_reader(&next, fixture_of(state));
	assert_int_equal(take(&next, false), SEMEL_OK);
	fetch(&next, 20, 20);
	assert_int_equal(semel_positions_note_fetched(next.consumer.positions, &named, 1, NULL),
			 SEMEL_OK);
	settle(&next, 20);
	settle(&next, 21);
	offset_store = semel_positions_offset_store(next.consumer.positions);
	assert_true(offset_store->anchor(offset_store->user, TOPIC, 0).hash ==
		    semel_event_hash_id(SEMEL_TEXT("the one")));
	drop_reader(&next);
}

static void a_place_stops_at_the_first_that_is_not_settled(void **state)
{
	struct reader reader;
	make_reader(&reader, fixture_of(state));
	assert_int_equal(take(&reader, false), SEMEL_OK);
	assert_int_equal(reader.next, -1);
	fetch(&reader, 10, 15);
	semel_positions_begin(reader.consumer.positions);
	mark(&reader, 10, SEMEL_ITEM_DONE);
	mark(&reader, 11, SEMEL_ITEM_DUPLICATE);
	mark(&reader, 12, SEMEL_ITEM_RETRYING); /* its copy is not sent yet */
	mark(&reader, 13, SEMEL_ITEM_DONE);
	mark(&reader, 14, SEMEL_ITEM_DEFERRED);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	assert_int_equal(kept(&reader), 12);
	for (int64_t offset = 10; offset <= 13; offset++)
		settle(&reader, offset);
	semel_positions_begin(reader.consumer.positions);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	assert_int_equal(kept(&reader), 14);
	drop_reader(&reader);
}

static void dead_and_parked_events_are_settled_by_the_commit(void **state)
{
	struct reader reader;
	make_reader(&reader, fixture_of(state));
	assert_int_equal(take(&reader, false), SEMEL_OK);
	fetch(&reader, 0, 1);
	semel_positions_begin(reader.consumer.positions);
	mark(&reader, 0, SEMEL_ITEM_DEAD);
	mark(&reader, 1, SEMEL_ITEM_PARKED);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	assert_int_equal(kept(&reader), 2);
	drop_reader(&reader);
}

static void what_was_rolled_back_does_not_count(void **state)
{
	struct reader reader;
	make_reader(&reader, fixture_of(state));
	semel_store *store = reader.consumer.store;
	assert_int_equal(take(&reader, false), SEMEL_OK);
	fetch(&reader, 0, 3);
	assert_int_equal(store->driver->begin(store, NULL), SEMEL_OK);
	semel_positions_begin(reader.consumer.positions);
	mark(&reader, 0, SEMEL_ITEM_DONE);
	mark(&reader, 1, SEMEL_ITEM_DONE);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	store->driver->rollback(store);
	semel_positions_begin(reader.consumer.positions);
	mark(&reader, 0, SEMEL_ITEM_DONE);
	assert_int_equal(write_place(&reader), SEMEL_OK);
	assert_int_equal(kept(&reader), 1);
	drop_reader(&reader);
}

static void a_reader_that_takes_its_position_again_continues_behind_what_is_settled(void **state)
{
	struct reader reader;
	make_reader(&reader, fixture_of(state));
	assert_int_equal(take(&reader, false), SEMEL_OK);
	fetch(&reader, 0, 9);
	settle(&reader, 1);
	settle(&reader, 0);
	settle(&reader, 3);
	assert_int_equal(take(&reader, false), SEMEL_OK);
	assert_int_equal(reader.next, 2);
	drop_reader(&reader);
}

static void a_place_has_one_reader_until_it_is_released(void **state)
{
	struct reader first, second;
	const struct semel_offset_store *offset_store;
	make_reader(&first, fixture_of(state));
	make_reader(&second, fixture_of(state));
	assert_int_equal(take(&first, false), SEMEL_OK);
	assert_int_equal(take(&second, false), SEMEL_LEASE_LOST);
	fetch(&first, 0, 4);
	settle(&first, 0); /* and not written yet */
	offset_store = semel_positions_offset_store(first.consumer.positions);
	offset_store->release(offset_store->user, TOPIC, 0);
	assert_int_equal(take(&second, false), SEMEL_OK);
	assert_int_equal(second.next, 1);
	drop_reader(&first);
	drop_reader(&second);
}

static void a_reader_that_was_replaced_commits_nothing(void **state)
{
	struct reader first, second;
	make_reader(&first, fixture_of(state));
	make_reader(&second, fixture_of(state));
	assert_int_equal(take(&first, false), SEMEL_OK);
	fetch(&first, 0, 4);
	assert_int_equal(take(&second, true), SEMEL_OK); /* the broker says so */
	semel_positions_begin(first.consumer.positions);
	assert_int_equal(write_place(&first), SEMEL_LEASE_LOST);
	assert_int_equal(kept(&second), -1);
	semel_positions_forget(first.consumer.positions, true);
	assert_int_equal(take(&first, false), SEMEL_LEASE_LOST);
	drop_reader(&first);
	drop_reader(&second);
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(the_last_event_before_a_place_is_kept_with_it),
		WORLD_TEST(a_place_stops_at_the_first_that_is_not_settled),
		WORLD_TEST(dead_and_parked_events_are_settled_by_the_commit),
		WORLD_TEST(what_was_rolled_back_does_not_count),
		WORLD_TEST(a_reader_that_takes_its_position_again_continues_behind_what_is_settled),
		WORLD_TEST(a_place_has_one_reader_until_it_is_released),
		WORLD_TEST(a_reader_that_was_replaced_commits_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
