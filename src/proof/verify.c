/* SPDX-License-Identifier: Apache-2.0 */
/* Verify lays each scope beside the outbox.
 *
 * - Everything may be at work meanwhile. A consumer commits before it acks, so what is neither in
 *   the scope's tables nor at the broker may have been settled in between: the tables are read once
 *   more after the broker was asked, and only then is it missing. For what looks orphaned the
 *   outbox is read again: it may have been committed since.
 * - A broker that does not see what consumers have in hand gives no proof: there an event is
 * missing when it has been nowhere for a while. Whoever waits looks again at the same events; those
 * that came later are not looked at.
 * - A dead letter accounts for its event while it is PENDING or DISCARDED. A REPLAYED one does not:
 *   the replay has to arrive.
 * - What waits in the scope's tables is stuck when nothing moves it (stuck.h): that is asked after
 *   the first reading, and believed if the second still says so.
 * - What the outbox has pruned is beyond proof: such events are neither missing nor orphaned.
 */
#include "proof/verify.h"

#include "base/error.h"
#include "base/wake.h"
#include "proof/ledger.h"
#include "proof/pattern.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "proof/unread_topics.h"
#include "store/subscription.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOUBT_MS       10000 /* longer than handlers mostly take */
#define LOOK_AGAIN_MS  250
#define ASKED_MAX      100 /* events that the broker is asked for one by one, per scope */
#define FIRST_SUSPECTS 64
#define SCOPE_RELAY    SEMEL_TEXT("relay")

struct verification {
	const struct semel_verify_plan *plan;
	struct semel_verify_report *report;
	struct semel_arena *arena; /* of the report */
	struct semel_ledger ledger;
	struct semel_broker *broker; /* NULL: not opened, or not to be had */
	struct semel_position_reader position_reader;
};

/* Claims whose event the outbox did not have, ascending: orphans, unless it has it now. */
struct suspects {
	struct semel_text *ids; /* owned; the texts are the arena's */
	size_t count, capacity, cursor;
};

/* One scope at work. */
struct examination {
	struct verification *of;
	semel_store *consumer;
	struct semel_verify_scope *scope;
	/* By number of a ledger's topic. */
	bool *reads;            /* has the scope to see it? */
	int64_t *read_until_ms; /* it did until then; 0: it never did, or does */
	bool guess_topics;      /* no subscription says so: those of which it has claims */
	int64_t since_ms;       /* earlier events are not its own */
	char last_id[256];      /* of the stream, to find doubles */
	size_t last_length;
	struct semel_topics topics; /* of the subscription, and those that it read once */
	struct semel_text bind;     /* data NULL: none */
	uint64_t at_broker;         /* what the broker has for the scope */
	uint64_t found;             /* of it, by name, and not settled since */
	uint64_t rest;              /* unsettled, and not asked for */
	bool unseen;                /* nor does it tell what consumers have in hand */
	struct suspects suspects;
	struct semel_stuck_check stuck;
};

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "no memory to verify");
}

static void note(struct semel_verify_finding *finding, struct semel_text id,
		 struct semel_arena *arena)
{
	if (finding->count < SEMEL_VERIFY_SAMPLES)
		finding->ids[finding->count] = semel_arena_text(arena, id.data, id.length);
	finding->count++;
}

/* ---- the streams ----------------------------------------------------------------------------- */

static uint16_t mark_of(const char *status)
{
	static const struct {
		const char *status;
		uint16_t mark;
	} marks[] = {
		{ "PROCESSED", SEMEL_LEDGER_IS_PROCESSED },
		{ "CLAIMED", SEMEL_LEDGER_IS_CLAIMED },
		{ "FAILED", SEMEL_LEDGER_IS_GIVEN_UP },
		{ "PENDING", SEMEL_LEDGER_IS_PENDING },
		{ "DISCARDED", SEMEL_LEDGER_IS_DISCARDED },
		{ "REPLAYED", SEMEL_LEDGER_IS_REPLAYED },
		{ "PARKED", SEMEL_LEDGER_IS_PARKED },
	};
	for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
		if (strcmp(status, marks[i].status) == 0)
			return marks[i].mark;
	return 0;
}

