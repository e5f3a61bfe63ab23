/* SPDX-License-Identifier: Apache-2.0 */
/* Reads twice, as verify does: what is stuck is collected first, and then each step runs in a
 * transaction of its own, which reads the state again.
 *
 * - A key is released only while its hold is locked and the head is settled. A key without a hold
 *   is released by adding a hold, if there is still none.
 * - A copy is sent only while the row that waits for it is locked and the broker has no copy. A
 *   second copy would be harmless (the store decides what may run), but useless.
 */
#include "repair/repair.h"

#include "base/error.h"
#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "state/state.h"
#include "store/subscription.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK ((size_t)16 * 1024)
#define STEPS_MAX   1000 /* per scope and round */
#define ROUNDS_MAX  1000
#define PAYLOAD_MAX (UINT64_C(1) << 30)

/* In the arena. */
struct step {
	enum semel_fix fix;
	enum semel_wait_kind kind;
	struct semel_text awaited_id; /* RESEND */
	struct semel_hold_key key;
	enum semel_hold_state state;
	struct semel_text
		entry_id; /* RESEND: of the dead letter that was replayed; data NULL: none */
};

struct repair {
	const struct semel_repair_plan *plan;
	struct semel_repair_counts *counts;
	struct semel_broker *broker;
	struct semel_position_reader position_reader;
	struct semel_arena *arena; /* of one scope */
	semel_store *store;
	struct semel_text scope;
	struct semel_stuck_check stuck;
	struct step *steps;
	uint32_t step_count;
	bool *found;    /* for each scope of the plan: is it in one of the stores? */
	char text[512]; /* of the current step */
};

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the repair");
}

/* ---- collecting ------------------------------------------------------------------------------ */

static struct semel_text copy_text(struct repair *repair, struct semel_text text)
{
	return text.data ? semel_arena_text(repair->arena, text.data, text.length) : text;
}

static bool is_same(const struct step *left, const struct step *right)
{
	if (left->fix != right->fix)
		return false;
	if (left->fix == SEMEL_FIX_RESEND)
		return semel_text_equal(left->awaited_id, right->awaited_id);
	return semel_text_equal(left->key.type, right->key.type) &&
	       semel_text_equal(left->key.id, right->key.id);
}

static semel_status add_step(const struct semel_wait *wait, void *user)
{
	struct repair *repair = user;
	struct semel_wait_fix fix = semel_wait_find_fix(wait, repair->stuck.now_ms);
	struct step step = { fix.kind,  wait->kind,  fix.awaited_id,
			     wait->key, wait->state, wait->entry_id };

	if (!semel_stuck_check_is_confirmed(&repair->stuck, wait))
		return SEMEL_OK;
	if (wait->letter != SEMEL_DEAD_REPLAYED)
		step.entry_id = semel_text_of(NULL);
	for (uint32_t i = 0; i < repair->step_count; i++)
		if (is_same(&repair->steps[i], &step))
			return SEMEL_OK;
	if (repair->step_count == STEPS_MAX)
		return SEMEL_OK;
	step.awaited_id = copy_text(repair, step.awaited_id);
	step.key = (struct semel_hold_key){ copy_text(repair, step.key.type),
					    copy_text(repair, step.key.id) };
	step.entry_id = copy_text(repair, step.entry_id);
	repair->steps[repair->step_count++] = step;
	return SEMEL_OK;
}

/* ---- releasing ------------------------------------------------------------------------------- */

/* The state of an event, with its hold and its dead letter locked. */
static semel_status read_state(struct repair *repair, struct semel_text event_id,
			       struct semel_hold_key key, struct semel_state_result *answer_out,
			       semel_error *error)
{
	const struct semel_store_driver *driver = repair->store->driver;
	struct semel_state_query query = { event_id, key };
	struct semel_state_batch batch = {
		.arena = repair->arena, .queries = &query, .results = answer_out, .count = 1
	};

	return driver->holds->states_read(driver->tx(repair->store), repair->scope, &batch, error);
}

static bool is_decided(const struct semel_state_result *state)
{
	return state->letter != SEMEL_DEAD_PENDING &&
	       !(state->letter == SEMEL_DEAD_REPLAYED && !state->settled);
}

/* For events that are parked without a hold: adds a hold behind the dead letter that they name, or
 * a released one if that dead letter is settled. */
static semel_status add_hold(struct repair *repair, const struct step *step,
			     enum semel_repair_result *result_out, semel_error *error)
{
	const struct semel_store_driver *driver = repair->store->driver;
	semel_tx tx = driver->tx(repair->store);
	struct semel_dead_letter_row first = { .attempts = 0 };
	struct semel_state_result head = { .letter = SEMEL_DEAD_ANY };
	struct semel_hold hold = { .aggregate_type = step->key.type,
				   .aggregate_id = step->key.id,
				   .state = SEMEL_HOLD_RELEASED };
	bool added = false;
	semel_status status = driver->dead_letters->parked_first(tx, repair->scope, &hold,
								 repair->arena, &first, error);

