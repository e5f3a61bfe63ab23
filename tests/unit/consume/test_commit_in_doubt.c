/* SPDX-License-Identifier: Apache-2.0 */
/* The store goes away in the very commit of an effect: nobody hears whether it happened. */
#include "consume/consumer.h"
#include "unit/world.h"

static struct semel_store_driver sick; /* the driver, but for its commit */
static const struct semel_store_driver *sound;
static bool commits;

static semel_status go_away(semel_store *store, semel_error *error)
{
	if (commits)
		assert_int_equal(sound->commit(store, error), SEMEL_OK);
	else
		sound->rollback(store);
	error->status = SEMEL_OUTAGE;
	snprintf(error->text, sizeof error->text, "the server is gone");
	return SEMEL_OUTAGE;
}

/* In the first run the store falls sick; the consumer opens a sound one afterwards. */
static semel_verdict handle(const semel_event *event, semel_context *context, void *user)
{
	struct world_reader *reader = user;
	semel_consumer *consumer = (semel_consumer *)(uintptr_t)reader->world->poison;

	const char *consumers = reader->world->poison;
	reader->world->poison = NULL;
	semel_verdict verdict = world_handle(event, context, user);
	reader->world->poison = consumers;
	if (!sound) {
		sound = consumer->store->driver;
		sick = *sound;
		sick.commit = go_away;
		consumer->store->driver = &sick;
	}
	return verdict;
}

static void consume(struct world *world, bool committed, semel_consumer_options options)
{
	static const char *const topics[] = { "order.events", NULL };
	struct world_reader reader = { world, "billing" };
	semel_consumer *consumer = NULL;
	char id[SEMEL_ID_SIZE];

	sound = NULL;
	commits = committed;
	world_publish(world, "1", "first", id);
	world_publish(world, "2", "second", id);
	world_relay(world);
	options.scope = "billing";
	options.store = world->store_url;
	options.broker = world->broker_url;
	options.topics = topics;
	world_ok(world, semel_consumer_open(&options, &consumer, &world->error));
	world->poison = (const char *)consumer;
	world_ok(world, semel_consumer_handle(consumer, handle, &reader, &world->error));
	world_ok(world, semel_consumer_drain(consumer, WORLD_DRAIN_MS, 0, &world->error));
	semel_consumer_close(consumer);
	assert_non_null(sound);
}

static void expect_each_once(struct world *world)
{
	world_expect(world, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		     "2 of 2");
	assert_int_equal(world_letter(world).count, 0);
}

static void in_one_transaction_with_the_claim_both_ways_end_well(void **state)
{
	consume(world_of(state), true, (semel_consumer_options){ 0 });
	expect_each_once(world_of(state));
}

static void so_they_do_when_it_was_rolled_back(void **state)
{
	consume(world_of(state), false, (semel_consumer_options){ 0 });
	expect_each_once(world_of(state));
}

static void a_separate_claim_tells_that_it_was_committed(void **state)
{
	consume(world_of(state), true, (semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
	expect_each_once(world_of(state));
}

static void a_separate_claim_tells_that_it_was_rolled_back(void **state)
{
	consume(world_of(state), false, (semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
	expect_each_once(world_of(state));
}

static void at_most_once_a_person_is_asked(void **state)
{
	struct world *world = world_of(state);
	consume(world, false, (semel_consumer_options){ .guarantee = SEMEL_AT_MOST_ONCE });
	world_expect(world, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		     "1 of 1");
	struct world_letter letter = world_letter(world);
	assert_int_equal(letter.count, 1);
	assert_non_null(strstr(letter.reason, "in doubt"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			in_one_transaction_with_the_claim_both_ways_end_well, world_begin,
			world_end),
		cmocka_unit_test_setup_teardown(so_they_do_when_it_was_rolled_back, world_begin,
						world_end),
		cmocka_unit_test_setup_teardown(a_separate_claim_tells_that_it_was_committed,
						world_begin, world_end),
		cmocka_unit_test_setup_teardown(a_separate_claim_tells_that_it_was_rolled_back,
						world_begin, world_end),
		cmocka_unit_test_setup_teardown(at_most_once_a_person_is_asked, world_begin,
						world_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