static bool is_repeated(struct examination *at, struct semel_text id)
{
	bool repeated = id.length == at->last_length && id.length > 0 &&
			memcmp(id.data, at->last_id, id.length) == 0;
	at->last_length = id.length < sizeof(at->last_id) ? id.length : 0;
	memcpy(at->last_id, id.data, at->last_length);
	return repeated;
}

static bool suspect(struct examination *at, struct semel_text id)
{
	struct suspects *suspects = &at->suspects;
	if (suspects->count == suspects->capacity) {
		size_t wanted = suspects->capacity ? suspects->capacity * 2 : FIRST_SUSPECTS;
		struct semel_text *bigger = realloc(suspects->ids, wanted * sizeof(*suspects->ids));
		if (!bigger)
			return false;
		suspects->ids = bigger;
		suspects->capacity = wanted;
	}
	struct semel_text copy = semel_arena_text(at->of->arena, id.data, id.length);
	suspects->ids[suspects->count++] = copy;
	return copy.data != NULL;
}

/* A claim of an event that the outbox does not have. */
static semel_status meet_stranger(struct examination *at, struct semel_text id,
				  struct semel_text topic, int64_t time_ms)
{
	const struct semel_ledger *ledger = &at->of->ledger;
	if (time_ms <= at->of->report->pruned_until_ms)
		return SEMEL_OK;
	if (ledger->count == 0 || semel_ledger_has_topic(ledger, topic))
		return suspect(at, id) ? SEMEL_OK : SEMEL_INTERNAL;
	at->scope->foreign++;
	return SEMEL_OK;
}

static semel_status claim_seen(struct semel_text id, const char *status, struct semel_text topic,
			       int64_t time_ms, void *user)
{
	struct examination *at = user;
	if (is_repeated(at, id)) {
		note(&at->scope->doubled, id, at->of->arena);
		return SEMEL_OK;
	}
	struct semel_ledger_entry *entry = semel_ledger_seek(&at->of->ledger, id);
	if (!entry)
		return meet_stranger(at, id, topic, time_ms);
	entry->flags |= mark_of(status);
	if (at->guess_topics)
		at->reads[entry->topic] = true;
	return SEMEL_OK;
}

static semel_status letter_seen(struct semel_text id, const char *status, struct semel_text topic,
				int64_t time_ms, void *user)
{
	(void)topic;
	(void)time_ms;
	struct semel_ledger_entry *entry = semel_ledger_seek(user, id);
	if (entry)
		entry->flags |= mark_of(status);
	return SEMEL_OK;
}

static semel_status mark_letters(struct verification *of, semel_store *store,
				 struct semel_text scope, semel_error *error)
{
	semel_ledger_rewind(&of->ledger);
	return store->driver->dead_letters->each(store, scope, letter_seen, &of->ledger, error);
}

/* ---- looking once more ----------------------------------------------------------------------- */

/* Beside the suspects, which ascend as the outbox does: whoever is passed over was not there. */
static semel_status event_seen(struct semel_text id, const char *status, struct semel_text topic,
			       int64_t time_ms, void *user)
{
	struct examination *at = user;
	struct suspects *suspects = &at->suspects;
	(void)status;
	(void)topic;
	(void)time_ms;
	for (; suspects->cursor < suspects->count; suspects->cursor++) {
		struct semel_text next = suspects->ids[suspects->cursor];
		int order = semel_ledger_compare(next, id);
		if (order > 0)
			return SEMEL_OK;
		if (order < 0)
			note(&at->scope->orphaned, next, at->of->arena);
	}
	return SEMEL_OK;
}

static semel_status look_at_suspects(struct examination *at, semel_error *error)
{
	semel_store *producer = at->of->plan->producer;
	if (at->suspects.count == 0)
		return SEMEL_OK;
	semel_status status = producer->driver->outbox->each(producer, event_seen, at, error);
	while (at->suspects.cursor < at->suspects.count)
		note(&at->scope->orphaned, at->suspects.ids[at->suspects.cursor++], at->of->arena);
	return status;
}

