/* SPDX-License-Identifier: Apache-2.0 */
/* Brings the model to rest, and checks what must be true then. */
#include "model/steps.h"

#include "model/disk.h"
#include "proof/verify.h"
#include "repair/repair.h"

#include <semel/outbox.h>

#include <string.h>

enum { TURNS_MAX = 100, ROUNDS_MAX = 200, DECISIONS_MAX = 60, PATIENCE = 2 };

#define LEASES_MS 6500
#define LONG_MS   70000

/* ---- until nothing moves ----------------------------------------------------------------------
 */

static bool run_relay(struct world *world)
{
	bool busy = true;

	for (int i = 0; i < TURNS_MAX; i++) {
		if (!world_relay_turn(world, &busy) && world->error.status == SEMEL_INTERNAL)
			world_break(world, "an internal error", "relay: %s", world->error.text);
		if (world->broken || !busy)
			return !world->broken;
	}
	world_break(world, "it does not come to rest", "the relay spins");
	return false;
}

static bool run_consumer(struct world *world, int scope)
{
	const char *name = world->scope_options[scope].scope;
	bool busy = true;

	for (int i = 0; i < TURNS_MAX; i++) {
		if (!world_consumer_turn(world, scope, 0, &busy) &&
		    world->error.status == SEMEL_INTERNAL)
			world_break(world, "an internal error", "consume: %s", world->error.text);
		if (world->broken || !busy)
			return !world->broken;
	}
	world_break(world, "it does not come to rest", "the consumer of %s spins", name);
	return false;
}

static bool is_accounted(struct world *world, int scope, int event, const struct seen *seen)
{
	if (reference_accounted(&world->terms[scope], seen))
		return true;
	return world->scope_options[scope].order == SEMEL_ORDER_TOTAL &&
	       inspect_blocked(world, scope) && inspect_waiting(world, scope, event) > 0;
}

/* Without its row a lost event cannot be sent again, and verify does not know it. The replay of a
 * relay's dead letter restores the row. */
static bool is_expected(const struct world *world, int event, const struct seen *seen)
{
	return seen->row != ROW_NONE || (world->reference.events[event].committed && !world->lossy);
}

static int count_open(struct world *world, int scope)
{
	struct seen seen[EVENTS_MAX];
	int count = 0;

	inspect_all(world, scope, seen);
	for (int i = 0; i < world->reference.count; i++)
		count +=
			is_expected(world, i, &seen[i]) && !is_accounted(world, scope, i, &seen[i]);
	return count;
}

/* Counts the runs of all handlers so far. */
static unsigned count_runs(const struct world *world)
{
	unsigned runs = 0;

	for (int scope = 0; scope < SCOPES; scope++)
		for (int i = 0; i < world->reference.count; i++)
			runs += world->reference.asked[scope][i].runs;
	return runs;
}

/* Lets every scope read both topics again, and the relay use a URL that the broker does not
 * refuse. */
static void resume_all(struct world *world)
{
	disk_act();
	if (world->relay_options.limit == 3)
		world->relay_options.limit = 0;
	world_drop_relay(world);
	for (int scope = 0; scope < SCOPES; scope++) {
		world->scope_options[scope].narrow = false;
		world_drop_consumer(world, scope, 0);
		world_drop_consumer(world, scope, 1);
		if (world->paused[scope])
			step_do(world, (struct step){ .action = STEP_PAUSE, .a = (uint8_t)scope });
	}
}

void quiesce(struct world *world)
{
	bool waited = false;
	int patience = PATIENCE;
	unsigned runs = 0;

	resume_all(world);
	for (int round = 0; round < ROUNDS_MAX && !world->broken; round++) {
		if (!run_relay(world) || !run_consumer(world, 0) || !run_consumer(world, 1))
			return;
		if (count_runs(world) != runs) /* a breaker lets one event through at a time */
			patience = PATIENCE;
		runs = count_runs(world);
		int64_t due_ms = inspect_due(world);
		if (due_ms > disk_clock_ms) {
			disk_clock_ms = due_ms + 1;
		} else if (!waited) { /* dead parties still hold leases */
			disk_clock_ms += LEASES_MS;
			waited = true;
		} else if (patience > 0 && count_open(world, 0) + count_open(world, 1) > 0) {
			disk_clock_ms += LONG_MS;
			patience--;
		} else {
			step_do(world, (struct step){ .action = STEP_STOP }); /* this also judges */
			return;
		}
	}
	world_break(world, "it does not come to rest", "something is due again and again");
}

/* ---- what verify reports ----------------------------------------------------------------------
 */

