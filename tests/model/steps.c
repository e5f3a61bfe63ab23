/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the model, each through the library's own functions. */
#include "model/steps.h"

#include "deadletter/deadletter.h"
#include "deadletter/replay.h"
#include "model/changes.h"
#include "model/disk.h"
#include "proof/retention.h"

#include <semel/outbox.h>

#include <stdlib.h>
#include <string.h>

#define DAY_MS  INT64_C(86400000)
#define HOUR_MS INT64_C(3600000)

static const int64_t spans_ms[] = { 100, 1100, 2200, 6000, 40000, 2 * HOUR_MS };

int64_t step_span_ms(const struct step *step)
{
	return spans_ms[step->a % (sizeof spans_ms / sizeof spans_ms[0])];
}

static void expect(struct world *world, semel_status status, const char *what)
{
	if (status == SEMEL_INTERNAL && !disk_is_dead())
		world_break(world, "an internal error", "%s: %s", what, world->error.text);
}

static void excuse(struct world *world, int event)
{
	for (int scope = 0; scope < SCOPES; scope++)
		for (int i = 0; i < world->reference.count; i++)
			if (event < 0 || i == event)
				world->reference.asked[scope][i].excused = true;
}

/* ---- producers and operators ----------------------------------------------------------------- */

int step_aggregate(const struct step *step)
{
	return step->a % 6 == 5 ? AGGREGATES - 1 : step->a % (AGGREGATES - 1);
}

static void publish(struct world *world, const struct step *step)
{
	struct reference *reference = &world->reference;
	int number = reference->count, which = step_aggregate(step);
	char aggregate[16], payload[64], id[SEMEL_ID_SIZE] = "";

	if (number == EVENTS_MAX || !world_open_operator_store(world))
		return;
	snprintf(aggregate, sizeof aggregate, "o-%d", which + 1);
	snprintf(payload, sizeof payload, "%-*d", step->c == 3 ? 40 : 1, number);
	semel_event_input input = { .type = "order.created.v1",
				    .aggregate_type = "order",
				    .aggregate_id = aggregate,
				    .topic = world_topics[which == AGGREGATES - 1],
				    .payload = payload };
	const struct semel_store_driver *driver = world->operator_store->driver;
	semel_status status = driver->begin(world->operator_store, &world->error);
	if (status == SEMEL_OK)
		status = semel_outbox_publish(driver->tx(world->operator_store), &input, id,
					      &world->error);
	if (status == SEMEL_OK)
		status = driver->commit(world->operator_store, &world->error);
	if (status != SEMEL_OK) {
		expect(world, status, "publish");
		return;
	}
	struct event *event = &reference->events[reference->count++];
	event->aggregate = which;
	event->topic = which == AGGREGATES - 1;
	event->committed = true;
	snprintf(event->id, sizeof event->id, "%s", id);
	world->behaviours[number] = step->b % BEHAVIOURS;
}

static void replay_letter(struct world *world, const struct step *step)
{
	char entry_id[40];
	int scope = -1, event = -1;

	if (!inspect_letter(world, step->a, entry_id, &scope, &event) ||
	    !world_open_operator_store(world))
		return;
	struct seen seen = { 0 };
	if (event >= 0)
		seen = inspect_event(world, scope, event);
	struct asked before =
		event >= 0 ? world->reference.asked[scope][event] : (struct asked){ 0 };
	if (event >= 0)
		world->reference.asked[scope][event].times++;
	if (event >= 0 && before.replays < seen.replays + 1)
		world->reference.asked[scope][event].replays = seen.replays + 1;
	semel_status status = semel_dead_letter_replay(world->operator_store, world->broker_url,
						       entry_id, &world->error);
	expect(world, status, "dlq replay");
	if (event >= 0 && status == SEMEL_OK) {
		char *won = world->won[scope][event][seen.replays % REPLAYS];
		if (strcmp(won, entry_id) == 0)
			world_break(world, "two replays of one dead letter were both accepted",
				    "event %d at %s", event + 1, world->scope_options[scope].scope);
		memcpy(won, entry_id, sizeof entry_id);
	}
	/* It was refused, and nothing was sent. */
	if (event >= 0 && status != SEMEL_OK && !disk_is_dead() && !world->outage)
		world->reference.asked[scope][event].replays = before.replays;
}