/* A broker that cannot be reached is no reason to say nothing: the report tells that it was not
 * asked. */
static void need_broker(struct verification *of, semel_store *consumer)
{
	struct semel_verify_report *report = of->report;
	semel_error error = { 0 };
	of->position_reader.store = consumer;
	if (of->broker || !of->plan->broker_url || report->broker_trouble[0])
		return;
	if (semel_broker_open(of->plan->broker_url, of->plan->env, 1, &of->broker, &error) !=
	    SEMEL_OK)
		snprintf(report->broker_trouble, sizeof(report->broker_trouble), "%.*s",
			 (int)sizeof(report->broker_trouble) - 1, error.text);
	else
		semel_position_reader_attach(&of->position_reader, of->broker, consumer);
}

static semel_status ask_broker(const struct examination *at, struct semel_text id,
			       bool *waiting_out, semel_error *error)
{
	struct semel_broker *broker = at->of->broker;
	*waiting_out = false;
	const char *wanted = semel_text_to_string(id); /* NULL: none is sent, so none waits */
	if (!broker || at->guess_topics || !wanted)
		return SEMEL_OK;
	return broker->driver->find_event(broker, semel_text_string(at->scope->scope),
					  at->topics.names, wanted, waiting_out, error);
}

/* ---- what the broker has --------------------------------------------------------------------- */

/* No copy at the broker is needed any more. */
#define DECIDED                                                                                    \
	(SEMEL_LEDGER_IS_PROCESSED | SEMEL_LEDGER_IS_GIVEN_UP | SEMEL_LEDGER_IS_PENDING |          \
	 SEMEL_LEDGER_IS_DISCARDED | SEMEL_LEDGER_IS_PARKED)
#define SETTLED (DECIDED | SEMEL_LEDGER_IS_CLAIMED)

static bool is_expected(const struct examination *at, const struct semel_ledger_entry *entry)
{
	/* A replay that is not settled is moving or stuck; one that is may have left no claim. */
	const int known_marks = ~(SEMEL_LEDGER_IS_FILTERED | SEMEL_LEDGER_IS_REPLAYED);
	bool known = (entry->flags & known_marks) != 0;
	if (known)
		return at->reads[entry->topic];
	return at->reads[entry->topic] && !(entry->flags & SEMEL_LEDGER_IS_FILTERED) &&
	       entry->time_ms >= at->since_ms;
}

/* Published, and the scope's tables do not tell what became of it. */
static bool is_unsettled(const struct examination *at, const struct semel_ledger_entry *entry)
{
	return entry->status == SEMEL_LEDGER_PUBLISHED && !(entry->flags & SETTLED) &&
	       is_expected(at, entry);
}

/* Asking for each of very many would take too long; for the rest there is the backlog. */
static semel_status ask_for_unsettled(struct examination *at, bool *any_out, semel_error *error)
{
	const struct semel_ledger *ledger = &at->of->ledger;
	struct semel_broker *broker = NULL;
	uint32_t asked = 0, found = 0;
	semel_status status = SEMEL_OK;
	*any_out = false;
	for (size_t i = 0; i < ledger->count && asked < ASKED_MAX && status == SEMEL_OK; i++) {
		struct semel_ledger_entry *entry = &ledger->entries[i];
		if (!is_unsettled(at, entry))
			continue;
		bool waiting = false;
		need_broker(at->of, at->consumer);
		broker = at->guess_topics ? NULL : at->of->broker;
		status = ask_broker(at, semel_ledger_id(ledger, entry), &waiting, error);
		entry->flags |= SEMEL_LEDGER_IS_QUERIED | (waiting ? SEMEL_LEDGER_IS_AT_BROKER : 0);
		found += waiting;
		asked++;
		*any_out = true;
	}
	if (status != SEMEL_OK || !broker || (asked < ASKED_MAX && found == asked))
		return status;
	struct semel_backlog backlog = { 0 };
	status = broker->driver->backlog(broker, semel_text_string(at->scope->scope),
					 at->topics.names, &backlog, error);
	at->at_broker = backlog.waiting;
	at->unseen = backlog.in_flight_unknown;
	return status;
}

