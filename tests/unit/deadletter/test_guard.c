/* SPDX-License-Identifier: Apache-2.0 */
/* A guard whose claims are not part of the store's transaction: what changes claims in such a
 * transaction refuses it, before it changes anything. The linker puts __wrap_… in the place of the
 * function that opens the guard (tests/CMakeLists.txt). */
#include "deadletter/deadletter.h"
#include "deadletter/replay.h"
#include "guard/guard.h"
#include "unit/fixture.h"

static struct semel_guard_driver apart; /* as the default guard, and does not join */
static bool joins;

semel_status __real_semel_guard_open_default(semel_store *store, struct semel_guard **guard_out,
					     semel_error *error);
semel_status __wrap_semel_guard_open_default(semel_store *store, struct semel_guard **guard_out,
					     semel_error *error);

semel_status __wrap_semel_guard_open_default(semel_store *store, struct semel_guard **guard_out,
					     semel_error *error)
{
	semel_status status = __real_semel_guard_open_default(store, guard_out, error);
	if (status != SEMEL_OK || joins)
		return status;
	apart = *(*guard_out)->driver;
	apart.form = "apart:";
	apart.joins = false;
	(*guard_out)->driver = &apart;
	return SEMEL_OK;
}

static void assert_refused(struct fixture *fixture, semel_status status, const char *action)
{
	assert_int_equal(status, SEMEL_CONFIG);
	assert_non_null(strstr(fixture->error.text, action));
	assert_non_null(strstr(fixture->error.text, "apart:"));
}

static void a_discard_refuses_it(void **state)
{
	struct fixture *fixture = fixture_of(state);
	joins = true;
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	struct fixture_letter letter = fixture_letter(fixture);

	joins = false;
	assert_refused(fixture,
		       semel_dead_letter_discard(fixture->store, letter.entry_id, "not wanted",
						 &fixture->error),
		       "discarding a dead letter");
	assert_int_equal(fixture_letter(fixture).status, SEMEL_DEAD_PENDING);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "0");
}

static semel_status replay(struct fixture *fixture, bool reprocess,
			   struct semel_replay_counts *counts)
{
	const struct semel_env *env = semel_env_system();
	semel_store *stores[] = { fixture->store };
	struct semel_replay_plan plan = { .scope = "billing",
					  .reprocess = reprocess,
					  .producer = fixture->store,
					  .consumers = stores,
					  .consumer_count = 1,
					  .env = env,
					  .inbox_retention_ms = INT64_C(1000000000) };
	fixture_ok(fixture, semel_wake_new(&plan.wake, &fixture->error));
	fixture_ok(fixture, semel_broker_open(fixture->broker_url, env, SEMEL_REPLAY_WINDOW,
					      &plan.broker, &fixture->error));
	semel_status status = semel_replay_run(&plan, counts, &fixture->error);
	semel_broker_close(plan.broker);
	semel_wake_free(plan.wake);
	return status;
}

static void reprocessing_refuses_it_and_a_replay_to_duplicates_does_not(void **state)
{
	struct fixture *fixture = fixture_of(state);
	struct semel_replay_counts counts = { 0 };
	joins = true;
	fixture_publish(fixture, "1", "first", NULL);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");

	joins = false;
	assert_refused(fixture, replay(fixture, true, &counts), "--reprocess");
	assert_int_equal(counts.sent, 0);
	fixture_expect(fixture, "SELECT count(*) FROM semel_inbox", "1");
	fixture_ok(fixture, replay(fixture, false, &counts));
	assert_int_equal(counts.sent, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_discard_refuses_it, fixture_begin, fixture_end),
		cmocka_unit_test_setup_teardown(
			reprocessing_refuses_it_and_a_replay_to_duplicates_does_not, fixture_begin,
			fixture_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