	*result_out = SEMEL_REPAIR_UNNECESSARY;
	if (status != SEMEL_OK || !first.entry_id.data)
		return status;
	hold.head_id = first.parked_behind;
	status = read_state(repair, first.parked_behind, step->key, &head, error);
	if (status != SEMEL_OK)
		return status;
	if (!is_decided(&head)) {
		hold.state = SEMEL_HOLD_DEAD;
		hold.attempts = head.letter == SEMEL_DEAD_PENDING ? head.replay_count : 0;
	}
	status = semel_hold_add(tx, repair->scope, &hold, SEMEL_BY_REPAIR, &added, error);
	if (added)
		*result_out = SEMEL_REPAIR_DONE;
	return status;
}

static semel_status release(struct repair *repair, const struct step *step,
			    enum semel_repair_result *result_out, semel_error *error)
{
	const struct semel_store_driver *driver = repair->store->driver;
	semel_tx tx = driver->tx(repair->store);
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };
	struct semel_state_result state = { .letter = SEMEL_DEAD_ANY };
	semel_status status =
		driver->holds->get(tx, repair->scope, &step->key, repair->arena, &hold, error);

	*result_out = SEMEL_REPAIR_UNNECESSARY;
	if (status != SEMEL_OK)
		return status;
	if (hold.state == SEMEL_HOLD_NONE)
		return add_hold(repair, step, result_out, error);
	if (hold.state != SEMEL_HOLD_DEAD)
		return SEMEL_OK;
	status = read_state(repair, hold.head_id, step->key, &state, error);
	if (status != SEMEL_OK || !is_decided(&state))
		return status;
	*result_out = SEMEL_REPAIR_DONE;
	return semel_hold_release(tx, repair->scope, &hold, SEMEL_BY_REPAIR, repair->arena, error);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Reads the event from the outbox. found_out false: no store retains it. */
static semel_status find_event(struct repair *repair, struct semel_text id,
			       struct semel_event *event_out, bool *found_out, semel_error *error)
{
	const struct semel_outbox_filter filter = { .id = semel_text_to_string(id) };

	*found_out = false;
	if (!filter.id)
		return SEMEL_OK;
	for (size_t i = 0; i < repair->plan->store_count; i++) {
		semel_store *store = repair->plan->stores[i];
		struct semel_outbox_row row = { .seq = 0 };
		struct semel_outbox_batch batch = { .arena = repair->arena,
						    .rows = &row,
						    .capacity = 1,
						    .bytes_max = PAYLOAD_MAX };
		semel_status status =
			store->driver->outbox->select(store, &filter, 0, &batch, error);
		if (status != SEMEL_OK)
			return status;
		if (batch.count == 0)
			continue;
		*event_out = row.event;
		*found_out = true;
		return SEMEL_OK;
	}
	return SEMEL_OK;
}

/* Prepares the event and its metadata. *result_out DONE: the copy has to be sent. */
static semel_status prepare_copy(struct repair *repair, const struct step *step,
				 struct semel_event *event, struct semel_publish_metadata *metadata,
				 enum semel_repair_result *result_out, semel_error *error)
{
	const struct semel_store_driver *driver = repair->store->driver;
	struct semel_state_result state = { .letter = SEMEL_DEAD_ANY };
	struct semel_dead_letter_row entry = { .attempts = 0 };
	bool found = true;
	semel_status status = read_state(repair, step->awaited_id, step->key, &state, error);

	*result_out = SEMEL_REPAIR_UNNECESSARY;
	if (status != SEMEL_OK)
		return status;
	if (step->entry_id.data) {
		if (state.letter != SEMEL_DEAD_REPLAYED || state.settled)
			return SEMEL_OK;
		status = driver->dead_letters->get(repair->store, semel_text_string(step->entry_id),
						   repair->arena, &entry, error);
		*event = entry.event;
		metadata->replay = state.replay_count;
	} else {
		bool retries = state.hold.state == SEMEL_HOLD_RETRY &&
			       semel_text_equal(state.hold.head_id, step->awaited_id);
		if (step->kind != SEMEL_WAIT_CLAIM && !retries)
			return SEMEL_OK;
		metadata->attempt = retries ? state.hold.attempts : 0;
		status = find_event(repair, step->awaited_id, event, &found, error);
	}
	if (!found)
		snprintf(repair->text, sizeof repair->text,
			 "its copy is lost, and the outbox does not retain the event (publish it "
			 "again with this id)");
	*result_out = found ? SEMEL_REPAIR_DONE : SEMEL_REPAIR_IMPOSSIBLE;
	return status;
}