static const struct semel_verify_scope *scope_of(const struct semel_verify_report *report,
						 const char *name)
{
	for (size_t i = 0; i < report->scope_count; i++)
		if (semel_text_equal(report->scopes[i].scope, semel_text_of(name)))
			return &report->scopes[i];
	return NULL;
}

/* In total order a topic waits at the broker behind the stuck event: only that event is
 * reported. */
static bool is_behind_another(struct world *world, int scope, int event)
{
	return world->scope_options[scope].order == SEMEL_ORDER_TOTAL &&
	       inspect_waiting(world, scope, event) > 0 && inspect_held(world, scope, event);
}

static void compare(struct world *world, int scope, const struct semel_verify_scope *reported)
{
	struct seen seen[EVENTS_MAX];
	uint64_t done = 0, pending = 0, open = 0, committed = 0, gone = 0, behind = 0;
	const char *name = world->scope_options[scope].scope;

	inspect_all(world, scope, seen);
	for (int i = 0; i < world->reference.count; i++) {
		if (seen[i].row == ROW_NONE) {
			gone += world->reference.events[i].committed &&
				!is_accounted(world, scope, i, &seen[i]);
			continue;
		}
		committed++;
		done += seen[i].claim == CLAIM_DONE;
		pending += seen[i].claim != CLAIM_DONE && seen[i].letter == LETTER_PENDING;
		bool accounted = is_accounted(world, scope, i, &seen[i]);
		open += !accounted;
		behind += !accounted && is_behind_another(world, scope, i);
	}
	if (open + gone > 0 && !world->lossy)
		world_break(world, "an event is lost", "%d at %s", (int)(open + gone), name);
	if (reported->expected != committed)
		world_break(world, "verify counts otherwise", "%s: expects %d of %d", name,
			    (int)reported->expected, (int)committed);
	if (reported->processed != done || reported->pending != pending)
		world_break(world, "verify counts otherwise",
			    "%s: %d processed (are %d), %d pending (are %d)", name,
			    (int)reported->processed, (int)done, (int)reported->pending,
			    (int)pending);
	/* An event without its row is not reported as missing, but its dead letter may be stuck. */
	uint64_t named = reported->missing.count + reported->stuck.count;
	if (named < open - behind || named > open - behind + gone)
		world_break(world, "verify does not report what is missing or stuck",
			    "%s: %d missing and %d stuck are reported, %d are", name,
			    (int)reported->missing.count, (int)reported->stuck.count,
			    (int)(open - behind));
}

static void verify(struct world *world)
{
	struct semel_arena *arena = semel_arena_new(16384);
	struct semel_verify_report report = { 0 };
	semel_store *consumers[] = { world->operator_store };

	if (!world_open_operator_store(world))
		return;
	consumers[0] = world->operator_store;
	struct semel_verify_plan plan = { .producer = world->operator_store,
					  .consumers = consumers,
					  .consumer_count = 1,
					  .broker_url = world->broker_url,
					  .env = disk_env() };
	if (semel_verify_run(&plan, arena, &report, &world->error) != SEMEL_OK)
		world_break(world, "verify fails", "%s", world->error.text);
	for (int scope = 0; scope < SCOPES && !world->broken; scope++) {
		const struct semel_verify_scope *reported =
			scope_of(&report, world->scope_options[scope].scope);
		if (!reported)
			world_break(world, "verify does not know a subscription", "%s",
				    world->scope_options[scope].scope);
		else if (reported->tracked && !world->mixed[scope])
			compare(world, scope, reported);
	}
	semel_arena_free(arena);
}

/* ---- the way out ------------------------------------------------------------------------------
 */

static void ignore(const struct semel_repair_step *step, void *user)
{
	(void)step;
	(void)user;
}

static void repair(struct world *world)
{
	semel_store *stores[1];
	struct semel_repair_counts counts = { 0 };

	disk_act();
	if (!world_open_operator_store(world))
		return;
	stores[0] = world->operator_store;
	struct semel_repair_plan plan = { .stores = stores,
					  .store_count = 1,
					  .broker_url = world->broker_url,
					  .env = disk_env(),
					  .who = "model",
					  .callback = ignore };
	if (semel_repair_run(&plan, &counts, &world->error) != SEMEL_OK)
		world_break(world, "repair fails", "%s", world->error.text);
}

/* A run that was requested and has not happened can be done by any copy of the event. */
static void replay_all(struct world *world)
{
	struct seen seen[EVENTS_MAX];

	step_do(world, (struct step){ .action = STEP_REPLAY });
	quiesce(world);
	for (int scope = 0; scope < SCOPES && !world->broken; scope++) {
		inspect_all(world, scope, seen);
		for (int i = 0; i < world->reference.count; i++)
			if (world->reference.events[i].committed && !seen[i].parked &&
			    seen[i].letter == LETTER_REPLAYED && !seen[i].settled)
				world_break(world, "a lost replay is not made good by another copy",
					    "event %d at %s", i + 1,
					    world->scope_options[scope].scope);
	}
}

