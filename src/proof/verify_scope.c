/* SPDX-License-Identifier: Apache-2.0 */
/* Compares a scope with the outbox: its claims, dead letters, parked events and what the broker has
 * for it become flags of the ledger's entries, and then each entry is counted once. verify.c has
 * the invariants. */
#include "proof/verify_scope.h"

#include "base/error.h"
#include "proof/stuck.h"
#include "store/subscription.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUERIES_MAX      100 /* events that the broker is queried for one by one, per scope */
#define FIRST_CANDIDATES 64

/* Claims whose event was not in the outbox, in ascending order. They are orphans, unless the event
 * was committed since. */
struct candidates {
	struct semel_text *ids; /* owned; the texts are the arena's */
	size_t count, capacity, cursor;
};

/* The check of one scope. */
struct scope_check {
	struct semel_verification *verification;
	semel_store *consumer;
	struct semel_verify_scope *scope;
	/* Indexed by the ledger's topic number: */
	bool *reads;            /* the scope subscribes to it */
	int64_t *read_until_ms; /* until then it did; 0: never, or it still does */
	bool guess_topics;      /* no subscription: uses the topics of its claims */
	int64_t since_ms;       /* earlier events are not for it */
	char last_id[256];      /* of the stream, to find repeated ids */
	size_t last_length;
	struct semel_topics topics; /* of the subscription, now and earlier */
	struct semel_text bind;     /* data NULL: none */
	uint64_t at_broker;         /* the backlog of the scope */
	uint64_t found;             /* of the backlog: found by id, and not settled since */
	uint64_t rest;              /* unsettled, and not queried */
	bool in_flight_unknown;     /* the backlog does not include it */
	struct candidates candidates;
	struct semel_stuck_check stuck;
};

void semel_verify_finding_add(struct semel_verify_finding *finding, struct semel_text id,
			      struct semel_arena *arena)
{
	if (finding->count < SEMEL_VERIFY_SAMPLES)
		finding->ids[finding->count] = semel_arena_text(arena, id.data, id.length);
	finding->count++;
}

/* ---- the streams ----------------------------------------------------------------------------- */

static uint16_t flag_of(const char *status)
{
	static const struct {
		const char *status;
		uint16_t flag;
	} flags[] = {
		{ "PROCESSED", SEMEL_LEDGER_IS_PROCESSED },
		{ "CLAIMED", SEMEL_LEDGER_IS_CLAIMED },
		{ "FAILED", SEMEL_LEDGER_IS_GIVEN_UP },
		{ "PENDING", SEMEL_LEDGER_IS_PENDING },
		{ "DISCARDED", SEMEL_LEDGER_IS_DISCARDED },
		{ "REPLAYED", SEMEL_LEDGER_IS_REPLAYED },
		{ "PARKED", SEMEL_LEDGER_IS_PARKED },
	};
	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (strcmp(status, flags[i].status) == 0)
			return flags[i].flag;
	return 0;
}

static bool is_repeated(struct scope_check *check, struct semel_text id)
{
	bool repeated = id.length == check->last_length && id.length > 0 &&
			memcmp(id.data, check->last_id, id.length) == 0;
	check->last_length = id.length < sizeof(check->last_id) ? id.length : 0;
	memcpy(check->last_id, id.data, check->last_length);
	return repeated;
}

static bool add_candidate(struct scope_check *check, struct semel_text id)
{
	struct candidates *candidates = &check->candidates;
	if (candidates->count == candidates->capacity) {
		size_t capacity =
			candidates->capacity ? candidates->capacity * 2 : FIRST_CANDIDATES;
		struct semel_text *bigger =
			realloc(candidates->ids, capacity * sizeof(*candidates->ids));
		if (!bigger)
			return false;
		candidates->ids = bigger;
		candidates->capacity = capacity;
	}
	struct semel_text copy = semel_arena_text(check->verification->arena, id.data, id.length);
	candidates->ids[candidates->count++] = copy;
	return copy.data != NULL;
}