static semel_status send(struct repair *repair, const struct step *step,
			 enum semel_repair_result *result_out, semel_error *error)
{
	struct semel_event event = { .time_ms = 0 };
	struct semel_publish_metadata metadata = { .attempt = 0 };
	bool gone = false;
	semel_status status = prepare_copy(repair, step, &event, &metadata, result_out, error);

	if (status != SEMEL_OK || *result_out != SEMEL_REPAIR_DONE)
		return status;
	status = semel_stuck_check_is_gone(&repair->stuck, step->awaited_id, &gone, error);
	if (status != SEMEL_OK)
		return status;
	if (!gone) {
		*result_out = SEMEL_REPAIR_UNNECESSARY;
		return SEMEL_OK;
	}
	return repair->broker->driver->requeue(repair->broker, semel_text_string(repair->scope),
					       &event, &metadata, 0, error);
}

/* ---- one step -------------------------------------------------------------------------------- */

static const char *target_of(struct repair *repair, const struct step *step)
{
	if (step->fix == SEMEL_FIX_RESEND)
		return semel_text_string(step->awaited_id);
	return semel_arena_printf(
		repair->arena, "%s:%s",
		semel_text_is_blank(step->key.type) ? "topic" : semel_text_shown(step->key.type),
		semel_text_shown_or(step->key.id, ""));
}

static void describe(struct repair *repair, const struct step *step)
{
	const char *text = "the copy of its replay is lost, sending another one";

	if (step->fix == SEMEL_FIX_RELEASE)
		text = step->state == SEMEL_HOLD_NONE
			       ? "events are parked without a hold, releasing them"
			       : "the head of its hold is settled, releasing the events behind it";
	else if (!step->entry_id.data)
		text = step->kind == SEMEL_WAIT_CLAIM
			       ? "its consumer died and its copy is lost, sending another one"
			       : "the copy of its retry is lost, sending another one";
	snprintf(repair->text, sizeof repair->text, "%s", text);
}

static semel_status write_audit_row(struct repair *repair, const char *what, const char *target,
				    semel_error *error)
{
	struct semel_buffer detail = { 0 };
	semel_buffer_printf(&detail, "%s: %s: %s", semel_text_shown(repair->scope), what,
			    repair->text);
	const struct semel_audit_row row = {
		.at_ms = semel_now_ms(repair->plan->env),
		.who = semel_text_of(repair->plan->who),
		.what = SEMEL_TEXT("repair"),
		.target = semel_text_of(target),
		.detail = semel_buffer_text(&detail),
		.outcome = SEMEL_TEXT("done"), /* in the transaction of the step */
	};
	semel_status status =
		repair->store->driver->upkeep->audit_add(repair->store, &row, NULL, error);
	semel_buffer_free(&detail);
	return status;
}

static semel_status execute(struct repair *repair, const struct step *step, const char *target,
			    enum semel_repair_result *result_out, semel_error *error)
{
	const struct semel_store_driver *driver = repair->store->driver;
	bool sends = step->fix == SEMEL_FIX_RESEND;
	semel_status status = driver->begin(repair->store, error);

	if (status != SEMEL_OK)
		return status;
	status = sends ? send(repair, step, result_out, error)
		       : release(repair, step, result_out, error);
	if (status != SEMEL_OK || *result_out != SEMEL_REPAIR_DONE)
		goto roll_back;
	status = write_audit_row(repair, sends ? "send" : "release", target, error);
	if (status != SEMEL_OK)
		goto roll_back;
	return driver->commit(repair->store, error);

roll_back:
	driver->rollback(repair->store);
	return status;
}

static semel_status run_step(struct repair *repair, const struct step *step, semel_error *error)
{
	enum semel_repair_result result = SEMEL_REPAIR_PLANNED;
	const char *target = target_of(repair, step);
	semel_status status = SEMEL_OK;

	describe(repair, step);
	if (!target)
		return no_memory(error);
	if (!repair->plan->dry_run)
		status = execute(repair, step, target, &result, error);
	if (status != SEMEL_OK)
		return status;
	const struct semel_repair_step report = {
		.scope = semel_text_string(repair->scope),
		.what = step->fix == SEMEL_FIX_RESEND ? "send" : "release",
		.target = target,
		.text = repair->text,
		.result = result,
	};
	repair->counts->done += result == SEMEL_REPAIR_DONE || result == SEMEL_REPAIR_PLANNED;
	repair->counts->impossible += result == SEMEL_REPAIR_IMPOSSIBLE;
	repair->plan->callback(&report, repair->plan->user);
	return SEMEL_OK;
}

/* ---- scopes ---------------------------------------------------------------------------------- */

