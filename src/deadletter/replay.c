/* SPDX-License-Identifier: Apache-2.0 */
/* Replay from the rows that the outbox still has.
 *
 * - Everything selected is checked before anything is sent: a refusal sends nothing.
 * - Ids never change. A subscription recognises an event by its id as long as its guard remembers
 *   the id, so older events are refused unless the replay is forced.
 * - A copy sent here has no authority: what is dead, in doubt or discarded stays as it is. Only
 *   reprocess authorises the dead letters of what it sends, in the transaction that deletes the
 *   claims.
 * - reprocess deletes a claim and commits before it sends. In the other order the event could
 *   arrive while its claim still exists, be skipped as a duplicate and be lost. A crash in between
 *   leaves an event without a claim that was not sent: the same replay, run again, sends it, and
 *   until then `semel verify` reports it as missing.
 * - reprocess refuses aggregates that are held in the scope: their parked followers would run
 *   before what is sent now, out of order. Replay or discard their dead letter first.
 */
#include "deadletter/replay.h"

#include "base/error.h"
#include "base/time.h"
#include "fault/failpoint.h"
#include "fault/plant.h"
#include "guard/guard.h"
#include "store/subscription.h"

#include <string.h>

#define ARENA_BLOCK       ((size_t)256 * 1024)
#define PAGE_ROWS         500
#define PAGE_BYTES        ((uint64_t)8 * 1024 * 1024)
#define CONFIRM_WAIT_MS   100
#define CONFIRM_LIMIT_MS  30000
#define SLICES_PER_SECOND 10 /* how finely a rate is spread */

/* One running replay. */
struct run {
	const struct semel_replay_plan *plan;
	struct semel_replay_counts *counts;
	struct semel_arena *arena;     /* of a page */
	struct semel_arena *run_arena; /* of the whole run */
	semel_store *target;           /* the consumer store of the scope */
	struct semel_guard *guard;     /* of that store */
	struct semel_topics topics;    /* of the scope */
	int64_t known_since_ms;        /* an inbox may have forgotten older events */
	int64_t last_seq;              /* of the chosen; later rows were added after the count */
	int64_t started_ms;            /* steady */
	bool target_holds;             /* some aggregate of the scope is held */
};

struct page {
	struct semel_outbox_row rows[PAGE_ROWS];
	uint32_t count;
};

int64_t semel_replay_due_ms(uint64_t sent, uint32_t rate)
{
	return rate == 0 ? 0 : (int64_t)(sent * 1000 / rate);
}

/* ---- the selection --------------------------------------------------------------------------- */

/* Reads the next rows after *after_seq that the plan selects, and advances *after_seq. more_out
 * false: there are no more. */
static semel_status read_page(struct run *run, int64_t *after_seq, struct page *page,
			      bool *more_out, semel_error *error)
{
	const struct semel_replay_plan *plan = run->plan;
	semel_arena_reset(run->arena);
	struct semel_outbox_batch batch = { .arena = run->arena,
					    .rows = page->rows,
					    .capacity = PAGE_ROWS,
					    .bytes_max = PAGE_BYTES };
	page->count = 0;
	*more_out = false;
	semel_status status = plan->producer->driver->outbox->select(plan->producer, &plan->filter,
								     *after_seq, &batch, error);
	if (status != SEMEL_OK || batch.count == 0)
		return status;
	*more_out = true;

	*after_seq = batch.rows[batch.count - 1].seq;
	for (uint32_t i = 0; i < batch.count; i++)
		if (!plan->scope || semel_topics_has(&run->topics, batch.rows[i].event.topic))
			page->rows[page->count++] = batch.rows[i];
	return SEMEL_OK;
}

