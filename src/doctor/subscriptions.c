/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of subscriptions: do they have consumers, is anything stuck, and does every topic have
 * both events and a subscription? */
#include "doctor/doctor.h"

#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_SIZE 1024

struct run {
	const struct semel_doctor_plan *plan;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_arena *arena;
	struct semel_subscription_row *rows;
	uint32_t count;
	int64_t now_ms;
};

static void report(const struct run *run, enum semel_check check, enum semel_severity severity,
		   const char *text, const char *remedy)
{
	semel_examination_report(&run->plan->examination, check, severity, text, remedy);
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
		       "restore what it waits for; it resumes by itself");
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
		 "%.100s: %" PRIu64 " events are stuck: no consumer will ever process them",
		 semel_text_shown(row->scope), count);
	if (count > 0)
		report(run, SEMEL_CHECK_STUCK, SEMEL_SEVERITY_PROBLEM, text, "semel repair");
}

static void examine_subscription(const struct run *run, const struct semel_subscription_row *row)
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
		if (semel_topics_contain(read, semel_text_of(topic)) ||
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

void semel_doctor_check_subscriptions(const struct semel_doctor_plan *plan, semel_store *store,
				      struct semel_arena *arena)
{
	struct run run = { .plan = plan,
			   .store = store,
			   .arena = arena,
			   .now_ms = semel_now_ms(plan->examination.env) };
	struct semel_position_reader position_reader;

	if (semel_subscriptions_read(store, arena, &run.rows, &run.count, NULL) != SEMEL_OK ||
	    semel_broker_open(plan->broker, plan->examination.env, 1, &run.broker, NULL) !=
		    SEMEL_OK)
		return;
	semel_position_reader_attach(&position_reader, run.broker, store);
	for (uint32_t i = 0; i < run.count; i++)
		examine_subscription(&run, &run.rows[i]);
	examine_topics(&run);
	semel_broker_close(run.broker);
}