static semel_status find_steps(struct repair *repair, const struct semel_subscription_row *row,
			       semel_error *error)
{
	struct semel_topics topics = { 0 };
	struct semel_consumers consumers = { 0 };
	int64_t now_ms = semel_now_ms(repair->plan->env);
	semel_status status =
		semel_subscription_all_topics(repair->store, row, repair->arena, &topics, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_consumers_read(repair->store, row->scope, now_ms, &consumers, error);
	if (status != SEMEL_OK)
		return status;
	repair->stuck = (struct semel_stuck_check){
		.store = repair->store,
		.broker = repair->broker,
		.scope = semel_text_string(row->scope),
		.topics = topics.names,
		.in_flight = consumers.in_flight,
		.now_ms = now_ms,
		.arena = repair->arena,
	};
	repair->step_count = 0;
	status = semel_stuck_check_run(&repair->stuck, error);
	if (status != SEMEL_OK)
		return status;
	return repair->store->driver->holds->waits_each(repair->store, row->scope, add_step, repair,
							error);
}

/* At most STEPS_MAX steps. */
static semel_status run_round(struct repair *repair, const struct semel_subscription_row *row,
			      semel_error *error)
{
	repair->steps = semel_arena_alloc(repair->arena, STEPS_MAX * sizeof *repair->steps);
	if (!repair->steps)
		return no_memory(error);
	semel_status status = find_steps(repair, row, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < repair->step_count; i++) {
		status = run_step(repair, &repair->steps[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* A round that repairs nothing, or has fewer steps than it could have, is the last one. */
static semel_status repair_scope(struct repair *repair, const struct semel_subscription_row *row,
				 semel_error *error)
{
	repair->scope = row->scope;
	repair->position_reader.store = repair->store;
	for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
		uint32_t before = repair->counts->done;
		semel_status status = run_round(repair, row, error);
		if (status != SEMEL_OK)
			return status;
		bool is_last = repair->counts->done == before || repair->step_count < STEPS_MAX;
		if (is_last || repair->plan->dry_run)
			break;
	}
	return SEMEL_OK;
}

static bool select_scope(struct repair *repair, struct semel_text scope)
{
	const struct semel_repair_plan *plan = repair->plan;

	if (!plan->scopes || !plan->scopes[0])
		return true;
	for (size_t i = 0; plan->scopes[i]; i++)
		if (semel_text_equal(semel_text_of(plan->scopes[i]), scope))
			return repair->found[i] = true;
	return false;
}

static semel_status repair_store(struct repair *repair, semel_store *store, semel_error *error)
{
	struct semel_subscription_row *rows = NULL;
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	uint32_t count = 0;

	if (!arena)
		return no_memory(error);
	repair->store = store;
	semel_status status = semel_subscriptions_read(store, arena, &rows, &count, error);
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++) {
		if (!select_scope(repair, rows[i].scope))
			continue;
		status = repair_scope(repair, &rows[i], error);
		semel_arena_reset(repair->arena);
	}
	semel_arena_free(arena);
	return status;
}

/* Was every named scope found in these stores? */
static semel_status check_scopes(const struct repair *repair, semel_error *error)
{
	const char *const *scopes = repair->plan->scopes;

	for (size_t i = 0; scopes && scopes[i]; i++)
		if (!repair->found[i])
			return semel_error_set(error, SEMEL_INVALID,
					       "scope %s not found (run: semel subscriptions list; "
					       "if its inbox is in another database, add "
					       "--consumer-store URL)",
					       scopes[i]);
	return SEMEL_OK;
}

static size_t count_scopes(const struct semel_repair_plan *plan)
{
	size_t count = 0;

	while (plan->scopes && plan->scopes[count])
		count++;
	return count;
}

semel_status semel_repair_run(const struct semel_repair_plan *plan,
			      struct semel_repair_counts *counts_out, semel_error *error)
{
	struct repair repair = { .plan = plan,
				 .counts = counts_out,
				 .found = calloc(count_scopes(plan) + 1, sizeof *repair.found),
				 .arena = semel_arena_new(ARENA_BLOCK) };
	semel_status status = SEMEL_OK;

	*counts_out = (struct semel_repair_counts){ 0 };
	if (!repair.arena || !repair.found) {
		status = no_memory(error);
		goto free_memory;
	}
	status = semel_broker_open(plan->broker_url, plan->env, 1, &repair.broker, error);
	if (status != SEMEL_OK)
		goto free_memory;
	semel_position_reader_attach(&repair.position_reader, repair.broker, plan->stores[0]);
	for (size_t i = 0; i < plan->store_count && status == SEMEL_OK; i++)
		status = repair_store(&repair, plan->stores[i], error);
	if (status != SEMEL_OK)
		goto close_broker;
	status = check_scopes(&repair, error);
close_broker:
	semel_broker_close(repair.broker);
free_memory:
	semel_arena_free(repair.arena);
	free(repair.found);
	return status;
}
