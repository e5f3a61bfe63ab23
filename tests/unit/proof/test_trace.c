/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of one event, in the order of time. */
#include "proof/trace.h"
#include "unit/fixture.h"

struct story {
	struct semel_arena *arena;
	struct semel_trace trace;
};

static semel_status run_trace(struct fixture *fixture, const char *event_id, struct story *story)
{
	semel_store *stores[] = { fixture->store, fixture->store };
	struct semel_trace_plan plan = { .stores = stores,
					 .store_count = 2,
					 .broker_url = fixture->broker_url,
					 .env = semel_env_system() };
	story->arena = semel_arena_new(4096);
	return semel_trace_run(&plan, event_id, story->arena, &story->trace, &fixture->error);
}

/* Index of the entry in the trace, or -1. */
static int place_of(const struct story *story, const char *what, const char *scope)
{
	for (size_t i = 0; i < story->trace.count; i++) {
		const struct semel_trace_entry *entry = &story->trace.entries[i];
		bool same_scope =
			scope ? entry->scope && strcmp(entry->scope, scope) == 0 : !entry->scope;
		if (strcmp(entry->what, what) == 0 && same_scope)
			return (int)i;
	}
	return -1;
}

static void a_delivered_event_was_committed_published_and_processed(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	fixture_publish(fixture, "1", "word", id);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	struct story story;
	fixture_ok(fixture, run_trace(fixture, id, &story));
	int committed = place_of(&story, "committed", NULL);
	int published = place_of(&story, "published", NULL);
	int processed = place_of(&story, "processed", "billing");
	assert_int_equal(committed, 0);
	assert_true(published > committed);
	assert_true(processed > published);
	for (size_t i = 1; i < story.trace.count; i++)
		assert_true(story.trace.entries[i - 1].time_ms <= story.trace.entries[i].time_ms);
	semel_arena_free(story.arena);
}

static void two_urls_of_one_database_give_every_entry_once(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	fixture_publish(fixture, "1", "word", id);
	struct story story;
	fixture_ok(fixture, run_trace(fixture, id, &story));
	assert_int_equal(story.trace.count, 1);
	semel_arena_free(story.arena);
}

static void what_is_on_its_way_waits_at_the_broker(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	fixture_consume(fixture, "billing");
	fixture_publish(fixture, "1", "word", id);
	fixture_relay(fixture);
	struct story story;
	fixture_ok(fixture, run_trace(fixture, id, &story));
	assert_true(place_of(&story, "waiting", "billing") > 0);
	semel_arena_free(story.arena);
}

static void a_dead_letter_and_its_replay_are_traced(void **state)
{
	struct fixture *fixture = fixture_of(state);
	char id[SEMEL_ID_SIZE];
	fixture->poison = "bad";
	fixture_publish(fixture, "1", "bad", id);
	fixture_relay(fixture);
	fixture_consume(fixture, "billing");
	fixture->poison = NULL;
	fixture_ok(fixture,
		   semel_dead_letter_replay(fixture->store, fixture->broker_url,
					    fixture_letter(fixture).entry_id, &fixture->error));
	fixture_consume(fixture, "billing");
	struct story story;
	fixture_ok(fixture, run_trace(fixture, id, &story));
	int dead = place_of(&story, "dead-lettered", "billing");
	int replayed = place_of(&story, "replayed", "billing");
	assert_true(dead > 0);
	assert_true(replayed > dead);
	assert_true(place_of(&story, "processed", "billing") > dead);
	semel_arena_free(story.arena);
}

static void an_unknown_event_is_not_found(void **state)
{
	struct fixture *fixture = fixture_of(state);
	struct story story;
	assert_int_equal(run_trace(fixture, "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41", &story),
			 SEMEL_NOT_FOUND);
	semel_arena_free(story.arena);
}

#define WORLD_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_begin, fixture_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD_TEST(a_delivered_event_was_committed_published_and_processed),
		WORLD_TEST(two_urls_of_one_database_give_every_entry_once),
		WORLD_TEST(what_is_on_its_way_waits_at_the_broker),
		WORLD_TEST(a_dead_letter_and_its_replay_are_traced),
		WORLD_TEST(an_unknown_event_is_not_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