/* Handles a claim whose event the outbox does not have. */
static semel_status add_unknown_claim(struct scope_check *check, struct semel_text id,
				      struct semel_text topic, int64_t time_ms)
{
	const struct semel_ledger *ledger = &check->verification->ledger;
	if (time_ms <= check->verification->report->pruned_until_ms)
		return SEMEL_OK;
	if (ledger->count == 0 || semel_ledger_has_topic(ledger, topic))
		return add_candidate(check, id) ? SEMEL_OK : SEMEL_INTERNAL;
	check->scope->foreign++;
	return SEMEL_OK;
}

static semel_status flag_claim(struct semel_text id, const char *status, struct semel_text topic,
			       int64_t time_ms, void *user)
{
	struct scope_check *check = user;
	if (is_repeated(check, id)) {
		semel_verify_finding_add(&check->scope->doubled, id, check->verification->arena);
		return SEMEL_OK;
	}
	struct semel_ledger_entry *entry = semel_ledger_seek(&check->verification->ledger, id);
	if (!entry)
		return add_unknown_claim(check, id, topic, time_ms);
	entry->flags |= flag_of(status);
	if (check->guess_topics)
		check->reads[entry->topic] = true;
	return SEMEL_OK;
}

static semel_status flag_entry(struct semel_text id, const char *status, struct semel_text topic,
			       int64_t time_ms, void *user)
{
	(void)topic;
	(void)time_ms;
	struct semel_ledger_entry *entry = semel_ledger_seek(user, id);
	if (entry)
		entry->flags |= flag_of(status);
	return SEMEL_OK;
}

semel_status semel_verification_flag_letters(struct semel_verification *verification,
					     semel_store *store, struct semel_text scope,
					     semel_error *error)
{
	semel_ledger_rewind(&verification->ledger);
	return store->driver->dead_letters->each(store, scope, flag_entry, &verification->ledger,
						 error);
}

semel_status semel_verification_flag_claims(struct semel_verification *verification,
					    semel_store *store, struct semel_text scope,
					    semel_error *error)
{
	semel_ledger_rewind(&verification->ledger);
	return store->driver->inbox->each(store, scope, flag_entry, &verification->ledger, error);
}

/* ---- orphans --------------------------------------------------------------------------------- */

/* Both streams are in ascending order: a candidate that is passed over is not in the outbox. */
static semel_status skip_committed(struct semel_text id, const char *status,
				   struct semel_text topic, int64_t time_ms, void *user)
{
	struct scope_check *check = user;
	struct candidates *candidates = &check->candidates;
	(void)status;
	(void)topic;
	(void)time_ms;
	for (; candidates->cursor < candidates->count; candidates->cursor++) {
		struct semel_text next = candidates->ids[candidates->cursor];
		int order = semel_ledger_compare(next, id);
		if (order > 0)
			return SEMEL_OK;
		if (order < 0)
			semel_verify_finding_add(&check->scope->orphaned, next,
						 check->verification->arena);
	}
	return SEMEL_OK;
}

static semel_status report_orphans(struct scope_check *check, semel_error *error)
{
	semel_store *producer = check->verification->plan->producer;
	if (check->candidates.count == 0)
		return SEMEL_OK;
	semel_status status =
		producer->driver->outbox->each(producer, skip_committed, check, error);
	while (check->candidates.cursor < check->candidates.count)
		semel_verify_finding_add(&check->scope->orphaned,
					 check->candidates.ids[check->candidates.cursor++],
					 check->verification->arena);
	return status;
}

/* Without the broker the report is less complete, and says so. */
static void open_broker(struct semel_verification *verification, semel_store *consumer)
{
	struct semel_verify_report *report = verification->report;
	semel_error error = { 0 };
	verification->position_reader.store = consumer;
	if (verification->broker || !verification->plan->broker_url || report->broker_error[0])
		return;
	if (semel_broker_open(verification->plan->broker_url, verification->plan->env, 1,
			      &verification->broker, &error) != SEMEL_OK)
		snprintf(report->broker_error, sizeof(report->broker_error), "%.*s",
			 (int)sizeof(report->broker_error) - 1, error.text);
	else
		semel_position_reader_attach(&verification->position_reader, verification->broker,
					     consumer);
}