static void discard_letter(struct world *world, const struct step *step)
{
	char entry_id[40];
	int scope = -1, event = -1;

	if (!inspect_letter(world, step->a, entry_id, &scope, &event) ||
	    !world_open_operator_store(world))
		return;
	expect(world,
	       semel_dead_letter_discard(world->operator_store, entry_id, "decided by the model",
					 &world->error),
	       "dlq discard");
}

static bool is_chosen(const struct world *world, const struct step *step, int event)
{
	int aggregate = step->b % (AGGREGATES + 1);

	return world->reference.events[event].committed &&
	       (aggregate == 0 || world->reference.events[event].aggregate == aggregate - 1);
}

/* Replays to all scopes or to one; of all aggregates or of one; all events or the first. */
static semel_status send_again(struct world *world, const struct step *step, const char *scope,
			       bool reprocess)
{
	int aggregate = step->b % (AGGREGATES + 1);
	char name[16];
	semel_store *consumers[] = { world->operator_store };
	struct semel_replay_plan plan = { .producer = world->operator_store,
					  .consumers = consumers,
					  .consumer_count = 1,
					  .env = disk_env(),
					  .scope = scope,
					  .max = step->c % 2,
					  .inbox_retention_ms = 30 * DAY_MS,
					  .reprocess = reprocess,
					  .force = reprocess && step->c / 2 % 2 == 1 };
	struct semel_replay_counts counts = { 0 };
	snprintf(name, sizeof name, "o-%d", aggregate);
	plan.filter.aggregate_type = aggregate > 0 ? "order" : NULL;
	plan.filter.aggregate_id = aggregate > 0 ? name : NULL;
	semel_status status = semel_wake_new(&plan.wake, &world->error);
	if (status == SEMEL_OK)
		semel_wake_set_env(plan.wake, disk_env());
	if (status == SEMEL_OK)
		status = semel_broker_open(world->broker_url, disk_env(), SEMEL_REPLAY_WINDOW,
					   &plan.broker, &world->error);
	if (status == SEMEL_OK)
		status = semel_replay_run(&plan, &counts, &world->error);
	semel_broker_close(plan.broker);
	semel_wake_free(plan.wake);
	return status;
}

static void replay(struct world *world, const struct step *step)
{
	int to = step->a % (SCOPES + 1);

	if (!world_open_operator_store(world))
		return;
	/* Copies to one scope are not queued after what it has not read yet: a part of a topic that
	 * is sent alone overtakes the rest. */
	if (to > 0 && world->terms[to - 1].whole_topic)
		excuse(world, -1);
	expect(world,
	       send_again(world, step, to == 0 ? NULL : world->scope_options[to - 1].scope, false),
	       "replay");
}

/* If it is killed in between, it may have deleted claims whose events it did not send: they are
 * missing until the same replay is run again. */
static void reprocess(struct world *world, const struct step *step)
{
	int scope = step->a % SCOPES;
	bool first = true;

	if (!world_open_operator_store(world))
		return;
	semel_status status = send_again(world, step, world->scope_options[scope].scope, true);
	expect(world, status, "replay --reprocess");
	if (status == SEMEL_INVALID)
		return; /* refused: nothing was done */
	world->lossy = world->lossy || status != SEMEL_OK;
	for (int i = 0; i < world->reference.count; i++) {
		if (!is_chosen(world, step, i) || (step->c % 2 == 1 && !first))
			continue;
		world->reference.asked[scope][i].again++;
		world->reference.asked[scope][i].excused = true;
		first = false;
	}
}