/* ---- what waits in the scope's tables -------------------------------------------------------- */

static semel_status wait_counted(const struct semel_wait *wait, void *user)
{
	const struct examination *at = user;
	struct semel_wait_fix fix = semel_wait_find_fix(wait, at->stuck.now_ms);
	return fix.kind == SEMEL_FIX_RESEND ? SEMEL_STOPPED : SEMEL_OK;
}

static semel_status ask_for_movers(struct examination *at, semel_error *error)
{
	const struct semel_store_driver *driver = at->consumer->driver;
	at->stuck = (struct semel_stuck_check){
		.store = at->consumer,
		.scope = semel_text_string(at->scope->scope),
		.topics = at->topics.names,
		.in_flight = at->scope->consumers.in_flight,
		.now_ms = semel_now_ms(at->of->plan->env),
		.arena = at->of->arena,
	};
	semel_status status =
		driver->holds->waits_each(at->consumer, at->scope->scope, wait_counted, at, error);
	if (status != SEMEL_STOPPED)
		return status;
	need_broker(at->of, at->consumer);
	at->stuck.broker = at->guess_topics ? NULL : at->of->broker;
	return semel_stuck_check_run(&at->stuck, error);
}

/* A hold whose head is settled keeps whoever comes next, also while nobody is parked. */
static bool is_left_over(const struct semel_wait *wait)
{
	return wait->kind == SEMEL_WAIT_HOLD && wait->state == SEMEL_HOLD_DEAD &&
	       !(wait->letter == SEMEL_DEAD_REPLAYED && !wait->settled);
}

static semel_status wait_judged(const struct semel_wait *wait, void *user)
{
	struct examination *at = user;
	struct semel_ledger_entry *entry = semel_ledger_find(&at->of->ledger, wait->event_id);
	bool stuck = semel_stuck_check_confirms(&at->stuck, wait);
	bool left_over = is_left_over(wait);
	if (entry && !left_over)
		entry->flags |= stuck ? SEMEL_LEDGER_IS_STUCK : SEMEL_LEDGER_IS_MOVING;
	else if (stuck && (left_over || wait->kind != SEMEL_WAIT_HOLD))
		note(&at->scope->stuck, wait->event_id, at->of->arena);
	return SEMEL_OK;
}

static semel_status routing_seen(struct semel_text id, struct semel_text routing_key, void *user)
{
	struct examination *at = user;
	struct semel_ledger_entry *entry = semel_ledger_seek(&at->of->ledger, id);
	if (entry && !semel_pattern_matches(at->bind, routing_key))
		entry->flags |= SEMEL_LEDGER_IS_FILTERED;
	return SEMEL_OK;
}

static semel_status mark_unwanted(struct examination *at, semel_error *error)
{
	semel_store *producer = at->of->plan->producer;
	if (!at->bind.data)
		return SEMEL_OK;
	semel_ledger_rewind(&at->of->ledger);
	return producer->driver->outbox->routing_each(producer, routing_seen, at, error);
}

/* ---- the sum --------------------------------------------------------------------------------- */

static void judge_unsettled(struct examination *at, const struct semel_ledger_entry *entry)
{
	if (entry->flags & SEMEL_LEDGER_IS_AT_BROKER)
		at->found++;
	else if (entry->flags & SEMEL_LEDGER_IS_QUERIED)
		note(&at->scope->missing, semel_ledger_id(&at->of->ledger, entry), at->of->arena);
	else
		at->rest++;
	if (!(entry->flags & SEMEL_LEDGER_IS_AT_BROKER) &&
	    (at->scope->missing_since_ms == 0 || entry->time_ms < at->scope->missing_since_ms))
		at->scope->missing_since_ms = entry->time_ms;
}