static semel_status query_broker(const struct scope_check *check, struct semel_text id,
				 bool *waiting_out, semel_error *error)
{
	struct semel_broker *broker = check->verification->broker;
	*waiting_out = false;
	const char *id_text = semel_text_to_string(id); /* NULL: such an id is never published */
	if (!broker || check->guess_topics || !id_text)
		return SEMEL_OK;
	return broker->driver->find_event(broker, semel_text_string(check->scope->scope),
					  check->topics.names, id_text, waiting_out, error);
}

/* ---- what the broker has --------------------------------------------------------------------- */

/* With one of these flags an event needs no copy at the broker. */
#define DECIDED                                                                                    \
	(SEMEL_LEDGER_IS_PROCESSED | SEMEL_LEDGER_IS_GIVEN_UP | SEMEL_LEDGER_IS_PENDING |          \
	 SEMEL_LEDGER_IS_DISCARDED | SEMEL_LEDGER_IS_PARKED)
#define SETTLED (DECIDED | SEMEL_LEDGER_IS_CLAIMED)

static bool is_expected(const struct scope_check *check, const struct semel_ledger_entry *entry)
{
	/* REPLAYED is no proof: an unsettled replay is also flagged as moving or stuck, and a
	 * settled one may have left no claim. */
	const int known_flags = ~(SEMEL_LEDGER_IS_FILTERED | SEMEL_LEDGER_IS_REPLAYED);
	bool known = (entry->flags & known_flags) != 0;
	if (known)
		return check->reads[entry->topic];
	return check->reads[entry->topic] && !(entry->flags & SEMEL_LEDGER_IS_FILTERED) &&
	       entry->time_ms >= check->since_ms;
}

/* Was the event published, and does it have no outcome in the tables of the scope? */
static bool is_unsettled(const struct scope_check *check, const struct semel_ledger_entry *entry)
{
	return entry->status == SEMEL_LEDGER_PUBLISHED && !(entry->flags & SETTLED) &&
	       is_expected(check, entry);
}

/* Queries the broker for at most QUERIES_MAX events, because more would take too long; the rest is
 * estimated from the backlog. */
static semel_status query_unsettled(struct scope_check *check, bool *any_out, semel_error *error)
{
	const struct semel_ledger *ledger = &check->verification->ledger;
	struct semel_broker *broker = NULL;
	uint32_t queried = 0, found = 0;
	semel_status status = SEMEL_OK;
	*any_out = false;
	for (size_t i = 0; i < ledger->count && queried < QUERIES_MAX && status == SEMEL_OK; i++) {
		struct semel_ledger_entry *entry = &ledger->entries[i];
		if (!is_unsettled(check, entry))
			continue;
		bool waiting = false;
		open_broker(check->verification, check->consumer);
		broker = check->guess_topics ? NULL : check->verification->broker;
		status = query_broker(check, semel_ledger_id(ledger, entry), &waiting, error);
		entry->flags |= SEMEL_LEDGER_IS_QUERIED | (waiting ? SEMEL_LEDGER_IS_AT_BROKER : 0);
		found += waiting;
		queried++;
		*any_out = true;
	}
	if (status != SEMEL_OK || !broker || (queried < QUERIES_MAX && found == queried))
		return status;
	struct semel_backlog backlog = { 0 };
	status = broker->driver->backlog(broker, semel_text_string(check->scope->scope),
					 check->topics.names, &backlog, error);
	check->at_broker = backlog.waiting;
	check->in_flight_unknown = backlog.in_flight_unknown;
	return status;
}

/* ---- what waits in the scope's tables -------------------------------------------------------- */

static semel_status stop_at_resend(const struct semel_wait *wait, void *user)
{
	const struct scope_check *check = user;
	struct semel_wait_fix fix = semel_wait_find_fix(wait, check->stuck.now_ms);
	return fix.kind == SEMEL_FIX_RESEND ? SEMEL_STOPPED : SEMEL_OK;
}