static void prune(struct world *world, const struct step *step)
{
	struct semel_retention_plan plan = {
		.env = disk_env(),
		.ages = { .outbox_ms = 14 * DAY_MS, .inbox_ms = 30 * DAY_MS, .dead_ms = HOUR_MS }
	};
	struct semel_retention_counts counts = { 0 };

	/* A log without subscriptions is not kept for any consumer. */
	if (step->c == 3 &&
	    inspect_number(world, "SELECT count(*) FROM b.semel_subscription", 0, 0) == 2 * SCOPES)
		plan.ages.outbox_ms = HOUR_MS;
	if (step->a % 3 > 0)
		disk_clock_ms += 2 * HOUR_MS;
	if (!world_open_operator_store(world))
		return;
	plan.store = world->operator_store;
	semel_status status =
		semel_broker_open(world->broker_url, disk_env(), 1, &plan.broker, &world->error);
	if (status == SEMEL_OK)
		status = semel_retention_run(&plan, &counts, &world->error);
	expect(world, status, "prune");
	semel_broker_close(plan.broker);
}

static void pause_scope(struct world *world, const struct step *step)
{
	int scope = step->a % SCOPES;

	if (!world_open_operator_store(world))
		return;
	semel_status status = world->operator_store->driver->upkeep->subscription_pause(
		world->operator_store, semel_text_of(world->scope_options[scope].scope),
		!world->paused[scope], &world->error);
	if (status == SEMEL_OK)
		world->paused[scope] = !world->paused[scope];
}

/* ---- by force -------------------------------------------------------------------------------- */

#define NTH_DELAYED "(SELECT number FROM b.semel_delayed ORDER BY number LIMIT 1 OFFSET ?1)"
#define NTH_LOGGED                                                                                 \
	"(SELECT position FROM b.semel_log ORDER BY position & 17592186044415 DESC LIMIT 1 "       \
	"OFFSET ?1)"

static void lose(struct world *world, const struct step *step)
{
	const char *payload =
		step->a % 2 == 0 ? "SELECT payload FROM b.semel_delayed WHERE number = " NTH_DELAYED
				 : "SELECT payload FROM b.semel_log WHERE position = " NTH_LOGGED;
	const char *removal = step->a % 2 == 0
				      ? "DELETE FROM b.semel_delayed WHERE number = " NTH_DELAYED
				      : "DELETE FROM b.semel_log WHERE position = " NTH_LOGGED;
	int64_t event = inspect_number(world, payload, step->b, 0);

	world_close_all(world); /* no copy of it stays in flight */
	if (inspect_execute(world, removal, step->b, 0) == 0)
		return;
	excuse(world, (int)event);
	world->lossy = true;
}

#define COLUMNS                                                                                    \
	"id, type, aggregate_type, aggregate_id, routing_key, content_type, headers, payload, "    \
	"time, previous, attempt, replay"

static void repeat(struct world *world, const struct step *step)
{
	if (step->a % 2 == 0) {
		inspect_execute(
			world,
			"INSERT INTO b.semel_delayed (subscription, partition, due_at, " COLUMNS
			") SELECT subscription, partition, due_at, " COLUMNS
			" FROM b.semel_delayed WHERE number = " NTH_DELAYED,
			step->b, 0);
		return;
	}
	if (inspect_execute(
		    world,
		    "INSERT INTO b.semel_log (position, appended_at, " COLUMNS
		    ") SELECT (position & ~17592186044415) | (SELECT next FROM b.semel_offset), "
		    "appended_at, " COLUMNS " FROM b.semel_log WHERE position = " NTH_LOGGED,
		    step->b, 0) == 0)
		return;
	inspect_execute(world, "UPDATE b.semel_offset SET next = next + 1", 0, 0);
	inspect_execute(world,
			"UPDATE b.semel_partition SET appended = appended + 1"
			" WHERE topic << 6 | partition ="
			" (SELECT position >> 44 FROM b.semel_log WHERE position = " NTH_LOGGED ")",
			0, 0);
}

static void postpone(struct world *world, const struct step *step)
{
	inspect_execute(
		world,
		"UPDATE b.semel_delayed SET due_at = due_at + 30000 WHERE number = " NTH_DELAYED,
		step->b, 0);
}