/* Of a topic that the scope reads no more: what it had to read and did not. */
static void judge_unread(struct examination *at, const struct semel_ledger_entry *entry)
{
	struct semel_verify_scope *scope = at->scope;
	if (entry->status != SEMEL_LEDGER_PUBLISHED || entry->time_ms < at->since_ms ||
	    entry->time_ms > at->read_until_ms[entry->topic] ||
	    (entry->flags & (DECIDED | SEMEL_LEDGER_IS_FILTERED)))
		return;
	note(&scope->unread, semel_ledger_id(&at->of->ledger, entry), at->of->arena);
	struct semel_text topic = semel_ledger_topic(&at->of->ledger, entry);
	if (!scope->unread_topic.data)
		scope->unread_topic = semel_arena_text(at->of->arena, topic.data, topic.length);
}

static void account_for(struct examination *at, const struct semel_ledger_entry *entry)
{
	struct semel_verify_scope *scope = at->scope;
	if (at->read_until_ms[entry->topic] > 0)
		judge_unread(at, entry);
	if (!is_expected(at, entry))
		return;
	scope->expected++;
	if (entry->flags & SEMEL_LEDGER_IS_PROCESSED)
		scope->processed++;
	else if (entry->flags & SEMEL_LEDGER_IS_STUCK)
		note(&scope->stuck, semel_ledger_id(&at->of->ledger, entry), at->of->arena);
	else if (entry->flags & SEMEL_LEDGER_IS_PENDING)
		scope->pending++;
	else if (entry->flags & SEMEL_LEDGER_IS_MOVING)
		scope->waiting++;
	else if (entry->flags & (SEMEL_LEDGER_IS_DISCARDED | SEMEL_LEDGER_IS_GIVEN_UP))
		scope->discarded++; /* or its dead letter is past its retention */
	else if (entry->flags & SEMEL_LEDGER_IS_PARKED)
		scope->parked++;
	else if (entry->flags & SEMEL_LEDGER_IS_CLAIMED)
		scope->waiting++;
	else if (entry->status == SEMEL_LEDGER_FAILED)
		scope->undelivered++;
	else if (entry->status == SEMEL_LEDGER_NEW && at->of->report->unpublished == 0)
		scope->undelivered++; /* behind one that the relay gave up */
	else if (entry->status == SEMEL_LEDGER_NEW)
		scope->waiting++;
	else
		judge_unsettled(at, entry);
}

/* The broker does not tell what its consumers have in hand; they do. Which ones is not known. */
static void spare_those_in_hand(struct semel_verify_scope *scope)
{
	uint64_t in_flight = scope->consumers.in_flight;
	uint64_t spared = scope->missing.count < in_flight ? scope->missing.count : in_flight;
	scope->missing.count -= spared;
	scope->waiting += spared;
}

static void account_for_all(struct examination *at)
{
	const struct semel_ledger *ledger = &at->of->ledger;
	for (size_t i = 0; i < ledger->count; i++)
		account_for(at, &ledger->entries[i]);

	/* What the broker has, apart from what was found there by name, may be of the rest. Those
	 * found and settled since are not taken off: the broker was perhaps counted after it. */
	uint64_t left = at->at_broker > at->found ? at->at_broker - at->found : 0;
	uint64_t waiting = at->rest < left ? at->rest : left;
	at->scope->waiting += at->found + waiting;
	at->scope->missing.count += at->rest - waiting;
	if (at->unseen)
		spare_those_in_hand(at->scope);
	bool unseen =
		at->unseen || (at->stuck.broker && at->stuck.broker->driver->count_in_flight &&
			       at->scope->consumers.alive > 0);
	at->scope->doubtful =
		unseen && (at->scope->missing.count > 0 || at->scope->stuck.count > 0);
}

/* Marks only: doubles and orphans were counted the first time. */
static semel_status read_again(struct examination *at, semel_error *error)
{
	struct verification *of = at->of;
	semel_ledger_rewind(&of->ledger);
	semel_status status = at->consumer->driver->inbox->each(at->consumer, at->scope->scope,
								letter_seen, &of->ledger, error);
	if (status == SEMEL_OK)
		status = mark_letters(of, at->consumer, at->scope->scope, error);
	return status;
}

