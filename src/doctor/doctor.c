/* SPDX-License-Identifier: Apache-2.0 */
/* Examines the store and the broker, each on its own; if both are reachable, also the
 * subscriptions: do they have consumers, is anything stuck, and does every topic have both events
 * and a subscription? */
#include "doctor/doctor.h"

#include "base/error.h"
#include "base/time.h"
#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK  ((size_t)16 * 1024)
#define TEXT_SIZE    1024
#define LONG_WAIT_MS 10000

struct run {
	const struct semel_doctor_plan *plan;
	struct semel_arena *arena;
	semel_store *store; /* NULL: it cannot be opened */
	/* Set by examine_subscriptions: */
	struct semel_broker *broker;
	struct semel_subscription_row *rows;
	uint32_t count;
	int64_t now_ms;
};

static void report(const struct run *run, enum semel_check check, enum semel_severity severity,
		   const char *text, const char *remedy)
{
	semel_examination_report(&run->plan->examination, check, severity, text, remedy);
}

/* ---- the store ------------------------------------------------------------------------------- */

/* An idle system needs no relay; one with waiting events does. */
static void examine_relay(struct run *run)
{
	struct semel_outbox_counts counts = { 0 };
	semel_error error = { .status = SEMEL_OK };
	int64_t now_ms = semel_now_ms(run->plan->examination.env);
	struct semel_lanes_state lanes = { 0 };
	char text[TEXT_SIZE];
	semel_status status = run->store->driver->outbox->count(run->store, &counts, &error);

	if (status != SEMEL_OK)
		goto report_failure;
	status = semel_store_lanes(run->store, now_ms, &lanes, &error);
	if (status != SEMEL_OK)
		goto report_failure;
	snprintf(text, sizeof text,
		 "events waiting: %" PRIu64 ", retrying, or behind a retry: %" PRIu64
		 "; lanes with a relay: %d of %d",
		 counts.waiting, counts.retrying, (int)(lanes.count - lanes.unheld),
		 (int)lanes.count);
	bool waits = counts.waiting > 0 && now_ms - counts.oldest_ms > LONG_WAIT_MS;
	bool stuck = waits && lanes.unheld > 0;
	report(run, SEMEL_CHECK_RELAY, stuck ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE, text,
	       stuck ? "start a relay (semel relay, or semel run); if one is running, its log "
		       "shows why it owns no lane"
		     : NULL);
	return;

report_failure:
	semel_examination_failed(&run->plan->examination, SEMEL_CHECK_RELAY, &error);
}

static bool is_about_routing(const char *reason)
{
	/* The last one is in rows that an earlier version wrote. */
	static const char *const texts[] = { "NO_ROUTE", "no exchange", "no queue receives it",
					     "no queue takes it" };
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
		if (strstr(reason, texts[i]))
			return true;
	return false;
}

/* Reports events that the broker refuses, with the reason of one that is retried or was given
 * up. */
static void examine_refused(struct run *run)
{
	struct semel_outbox_counts counts = { 0 };
	char text[TEXT_SIZE];

	if (run->store->driver->outbox->count(run->store, &counts, NULL) != SEMEL_OK)
		return;
	bool refused = (counts.retrying > 0 || counts.failed > 0) && counts.last_error[0];
	bool is_unroutable = refused && is_about_routing(counts.last_error);
	snprintf(text, sizeof text,
		 "refused events: retrying, or behind a retry: %" PRIu64 ", given up: %" PRIu64
		 "%s%s",
		 counts.retrying, counts.failed, refused ? "; " : "",
		 refused ? counts.last_error : "");
	const char *given_up =
		"fix what the broker reports, then replay the events that were given up: semel dlq "
		"replay (semel dlq list --scope relay shows them)";
	const char *unbound =
		"declare exchange, queue and binding again: semel topology apply; then replay the "
		"events that were given up: semel dlq replay (semel dlq list --scope relay shows "
		"them)";
	report(run, SEMEL_CHECK_REFUSED, refused ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE,
	       text,
	       is_unroutable ? unbound
	       : refused     ? given_up
			     : NULL);
}

