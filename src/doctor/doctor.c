/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/doctor.h"

#include "base/error.h"
#include "base/time.h"
#include "proof/position_reader.h"
#include "store/subscription.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ARENA_BLOCK  ((size_t)16 * 1024)
#define TEXT_SIZE    1024
#define LONG_WAIT_MS 10000

struct visit {
	const struct semel_doctor_plan *plan;
	struct semel_arena *arena;
	semel_store *store; /* NULL: it cannot be opened */
};

static void tell(const struct visit *visit, enum semel_check check, enum semel_severity severity,
		 const char *text, const char *remedy)
{
	semel_examination_report(&visit->plan->examination, check, severity, text, remedy);
}

/* ---- the store ------------------------------------------------------------------------------- */

/* An idle system needs no relay; one in which something waits does. */
static void examine_relay(struct visit *visit)
{
	struct semel_outbox_counts counts = { 0 };
	semel_error error = { .status = SEMEL_OK };
	int64_t now_ms = semel_now_ms(visit->plan->examination.env);
	struct semel_lanes_state lanes = { 0 };
	char text[TEXT_SIZE];
	semel_status status =
		visit->store->driver->outbox->count(visit->store, now_ms, &counts, &error);

	if (status == SEMEL_OK)
		status = semel_store_lanes(visit->store, now_ms, &lanes, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(&visit->plan->examination, SEMEL_CHECK_RELAY, &error);
		return;
	}
	snprintf(text, sizeof text,
		 "waiting: %" PRIu64 ", tried again later: %" PRIu64
		 "; a relay holds %d of %d lanes",
		 counts.waiting, counts.retrying, (int)(lanes.count - lanes.unheld),
		 (int)lanes.count);
	bool waits = counts.waiting > 0 && now_ms - counts.oldest_ms > LONG_WAIT_MS;
	bool stuck = waits && lanes.unheld > 0;
	tell(visit, SEMEL_CHECK_RELAY, stuck ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE, text,
	     stuck ? "start a relay (semel relay, or semel run); if one runs, its log says why it "
		     "holds no lane"
		   : NULL);
}

/* What the broker has refused: of one that is tried again, or given up, the reason. */
static void examine_refused(struct visit *visit)
{
	struct semel_outbox_counts counts = { 0 };
	int64_t now_ms = semel_now_ms(visit->plan->examination.env);
	char text[TEXT_SIZE];

	if (visit->store->driver->outbox->count(visit->store, now_ms, &counts, NULL) != SEMEL_OK)
		return;
	bool refused = (counts.retrying > 0 || counts.failed > 0) && counts.last_error[0];
	bool no_way = refused && (strstr(counts.last_error, "NO_ROUTE") ||
				  strstr(counts.last_error, "no exchange") ||
				  strstr(counts.last_error, "no queue takes it"));
	snprintf(text, sizeof text, "tried again: %" PRIu64 ", given up: %" PRIu64 "%s%s",
		 counts.retrying, counts.failed, refused ? "; " : "",
		 refused ? counts.last_error : "");
	const char *given_up =
		"mend what the broker names; what was given up goes by semel dlq replay "
		"(semel dlq list --scope relay)";
	const char *unbound =
		"semel topology apply makes exchange, queue and binding anew; what was "
		"given up goes by semel dlq replay (semel dlq list --scope relay)";
	tell(visit, SEMEL_CHECK_REFUSED, refused ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE,
	     text,
	     no_way    ? unbound
	     : refused ? given_up
		       : NULL);
}

static void examine_windows(struct visit *visit)
{
	const struct semel_doctor_plan *plan = visit->plan;
	char text[TEXT_SIZE], outbox[SEMEL_TIME_SIZE], inbox[SEMEL_TIME_SIZE];

	semel_duration_format(plan->outbox_ms, outbox);
	semel_duration_format(plan->inbox_ms, inbox);
	snprintf(text, sizeof text, "the outbox keeps events %s, the inbox remembers them %s",
		 outbox, inbox);
	bool short_memory = plan->inbox_ms < plan->outbox_ms;
	tell(visit, SEMEL_CHECK_RETENTION,
	     short_memory ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE, text,
	     short_memory ? "make retention.inbox at least as long as retention.outbox: a replay "
			    "of what the inbox has forgotten is done twice"
			  : NULL);
}

/* The settings may be right, and the tables still differ: prune ran with others. */
static void examine_memory(struct visit *visit)
{
	const struct semel_store_driver *driver = visit->store->driver;
	int64_t known_ms = 0, pruned_ms = 0;
	char text[TEXT_SIZE], known[SEMEL_TIME_SIZE];

	if (driver->inbox->known_since(visit->store, &known_ms, NULL) != SEMEL_OK ||
	    driver->outbox->pruned_until(visit->store, &pruned_ms, NULL) != SEMEL_OK ||
	    known_ms == 0 || pruned_ms >= known_ms)
		return;
	semel_time_format(known_ms, known);
	snprintf(text, sizeof text,
		 "the inbox has forgotten what is older than %s, and the outbox has not", known);
	tell(visit, SEMEL_CHECK_RETENTION, SEMEL_SEVERITY_ADVICE, text,
	     "semel prune brings them together; until then replay refuses those events, and "
	     "--force would do them twice");
}