static semel_status read_consumers(struct examination *at, semel_error *error)
{
	return semel_consumers_read(at->consumer, at->scope->scope, semel_now_ms(at->of->plan->env),
				    &at->scope->consumers, error);
}

static semel_status examine(struct examination *at, semel_error *error)
{
	struct verification *of = at->of;
	semel_ledger_clear_flags(&of->ledger);
	semel_status status = mark_unwanted(at, error);
	semel_ledger_rewind(&of->ledger);
	if (status == SEMEL_OK)
		status = at->consumer->driver->inbox->each(at->consumer, at->scope->scope,
							   claim_seen, at, error);
	if (status == SEMEL_OK)
		status = mark_letters(of, at->consumer, at->scope->scope, error);
	if (status == SEMEL_OK)
		status = read_consumers(at, error);
	if (status == SEMEL_OK)
		status = ask_for_movers(at, error);
	bool unsettled = false;
	if (status == SEMEL_OK)
		status = ask_for_unsettled(at, &unsettled, error);
	if (status == SEMEL_OK && unsettled)
		status = read_consumers(at, error);
	if (status == SEMEL_OK && unsettled)
		status = read_again(at, error);
	if (status == SEMEL_OK)
		status = at->consumer->driver->holds->waits_each(at->consumer, at->scope->scope,
								 wait_judged, at, error);
	if (status != SEMEL_OK)
		return status;
	account_for_all(at);
	return look_at_suspects(at, error);
}

/* Only an exchange goes by bindings. */
static bool broker_binds(const struct verification *of)
{
	const struct semel_broker_driver *driver = NULL;
	return of->plan->broker_url &&
	       semel_broker_driver_find(of->plan->broker_url, &driver, NULL) == SEMEL_OK &&
	       driver->has_exchanges;
}

/* Copies of events of topics that it reads no more may still be looked for. */
static void old_topic_seen(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms,
			   void *user)
{
	struct examination *at = user;
	const struct semel_ledger *ledger = &at->of->ledger;
	(void)since_ms;
	if (removed_at_ms == 0 || semel_topics_contain(&at->topics, topic))
		return;
	for (size_t i = 0; i < ledger->topic_count; i++)
		if (semel_text_equal(ledger->topics[i], topic))
			at->read_until_ms[i] = removed_at_ms;
	(void)semel_topics_add(&at->topics, topic, at->of->arena);
}

static semel_status prepare(struct examination *at, const struct semel_subscription_row *row,
			    semel_error *error)
{
	const struct semel_ledger *ledger = &at->of->ledger;
	struct semel_arena *arena = at->of->arena;
	size_t times_size = (ledger->topic_count + 1) * sizeof(*at->read_until_ms);
	at->reads = semel_arena_alloc(arena, ledger->topic_count + 1);
	at->read_until_ms = semel_arena_alloc(arena, times_size);
	if (!at->reads || !at->read_until_ms)
		return no_memory(error);
	memset(at->reads, 0, ledger->topic_count + 1);
	memset(at->read_until_ms, 0, times_size);
	at->guess_topics = row == NULL;
	if (!row)
		return SEMEL_OK;

	semel_status status = semel_subscription_topics(row, arena, &at->topics, error);
	for (size_t i = 0; status == SEMEL_OK && i < ledger->topic_count; i++)
		at->reads[i] = semel_topics_contain(&at->topics, ledger->topics[i]);
	if (row->from_latest)
		at->since_ms = row->since_ms;
	if (row->bind.data && broker_binds(at->of))
		at->bind = row->bind;
	if (status == SEMEL_OK)
		status = at->consumer->driver->upkeep->subscription_topics(
			at->consumer, row->scope, old_topic_seen, at, error);
	return status;
}