static void examine_retention(struct run *run)
{
	const struct semel_doctor_plan *plan = run->plan;
	char text[TEXT_SIZE], outbox[SEMEL_TIME_SIZE], inbox[SEMEL_TIME_SIZE];

	semel_duration_format(plan->outbox_ms, outbox);
	semel_duration_format(plan->inbox_ms, inbox);
	snprintf(text, sizeof text, "retention: outbox %s, inbox %s", outbox, inbox);
	bool too_short = plan->inbox_ms < plan->outbox_ms;
	report(run, SEMEL_CHECK_RETENTION, too_short ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE,
	       text,
	       too_short ? "set retention.inbox to at least retention.outbox: replayed events "
			   "whose claims were pruned would be processed twice"
			 : NULL);
}

/* The settings may be right although the tables are wrong, if prune ran with other settings. */
static void examine_forgotten(struct run *run)
{
	const struct semel_store_driver *driver = run->store->driver;
	int64_t known_ms = 0, pruned_ms = 0;
	char text[TEXT_SIZE], known[SEMEL_TIME_SIZE];

	if (driver->inbox->known_since(run->store, &known_ms, NULL) != SEMEL_OK ||
	    driver->outbox->pruned_until(run->store, &pruned_ms, NULL) != SEMEL_OK ||
	    known_ms == 0 || pruned_ms >= known_ms)
		return;
	semel_time_format(known_ms, known);
	snprintf(text, sizeof text,
		 "claims before %s were pruned; the outbox still retains earlier events", known);
	report(run, SEMEL_CHECK_RETENTION, SEMEL_SEVERITY_ADVICE, text,
	       "run semel prune; until then replay refuses those events, and --force would process "
	       "them twice");
}

static void examine_store(struct run *run)
{
	const struct semel_doctor_plan *plan = run->plan;
	semel_error error = { .status = SEMEL_OK };

	examine_retention(run);
	if (semel_store_examine(plan->store, &plan->examination) != SEMEL_OK)
		return;
	if (semel_store_open(plan->store, &run->store, &error) != SEMEL_OK) {
		semel_examination_failed(&plan->examination, SEMEL_CHECK_STORE_REACHED, &error);
		return;
	}
	examine_relay(run);
	examine_refused(run);
	examine_forgotten(run);
}

/* ---- the broker ------------------------------------------------------------------------------ */

struct comparison {
	const struct run *run;
	const char *scope;
	uint32_t differences;
};

static void report_difference(const char *difference, void *user)
{
	struct comparison *comparison = user;
	char text[TEXT_SIZE];

	comparison->differences++;
	snprintf(text, sizeof text, "%.100s: %.900s", comparison->scope, difference);
	report(comparison->run, SEMEL_CHECK_TOPOLOGY, SEMEL_SEVERITY_PROBLEM, text,
	       "semel topology apply declares what is missing; what differs has to be changed by "
	       "hand");
}

/* A broker connection has one subscription, so each gets a connection. */
static void compare_topology(struct run *run, const struct semel_subscribe_options *options)
{
	const struct semel_doctor_plan *plan = run->plan;
	struct comparison comparison = { .run = run, .scope = options->scope };
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader;
	semel_error error = { .status = SEMEL_OK };
	semel_status status =
		semel_broker_open(plan->broker, plan->examination.env, 1, &broker, &error);

	if (status != SEMEL_OK)
		goto report_failure;
	if (run->store)
		semel_position_reader_attach(&position_reader, broker, run->store);
	status = broker->driver->compare(broker, options, report_difference, &comparison, &error);
	if (status != SEMEL_OK)
		goto report_failure;
	if (comparison.differences == 0)
		semel_examination_fine(&plan->examination, SEMEL_CHECK_TOPOLOGY,
				       "%.100s: queues, topics and bindings are as required",
				       options->scope);
	if (broker->driver->examine_bindings)
		broker->driver->examine_bindings(broker, options, &plan->examination);
	semel_broker_close(broker);
	return;

report_failure:
	semel_examination_failed(&plan->examination, SEMEL_CHECK_TOPOLOGY, &error);
	semel_broker_close(broker);
}

static bool is_required(const struct semel_doctor_plan *plan, const char *scope)
{
	for (size_t i = 0; i < plan->required_count; i++)
		if (strcmp(plan->required[i].scope, scope) == 0)
			return true;
	return false;
}

/* Compares subscriptions that only the store has. Their partitions and delays are not in the store,
 * so those of the broker are accepted. */
