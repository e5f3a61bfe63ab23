/* SPDX-License-Identifier: Apache-2.0 */
/* Positions in a log: written with the effects, by one reader at a time. */
#include "contract/store_steps.h"

static struct semel_position position_of(semel_store *store, const char *topic, int32_t partition)
{
	struct semel_position position = { .scope = SEMEL_TEXT("billing"),
					   .topic = semel_text_of(topic),
					   .partition = partition };
	assert_ok(store->driver->inbox->position_get(store, &position, NULL));
	return position;
}

static struct semel_position taken_by(semel_store *store, const char *owner)
{
	struct semel_position position = position_of(store, "order.events", 3);
	assert_ok(store->driver->inbox->position_acquire(store, &position, owner, STORE_NOW + 5000,
							 NULL));
	return position;
}

static void put(semel_store *store, struct semel_position *position, int64_t next)
{
	position->next = next;
	assert_ok(store->driver->inbox->position_put(store_tx(store), position, NULL));
}

static void a_log_that_was_never_read_has_no_position(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_position position = position_of(store, "order.events", 0);
	assert_int_equal(position.next, -1);
	assert_int_equal(position.anchor.offset, -1);
	assert_int_equal(position.epoch, 0);
	assert_string_equal(position.owner, "");
	semel_store_close(store);
}

static void a_position_commits_with_the_effect_or_not_at_all(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_position position = taken_by(store, "one");
	assert_int_equal(position.next, -1);
	store_begin(store);
	position.anchor = (struct semel_anchor){ .offset = 40, .hash = UINT64_MAX - 7 };
	put(store, &position, 42);
	store_commit(store);
	struct semel_position found = position_of(store, "order.events", 3);
	assert_int_equal(found.next, 42);
	assert_int_equal(found.anchor.offset, 40);
	assert_true(found.anchor.hash == UINT64_MAX - 7);
	store_begin(store);
	put(store, &position, INT64_C(1) << 40);
	store->driver->rollback(store);
	assert_int_equal(position_of(store, "order.events", 3).next, 42);
	semel_store_close(store);
}

static void a_put_outside_a_transaction_renews_the_lease(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_position position = taken_by(store, "one"), found;
	position.expires_at_ms = STORE_NOW + 9000;
	put(store, &position, 7);
	found = position_of(store, "order.events", 3);
	assert_int_equal(found.next, 7);
	assert_int_equal(found.expires_at_ms, STORE_NOW + 9000);
	assert_string_equal(found.owner, "one");
	semel_store_close(store);
}

static void each_partition_of_each_topic_has_its_own_position(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_position position = taken_by(store, "one");
	put(store, &position, 7);
	assert_int_equal(position_of(store, "order.events", 2).next, -1);
	assert_int_equal(position_of(store, "invoice.events", 3).next, -1);
	position.scope = SEMEL_TEXT("audit");
	assert_ok(store->driver->inbox->position_get(store, &position, NULL));
	assert_int_equal(position.next, -1);
	semel_store_close(store);
}

static void only_one_of_two_readers_acquires_a_position(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct semel_position first = position_of(store, "order.events", 3), second = first;
	assert_ok(store->driver->inbox->position_acquire(store, &first, "one", STORE_NOW + 5000,
							 NULL));
	assert_int_equal(
		other->driver->inbox->position_acquire(other, &second, "two", STORE_NOW, NULL),
		SEMEL_LEASE_LOST);
	second = position_of(other, "order.events", 3);
	assert_string_equal(second.owner, "one");
	assert_int_equal(second.expires_at_ms, STORE_NOW + 5000);
	semel_store_close(other);
	semel_store_close(store);
}

static void a_reader_that_was_replaced_cannot_write_its_position(void **state)
{
	(void)state;
	semel_store *store = store_open_one(), *other = store_open_one();
	struct semel_position stale = taken_by(store, "one"), owner;
	put(store, &stale, 10);
	owner = taken_by(other, "two");
	assert_true(owner.epoch > stale.epoch);
	assert_int_equal(owner.next, 10);
	put(other, &owner, 20);
	stale.next = 11;
	store_begin(store);
	assert_int_equal(store->driver->inbox->position_put(store_tx(store), &stale, NULL),
			 SEMEL_LEASE_LOST);
	store->driver->rollback(store);
	assert_int_equal(position_of(store, "order.events", 3).next, 20);
	semel_store_close(other);
	semel_store_close(store);
}

static void only_its_reader_releases_a_position(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_position stale = taken_by(store, "one"), owner = taken_by(store, "two");
	put(store, &owner, 5);
	store->driver->inbox->position_release(store, &stale);
	assert_string_equal(position_of(store, "order.events", 3).owner, "two");
	store->driver->inbox->position_release(store, &owner);
	assert_string_equal(position_of(store, "order.events", 3).owner, "");
	assert_int_equal(position_of(store, "order.events", 3).next, 5);
	assert_int_equal(store->driver->inbox->position_put(store_tx(store), &owner, NULL),
			 SEMEL_LEASE_LOST);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_log_that_was_never_read_has_no_position),
	cmocka_unit_test(a_position_commits_with_the_effect_or_not_at_all),
	cmocka_unit_test(a_put_outside_a_transaction_renews_the_lease),
	cmocka_unit_test(each_partition_of_each_topic_has_its_own_position),
	cmocka_unit_test(only_one_of_two_readers_acquires_a_position),
	cmocka_unit_test(a_reader_that_was_replaced_cannot_write_its_position),
	cmocka_unit_test(only_its_reader_releases_a_position),
};
const struct store_tests store_position_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