static semel_status count_held(struct run *run, const struct semel_event *event, semel_error *error)
{
	const struct semel_store_driver *driver = run->target->driver;
	struct semel_hold hold = { .state = SEMEL_HOLD_NONE };
	for (int i = 0; i < SEMEL_HOLD_BY_COUNT && hold.state == SEMEL_HOLD_NONE; i++) {
		struct semel_hold_key key = semel_hold_key_of(event, (enum semel_hold_by)i);
		semel_status status =
			driver->holds->get(driver->tx(run->target), semel_text_of(run->plan->scope),
					   &key, run->arena, &hold, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (hold.state != SEMEL_HOLD_NONE)
		run->counts->held++;
	return SEMEL_OK;
}

static semel_status count_page(struct run *run, const struct page *page, semel_error *error)
{
	struct semel_replay_counts *counts = run->counts;
	for (uint32_t i = 0; i < page->count; i++) {
		const struct semel_outbox_row *row = &page->rows[i];
		counts->matching++;
		if (run->plan->max > 0 && counts->chosen == run->plan->max)
			continue;
		counts->chosen++;
		run->last_seq = row->seq;
		if (row->event.time_ms < run->known_since_ms)
			counts->too_old++;
		if (counts->oldest_ms == 0 || row->event.time_ms < counts->oldest_ms)
			counts->oldest_ms = row->event.time_ms;
		if (!run->target_holds)
			continue;
		semel_status status = count_held(run, &row->event, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status count_all(struct run *run, struct page *page, semel_error *error)
{
	int64_t after_seq = 0;
	bool more = true;
	while (more) {
		semel_status status = read_page(run, &after_seq, page, &more, error);
		if (status != SEMEL_OK)
			return status;
		status = count_page(run, page, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static semel_status find_target(struct run *run, semel_error *error)
{
	const struct semel_replay_plan *plan = run->plan;
	for (size_t i = 0; plan->scope && !run->target && i < plan->consumer_count; i++) {
		struct semel_subscription_row *rows = NULL;
		uint32_t count = 0;
		semel_status status = semel_subscriptions_read(plan->consumers[i], run->run_arena,
							       &rows, &count, error);
		if (status != SEMEL_OK)
			return status;
		const struct semel_subscription_row *row =
			semel_subscription_find(rows, count, plan->scope);
		if (!row)
			continue;
		run->target = plan->consumers[i];
		status = semel_subscription_topics(row, run->run_arena, &run->topics, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (plan->scope && !run->target)
		return semel_error_set(error, SEMEL_INVALID,
				       "scope %s not found (run: semel subscriptions list; if its "
				       "inbox is in another database, add --consumer-store URL)",
				       plan->scope);
	return SEMEL_OK;
}

static semel_status open_target_guard(struct run *run, semel_error *error)
{
	if (!run->target)
		return SEMEL_OK;
	semel_status status = semel_guard_open_default(run->target, &run->guard, error);
	if (status != SEMEL_OK || !run->plan->reprocess)
		return status;
	return semel_guard_check_joins(run->guard, "a replay with --reprocess", error);
}

static semel_status read_known_since(semel_store *store, int64_t *since_ms_out, semel_error *error)
{
	struct semel_guard *guard = NULL;
	semel_status status = semel_guard_open_default(store, &guard, error);
	if (status != SEMEL_OK)
		return status;
	status = guard->driver->known_since(guard, since_ms_out, error);
	semel_guard_close(guard);
	return status;
}

/* Finds the time before which a guard may have forgotten what was processed, or soon will, by the
 * configured retention. */
static semel_status find_known_since(struct run *run, semel_error *error)
{
	const struct semel_replay_plan *plan = run->plan;
	run->known_since_ms = semel_now_ms(plan->env) - plan->inbox_retention_ms;
	for (size_t i = 0; i < plan->consumer_count; i++) {
		semel_store *consumer = plan->consumers[i];
		if (run->target && run->target != consumer)
			continue;
		int64_t since_ms = 0;
		semel_status status = read_known_since(consumer, &since_ms, error);
		if (status != SEMEL_OK)
			return status;
		if (since_ms > run->known_since_ms)
			run->known_since_ms = since_ms;
	}
	return SEMEL_OK;
}

static semel_status check_holds(struct run *run, semel_error *error)
{
	if (!run->plan->reprocess || !run->target)
		return SEMEL_OK;
	const struct semel_store_driver *driver = run->target->driver;
	return driver->holds->has_any(driver->tx(run->target), semel_text_of(run->plan->scope),
				      &run->target_holds, error);
}

static semel_status refuse_too_old(const struct run *run, semel_error *error)
{
	char oldest[SEMEL_TIME_SIZE];
	char known[SEMEL_TIME_SIZE];
	semel_time_format(run->counts->oldest_ms, oldest);
	semel_time_format(run->known_since_ms, known);
	return semel_error_set(
		error, SEMEL_INVALID,
		"%llu of %llu selected events are older than the inbox retention "
		"(oldest event: %s; inbox complete since: %s) and would be "
		"processed twice: select with --since %s, or add --force to accept a second effect",
		(unsigned long long)run->counts->too_old, (unsigned long long)run->counts->chosen,
		oldest, known, known);
}

static semel_status refuse_held(const struct run *run, semel_error *error)
{
	return semel_error_set(
		error, SEMEL_INVALID,
		"%llu of %llu selected events belong to aggregates that %s holds "
		"behind a failed event, and would run out of order: settle those first "
		"(semel dlq list --scope %s, then replay or discard, then consume "
		"--drain), or add --force",
		(unsigned long long)run->counts->held, (unsigned long long)run->counts->chosen,
		run->plan->scope, run->plan->scope);
}

static semel_status check_selection(const struct run *run, semel_error *error)
{
	if (run->plan->force)
		return SEMEL_OK;
	if (run->counts->too_old > 0)
		return refuse_too_old(run, error);
	if (run->counts->held > 0)
		return refuse_held(run, error);
	return SEMEL_OK;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A copy without authority: it runs only if the event has not run, or if an operator has authorised
 * another run. */
static struct semel_publish_metadata copy_metadata(void)
{
	return (struct semel_publish_metadata){
		.replayed = true, .replay = SEMEL_PLANTED("replay-runs-the-dead") ? 1 : 0
	};
}

struct confirms {
	uint64_t outstanding;
	uint64_t confirmed;
	semel_status refused; /* the first refusal; OK: none */
	char reason[160];
};

static void record_outcome(const struct semel_publish_outcome *outcome, void *user)
{
	struct confirms *confirms = user;
	confirms->outstanding--;
	if (outcome->status == SEMEL_OK) {
		confirms->confirmed++;
		return;
	}
	if (confirms->refused != SEMEL_OK)
		return;
	confirms->refused = outcome->status;
	memcpy(confirms->reason, outcome->reason, sizeof(confirms->reason));
}

/* Waits until at most `remaining` events are unconfirmed. */
static semel_status await_confirms(const struct run *run, struct confirms *confirms,
				   uint64_t remaining, semel_error *error)
{
	const struct semel_replay_plan *plan = run->plan;
	int64_t limit_ms = semel_steady_ms(plan->env) + CONFIRM_LIMIT_MS;
	while (confirms->outstanding > remaining) {
		semel_status status = plan->broker->driver->poll(plan->broker, CONFIRM_WAIT_MS,
								 record_outcome, confirms, error);
		if (status != SEMEL_OK)
			return status;
		if (confirms->outstanding > remaining && semel_steady_ms(plan->env) > limit_ms)
			return semel_error_set(
				error, SEMEL_OUTAGE,
				"the broker did not confirm %llu events within 30 s: "
				"run the same replay again when the broker is reachable",
				(unsigned long long)confirms->outstanding);
	}
	return SEMEL_OK;
}

static semel_status offer(const struct run *run, const struct semel_event *event,
			  struct confirms *confirms, semel_error *error)
{
	struct semel_broker *broker = run->plan->broker;
	struct semel_publish_metadata metadata = copy_metadata();
	semel_status status = semel_event_check_names(event, error);
	if (status != SEMEL_OK)
		return status;
	for (;;) {
		status = broker->driver->publish(broker, event, &metadata, NULL, error);
		if (status != SEMEL_FULL || confirms->outstanding == 0)
			break;
		status = await_confirms(run, confirms, confirms->outstanding - 1, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (status != SEMEL_OK)
		return status;
	confirms->outstanding++;
	return SEMEL_OK;
}

static semel_status send_to_all(struct run *run, const struct semel_outbox_row *rows,
				uint32_t count, semel_error *error)
{
	struct confirms confirms = { 0 };
	semel_status status = SEMEL_OK;
	for (uint32_t i = 0; i < count && status == SEMEL_OK; i++)
		status = offer(run, &rows[i].event, &confirms, error);
	/* Also after a failure: the events that the broker has taken are confirmed and counted. */
	semel_status settled = await_confirms(run, &confirms, 0, status == SEMEL_OK ? error : NULL);
	run->counts->sent += confirms.confirmed;
	if (status != SEMEL_OK)
		return status;
	if (settled != SEMEL_OK || confirms.refused == SEMEL_OK)
		return settled;
	return semel_error_set(error, confirms.refused, "the broker refused an event: %s",
			       confirms.reason);
}

/* Deletes the claim, and lets a dead letter of the event authorise one more run, whatever its
 * status. */
static semel_status delete_claim(const struct run *run, const struct semel_event *event,
				 semel_error *error)
{
	const struct semel_store_driver *driver = run->target->driver;
	struct semel_inbox_claim claim = { .scope = semel_text_of(run->plan->scope),
					   .event_id = event->id,
					   .topic = event->topic,
					   .event_time_ms = event->time_ms };
	semel_status status = run->guard->driver->forget(run->guard, &claim, error);
	if (status != SEMEL_OK)
		return status;
	return driver->dead_letters->authorize(driver->tx(run->target), claim.scope, event->id,
					       semel_now_ms(run->plan->env), error);
}

static semel_status delete_claims(const struct run *run, const struct semel_outbox_row *rows,
				  uint32_t count, semel_error *error)
{
	const struct semel_store_driver *driver = run->target->driver;
	semel_status status = driver->begin(run->target, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < count; i++) {
		status = delete_claim(run, &rows[i].event, error);
		if (status != SEMEL_OK)
			goto roll_back;
	}
	return driver->commit(run->target, error);

roll_back:
	driver->rollback(run->target);
	return status;
}

static semel_status send_one_to_scope(struct run *run, const struct semel_event *event,
				      semel_error *error)
{
	struct semel_broker *broker = run->plan->broker;
	struct semel_publish_metadata metadata = copy_metadata();
	semel_status status = semel_event_check_names(event, error);
	if (status != SEMEL_OK)
		return status;
	status = broker->driver->requeue(broker, run->plan->scope, event, &metadata, 0, error);
	if (status != SEMEL_OK)
		return status;
	run->counts->sent++;
	return SEMEL_OK;
}

static semel_status send_to_scope(struct run *run, const struct semel_outbox_row *rows,
				  uint32_t count, semel_error *error)
{
	if (run->plan->reprocess) {
		semel_status status = delete_claims(run, rows, count, error);
		if (status != SEMEL_OK)
			return status;
	}
	for (uint32_t i = 0; i < count; i++) {
		semel_status status = send_one_to_scope(run, &rows[i].event, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Sleeps until the rate allows the next event. STOPPED if the wake was notified. */
static semel_status wait_for_rate(const struct run *run, semel_error *error)
{
	const struct semel_replay_plan *plan = run->plan;
	int64_t due_ms = run->started_ms + semel_replay_due_ms(run->counts->sent, plan->rate);
	for (;;) {
		if (semel_wake_is_notified(plan->wake))
			return semel_error_set(error, SEMEL_STOPPED, "stopped");
		int64_t wait_ms = due_ms - semel_steady_ms(plan->env);
		if (wait_ms <= 0)
			return SEMEL_OK;
		semel_wake_sleep(plan->wake, wait_ms);
	}
}

/* How many events are sent in one burst: few if the rate is low, so that they are spread evenly. */
static uint32_t burst_of(const struct semel_replay_plan *plan)
{
	uint32_t burst = plan->rate / SLICES_PER_SECOND;
	if (plan->rate == 0 || burst > SEMEL_REPLAY_WINDOW)
		return SEMEL_REPLAY_WINDOW;
	return burst == 0 ? 1 : burst;
}

static semel_status send_page(struct run *run, const struct page *page, semel_error *error)
{
	uint32_t count = 0;
	while (count < page->count && page->rows[count].seq <= run->last_seq)
		count++;

	uint32_t burst = burst_of(run->plan);
	for (uint32_t at = 0; at < count; at += burst) {
		uint32_t now = count - at < burst ? count - at : burst;
		semel_status status = wait_for_rate(run, error);
		if (status != SEMEL_OK)
			return status;
		status = run->plan->scope ? send_to_scope(run, &page->rows[at], now, error)
					  : send_to_all(run, &page->rows[at], now, error);
		if (status != SEMEL_OK)
			return status;
		status = semel_failpoint(SEMEL_FP_REPLAY_AFTER_PUBLISH, error);
		if (status != SEMEL_OK)
			return status;
		if (run->plan->progress)
			run->plan->progress(run->counts, run->plan->user);
	}
	return SEMEL_OK;
}

static semel_status send_all(struct run *run, struct page *page, semel_error *error)
{
	int64_t after_seq = 0;
	bool more = run->counts->chosen > 0;
	run->started_ms = semel_steady_ms(run->plan->env);
	while (more && after_seq < run->last_seq) {
		semel_status status = read_page(run, &after_seq, page, &more, error);
		if (status != SEMEL_OK)
			return status;
		status = send_page(run, page, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status replay(struct run *run, struct page *page, semel_error *error)
{
	semel_status status = find_target(run, error);
	if (status != SEMEL_OK)
		return status;
	status = open_target_guard(run, error);
	if (status != SEMEL_OK)
		return status;
	status = find_known_since(run, error);
	if (status != SEMEL_OK)
		return status;
	status = check_holds(run, error);
	if (status != SEMEL_OK)
		return status;
	status = count_all(run, page, error);
	if (status != SEMEL_OK || run->plan->dry_run)
		return status;
	status = check_selection(run, error);
	if (status != SEMEL_OK)
		return status;
	return send_all(run, page, error);
}

semel_status semel_replay_run(const struct semel_replay_plan *plan,
			      struct semel_replay_counts *counts_out, semel_error *error)
{
	*counts_out = (struct semel_replay_counts){ 0 };
	if (plan->reprocess && !plan->scope)
		return semel_error_set(error, SEMEL_USAGE,
				       "--reprocess needs --scope: name the subscription whose "
				       "claims are deleted");

	struct run run = { .plan = plan,
			   .counts = counts_out,
			   .arena = semel_arena_new(ARENA_BLOCK),
			   .run_arena = semel_arena_new(ARENA_BLOCK) };
	struct page *page =
		run.run_arena ? semel_arena_alloc(run.run_arena, sizeof(struct page)) : NULL;
	semel_status status = run.arena && page
				      ? replay(&run, page, error)
				      : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	semel_guard_close(run.guard);
	semel_arena_free(run.run_arena);
	semel_arena_free(run.arena);
	return status;
}
