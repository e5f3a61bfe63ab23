/* SPDX-License-Identifier: Apache-2.0 */
/* Verify compares each scope with the outbox.
 *
 * - Events may be processed during the check. A consumer commits before it acks, so an event that
 *   is neither in the tables of the scope nor at the broker may have been settled between the two
 *   queries. So the tables are read once more after the broker was queried, and only then is an
 *   event missing. For an event that seems orphaned the outbox is read again, because the event may
 *   have been committed since.
 * - A broker that does not report what consumers have in flight proves nothing by itself: there an
 *   event is missing only if it was found nowhere for DOUBT_MS. With wait_ms the same events are
 *   verified again; events committed later are not.
 * - A dead letter accounts for its event while it is PENDING or DISCARDED. A REPLAYED one does not:
 *   the replay has to arrive.
 * - What waits in the tables of the scope is stuck if nothing will move it (stuck.h). This is
 *   checked after the first reading, and true only if the second reading confirms it.
 * - Nothing can be proven about events that the outbox has pruned: they are neither missing nor
 *   orphaned.
 */
#include "proof/verify.h"

#include "base/error.h"
#include "base/wake.h"
#include "proof/verify_scope.h"
#include "store/rules.h"
#include "store/subscription.h"

#include <stdio.h>
#include <string.h>

#define DOUBT_MS    10000 /* longer than most handlers run */
#define RECHECK_MS  250
#define SCOPE_RELAY SEMEL_TEXT(SEMEL_SCOPE_RELAY)

/* All subscriptions of a store. */
struct subscriptions {
	semel_store *store;
	struct semel_subscription_row *rows;
	uint32_t count;
};

/* ---- topics to which events are published and that no subscription reads --------------------- */

struct search {
	const struct semel_ledger *ledger;
	struct semel_arena *arena;
	bool *read;         /* indexed by the ledger's topic number */
	const char **names; /* of subscribed topics, to find the nearest one */
	size_t name_count, name_capacity;
};

static void mark_read(struct search *search, struct semel_text topic)
{
	for (size_t i = 0; i < search->ledger->topic_count; i++)
		if (semel_text_equal(search->ledger->topics[i], topic))
			search->read[i] = true;
}

/* A topic that a scope dropped counts as read here: it is reported with the scope. */
static void mark_topic(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms, void *user)
{
	(void)since_ms;
	(void)removed_at_ms;
	mark_read(user, topic);
}

static bool add_name(struct search *search, const char *name)
{
	if (search->name_count == search->name_capacity) {
		size_t capacity = search->name_capacity ? search->name_capacity * 2 : 32;
		const char **bigger = semel_arena_alloc(search->arena, capacity * sizeof *bigger);
		if (!bigger)
			return false;
		if (search->name_count > 0)
			memcpy(bigger, search->names, search->name_count * sizeof *bigger);
		search->names = bigger;
		search->name_capacity = capacity;
	}
	search->names[search->name_count++] = name;
	return true;
}

static semel_status mark_subscription(struct search *search, semel_store *store,
				      const struct semel_subscription_row *row, semel_error *error)
{
	struct semel_topics topics = { 0 };
	semel_status status = semel_subscription_topics(row, search->arena, &topics, error);

	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < topics.count; i++) {
		mark_read(search, semel_text_of(topics.names[i]));
		if (!add_name(search, topics.names[i]))
			return semel_error_set(error, SEMEL_INTERNAL, "out of memory for topics");
	}
	return store->driver->upkeep->subscription_topics(store, row->scope, mark_topic, search,
							  error);
}