static semel_status run_stuck_check(struct scope_check *check, semel_error *error)
{
	const struct semel_store_driver *driver = check->consumer->driver;
	check->stuck = (struct semel_stuck_check){
		.store = check->consumer,
		.scope = semel_text_string(check->scope->scope),
		.topics = check->topics.names,
		.in_flight = check->scope->consumers.in_flight,
		.now_ms = semel_now_ms(check->verification->plan->env),
		.arena = check->verification->arena,
	};
	semel_status status = driver->holds->waits_each(check->consumer, check->scope->scope,
							stop_at_resend, check, error);
	if (status != SEMEL_STOPPED)
		return status;
	open_broker(check->verification, check->consumer);
	check->stuck.broker = check->guess_topics ? NULL : check->verification->broker;
	return semel_stuck_check_run(&check->stuck, error);
}

/* A hold whose head is settled blocks the next event, even while none is parked. */
static bool is_leftover_hold(const struct semel_wait *wait)
{
	return wait->kind == SEMEL_WAIT_HOLD && wait->state == SEMEL_HOLD_DEAD &&
	       !(wait->letter == SEMEL_DEAD_REPLAYED && !wait->settled);
}

static semel_status flag_wait(const struct semel_wait *wait, void *user)
{
	struct scope_check *check = user;
	struct semel_ledger_entry *entry =
		semel_ledger_find(&check->verification->ledger, wait->event_id);
	bool stuck = semel_stuck_check_is_confirmed(&check->stuck, wait);
	bool leftover = is_leftover_hold(wait);
	if (entry && !leftover)
		entry->flags |= stuck ? SEMEL_LEDGER_IS_STUCK : SEMEL_LEDGER_IS_MOVING;
	else if (stuck && (leftover || wait->kind != SEMEL_WAIT_HOLD))
		semel_verify_finding_add(&check->scope->stuck, wait->event_id,
					 check->verification->arena);
	return SEMEL_OK;
}

static semel_status flag_unrouted(struct semel_text id, struct semel_text routing_key, void *user)
{
	struct scope_check *check = user;
	struct semel_ledger_entry *entry = semel_ledger_seek(&check->verification->ledger, id);
	if (entry && !semel_pattern_matches(check->bind, routing_key))
		entry->flags |= SEMEL_LEDGER_IS_FILTERED;
	return SEMEL_OK;
}

static semel_status flag_filtered(struct scope_check *check, semel_error *error)
{
	semel_store *producer = check->verification->plan->producer;
	if (!check->bind.data)
		return SEMEL_OK;
	semel_ledger_rewind(&check->verification->ledger);
	return producer->driver->outbox->routing_each(producer, flag_unrouted, check, error);
}

/* ---- counting -------------------------------------------------------------------------------- */

static void count_unsettled(struct scope_check *check, const struct semel_ledger_entry *entry)
{
	if (entry->flags & SEMEL_LEDGER_IS_AT_BROKER)
		check->found++;
	else if (entry->flags & SEMEL_LEDGER_IS_QUERIED)
		semel_verify_finding_add(&check->scope->missing,
					 semel_ledger_id(&check->verification->ledger, entry),
					 check->verification->arena);
	else
		check->rest++;
	if (!(entry->flags & SEMEL_LEDGER_IS_AT_BROKER) &&
	    (check->scope->missing_since_ms == 0 ||
	     entry->time_ms < check->scope->missing_since_ms))
		check->scope->missing_since_ms = entry->time_ms;
}

/* For an event of a topic that the scope dropped: counts it if the scope should have read it
 * before, and did not. */
static void count_unread(struct scope_check *check, const struct semel_ledger_entry *entry)
{
	struct semel_verify_scope *scope = check->scope;
	if (entry->status != SEMEL_LEDGER_PUBLISHED || entry->time_ms < check->since_ms ||
	    entry->time_ms > check->read_until_ms[entry->topic] ||
	    (entry->flags & (DECIDED | SEMEL_LEDGER_IS_FILTERED)))
		return;
	semel_verify_finding_add(&scope->unread,
				 semel_ledger_id(&check->verification->ledger, entry),
				 check->verification->arena);
	struct semel_text topic = semel_ledger_topic(&check->verification->ledger, entry);
	if (!scope->unread_topic.data)
		scope->unread_topic =
			semel_arena_text(check->verification->arena, topic.data, topic.length);
}

