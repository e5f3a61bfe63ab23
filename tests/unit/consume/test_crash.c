/* SPDX-License-Identifier: Apache-2.0 */
/* A C handler that ends the whole process at one event: that event is given up, and the others run
 * once. */
#include "unit/world.h"

#include <signal.h>
#include <sys/wait.h>

#define ATTEMPTS 3
#define MANY     20

static semel_verdict handle(const semel_event *event, semel_context *context, void *user)
{
	if (strstr(semel_event_payload(event, NULL), "boom"))
		raise(SIGKILL);
	return world_handle(event, context, user);
}

static void consume(struct world *world, semel_consumer_options options)
{
	static const char *const topics[] = { "order.events", NULL };
	struct world_reader reader = { world, "billing" };
	semel_consumer *consumer = NULL;

	options.scope = "billing";
	options.store = world->store_url;
	options.broker = world->broker_url;
	options.topics = topics;
	options.attempts = ATTEMPTS;
	world_ok(world, semel_consumer_open(&options, &consumer, &world->error));
	world_ok(world, semel_consumer_handle(consumer, handle, &reader, &world->error));
	world_ok(world, semel_consumer_drain(consumer, WORLD_DRAIN_MS, 0, &world->error));
	semel_consumer_close(consumer);
}

/* As a supervisor does it: again and again, until one ends well. Gives back how many died. */
static int supervise(struct world *world, semel_consumer_options options)
{
	for (int died = 0; died < MANY; died++) {
		int code = 0;
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			consume(world, options);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &code, 0), child);
		if (WIFEXITED(code)) {
			assert_int_equal(WEXITSTATUS(code), 0);
			return died;
		}
		assert_int_equal(WTERMSIG(code), SIGKILL);
	}
	fail_msg("%d consumers died", MANY);
	return MANY;
}

static void expect_one_letter(struct world *world)
{
	world_expect(world,
		     "SELECT failure_reason || ', ' || attempts FROM semel_dead_letter"
		     " WHERE status = 'PENDING' AND parked_behind IS NULL",
		     "crashed the consumer 3 times, 3");
	world_expect(world, "SELECT count(*) FROM semel_running", "0");
	world_expect(world, "SELECT count(*) FROM semel_consumer", "0");
}

static void publish(struct world *world, const char *aggregate, const char *word)
{
	char id[SEMEL_ID_SIZE];
	world_publish(world, aggregate, word, id);
}

static void kill_at_one_of_ten(struct world *world, semel_consumer_options options)
{
	for (int i = 0; i < 10; i++) {
		char aggregate[8];
		snprintf(aggregate, sizeof aggregate, "%d", i);
		publish(world, aggregate, i == 4 ? "boom" : "fine");
	}
	world_relay(world);
	assert_int_equal(supervise(world, options), ATTEMPTS + 1);
	world_expect(world, "SELECT count(DISTINCT id) || ' of ' || count(*) FROM effect",
		     "9 of 9");
	expect_one_letter(world);
}

static void the_event_at_which_consumers_die_is_given_up(void **state)
{
	kill_at_one_of_ten(world_of(state), (semel_consumer_options){ 0 });
}

static void so_it_is_without_claims(void **state)
{
	kill_at_one_of_ten(world_of(state),
			   (semel_consumer_options){ .guarantee = SEMEL_AT_LEAST_ONCE });
}

static void a_follower_at_which_consumers_die_is_given_up_too(void **state)
{
	struct world *world = world_of(state);
	world->poison = "poison";
	publish(world, "1", "poison");
	publish(world, "1", "first");
	publish(world, "1", "boom");
	publish(world, "1", "behind");
	publish(world, "2", "other");
	world_relay(world);
	assert_int_equal(supervise(world, (semel_consumer_options){ 0 }), 0);
	struct world_letter head = world_letter(world);
	world_ok(world,
		 semel_dead_letter_discard(world->store, head.entry_id, "a test", &world->error));
	assert_in_range(supervise(world, (semel_consumer_options){ 0 }), 1, ATTEMPTS + 1);
	world_expect(world, "SELECT group_concat(payload) FROM effect", "\"other\",\"first\"");
	expect_one_letter(world);
}

static void a_death_at_no_event_costs_nobody_an_attempt(void **state)
{
	struct world *world = world_of(state);
	world_sql(world, "INSERT INTO semel_consumer (scope, owner, updated_at, expires_at) VALUES"
			 " ('billing', 'long dead', '2020-01-01T00:00:00.000Z',"
			 " '2020-01-01T00:00:00.000Z')");
	publish(world, "1", "fine");
	publish(world, "1", "fine");
	world_relay(world);
	assert_int_equal(supervise(world, (semel_consumer_options){ 0 }), 0);
	world_expect(world, "SELECT count(*) FROM effect", "2");
	world_expect(world, "SELECT count(*) FROM semel_dead_letter", "0");
	world_expect(world, "SELECT count(*) FROM semel_running", "0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_event_at_which_consumers_die_is_given_up,
						world_begin, world_end),
		cmocka_unit_test_setup_teardown(so_it_is_without_claims, world_begin, world_end),
		cmocka_unit_test_setup_teardown(a_follower_at_which_consumers_die_is_given_up_too,
						world_begin, world_end),
		cmocka_unit_test_setup_teardown(a_death_at_no_event_costs_nobody_an_attempt,
						world_begin, world_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
