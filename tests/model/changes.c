/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the operator: settings that change between two starts, or differ between two parties
 * that run at the same time, and objects that are dropped and created again. */
#include "model/changes.h"

#include "model/disk.h"

#include <string.h>

/* ---- settings -------------------------------------------------------------------------------- */

static bool is_possible(const struct world *world, const struct scope_options *scope_options)
{
	if (scope_options->order == SEMEL_ORDER_STRICT &&
	    scope_options->guarantee == SEMEL_AT_LEAST_ONCE)
		return false;
	return scope_options->order != SEMEL_ORDER_TOTAL ||
	       (world->partitions == 1 && scope_options->poison != SEMEL_POISON_PARK_KEY);
}

static struct scope_options changed_scope_options(const struct setting *setting,
						  const struct scope_options *now,
						  const struct step *step)
{
	static const semel_guarantee guarantees[] = { SEMEL_EFFECTIVELY_ONCE,
						      SEMEL_EFFECTIVELY_ONCE, SEMEL_AT_MOST_ONCE,
						      SEMEL_AT_LEAST_ONCE };
	const struct scope_options *own = &setting->scopes[step->a % SCOPES];
	struct scope_options scope_options = *now;
	int value = step->c % 4;

	switch ((enum change)(step->b % CHANGES)) {
	case CHANGE_NUMBERS:
		scope_options.tuning = (uint8_t)value;
		break;
	case CHANGE_CLAIMS:
		scope_options.guarantee = guarantees[value];
		scope_options.claim = value == 1 ? SEMEL_CLAIM_SEPARATE : SEMEL_CLAIM_SAME_TX;
		break;
	case CHANGE_POISON:
		scope_options.poison = value < 3 ? (semel_poison)value : own->poison;
		break;
	case CHANGE_ORDER:
		scope_options.order = value < 3 ? (semel_order)value : own->order;
		break;
	case CHANGE_TOPICS:
		scope_options.narrow = value % 2 == 1;
		break;
	case CHANGE_RELAY:
	case CHANGES:
		break;
	}
	return scope_options;
}

static struct relay_options changed_relay_options(const struct relay_options *now,
						  const struct step *step)
{
	struct relay_options relay_options = *now;
	int value = step->c % 4;

	if (step->a % 4 == 0)
		relay_options.poison = value < 3 ? (semel_poison)value : SEMEL_POISON_PARK_KEY;
	else if (step->a % 4 == 1)
		relay_options.window = relay_options.attempts = (uint32_t)value;
	else
		relay_options.limit = (uint8_t)value;
	return relay_options;
}

/* True: all consumers of the scope restart; otherwise the running ones continue unchanged. */
static bool restarts(const struct step *step)
{
	return step->a / SCOPES % 2 == 1;
}

void change(struct world *world, const struct step *step)
{
	int scope = step->a % SCOPES;

	if (step->b % CHANGES == CHANGE_RELAY) {
		struct relay_options relay_options =
			changed_relay_options(&world->relay_options, step);
		world_set_relay_options(world, &relay_options);
		return;
	}
	struct scope_options scope_options =
		changed_scope_options(world->setting, &world->scope_options[scope], step);
	if (!is_possible(world, &scope_options))
		return;
	world_set_scope_options(world, scope, &scope_options);
	for (int which = 0; restarts(step) && which < CONSUMERS; which++)
		world_drop_consumer(world, scope, which);
}

/* ---- objects --------------------------------------------------------------------------------- */

static void excuse_scope(struct world *world, int scope)
{
	for (int i = 0; i < world->reference.count; i++)
		world->reference.asked[scope][i].excused = true;
}

/* Like the deletion of a queue: what waits there for the scope is lost. */
static void drop_subscription(struct world *world, int scope)
{
	static const char *const tables[] = { "delayed", "member", "share" };
	const char *name = world->scope_options[scope].scope;
	char sql[192];

	for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
		snprintf(sql, sizeof sql,
			 "DELETE FROM b.semel_%s WHERE subscription IN"
			 " (SELECT number FROM b.semel_subscription WHERE scope = '%s')",
			 tables[i], name);
		inspect_execute(world, sql, 0, 0);
	}
	snprintf(sql, sizeof sql, "DELETE FROM b.semel_subscription WHERE scope = '%s'", name);
	inspect_execute(world, sql, 0, 0);
	excuse_scope(world, scope);
	world->lossy = true;
}

static void drop_record(struct world *world, int scope)
{
	char sql[128];

	for (int i = 0; i < 2; i++) {
		snprintf(sql, sizeof sql, "DELETE FROM semel_subscription%s WHERE scope = '%s'",
			 i == 0 ? "" : "_topic", world->scope_options[scope].scope);
		inspect_execute(world, sql, 0, 0);
	}
	world->paused[scope] = false;
}

