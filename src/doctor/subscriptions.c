/* SPDX-License-Identifier: Apache-2.0 */
/* Is everybody at work? What consumers say of themselves, what waits in vain, and topics that one
 * side knows and the other does not. */
#include "doctor/doctor.h"

#include "proof/consumers.h"
#include "proof/position_reader.h"
#include "proof/stuck.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_SIZE 1024

struct work {
	const struct semel_doctor_plan *plan;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_arena *arena;
	struct semel_subscription_row *rows;
	uint32_t count;
	int64_t now_ms;
};

static void tell(const struct work *work, enum semel_check check, enum semel_severity severity,
		 const char *text, const char *remedy)
{
	semel_examination_report(&work->plan->examination, check, severity, text, remedy);
}

/* ---- one subscription ------------------------------------------------------------------------ */

static void tell_consumers(const struct work *work, const struct semel_subscription_row *row,
			   const struct semel_consumers *consumers,
			   const struct semel_backlog *backlog)
{
	char text[TEXT_SIZE], resume[TEXT_SIZE];
	struct semel_buffer why = { 0 };
	bool stands = semel_consumers_explain(consumers, work->now_ms, &why);
	bool wanted = backlog->waiting > 0 || consumers->in_flight > 0;
	const char *scope = semel_text_string(row->scope);

	snprintf(text, sizeof text, "%.100s: %.800s; waiting: %" PRIu64, scope,
		 row->paused && consumers->alive == 0 ? "the subscription is paused"
		 : stands && why.data                 ? why.data
						      : "a consumer is at work",
		 backlog->waiting + consumers->in_flight);
	snprintf(resume, sizeof resume, "semel subscriptions resume %.100s", scope);
	if (row->paused)
		tell(work, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_ADVICE, text, resume);
	else if (consumers->alive == 0)
		tell(work, SEMEL_CHECK_CONSUMERS,
		     wanted ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE, text,
		     "start one: semel consume, or semel run");
	else if (stands)
		tell(work, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_PROBLEM, text,
		     "bring back what it waits for; it goes on by itself");
	else
		tell(work, SEMEL_CHECK_CONSUMERS, SEMEL_SEVERITY_FINE, text, NULL);
	semel_buffer_free(&why);
}

static void tell_stuck(const struct work *work, const struct semel_subscription_row *row,
		       const struct semel_topics *topics, uint64_t in_flight)
{
	struct semel_stuck_check stuck = { .store = work->store,
					   .broker = work->broker,
					   .scope = semel_text_string(row->scope),
					   .topics = topics->names,
					   .in_flight = in_flight,
					   .now_ms = work->now_ms,
					   .arena = work->arena };
	char text[TEXT_SIZE];
	uint64_t count = 0;
	semel_error error = { .status = SEMEL_OK };

	if (semel_stuck_count(&stuck, &count, &error) != SEMEL_OK) {
		semel_examination_failed(&work->plan->examination, SEMEL_CHECK_STUCK, &error);
		return;
	}
	snprintf(text, sizeof text, "%.100s: %" PRIu64 " wait, and nothing will ever move them",
		 semel_text_shown(row->scope), count);
	if (count > 0)
		tell(work, SEMEL_CHECK_STUCK, SEMEL_SEVERITY_PROBLEM, text, "semel repair");
}

static void look_at(const struct work *work, const struct semel_subscription_row *row)
{
	struct semel_topics topics = { 0 };
	struct semel_consumers consumers = { 0 };
	struct semel_backlog backlog = { 0 };
	semel_error error = { .status = SEMEL_OK };
	semel_status status =
		semel_subscription_all_topics(work->store, row, work->arena, &topics, &error);

	if (status == SEMEL_OK)
		status = semel_consumers_read(work->store, row->scope, work->now_ms, &consumers,
					      &error);
	if (status == SEMEL_OK)
		status = work->broker->driver->backlog(work->broker, semel_text_string(row->scope),
						       topics.names, &backlog, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(&work->plan->examination, SEMEL_CHECK_CONSUMERS, &error);
		return;
	}
	if (!work->broker->driver->count_in_flight)
		consumers.in_flight = 0; /* the broker counts it */
	tell_consumers(work, row, &consumers, &backlog);
	tell_stuck(work, row, &topics, consumers.in_flight);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static void tell_misread(const struct work *work, const struct semel_topics *published,
			 const struct semel_subscription_row *row,
			 const struct semel_topics *topics)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];

	for (size_t i = 0; i < topics->count; i++) {
		const char *meant = semel_topics_suggest(published, topics->names[i]);
		if (!meant)
			continue;
		snprintf(text, sizeof text, "%.100s reads %.200s, to which nothing is published",
			 semel_text_shown(row->scope), topics->names[i]);
		snprintf(remedy, sizeof remedy, "did you mean --topic %.200s?", meant);
		tell(work, SEMEL_CHECK_TOPICS, SEMEL_SEVERITY_ADVICE, text, remedy);
	}
}

static void tell_unread(const struct work *work, const struct semel_topics *published,
			const struct semel_topics *read)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];

	for (size_t i = 0; i < published->count && read->count > 0; i++) {
		const char *topic = published->names[i];
		bool claimed = true;
		if (semel_topics_contain(read, semel_text_of(topic)) ||
		    work->store->driver->inbox->has_topic(work->store, semel_text_of(topic),
							  &claimed, NULL) != SEMEL_OK ||
		    claimed)
			continue;
		const char *meant = semel_topics_suggest(read, topic);
		snprintf(text, sizeof text,
			 "no subscription reads %.200s, to which events are "
			 "published",
			 topic);
		snprintf(remedy, sizeof remedy,
			 "%s%.200s%sadd --topic %.200s to the subscription "
			 "that wants them",
			 meant ? "did the producer mean " : "", meant ? meant : "",
			 meant ? "? else " : "", topic);
		tell(work, SEMEL_CHECK_TOPICS,
		     meant ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_ADVICE, text, remedy);
	}
}

static void look_at_topics(const struct work *work)
{
	struct semel_topics published = { 0 }, read = { 0 };

	if (semel_topics_read_published(work->store, work->arena, &published, NULL) != SEMEL_OK ||
	    published.count == 0)
		return;
	for (uint32_t i = 0; i < work->count; i++) {
		struct semel_topics topics = { 0 };
		if (semel_subscription_topics(&work->rows[i], work->arena, &topics, NULL) !=
		    SEMEL_OK)
			return;
		tell_misread(work, &published, &work->rows[i], &topics);
		for (size_t j = 0; j < topics.count; j++)
			if (!semel_topics_add(&read, semel_text_of(topics.names[j]), work->arena))
				return;
	}
	tell_unread(work, &published, &read);
}

void semel_doctor_check_subscriptions(const struct semel_doctor_plan *plan, semel_store *store,
				      struct semel_arena *arena)
{
	struct work work = { .plan = plan,
			     .store = store,
			     .arena = arena,
			     .now_ms = semel_now_ms(plan->examination.env) };
	struct semel_position_reader position_reader;

	if (semel_subscriptions_read(store, arena, &work.rows, &work.count, NULL) != SEMEL_OK ||
	    semel_broker_open(plan->broker, plan->examination.env, 1, &work.broker, NULL) !=
		    SEMEL_OK)
		return;
	semel_position_reader_attach(&position_reader, work.broker, store);
	for (uint32_t i = 0; i < work.count; i++)
		look_at(&work, &work.rows[i]);
	look_at_topics(&work);
	semel_broker_close(work.broker);
}