/* Does what repair prints for an event that the outbox does not retain: publishes it again with its
 * id. */
static void publish_again(struct world *world, int event)
{
	char aggregate[16], payload[16];
	const struct event *old = &world->reference.events[event];
	semel_event_input input = { .id = old->id,
				    .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = aggregate,
				    .topic = world_topics[old->topic],
				    .payload = payload };

	disk_act();
	if (!world_open_operator_store(world))
		return;
	const struct semel_store_driver *driver = world->operator_store->driver;
	snprintf(aggregate, sizeof aggregate, "o-%d", old->aggregate + 1);
	snprintf(payload, sizeof payload, "%d", event);
	semel_status status = driver->begin(world->operator_store, &world->error);
	if (status == SEMEL_OK)
		status = semel_outbox_publish(driver->tx(world->operator_store), &input, NULL,
					      &world->error);
	if (status == SEMEL_OK)
		status = driver->commit(world->operator_store, &world->error);
	if (status != SEMEL_OK)
		world_break(world, "it cannot be published again", "%s", world->error.text);
}

static void publish_gone(struct world *world)
{
	struct seen seen[SCOPES][EVENTS_MAX];

	for (int scope = 0; scope < SCOPES; scope++)
		inspect_all(world, scope, seen[scope]);
	for (int i = 0; i < world->reference.count && !world->broken; i++)
		if (world->reference.events[i].committed && seen[0][i].row == ROW_NONE &&
		    (!is_accounted(world, 0, i, &seen[0][i]) ||
		     !is_accounted(world, 1, i, &seen[1][i])))
			publish_again(world, i);
}

/* Runs what verify prints (repair for stuck events, replay for missing ones), which must heal. */
static void heal(struct world *world, bool repairs)
{
	if (world->broken || (!world->lossy && count_open(world, 0) + count_open(world, 1) == 0))
		return;
	publish_gone(world);
	if (!repairs)
		replay_all(world);
	if (!world->broken)
		repair(world);
	quiesce(world);
	if (!world->broken && count_open(world, 0) + count_open(world, 1) > 0)
		replay_all(world);
	int open = count_open(world, 0) + count_open(world, 1);
	if (open > 0)
		world_break(world, "what is missing cannot be healed", "%d events", open);
}

static void decide_all(struct world *world, bool discards)
{
	char entry_id[40];
	int scope, event;

	for (int i = 0; i < EVENTS_MAX; i++)
		world->behaviours[i] = BEHAVIOUR_GOOD;
	world->relay_options.limit = 0;
	for (int i = 0; i < DECISIONS_MAX && !world->broken; i++) {
		if (!inspect_letter(world, 0, entry_id, &scope, &event))
			return;
		struct step step = { .action = discards || i % 5 == 4 ? STEP_DLQ_DISCARD
								      : STEP_DLQ_REPLAY };
		step_do(world, step);
		quiesce(world);
	}
	if (!world->broken)
		world_break(world, "the dead letters do not come to an end", "%d", DECISIONS_MAX);
}

/* Checks that a new event of every aggregate is still processed. */
static void publish_more(struct world *world)
{
	int before = world->reference.count;

	static const uint8_t aggregates[AGGREGATES] = { 0, 1, 5 };

	for (int i = 0; i < AGGREGATES; i++)
		step_do(world, (struct step){ .action = STEP_PUBLISH, .a = aggregates[i] });
	quiesce(world);
	for (int scope = 0; scope < SCOPES && !world->broken; scope++)
		for (int i = before; i < world->reference.count; i++)
			if (inspect_event(world, scope, i).effects != 1)
				world_break(world, "an aggregate makes no progress", "o-%d at %s",
					    world->reference.events[i].aggregate + 1,
					    world->scope_options[scope].scope);
}

void quiesce_and_judge(struct world *world, bool discards)
{
	quiesce(world);
	if (!world->broken)
		verify(world);
	heal(world, discards);
	if (!world->broken)
		decide_all(world, discards);
	if (!world->broken)
		publish_more(world);
	if (!world->broken)
		verify(world);
	if (!world->broken && count_open(world, 0) + count_open(world, 1) > 0)
		world_break(world, "an event is lost", "after everything was decided");
	if (!world->broken &&
	    inspect_number(world,
			   "SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NOT NULL",
			   0, 0) > 0)
		world_break(world, "an event is parked forever", "nothing holds it");
}