/* A published event is no longer reported, but still arrives. One that was not published counts as
 * never committed, although a copy of it may be in transit. */
static void forget_row(struct world *world, int event)
{
	enum row row = inspect_event(world, 0, event).row;

	if (row == ROW_NEW || row == ROW_FAILED)
		world->reference.events[event].committed = false;
	for (int scope = 0; scope < SCOPES; scope++)
		world->reference.asked[scope][event].excused = true;
}

static void delete_row(struct world *world, const struct step *step)
{
	int event = world->reference.count - 1 - step->a % 4;
	char sql[128];

	if (event < 0)
		return;
	forget_row(world, event);
	snprintf(sql, sizeof sql, "DELETE FROM semel_outbox WHERE id = '%s'",
		 world->reference.events[event].id);
	inspect_execute(world, sql, 0, 0);
}

static void start_numbers_anew(struct world *world)
{
	for (int i = 0; i < world->reference.count; i++)
		forget_row(world, i);
	inspect_execute(world, "DELETE FROM semel_outbox", 0, 0);
	inspect_execute(world, "DELETE FROM sqlite_sequence WHERE name = 'semel_outbox'", 0, 0);
}

/* Rows of tables are changed while parties run; objects at the broker only while no consumer has a
 * copy. */
void drop(struct world *world, const struct step *step)
{
	switch ((enum object)(step->b % OBJECTS)) {
	case OBJECT_SUBSCRIPTION:
		world_close_all(world);
		drop_subscription(world, step->a % SCOPES);
		break;
	case OBJECT_RECORD:
		drop_record(world, step->a % SCOPES);
		break;
	case OBJECT_BROKER:
		world_load(world, &world->fresh, 2);
		for (int scope = 0; scope < SCOPES; scope++)
			excuse_scope(world, scope);
		world->lossy = true;
		break;
	case OBJECT_ROW:
		delete_row(world, step);
		break;
	case OBJECT_NUMBERS:
		start_numbers_anew(world);
		break;
	case OBJECTS:
		break;
	}
}

/* ---- in words -------------------------------------------------------------------------------- */

static void print_relay(const struct step *step, FILE *out)
{
	static const char *const limits[] = { "no limit", "max-message=20", "max-length=1",
					      "another number of partitions" };
	static const char *const poisons[] = { "park-key", "block", "skip", "park-key" };

	if (step->a % 4 == 0)
		fprintf(out, "# relays started from now on: --poison %s", poisons[step->c % 4]);
	else if (step->a % 4 == 1)
		fprintf(out,
			"# relays started from now on: --window and --attempts %d (0: default)",
			step->c % 4);
	else
		fprintf(out, "# the broker's URL of relays started from now on: %s",
			limits[step->c % 4]);
}

void change_print(const struct setting *setting, const struct step *step, FILE *out)
{
	static const char *const names[CHANGES] = { "numbers", "guarantee", "poison",
						    "order",   "topics",    "" };
	static const char *const values[CHANGES][4] = {
		{ "no. 1", "no. 2", "no. 3", "no. 4" },
		{ "effectively-once", "effectively-once, claim separate", "at-most-once",
		  "at-least-once" },
		{ "park-key", "block", "skip", "as at first" },
		{ "aggregate", "strict", "total", "as at first" },
		{ "both", "order.events alone", "both", "order.events alone" },
		{ 0 },
	};
	int what = step->b % CHANGES;

	if (what == CHANGE_RELAY)
		print_relay(step, out);
	else
		fprintf(out, "# consumers of %s %s: %s: %s",
			setting->scopes[step->a % SCOPES].scope,
			restarts(step) ? "start anew" : "started from now on", names[what],
			values[what][step->c % 4]);
}

void drop_print(const struct setting *setting, const struct step *step, FILE *out)
{
	const char *scope = setting->scopes[step->a % SCOPES].scope;

	switch ((enum object)(step->b % OBJECTS)) {
	case OBJECT_SUBSCRIPTION:
		fprintf(out, "# the broker's subscriptions of %s are deleted, all stopped", scope);
		break;
	case OBJECT_RECORD:
		fprintf(out,
			"DELETE FROM semel_subscription, semel_subscription_topic"
			"   # of %s",
			scope);
		break;
	case OBJECT_BROKER:
		fprintf(out, "rm broker.db*   # with everything stopped");
		break;
	case OBJECT_ROW:
		fprintf(out, "DELETE FROM semel_outbox   # event no. %d from the end",
			step->a % 4 + 1);
		break;
	case OBJECT_NUMBERS:
		fprintf(out, "TRUNCATE semel_outbox RESTART IDENTITY");
		break;
	case OBJECTS:
		break;
	}
}