/* Copies of what was requested since the save may still be in transit at the broker; what was run
 * since is run again. */
static void remember(struct world *world)
{
	struct reference now = world->reference;
	struct reference *then = &world->reference;

	*then = world->kept.reference;
	for (int i = then->count; i < now.count; i++) {
		then->events[i] = now.events[i];
		then->events[i].committed = false;
	}
	then->count = now.count;
	for (int scope = 0; scope < SCOPES; scope++)
		for (int i = 0; i < now.count; i++) {
			struct asked *asked = &then->asked[scope][i];
			const struct asked *later = &now.asked[scope][i];
			asked->interrupted = later->interrupted;
			asked->replays =
				later->replays > asked->replays ? later->replays : asked->replays;
			asked->times = later->times > asked->times ? later->times : asked->times;
			asked->again = later->again > asked->again ? later->again : asked->again;
		}
	memcpy(world->paused, world->kept.paused, sizeof world->paused);
	memset(world->won, 0, sizeof world->won);
}

static void restore(struct world *world, const struct step *step)
{
	int which = step->a % 3 + 1;

	if (!world->kept.there)
		return;
	world_load(world, &world->kept, which);
	if (which & 1)
		remember(world);
	excuse(world, -1);
	world->lossy = true;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void relay(struct world *world, const struct step *step)
{
	bool busy = true;

	for (int i = 0; i <= step->a && busy && !world->broken; i++)
		if (!world_relay_turn(world, &busy)) {
			expect(world, world->error.status, "relay");
			break;
		}
}

static void consume(struct world *world, const struct step *step)
{
	int scope = step->a % SCOPES;
	bool busy = true;

	for (int i = 0; i <= step->c && busy && !world->broken; i++)
		if (!world_consumer_turn(world, scope, step->b % CONSUMERS, &busy)) {
			expect(world, world->error.status, "consume");
			break;
		}
}

static void stop(struct world *world, const struct step *step)
{
	int number = step->a % (2 + SCOPES * CONSUMERS);

	if (number == STOP_ALL)
		world_close_all(world);
	else if (number == 0)
		world_drop_relay(world);
	else
		world_drop_consumer(world, (number - 1) % SCOPES, (number - 1) / SCOPES);
}

static void act(struct world *world, const struct step *step)
{
	switch ((enum action)step->action) {
	case STEP_PUBLISH:
		publish(world, step);
		break;
	case STEP_RELAY:
		relay(world, step);
		break;
	case STEP_CONSUME:
		consume(world, step);
		break;
	case STEP_PASS:
		disk_clock_ms += step_span_ms(step);
		break;
	case STEP_STOP:
		stop(world, step);
		break;
	case STEP_VERDICT:
		if (world->reference.count > 0)
			world->behaviours[step->a % world->reference.count] = step->b % BEHAVIOURS;
		break;
	case STEP_DLQ_REPLAY:
		replay_letter(world, step);
		break;
	case STEP_DLQ_DISCARD:
		discard_letter(world, step);
		break;
	case STEP_REPLAY:
		replay(world, step);
		break;
	case STEP_REPROCESS:
		reprocess(world, step);
		break;
	case STEP_PRUNE:
		prune(world, step);
		break;
	case STEP_PAUSE:
		pause_scope(world, step);
		break;
	case STEP_LOSE:
		lose(world, step);
		break;
	case STEP_REPEAT:
		repeat(world, step);
		break;
	case STEP_POSTPONE:
		postpone(world, step);
		break;
	case STEP_SAVE:
		world_save(world, &world->kept);
		break;
	case STEP_RESTORE:
		restore(world, step);
		break;
	case STEP_CHANGE:
		change(world, step);
		break;
	case STEP_DROP:
		drop(world, step);
		break;
	case STEP_COUNT:
		break;
	}
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Closes the dead party, which leaves everything as it is. */
static void drop_dead_party(struct world *world, const struct step *step)
{
	if (step->action == STEP_RELAY)
		world_drop_relay(world);
	else if (step->action == STEP_CONSUME)
		world_drop_consumer(world, step->a % SCOPES, step->b % CONSUMERS);
	else
		world_drop_operator_store(world);
}

static void count_interrupted(struct world *world, const struct reference *before)
{
	for (int scope = 0; scope < SCOPES; scope++)
		for (int i = 0; i < world->reference.count; i++) {
			struct asked *asked = &world->reference.asked[scope][i];
			asked->interrupted += asked->runs - before->asked[scope][i].runs;
		}
}

static void judge(struct world *world)
{
	struct seen seen[EVENTS_MAX];

	if (!inspect_changed(world))
		return;

	for (int scope = 0; scope < SCOPES && !world->broken; scope++) {
		inspect_all(world, scope, seen);
		const char *broken =
			reference_effects(&world->reference, scope, &world->terms[scope], seen);
		if (broken)
			world_break(world, broken, "at %s", world->scope_options[scope].scope);
	}
}

static bool can_fail(uint8_t action)
{
	return action == STEP_RELAY || action == STEP_CONSUME || action == STEP_PUBLISH ||
	       (action >= STEP_DLQ_REPLAY && action <= STEP_PRUNE);
}

/* ---- two at once ----------------------------------------------------------------------------- */

struct between {
	struct world *world;
	const struct step *step;
	bool done;
};

/* The number of the party that acts, because a party cannot do two things at once. -1: an operator,
 * each of which is a party of its own. */
static int party_of(const struct step *step)
{
	if (step->action == STEP_RELAY)
		return 0;
	if (step->action == STEP_CONSUME)
		return 1 + step->a % SCOPES * CONSUMERS + step->b % CONSUMERS;
	return -1;
}

static bool may_meet(const struct step *one, const struct step *other)
{
	return can_fail(one->action) && can_fail(other->action) &&
	       (party_of(one) < 0 || party_of(one) != party_of(other));
}

static void run_in_between(void *user)
{
	struct between *between = user;
	struct world *world = between->world;
	semel_store *operator_store = world->operator_store;
	semel_error error = world->error;

	between->done = true;
	world->operator_store = NULL;
	act(world, between->step);
	world_drop_operator_store(world);
	world->operator_store = operator_store;
	world->error = error;
}

int step_run(struct world *world, const struct step *steps, int count)
{
	struct reference before = world->reference;
	const struct step *step = &steps[0];
	struct between between = { world, &steps[1], false };

	disk_act();
	disk_clock_ms++;
	world->outage = step->fault == FAULT_OUTAGE;
	if (step->fault == FAULT_KILL || step->fault == FAULT_OUTAGE)
		disk_kill_after(step->at);
	if (step->fault == FAULT_POINT)
		disk_kill_at(step->at % SEMEL_FP_COUNT, 1);
	if (step->fault == FAULT_MEANWHILE && count > 1 && may_meet(step, &steps[1])) {
		disk_meanwhile(step->at % SEMEL_FP_COUNT, run_in_between, &between);
		world->outage = true; /* one may meet the lock of the other */
	}
	act(world, step);
	if ((disk_is_dead() || between.done) && world->outage)
		count_interrupted(world, &before);
	else if (disk_is_dead())
		drop_dead_party(world, step);
	world->outage = false;
	disk_act();
	judge(world);
	return between.done ? 2 : 1;
}

void step_do(struct world *world, struct step step)
{
	(void)step_run(world, &step, 1);
}

/* ---- by chance ------------------------------------------------------------------------------- */

static uint8_t weights[STEP_COUNT] = {
	[STEP_PUBLISH] = 10, [STEP_RELAY] = 12,    [STEP_CONSUME] = 22,   [STEP_PASS] = 8,
	[STEP_STOP] = 2,     [STEP_VERDICT] = 4,   [STEP_DLQ_REPLAY] = 6, [STEP_DLQ_DISCARD] = 5,
	[STEP_REPLAY] = 5,   [STEP_REPROCESS] = 2, [STEP_PRUNE] = 3,      [STEP_PAUSE] = 1,
	[STEP_LOSE] = 3,     [STEP_REPEAT] = 2,    [STEP_POSTPONE] = 1,   [STEP_SAVE] = 1,
	[STEP_RESTORE] = 1,  [STEP_CHANGE] = 6,    [STEP_DROP] = 1,
};

static uint64_t favoured[STEP_COUNT]; /* 1 + b; 0: any */

static const char *const step_names[STEP_COUNT] = {
	"publish",     "relay",  "consume",   "pass",   "stop",  "verdict", "dlq-replay",
	"dlq-discard", "replay", "reprocess", "prune",  "pause", "lose",    "repeat",
	"postpone",    "save",   "restore",   "change", "drop",
};

const char *step_name(int action)
{
	return step_names[action];
}

bool step_forbid(const char *name)
{
	for (int i = 0; i < STEP_COUNT; i++)
		if (strcmp(step_names[i], name) == 0) {
			weights[i] = 0;
			return true;
		}
	return false;
}

bool step_favour(const char *name)
{
	size_t length = strcspn(name, ":");

	for (int i = 0; i < STEP_COUNT; i++)
		if (strlen(step_names[i]) == length && strncmp(step_names[i], name, length) == 0) {
			weights[i] = 25;
			favoured[i] =
				name[length] == ':' ? 1 + strtoull(&name[length + 1], NULL, 10) : 0;
			return true;
		}
	return false;
}

/* Draws one of the failpoints that the party can hit. */
static uint8_t draw_point(const struct step *step, unsigned bits)
{
	if (step->action == STEP_RELAY)
		return (uint8_t)(SEMEL_FP_RELAY_AFTER_CLAIM + bits % 5);
	if (step->action == STEP_CONSUME)
		return (uint8_t)(SEMEL_FP_CONSUME_AFTER_RECEIVE + bits % 6);
	if (step->action == STEP_DLQ_REPLAY)
		return (uint8_t)(SEMEL_FP_DLQ_AFTER_PUBLISH + bits % 2);
	return SEMEL_FP_REPLAY_AFTER_PUBLISH;
}

static void draw_fault(struct step *step, unsigned bits)
{
	/* An operator's command is short, so most of its faults are another party in between. */
	if (step->action == STEP_DLQ_REPLAY && bits % 2 == 0)
		step->fault = FAULT_MEANWHILE;
	else
		step->fault = (uint8_t)(1 + bits / 2 % 4);
	bits /= 8;
	if (step->fault == FAULT_POINT || step->fault == FAULT_MEANWHILE)
		step->at = draw_point(step, bits);
	else
		step->at = (uint8_t)(bits % 7);
}

struct step step_draw(uint64_t (*next)(void *user), void *user)
{
	struct step step = { 0 };
	unsigned total = 0;

	for (int i = 0; i < STEP_COUNT; i++)
		total += weights[i];
	unsigned at = (unsigned)(next(user) % total);
	while (at >= weights[step.action])
		at -= weights[step.action++];
	uint64_t bits = next(user);
	step.a = (uint8_t)(bits % 12);
	step.b = (uint8_t)(favoured[step.action] ? favoured[step.action] - 1 : bits / 12 % 6);
	step.c = (uint8_t)(bits / 72 % 4);
	if (step.action == STEP_RELAY)
		step.a %= 4;
	if (step.action == STEP_DLQ_REPLAY || step.action == STEP_DLQ_DISCARD)
		step.a %= 3;
	if (step.action == STEP_LOSE || step.action == STEP_REPEAT || step.action == STEP_POSTPONE)
		step.b %= 3;
	if (step.action == STEP_CONSUME) {
		step.b = step.b == 5;
		step.c = step.c == 0 ? 0 : 20;
	}
	if (can_fail(step.action) && bits / 288 % (step.action == STEP_DLQ_REPLAY ? 2 : 4) == 0)
		draw_fault(&step, (unsigned)(bits / 1152 % 10000));
	return step;
}