static void count_entry(struct scope_check *check, const struct semel_ledger_entry *entry)
{
	struct semel_verify_scope *scope = check->scope;
	if (check->read_until_ms[entry->topic] > 0)
		count_unread(check, entry);
	if (!is_expected(check, entry))
		return;
	scope->expected++;
	if (entry->flags & SEMEL_LEDGER_IS_PROCESSED)
		scope->processed++;
	else if (entry->flags & SEMEL_LEDGER_IS_STUCK)
		semel_verify_finding_add(&scope->stuck,
					 semel_ledger_id(&check->verification->ledger, entry),
					 check->verification->arena);
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
	else if (entry->status == SEMEL_LEDGER_NEW && check->verification->report->unpublished == 0)
		scope->undelivered++; /* behind an event that the relay gave up */
	else if (entry->status == SEMEL_LEDGER_NEW)
		scope->waiting++;
	else
		count_unsettled(check, entry);
}

/* Consumers report how many events they have in flight, not which; that many are not missing. */
static void count_in_flight(struct semel_verify_scope *scope)
{
	uint64_t in_flight = scope->consumers.in_flight;
	uint64_t in_transit = scope->missing.count < in_flight ? scope->missing.count : in_flight;
	scope->missing.count -= in_transit;
	scope->waiting += in_transit;
}

static void count_all(struct scope_check *check)
{
	const struct semel_ledger *ledger = &check->verification->ledger;
	for (size_t i = 0; i < ledger->count; i++)
		count_entry(check, &ledger->entries[i]);

	/* The backlog, without the events that were found there by id, may consist of the rest.
	 * Events that were found and settled since are not subtracted: the backlog may have been
	 * counted after they were settled. */
	uint64_t remaining = check->at_broker > check->found ? check->at_broker - check->found : 0;
	uint64_t waiting = check->rest < remaining ? check->rest : remaining;
	check->scope->waiting += check->found + waiting;
	check->scope->missing.count += check->rest - waiting;
	if (check->in_flight_unknown)
		count_in_flight(check->scope);
	bool in_flight_unknown =
		check->in_flight_unknown ||
		(check->stuck.broker && check->stuck.broker->driver->count_in_flight &&
		 check->scope->consumers.alive > 0);
	check->scope->doubtful = in_flight_unknown &&
				 (check->scope->missing.count > 0 || check->scope->stuck.count > 0);
}

/* Refreshes only the flags: doubles and orphans were counted the first time. */
static semel_status refresh_flags(struct scope_check *check, semel_error *error)
{
	semel_status status = semel_verification_flag_claims(check->verification, check->consumer,
							     check->scope->scope, error);
	if (status != SEMEL_OK)
		return status;
	return semel_verification_flag_letters(check->verification, check->consumer,
					       check->scope->scope, error);
}

static semel_status read_consumers(struct scope_check *check, semel_error *error)
{
	return semel_consumers_read(check->consumer, check->scope->scope,
				    semel_now_ms(check->verification->plan->env),
				    &check->scope->consumers, error);
}

/* Reads the tables, then queries the broker. If it was queried, reads the tables once more, because
 * an event that is in neither may have been settled in between. */