static semel_status mark_subscriptions(struct search *search, const struct subscriptions *known,
				       semel_error *error)
{
	for (uint32_t i = 0; i < known->count; i++) {
		semel_status status =
			mark_subscription(search, known->store, &known->rows[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Claims may be made through the library, or by SQL, without a subscription. */
static semel_status is_claimed(const struct semel_verify_plan *plan, struct semel_text topic,
			       bool *claimed_out, semel_error *error)
{
	semel_status status = SEMEL_OK;

	*claimed_out = false;
	for (size_t i = 0; i < plan->consumer_count && status == SEMEL_OK && !*claimed_out; i++)
		status = plan->consumers[i]->driver->inbox->has_topic(plan->consumers[i], topic,
								      claimed_out, error);
	return status;
}

static uint64_t events_of(const struct semel_ledger *ledger, size_t topic)
{
	uint64_t count = 0;

	for (size_t i = 0; i < ledger->count; i++)
		count += ledger->entries[i].topic == topic &&
			 ledger->entries[i].status == SEMEL_LEDGER_PUBLISHED;
	return count;
}

static semel_status add_if_unread(const struct search *search, const struct semel_verify_plan *plan,
				  size_t number, struct semel_verify_report *report,
				  semel_error *error)
{
	struct semel_text topic = search->ledger->topics[number];
	uint64_t events = search->read[number] ? 0 : events_of(search->ledger, number);
	bool claimed = false;

	if (events == 0)
		return SEMEL_OK;
	semel_status status = is_claimed(plan, topic, &claimed, error);
	if (status != SEMEL_OK || claimed)
		return status;
	const char *nearest =
		semel_text_nearest(semel_text_shown(topic), search->names, search->name_count);
	report->unread[report->unread_count++] = (struct semel_verify_topic){
		.topic = semel_arena_text(search->arena, topic.data, topic.length),
		.nearest = semel_text_of(nearest),
		.events = events,
	};
	return SEMEL_OK;
}

/* Fills in report->unread; without any subscription it stays empty. */
static semel_status find_unread_topics(const struct semel_verify_plan *plan,
				       const struct semel_ledger *ledger,
				       const struct subscriptions *known, struct semel_arena *arena,
				       struct semel_verify_report *report, semel_error *error)
{
	struct search search = { .ledger = ledger, .arena = arena };
	semel_status status = SEMEL_OK;
	uint32_t subscriptions = 0;

	search.read = semel_arena_alloc(arena, ledger->topic_count + 1);
	report->unread =
		semel_arena_alloc(arena, (ledger->topic_count + 1) * sizeof *report->unread);
	if (!search.read || !report->unread)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for topics");
	memset(search.read, 0, ledger->topic_count + 1);
	for (size_t i = 0; plan->elsewhere && plan->elsewhere[i]; i++)
		mark_read(&search, semel_text_of(plan->elsewhere[i]));
	for (size_t i = 0; i < plan->consumer_count; i++) {
		status = mark_subscriptions(&search, &known[i], error);
		if (status != SEMEL_OK)
			return status;
		subscriptions += known[i].count;
	}
	for (size_t i = 0; subscriptions > 0 && i < ledger->topic_count && status == SEMEL_OK; i++)
		status = add_if_unread(&search, plan, i, report, error);
	return status;
}

/* ---- the scopes ------------------------------------------------------------------------------ */

static semel_status note_claim(struct semel_text id, const char *status, struct semel_text topic,
			       int64_t time_ms, void *user)
{
	(void)id;
	(void)status;
	(void)topic;
	(void)time_ms;
	*(bool *)user = true;
	return SEMEL_OK;
}

/* For a name that no subscription has: the library or SQL may have made claims in it. */
static semel_status verify_unsubscribed(struct semel_verification *verification, const char *name,
					semel_error *error)
{
	for (size_t i = 0; i < verification->plan->consumer_count; i++) {
		semel_store *store = verification->plan->consumers[i];
		bool claims = false;
		semel_status status = store->driver->inbox->each(store, semel_text_of(name),
								 note_claim, &claims, error);
		if (status != SEMEL_OK)
			return status;
		if (claims)
			return semel_verify_scope_add(verification, store, NULL,
						      semel_text_of(name), error);
	}
	return semel_error_set(
		error, SEMEL_INVALID,
		"scope %s not found (run: semel subscriptions list; if its inbox is in another "
		"database, add --consumer-store URL)",
		name);
}

static semel_status verify_named(struct semel_verification *verification,
				 const struct subscriptions *known, const char *name,
				 semel_error *error)
{
	for (size_t i = 0; i < verification->plan->consumer_count; i++) {
		const struct semel_subscription_row *row =
			semel_subscription_find(known[i].rows, known[i].count, name);
		if (row)
			return semel_verify_scope_add(verification, known[i].store, row, row->scope,
						      error);
	}
	return verify_unsubscribed(verification, name, error);
}

static semel_status verify_subscribed(struct semel_verification *verification,
				      const struct subscriptions *known, semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < verification->plan->consumer_count; i++)
		for (uint32_t j = 0; j < known[i].count && status == SEMEL_OK; j++)
			status = semel_verify_scope_add(verification, known[i].store,
							&known[i].rows[j], known[i].rows[j].scope,
							error);
	return status;
}

static semel_status verify_all(struct semel_verification *verification,
			       const struct subscriptions *known, semel_error *error)
{
	semel_status status = verify_subscribed(verification, known, error);
	if (status != SEMEL_OK)
		return status;
	return find_unread_topics(verification->plan, &verification->ledger, known,
				  verification->arena, verification->report, error);
}

/* scopes_max_out: capacity that the report needs for scopes. */
static semel_status read_subscriptions(struct semel_verification *verification,
				       struct subscriptions *known, size_t *scopes_max_out,
				       semel_error *error)
{
	const struct semel_verify_plan *plan = verification->plan;
	*scopes_max_out = 0;
	for (size_t i = 0; i < plan->consumer_count; i++) {
		known[i] = (struct subscriptions){ .store = plan->consumers[i] };
		semel_status status =
			semel_subscriptions_read(known[i].store, verification->arena,
						 &known[i].rows, &known[i].count, error);
		if (status != SEMEL_OK)
			return status;
		*scopes_max_out += known[i].count;
	}
	for (size_t i = 0; plan->scopes && plan->scopes[i]; i++)
		++*scopes_max_out;
	return SEMEL_OK;
}

static semel_status verify_scopes(struct semel_verification *verification, semel_error *error)
{
	const struct semel_verify_plan *plan = verification->plan;
	struct semel_verify_report *report = verification->report;
	size_t scopes_max = 0;
	struct subscriptions *known =
		semel_arena_alloc(verification->arena, sizeof(*known) * (plan->consumer_count + 1));
	if (!known)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the verification");
	semel_status status = read_subscriptions(verification, known, &scopes_max, error);
	if (status != SEMEL_OK)
		return status;
	report->scopes =
		semel_arena_alloc(verification->arena, sizeof(*report->scopes) * (scopes_max + 1));
	if (!report->scopes)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the verification");
	if (!plan->scopes || !plan->scopes[0])
		return verify_all(verification, known, error);
	for (size_t i = 0; plan->scopes[i] && status == SEMEL_OK; i++)
		status = verify_named(verification, known, plan->scopes[i], error);
	return status;
}

/* ---- the outbox ------------------------------------------------------------------------------ */

#define EXPLAINED (SEMEL_LEDGER_IS_PENDING | SEMEL_LEDGER_IS_DISCARDED | SEMEL_LEDGER_IS_GIVEN_UP)

/* Reads the ledger, and flags what accounts for the events that the relay gave up. */
static semel_status read_ledger(struct semel_verification *verification, semel_error *error)
{
	semel_store *producer = verification->plan->producer;
	struct semel_ledger *ledger = &verification->ledger;
	semel_status status = ledger->arena ? semel_ledger_refresh(ledger, producer, error)
					    : semel_ledger_read(ledger, producer, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_verification_flag_letters(verification, producer, SCOPE_RELAY, error);
	if (status != SEMEL_OK)
		return status;
	/* A dead letter past its retention has left a claim in its scope. */
	return semel_verification_flag_claims(verification, producer, SCOPE_RELAY, error);
}

static void count_outbox(struct semel_verification *verification,
			 const struct semel_outbox_counts *counts)
{
	struct semel_verify_report *report = verification->report;
	const struct semel_ledger *ledger = &verification->ledger;
	for (size_t i = 0; i < ledger->count; i++) {
		const struct semel_ledger_entry *entry = &ledger->entries[i];
		report->committed++;
		if (entry->status == SEMEL_LEDGER_PUBLISHED)
			report->published++;
		else if (entry->status == SEMEL_LEDGER_NEW)
			report->unpublished++;
		else if (entry->flags & EXPLAINED)
			report->failed++;
		else
			semel_verify_finding_add(&report->unexplained,
						 semel_ledger_id(ledger, entry),
						 verification->arena);
	}
	uint64_t parked = counts->parked + counts->blocked;
	report->parked = parked < report->unpublished ? parked : report->unpublished;
	report->unpublished -= report->parked;
	report->refused =
		counts->retrying < report->unpublished ? counts->retrying : report->unpublished;
	snprintf(report->last_refusal, sizeof(report->last_refusal), "%s", counts->last_error);
}

static semel_status verify_outbox(struct semel_verification *verification, semel_error *error)
{
	semel_store *producer = verification->plan->producer;
	struct semel_outbox_counts counts = { 0 };
	semel_status status = producer->driver->outbox->pruned_until(
		producer, &verification->report->pruned_until_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = read_ledger(verification, error);
	if (status != SEMEL_OK)
		return status;
	status = producer->driver->outbox->count(producer, &counts, error);
	if (status != SEMEL_OK)
		return status;
	count_outbox(verification, &counts);
	return SEMEL_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static uint64_t count_in_transit(const struct semel_verify_report *report)
{
	uint64_t count = report->unpublished;
	for (size_t i = 0; i < report->scope_count; i++)
		count += report->scopes[i].waiting + report->scopes[i].missing.count;
	return count;
}

static bool is_doubtful(const struct semel_verify_report *report)
{
	for (size_t i = 0; i < report->scope_count; i++)
		if (report->scopes[i].doubtful)
			return true;
	return false;
}

/* How long after the start it is worthwhile to verify again; 0: it is not. */
static int64_t wait_limit_ms(const struct semel_verification *verification)
{
	if (is_doubtful(verification->report) && verification->plan->wait_ms < DOUBT_MS)
		return DOUBT_MS;
	return count_in_transit(verification->report) > 0 ? verification->plan->wait_ms : 0;
}

static semel_status verify_once(struct semel_verification *verification, semel_error *error)
{
	*verification->report = (struct semel_verify_report){ 0 };
	semel_status status = verify_outbox(verification, error);
	if (status != SEMEL_OK)
		return status;
	return verify_scopes(verification, error);
}

/* A run takes longer if there are more events, and the pauses grow with it. */
static semel_status verify_until_arrived(struct semel_verification *verification,
					 semel_error *error)
{
	const struct semel_env *env = verification->plan->env;
	int64_t started_ms = semel_steady_ms(env), last_ms = started_ms;
	semel_status status = verify_once(verification, error);
	while (status == SEMEL_OK) {
		int64_t now_ms = semel_steady_ms(env);
		int64_t remaining_ms = started_ms + wait_limit_ms(verification) - now_ms;
		int64_t pause_ms = now_ms - last_ms + RECHECK_MS;
		if (remaining_ms <= 0)
			break;
		if (verification->plan->progress)
			verification->plan->progress("deliveries in transit",
						     count_in_transit(verification->report),
						     verification->plan->user);
		semel_env_sleep_ms(env, pause_ms < remaining_ms ? pause_ms : remaining_ms);
		last_ms = semel_steady_ms(env);
		status = verify_once(verification, error);
	}
	return status;
}

semel_status semel_verify_run(const struct semel_verify_plan *plan, struct semel_arena *arena,
			      struct semel_verify_report *report_out, semel_error *error)
{
	struct semel_verification verification = { .plan = plan,
						   .report = report_out,
						   .arena = arena };
	verification.ledger.progress = plan->progress;
	verification.ledger.user = plan->user;
	semel_status status = verify_until_arrived(&verification, error);
	semel_ledger_free(&verification.ledger);
	semel_broker_close(verification.broker);
	return status;
}