static void examine_registered(struct run *run)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;

	if (!run->store ||
	    semel_subscriptions_read(run->store, run->arena, &rows, &count, NULL) != SEMEL_OK)
		return;
	for (uint32_t i = 0; i < count; i++) {
		struct semel_topics topics = { 0 };
		if (is_required(run->plan, semel_text_string(rows[i].scope)) ||
		    semel_subscription_topics(&rows[i], run->arena, &topics, NULL) != SEMEL_OK)
			continue;
		const struct semel_subscribe_options options = {
			.scope = semel_text_string(rows[i].scope),
			.topics = topics.names,
			.prefetch = 1,
			.lease_ms = 1000,
			.delay_max_ms = 1,
			.accept_existing = true,
			.declare_only = true,
			.inbox_ms = run->plan->inbox_ms,
			.bind = semel_text_string(rows[i].bind),
		};
		compare_topology(run, &options);
	}
}

/* ---- one subscription ------------------------------------------------------------------------ */

static void report_consumers(const struct run *run, const struct semel_subscription_row *row,
			     const struct semel_consumers *consumers,
			     const struct semel_backlog *backlog)
{
	char text[TEXT_SIZE], resume[TEXT_SIZE];
	struct semel_buffer why = { 0 };
	bool waits = semel_consumers_explain(consumers, run->now_ms, &why);
	bool has_work = backlog->waiting > 0 || consumers->in_flight > 0;
	const char *scope = semel_text_string(row->scope);

	snprintf(text, sizeof text, "%.100s: %.800s; waiting: %" PRIu64, scope,
		 row->paused && consumers->alive == 0 ? "the subscription is paused"
		 : waits && why.data                  ? why.data
						      : "a consumer is running",
		 backlog->waiting + consumers->in_flight);
	snprintf(resume, sizeof resume, "semel subscriptions resume %.100s", scope);
	if (row->paused)
		report(run, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_ADVICE, text, resume);
	else if (consumers->alive == 0)
		report(run, SEMEL_CHECK_CONSUMERS,
		       has_work ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE, text,
		       "start a consumer: semel consume, or semel run");
	else if (waits)
		report(run, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_PROBLEM, text,
		       "restore the dependency named above; consumption then resumes "
		       "automatically");
	else
		report(run, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_FINE, text, NULL);
	semel_buffer_free(&why);
}

static void report_stuck(const struct run *run, const struct semel_subscription_row *row,
			 const struct semel_topics *topics, uint64_t in_flight)
{
	struct semel_stuck_check stuck = { .store = run->store,
					   .broker = run->broker,
					   .scope = semel_text_string(row->scope),
					   .topics = topics->names,
					   .in_flight = in_flight,
					   .now_ms = run->now_ms,
					   .arena = run->arena };
	char text[TEXT_SIZE];
	uint64_t count = 0;
	semel_error error = { .status = SEMEL_OK };

	if (semel_stuck_count(&stuck, &count, &error) != SEMEL_OK) {
		semel_examination_failed(&run->plan->examination, SEMEL_CHECK_STUCK, &error);
		return;
	}
	snprintf(text, sizeof text,
		 "scope %.100s: %" PRIu64 " stuck event%s, which no consumer will process",
		 semel_text_shown(row->scope), count, count == 1 ? "" : "s");
	if (count > 0)
		report(run, SEMEL_CHECK_STUCK, SEMEL_SEVERITY_PROBLEM, text, "semel repair");
}