static void examine_store(struct visit *visit)
{
	const struct semel_doctor_plan *plan = visit->plan;
	semel_error error = { .status = SEMEL_OK };

	examine_windows(visit);
	if (semel_store_examine(plan->store, &plan->examination) != SEMEL_OK)
		return;
	if (semel_store_open(plan->store, &visit->store, &error) != SEMEL_OK) {
		semel_examination_failed(&plan->examination, SEMEL_CHECK_STORE_REACHED, &error);
		return;
	}
	examine_relay(visit);
	examine_refused(visit);
	examine_memory(visit);
}

/* ---- the broker ------------------------------------------------------------------------------ */

struct comparison {
	const struct visit *visit;
	const char *scope;
	uint32_t differences;
};

static void difference_seen(const char *difference, void *user)
{
	struct comparison *comparison = user;
	char text[TEXT_SIZE];

	comparison->differences++;
	snprintf(text, sizeof text, "%.100s: %.900s", comparison->scope, difference);
	tell(comparison->visit, SEMEL_CHECK_TOPOLOGY, SEMEL_SEVERITY_PROBLEM, text,
	     "semel topology apply makes what is missing; what is there and different is yours to "
	     "change");
}

/* A broker connection has one subscription, so each gets one. */
static void examine_subscription(struct visit *visit, const struct semel_subscribe_options *options)
{
	const struct semel_doctor_plan *plan = visit->plan;
	struct comparison comparison = { .visit = visit, .scope = options->scope };
	struct semel_broker *broker = NULL;
	struct semel_position_reader position_reader;
	semel_error error = { .status = SEMEL_OK };
	semel_status status =
		semel_broker_open(plan->broker, plan->examination.env, 1, &broker, &error);

	if (status == SEMEL_OK && visit->store)
		semel_position_reader_attach(&position_reader, broker, visit->store);
	if (status == SEMEL_OK)
		status = broker->driver->compare(broker, options, difference_seen, &comparison,
						 &error);
	if (status != SEMEL_OK)
		semel_examination_failed(&plan->examination, SEMEL_CHECK_TOPOLOGY, &error);
	else if (comparison.differences == 0)
		semel_examination_fine(&plan->examination, SEMEL_CHECK_TOPOLOGY,
				       "%.100s has what it needs", options->scope);
	if (status == SEMEL_OK && broker->driver->examine_bindings)
		broker->driver->examine_bindings(broker, options, &plan->examination);
	semel_broker_close(broker);
}

static bool is_wanted(const struct semel_doctor_plan *plan, const char *scope)
{
	for (size_t i = 0; i < plan->required_count; i++)
		if (strcmp(plan->required[i].scope, scope) == 0)
			return true;
	return false;
}

/* How they spread and delay is not written down, so the broker's word is taken for it. */
static void examine_known(struct visit *visit)
{
	struct semel_subscription_row *rows = NULL;
	uint32_t count = 0;

	if (!visit->store ||
	    semel_subscriptions_read(visit->store, visit->arena, &rows, &count, NULL) != SEMEL_OK)
		return;
	for (uint32_t i = 0; i < count; i++) {
		struct semel_topics topics = { 0 };
		if (is_wanted(visit->plan, semel_text_string(rows[i].scope)) ||
		    semel_subscription_topics(&rows[i], visit->arena, &topics, NULL) != SEMEL_OK)
			continue;
		const struct semel_subscribe_options options = {
			.scope = semel_text_string(rows[i].scope),
			.topics = topics.names,
			.prefetch = 1,
			.lease_ms = 1000,
			.delay_max_ms = 1,
			.accept_existing = true,
			.declare_only = true,
			.inbox_ms = visit->plan->inbox_ms,
			.bind = semel_text_string(rows[i].bind),
		};
		examine_subscription(visit, &options);
	}
}

static void examine_broker(struct visit *visit)
{
	const struct semel_doctor_plan *plan = visit->plan;

	if (semel_broker_examine(plan->broker, &plan->examination) != SEMEL_OK)
		return;
	for (size_t i = 0; i < plan->required_count; i++)
		examine_subscription(visit, &plan->required[i]);
	examine_known(visit);
	if (visit->store)
		semel_doctor_check_subscriptions(plan, visit->store, visit->arena);
}

semel_status semel_doctor_run(const struct semel_doctor_plan *plan, semel_error *error)
{
	struct visit visit = { .plan = plan, .arena = semel_arena_new(ARENA_BLOCK) };

	if (!visit.arena)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a look");
	examine_store(&visit);
	examine_broker(&visit);
	semel_store_close(visit.store);
	semel_arena_free(visit.arena);
	return SEMEL_OK;
}