/* row NULL: a scope that claims by hand, without a subscription. */
static semel_status add_scope(struct verification *of, semel_store *consumer,
			      const struct semel_subscription_row *row, struct semel_text name,
			      semel_error *error)
{
	struct semel_verify_scope *scope = &of->report->scopes[of->report->scope_count];
	*scope = (struct semel_verify_scope){
		.scope = name,
		.guarantee = row ? row->guarantee : semel_text_of(NULL),
		.tracked = !row || !semel_text_equal(row->guarantee, SEMEL_TEXT("at-least-once")),
		.paused = row && row->paused,
	};
	of->report->scope_count++;
	struct examination at = {
		.of = of, .consumer = consumer, .scope = scope, .since_ms = INT64_MIN
	};
	semel_status status = prepare(&at, row, error);
	if (status == SEMEL_OK && scope->tracked)
		status = examine(&at, error);
	free(at.suspects.ids);
	return status;
}

/* ---- which scopes ---------------------------------------------------------------------------- */

static semel_status claim_counted(struct semel_text id, const char *status, struct semel_text topic,
				  int64_t time_ms, void *user)
{
	(void)id;
	(void)status;
	(void)topic;
	(void)time_ms;
	*(bool *)user = true;
	return SEMEL_OK;
}

/* Nobody subscribed by this name; perhaps somebody claims by it through the library or by SQL. */
static semel_status verify_unsubscribed(struct verification *of, const char *name,
					semel_error *error)
{
	for (size_t i = 0; i < of->plan->consumer_count; i++) {
		semel_store *store = of->plan->consumers[i];
		bool claims = false;
		semel_status status = store->driver->inbox->each(store, semel_text_of(name),
								 claim_counted, &claims, error);
		if (status != SEMEL_OK)
			return status;
		if (claims)
			return add_scope(of, store, NULL, semel_text_of(name), error);
	}
	return semel_error_set(
		error, SEMEL_INVALID,
		"no subscription and no claim is of the scope \"%s\": if it keeps its "
		"inbox in another database, add --consumer-store URL",
		name);
}

static semel_status verify_named(struct verification *of,
				 const struct semel_store_subscriptions *known, const char *name,
				 semel_error *error)
{
	for (size_t i = 0; i < of->plan->consumer_count; i++) {
		const struct semel_subscription_row *row =
			semel_subscription_find(known[i].rows, known[i].count, name);
		if (row)
			return add_scope(of, known[i].store, row, row->scope, error);
	}
	return verify_unsubscribed(of, name, error);
}

static semel_status verify_subscribed(struct verification *of,
				      const struct semel_store_subscriptions *known,
				      semel_error *error)
{
	semel_status status = SEMEL_OK;
	for (size_t i = 0; i < of->plan->consumer_count; i++)
		for (uint32_t j = 0; j < known[i].count && status == SEMEL_OK; j++)
			status = add_scope(of, known[i].store, &known[i].rows[j],
					   known[i].rows[j].scope, error);
	return status;
}

static semel_status verify_scopes(struct verification *of, semel_error *error)
{
	const struct semel_verify_plan *plan = of->plan;
	struct semel_store_subscriptions *known =
		semel_arena_alloc(of->arena, sizeof(*known) * (plan->consumer_count + 1));
	if (!known)
		return no_memory(error);
	size_t places = 0;
	for (size_t i = 0; i < plan->consumer_count; i++) {
		known[i] = (struct semel_store_subscriptions){ .store = plan->consumers[i] };
		semel_status status = semel_subscriptions_read(
			known[i].store, of->arena, &known[i].rows, &known[i].count, error);
		if (status != SEMEL_OK)
			return status;
		places += known[i].count;
	}
	for (size_t i = 0; plan->scopes && plan->scopes[i]; i++)
		places++;
	of->report->scopes =
		semel_arena_alloc(of->arena, sizeof(*of->report->scopes) * (places + 1));
	if (!of->report->scopes)
		return no_memory(error);

	semel_status status = SEMEL_OK;
	if (!plan->scopes || !plan->scopes[0]) {
		status = verify_subscribed(of, known, error);
		return status == SEMEL_OK ? semel_unread_topics_find(plan, &of->ledger, known,
								     of->arena, of->report, error)
					  : status;
	}
	for (size_t i = 0; plan->scopes[i] && status == SEMEL_OK; i++)
		status = verify_named(of, known, plan->scopes[i], error);
	return status;
}

/* ---- the producer's side --------------------------------------------------------------------- */