static semel_status flag_all(struct scope_check *check, semel_error *error)
{
	semel_store *consumer = check->consumer;
	struct semel_text scope = check->scope->scope;
	bool unsettled = false;
	semel_ledger_clear_flags(&check->verification->ledger);
	semel_status status = flag_filtered(check, error);
	if (status != SEMEL_OK)
		return status;
	semel_ledger_rewind(&check->verification->ledger);
	status = consumer->driver->inbox->each(consumer, scope, flag_claim, check, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_verification_flag_letters(check->verification, consumer, scope, error);
	if (status != SEMEL_OK)
		return status;
	status = read_consumers(check, error);
	if (status != SEMEL_OK)
		return status;
	status = run_stuck_check(check, error);
	if (status != SEMEL_OK)
		return status;
	status = query_unsettled(check, &unsettled, error);
	if (status != SEMEL_OK || !unsettled)
		return status;
	status = read_consumers(check, error);
	if (status != SEMEL_OK)
		return status;
	return refresh_flags(check, error);
}

static semel_status run_check(struct scope_check *check, semel_error *error)
{
	semel_store *consumer = check->consumer;
	semel_status status = flag_all(check, error);
	if (status != SEMEL_OK)
		return status;
	status = consumer->driver->holds->waits_each(consumer, check->scope->scope, flag_wait,
						     check, error);
	if (status != SEMEL_OK)
		return status;
	count_all(check);
	return report_orphans(check, error);
}

/* Only exchanges have bindings. */
static bool broker_binds(const struct semel_verification *verification)
{
	const struct semel_broker_driver *driver = NULL;
	return verification->plan->broker_url &&
	       semel_broker_driver_find(verification->plan->broker_url, &driver, NULL) ==
		       SEMEL_OK &&
	       driver->has_exchanges;
}

/* Adds a topic that the scope dropped: copies of its events may still be at the broker. */
static void add_old_topic(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms,
			  void *user)
{
	struct scope_check *check = user;
	const struct semel_ledger *ledger = &check->verification->ledger;
	(void)since_ms;
	if (removed_at_ms == 0 || semel_topics_has(&check->topics, topic))
		return;
	for (size_t i = 0; i < ledger->topic_count; i++)
		if (semel_text_equal(ledger->topics[i], topic))
			check->read_until_ms[i] = removed_at_ms;
	(void)semel_topics_add(&check->topics, topic, check->verification->arena);
}

static semel_status prepare(struct scope_check *check, const struct semel_subscription_row *row,
			    semel_error *error)
{
	const struct semel_ledger *ledger = &check->verification->ledger;
	struct semel_arena *arena = check->verification->arena;
	size_t times_size = (ledger->topic_count + 1) * sizeof(*check->read_until_ms);
	check->reads = semel_arena_alloc(arena, ledger->topic_count + 1);
	check->read_until_ms = semel_arena_alloc(arena, times_size);
	if (!check->reads || !check->read_until_ms)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the verification");
	memset(check->reads, 0, ledger->topic_count + 1);
	memset(check->read_until_ms, 0, times_size);
	check->guess_topics = row == NULL;
	if (!row)
		return SEMEL_OK;

	semel_status status = semel_subscription_topics(row, arena, &check->topics, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < ledger->topic_count; i++)
		check->reads[i] = semel_topics_has(&check->topics, ledger->topics[i]);
	if (row->from_latest)
		check->since_ms = row->since_ms;
	if (row->bind.data && broker_binds(check->verification))
		check->bind = row->bind;
	return check->consumer->driver->upkeep->subscription_topics(check->consumer, row->scope,
								    add_old_topic, check, error);
}

semel_status semel_verify_scope_add(struct semel_verification *verification, semel_store *consumer,
				    const struct semel_subscription_row *row,
				    struct semel_text name, semel_error *error)
{
	struct semel_verify_scope *scope =
		&verification->report->scopes[verification->report->scope_count];
	*scope = (struct semel_verify_scope){
		.scope = name,
		.guarantee = row ? row->guarantee : semel_text_of(NULL),
		.tracked = !row || !semel_text_equal(row->guarantee, SEMEL_TEXT("at-least-once")),
		.paused = row && row->paused,
	};
	verification->report->scope_count++;
	struct scope_check check = { .verification = verification,
				     .consumer = consumer,
				     .scope = scope,
				     .since_ms = INT64_MIN };
	semel_status status = prepare(&check, row, error);
	if (status != SEMEL_OK || !scope->tracked)
		goto free_candidates;
	status = run_check(&check, error);
free_candidates:
	free(check.candidates.ids);
	return status;
}
