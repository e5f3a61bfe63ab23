/* SPDX-License-Identifier: Apache-2.0 */
/* A constraint that is checked at the end only: the commit of a C handler's effect fails because of
 * one event, which gets its dead letter, and nobody else pays for it. */
#include "unit/world.h"

static int begin(void **state)
{
	if (world_begin(state) != 0)
		return -1;
	world_sql(world_of(state),
		  "DROP TABLE effect; CREATE TABLE word (payload TEXT PRIMARY KEY);"
		  " INSERT INTO word VALUES ('\"one\"'), ('\"two\"'), ('\"three\"'), ('\"four\"');"
		  " CREATE TABLE effect (number INTEGER PRIMARY KEY, scope TEXT, id TEXT, payload "
		  "TEXT"
		  " REFERENCES word DEFERRABLE INITIALLY DEFERRED)");
	return 0;
}

static void publish(struct world *world, const char *aggregate, const char *word)
{
	char id[SEMEL_ID_SIZE];
	world_publish(world, aggregate, word, id);
}

static void expect_one_letter(struct world *world, const char *payload)
{
	struct world_letter letter = world_letter(world);

	assert_int_equal(letter.count, 1);
	assert_string_equal(letter.reason, "commit failed: FOREIGN KEY constraint failed");
	assert_int_equal(letter.attempts, 1);
	world_expect(world,
		     "SELECT o.payload FROM semel_outbox o JOIN semel_dead_letter d"
		     " ON d.event_id = o.id",
		     payload);
	world_expect(world,
		     "SELECT count(*) FROM effect WHERE payload NOT IN"
		     " (SELECT payload FROM word)",
		     "0");
}

static void consume_a_batch_with(struct world *world, semel_consumer_options options)
{
	options.scope = "billing";
	publish(world, "1", "one");
	publish(world, "2", "unknown");
	publish(world, "3", "two");
	publish(world, "1", "three");
	world_relay(world);
	world_consume_with(world, options);
	world_expect(world, "SELECT count(DISTINCT payload) || ' of ' || count(*) FROM effect",
		     "3 of 3");
	expect_one_letter(world, "\"unknown\"");
}

static void only_the_guilty_event_of_a_batch_is_given_up(void **state)
{
	consume_a_batch_with(world_of(state), (semel_consumer_options){ 0 });
}

static void so_it_is_with_a_separate_claim(void **state)
{
	consume_a_batch_with(world_of(state),
			     (semel_consumer_options){ .claim = SEMEL_CLAIM_SEPARATE });
}

static void so_it_is_at_most_once(void **state)
{
	consume_a_batch_with(world_of(state),
			     (semel_consumer_options){ .guarantee = SEMEL_AT_MOST_ONCE });
}

static void so_it_is_at_least_once(void **state)
{
	consume_a_batch_with(world_of(state),
			     (semel_consumer_options){ .guarantee = SEMEL_AT_LEAST_ONCE });
}

static void a_follower_is_judged_alone_too(void **state)
{
	struct world *world = world_of(state);
	world->poison = "poison";
	publish(world, "1", "poison");
	publish(world, "1", "one");
	publish(world, "1", "unknown");
	publish(world, "1", "two");
	publish(world, "2", "three");
	world_relay(world);
	world_consume(world, "billing");
	world_expect(world, "SELECT group_concat(payload) FROM effect", "\"three\"");
	struct world_letter head = world_letter(world);
	world_ok(world,
		 semel_dead_letter_discard(world->store, head.entry_id, "a test", &world->error));
	world_consume(world, "billing");
	world_expect(world, "SELECT group_concat(payload) FROM effect", "\"three\",\"one\"");
	world_expect(world,
		     "SELECT failure_reason FROM semel_dead_letter WHERE status = 'PENDING' AND"
		     " parked_behind IS NULL",
		     "commit failed: FOREIGN KEY constraint failed");
	world_expect(world,
		     "SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NOT NULL", "1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(only_the_guilty_event_of_a_batch_is_given_up, begin,
						world_end),
		cmocka_unit_test_setup_teardown(so_it_is_with_a_separate_claim, begin, world_end),
		cmocka_unit_test_setup_teardown(so_it_is_at_most_once, begin, world_end),
		cmocka_unit_test_setup_teardown(so_it_is_at_least_once, begin, world_end),
		cmocka_unit_test_setup_teardown(a_follower_is_judged_alone_too, begin, world_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