static void examine_delivery(const struct run *run, const struct semel_subscription_row *row)
{
	struct semel_topics topics = { 0 };
	struct semel_consumers consumers = { 0 };
	struct semel_backlog backlog = { 0 };
	semel_error error = { .status = SEMEL_OK };
	semel_status status =
		semel_subscription_all_topics(run->store, row, run->arena, &topics, &error);

	if (status != SEMEL_OK)
		goto report_failure;
	status = semel_consumers_read(run->store, row->scope, run->now_ms, &consumers, &error);
	if (status != SEMEL_OK)
		goto report_failure;
	status = run->broker->driver->backlog(run->broker, semel_text_string(row->scope),
					      topics.names, &backlog, &error);
	if (status != SEMEL_OK)
		goto report_failure;
	if (!run->broker->driver->count_in_flight)
		consumers.in_flight = 0; /* the broker counts them in its backlog */
	report_consumers(run, row, &consumers, &backlog);
	report_stuck(run, row, &topics, consumers.in_flight);
	return;

report_failure:
	semel_examination_failed(&run->plan->examination, SEMEL_CHECK_CONSUMERS, &error);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static void report_unpublished_topics(const struct run *run, const struct semel_topics *published,
				      const struct semel_subscription_row *row,
				      const struct semel_topics *topics)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];

	for (size_t i = 0; i < topics->count; i++) {
		const char *meant = semel_topics_suggest(published, topics->names[i]);
		if (!meant)
			continue;
		snprintf(text, sizeof text,
			 "%.100s subscribes to topic %.200s, to which nothing is published",
			 semel_text_shown(row->scope), topics->names[i]);
		snprintf(remedy, sizeof remedy, "did you mean --topic %.200s?", meant);
		report(run, SEMEL_CHECK_TOPICS, SEMEL_SEVERITY_ADVICE, text, remedy);
	}
}

static void report_unread_topics(const struct run *run, const struct semel_topics *published,
				 const struct semel_topics *read)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];

	for (size_t i = 0; i < published->count && read->count > 0; i++) {
		const char *topic = published->names[i];
		bool claimed = true;
		if (semel_topics_has(read, semel_text_of(topic)) ||
		    run->store->driver->inbox->has_topic(run->store, semel_text_of(topic), &claimed,
							 NULL) != SEMEL_OK ||
		    claimed)
			continue;
		const char *meant = semel_topics_suggest(read, topic);
		snprintf(text, sizeof text,
			 "no subscription reads topic %.200s, to which events are "
			 "published",
			 topic);
		snprintf(remedy, sizeof remedy, "%s%.200s%sadd --topic %.200s to a subscription",
			 meant ? "did the producer mean " : "", meant ? meant : "",
			 meant ? "? Otherwise " : "", topic);
		report(run, SEMEL_CHECK_TOPICS,
		       meant ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE, text, remedy);
	}
}

static void examine_topics(const struct run *run)
{
	struct semel_topics published = { 0 }, read = { 0 };

	if (semel_topics_read_published(run->store, run->arena, &published, NULL) != SEMEL_OK ||
	    published.count == 0)
		return;
	for (uint32_t i = 0; i < run->count; i++) {
		struct semel_topics topics = { 0 };
		if (semel_subscription_topics(&run->rows[i], run->arena, &topics, NULL) != SEMEL_OK)
			return;
		report_unpublished_topics(run, &published, &run->rows[i], &topics);
		for (size_t j = 0; j < topics.count; j++)
			if (!semel_topics_add(&read, semel_text_of(topics.names[j]), run->arena))
				return;
	}
	report_unread_topics(run, &published, &read);
}

static void examine_subscriptions(struct run *run)
{
	const struct semel_doctor_plan *plan = run->plan;
	struct semel_position_reader position_reader;

	if (!run->store ||
	    semel_subscriptions_read(run->store, run->arena, &run->rows, &run->count, NULL) !=
		    SEMEL_OK ||
	    semel_broker_open(plan->broker, plan->examination.env, 1, &run->broker, NULL) !=
		    SEMEL_OK)
		return;
	semel_position_reader_attach(&position_reader, run->broker, run->store);
	run->now_ms = semel_now_ms(plan->examination.env);
	for (uint32_t i = 0; i < run->count; i++)
		examine_delivery(run, &run->rows[i]);
	examine_topics(run);
	semel_broker_close(run->broker);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void examine_broker(struct run *run)
{
	const struct semel_doctor_plan *plan = run->plan;

	if (semel_broker_examine(plan->broker, &plan->examination) != SEMEL_OK)
		return;
	for (size_t i = 0; i < plan->required_count; i++)
		compare_topology(run, &plan->required[i]);
	examine_registered(run);
	examine_subscriptions(run);
}

semel_status semel_doctor_run(const struct semel_doctor_plan *plan, semel_error *error)
{
	struct run run = { .plan = plan, .arena = semel_arena_new(ARENA_BLOCK) };

	if (!run.arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the doctor");
	examine_store(&run);
	examine_broker(&run);
	semel_store_close(run.store);
	semel_arena_free(run.arena);
	return SEMEL_OK;
}