#define EXPLAINED (SEMEL_LEDGER_IS_PENDING | SEMEL_LEDGER_IS_DISCARDED | SEMEL_LEDGER_IS_GIVEN_UP)

/* A dead letter past its retention has left a claim in its scope. */
static semel_status mark_forgotten_letters(struct verification *of, semel_error *error)
{
	semel_store *producer = of->plan->producer;
	semel_ledger_rewind(&of->ledger);
	return producer->driver->inbox->each(producer, SCOPE_RELAY, letter_seen, &of->ledger,
					     error);
}

static semel_status verify_outbox(struct verification *of, semel_error *error)
{
	semel_store *producer = of->plan->producer;
	struct semel_verify_report *report = of->report;
	struct semel_ledger *ledger = &of->ledger;
	semel_status status =
		producer->driver->outbox->pruned_until(producer, &report->pruned_until_ms, error);
	if (status == SEMEL_OK)
		status = ledger->arena ? semel_ledger_refresh(ledger, producer, error)
				       : semel_ledger_read(ledger, producer, error);
	if (status == SEMEL_OK)
		status = mark_letters(of, producer, SCOPE_RELAY, error);
	if (status == SEMEL_OK)
		status = mark_forgotten_letters(of, error);
	struct semel_outbox_counts counts = { 0 };
	if (status == SEMEL_OK)
		status = producer->driver->outbox->count(producer, semel_now_ms(of->plan->env),
							 &counts, error);
	if (status != SEMEL_OK)
		return status;

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
			note(&report->unexplained, semel_ledger_id(ledger, entry), of->arena);
	}
	uint64_t parked = counts.parked + counts.blocked;
	report->parked = parked < report->unpublished ? parked : report->unpublished;
	report->unpublished -= report->parked;
	report->refused =
		counts.retrying < report->unpublished ? counts.retrying : report->unpublished;
	snprintf(report->last_refusal, sizeof(report->last_refusal), "%s", counts.last_error);
	return SEMEL_OK;
}

/* ---- patience -------------------------------------------------------------------------------- */

static uint64_t on_their_way(const struct semel_verify_report *report)
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

/* So long the first look may be wrong; 0: nothing will come of looking again. */
static int64_t patience_ms(const struct verification *of)
{
	if (is_doubtful(of->report) && of->plan->wait_ms < DOUBT_MS)
		return DOUBT_MS;
	return on_their_way(of->report) > 0 ? of->plan->wait_ms : 0;
}

static semel_status look(struct verification *of, semel_error *error)
{
	*of->report = (struct semel_verify_report){ 0 };
	semel_status status = verify_outbox(of, error);
	return status == SEMEL_OK ? verify_scopes(of, error) : status;
}

/* Looking takes longer the more there is, and so do the pauses. */
static semel_status look_patiently(struct verification *of, semel_error *error)
{
	const struct semel_env *env = of->plan->env;
	int64_t begun_ms = semel_steady_ms(env), last_ms = begun_ms;
	semel_status status = look(of, error);
	while (status == SEMEL_OK) {
		int64_t now_ms = semel_steady_ms(env);
		int64_t left_ms = begun_ms + patience_ms(of) - now_ms;
		int64_t pause_ms = now_ms - last_ms + LOOK_AGAIN_MS;
		if (left_ms <= 0)
			break;
		if (of->plan->progress)
			of->plan->progress("deliveries on their way", on_their_way(of->report),
					   of->plan->user);
		semel_env_sleep_ms(env, pause_ms < left_ms ? pause_ms : left_ms);
		last_ms = semel_steady_ms(env);
		status = look(of, error);
	}
	return status;
}

semel_status semel_verify_run(const struct semel_verify_plan *plan, struct semel_arena *arena,
			      struct semel_verify_report *report_out, semel_error *error)
{
	struct verification of = { .plan = plan, .report = report_out, .arena = arena };
	of.ledger.progress = plan->progress;
	of.ledger.user = plan->user;
	semel_status status = look_patiently(&of, error);
	semel_ledger_free(&of.ledger);
	semel_broker_close(of.broker);
	return status;
}
