/* SPDX-License-Identifier: Apache-2.0 */
/* The relay's main loop: connect, maintain the lanes, step the pipeline, sleep until woken; after
 * an outage start over. An outage costs no event an attempt. */
#include "relay/relay.h"
#include "base/backoff.h"
#include "base/defaults.h"
#include "base/error.h"
#include "observe/log.h"
#include "relay/pipeline.h"
#include "store/changes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_MS      10000
#define MARK_DELAY_MS 10
#define DRAIN_POLL_MS 100

struct semel_relay {
	semel_relay_options options;
	char *store_url, *broker_url, *slot;
	const struct semel_env *env;
	struct semel_wake *wake;
	semel_store *store;
	struct semel_broker *broker;
	struct semel_lanes lanes;
	struct semel_source *source;
	struct semel_pipeline *pipeline;
	int64_t grace_ms;
	bool must_read;                         /* the next step reads rows */
	int64_t read_at_ms;                     /* the next step after this reads rows; steady */
	uint32_t outages;                       /* consecutive */
	char last_outage[SEMEL_ERROR_TEXT_MAX]; /* the error text of the last outage */
};

static const semel_relay_options defaults = {
	.store = "sqlite:semel.db",
	.broker = "local:semel-broker.db",
	.window = 1000,
	.window_bytes = 16 * 1024 * 1024,
	.confirm_timeout_ms = 30000,
	.attempts = 10,
	.first_delay_ms = 1000,
	.delay_max_ms = 5 * 60 * 1000,
	.poll_ms = 1000,
	.lease_ms = 5000,
	.slot = SEMEL_SLOT_DEFAULT,
	.slot_budget = SEMEL_SLOT_BUDGET_DEFAULT,
};

#define WINDOW_OF_STREAM       2400
#define WINDOW_OF_TRANSACTIONS 3200 /* a transaction of half this size is published as a whole */

static void apply_defaults(semel_relay_options *options)
{
	SEMEL_OR_DEFAULT(options, defaults, store);
	SEMEL_OR_DEFAULT(options, defaults, broker);
	if (options->window == 0 && options->source == SEMEL_SOURCE_CDC)
		options->window = options->transactions ? WINDOW_OF_TRANSACTIONS : WINDOW_OF_STREAM;
	SEMEL_OR_DEFAULT(options, defaults, window);
	SEMEL_OR_DEFAULT(options, defaults, window_bytes);
	SEMEL_OR_DEFAULT(options, defaults, confirm_timeout_ms);
	SEMEL_OR_DEFAULT(options, defaults, attempts);
	SEMEL_OR_DEFAULT(options, defaults, first_delay_ms);
	SEMEL_OR_DEFAULT(options, defaults, delay_max_ms);
	SEMEL_OR_DEFAULT(options, defaults, poll_ms);
	SEMEL_OR_DEFAULT(options, defaults, lease_ms);
	SEMEL_OR_DEFAULT(options, defaults, slot);
	SEMEL_OR_DEFAULT(options, defaults, slot_budget);
}

static semel_status connect_store(struct semel_relay *relay, semel_error *error)
{
	if (relay->store)
		return SEMEL_OK;
	semel_status status =
		semel_store_open_in(relay->env, relay->store_url, &relay->store, error);
	if (status != SEMEL_OK)
		return status;
	relay->store->driver->watch(relay->store, relay->wake);
	return SEMEL_OK;
}

/* Does nothing while both connections are open: reconnecting discards what was read. */
static semel_status connect_all(struct semel_relay *relay, semel_error *error)
{
	if (relay->store && relay->broker)
		return SEMEL_OK;
	semel_status status = connect_store(relay, error);
	if (status != SEMEL_OK)
		return status;
	if (!relay->broker)
		status = semel_broker_open(relay->broker_url, relay->env, relay->options.window,
					   &relay->broker, error);
	if (status != SEMEL_OK)
		return status;
	if (relay->broker->driver->watch_outcomes)
		relay->broker->driver->watch_outcomes(relay->broker, relay->wake);
	if (relay->pipeline)
		semel_pipeline_connect(relay->pipeline, relay->store, relay->broker);
	relay->must_read = true;
	return SEMEL_OK;
}

static void disconnect_all(struct semel_relay *relay)
{
	semel_broker_close(relay->broker);
	semel_store_close(relay->store);
	relay->broker = NULL;
	relay->store = NULL;
}

static semel_status open_source(struct semel_relay *relay, semel_error *error)
{
	struct semel_cdc_options cdc = { .store_url = relay->store_url,
					 .slot = relay->slot,
					 .budget = relay->options.slot_budget,
					 .window = relay->options.window,
					 .poll_ms = relay->options.poll_ms,
					 .marks = relay->options.marks == SEMEL_MARKS_LAZY,
					 .transactions = relay->options.transactions,
					 .wake = relay->wake };

	if (relay->options.source == SEMEL_SOURCE_CDC)
		return semel_source_open_cdc(&cdc, relay->env, &relay->lanes, &relay->source,
					     error);
	return semel_source_open_poll(relay->env, &relay->lanes, &relay->source, error);
}

/* Impossible combinations are refused before anything is opened. Polling reads lanes, and several
 * relays may share them: no relay reads a whole transaction then. */
static semel_status check_options(const struct semel_relay *relay, semel_error *error)
{
	const semel_relay_options *options = &relay->options;
	const struct semel_changes_driver *changes = NULL;
	const struct semel_broker_driver *broker = NULL;
	semel_status status = SEMEL_OK;

	if (options->transactions && options->source != SEMEL_SOURCE_CDC)
		return semel_error_set(error, SEMEL_USAGE,
				       "--transactions needs --source cdc: polling does not know "
				       "which events were committed together");
	if (options->source == SEMEL_SOURCE_CDC)
		status = semel_changes_find(relay->store_url, &changes, error);
	if (status != SEMEL_OK || !options->transactions)
		return status;
	status = semel_broker_driver_find(relay->broker_url, &broker, error);
	if (status != SEMEL_OK)
		return status;
	if (broker->init_transactions)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "the broker %s has no transactions (use kafka://, or leave out "
			       "--transactions)",
			       broker->scheme);
}

/* What it opens is closed by semel_relay_close, even after a failure. */
static semel_status assemble(struct semel_relay *relay, semel_error *error)
{
	const semel_relay_options *options = &relay->options;
	struct semel_pipeline_options pipeline = {
		.window = options->window,
		.window_bytes = options->window_bytes,
		.confirm_timeout_ms = options->confirm_timeout_ms,
		.refusal = { .attempts_max = options->attempts,
			     .backoff = { options->first_delay_ms, options->delay_max_ms },
			     .poison = options->poison },
		.transactions = options->transactions,
	};
	semel_status status = check_options(relay, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_wake_new(&relay->wake, error);
	if (status != SEMEL_OK)
		return status;
	semel_wake_set_env(relay->wake, relay->env);
	status = connect_all(relay, error);
	if (status != SEMEL_OK)
		return status;
	if (relay->store->driver->outbox->mark_lanes)
		pipeline.mark_delay_ms = MARK_DELAY_MS; /* one statement marks many batches */
	status =
		semel_lanes_open(&relay->lanes, relay->store, relay->env, options->lease_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = open_source(relay, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_pipeline_open(&pipeline, relay->env, &relay->lanes, relay->source,
				     &relay->pipeline, error);
	if (status != SEMEL_OK)
		return status;
	semel_pipeline_connect(relay->pipeline, relay->store, relay->broker);
	return SEMEL_OK;
}

semel_status semel_relay_open(const semel_relay_options *options, semel_relay **relay_out,
			      semel_error *error)
{
	return semel_relay_open_in(semel_env_system(), options, relay_out, error);
}

semel_status semel_relay_open_in(const struct semel_env *env, const semel_relay_options *options,
				 semel_relay **relay_out, semel_error *error)
{
	struct semel_relay *relay = calloc(1, sizeof *relay);
	semel_status status = SEMEL_INTERNAL;

	*relay_out = NULL;
	if (!relay)
		goto no_memory;
	relay->options = *options;
	apply_defaults(&relay->options);
	relay->grace_ms = GRACE_MS;
	relay->env = env;
	relay->store_url = strdup(relay->options.store);
	relay->broker_url = strdup(relay->options.broker);
	relay->slot = strdup(relay->options.slot);
	if (!relay->store_url || !relay->broker_url || !relay->slot)
		goto no_memory;
	status = assemble(relay, error);
	if (status != SEMEL_OK) {
		semel_relay_close(relay);
		return status;
	}
	*relay_out = relay;
	return SEMEL_OK;

no_memory:
	semel_relay_close(relay);
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a relay");
}

/* A lane that was taken or lost changes what there is to read. */
static semel_status maintain_lanes(struct semel_relay *relay, semel_error *error)
{
	int64_t before_ms = relay->lanes.maintain_at_ms;
	semel_status status = semel_lanes_maintain(&relay->lanes, relay->store, error);

	relay->must_read = relay->must_read || relay->lanes.maintain_at_ms != before_ms;
	return status;
}

static enum semel_step next_step(struct semel_relay *relay)
{
	int64_t now_ms = semel_steady_ms(relay->env);

	if (!relay->must_read && !semel_pipeline_has_more(relay->pipeline) &&
	    now_ms < relay->read_at_ms)
		return SEMEL_STEP_POLL;
	relay->must_read = false;
	relay->read_at_ms = now_ms + relay->options.poll_ms;
	return SEMEL_STEP_READ;
}

/* Closes the connections; returns how long to wait before the next step opens them again. */
static int64_t disconnect_for_outage(struct semel_relay *relay, const semel_error *error)
{
	struct semel_backoff backoff = { .first_ms = 50, .cap_ms = 5000 };
	int64_t wait_ms = semel_backoff_ms(backoff, ++relay->outages, semel_random(relay->env));

	snprintf(relay->last_outage, sizeof relay->last_outage, "%s", error->text);
	semel_log(SEMEL_LOG_WARN, "relay disconnected from store and broker, retrying",
		  &(struct semel_log_fields){ .error = error->text, .attempt = relay->outages });
	if (relay->store && relay->broker && semel_pipeline_has_lost_broker(relay->pipeline))
		semel_pipeline_mark_answered(relay->pipeline);
	disconnect_all(relay);
	if (relay->source->driver->monitor)
		relay->source->driver->monitor(relay->source);
	return wait_ms;
}

static void pause_for(const struct semel_relay *relay, int64_t wait_ms)
{
	int64_t until_ms = semel_steady_ms(relay->env) + wait_ms;
	while (!semel_wake_is_notified(relay->wake) && semel_steady_ms(relay->env) < until_ms)
		semel_wake_sleep(relay->wake, until_ms - semel_steady_ms(relay->env));
}

/* The relay retries after an outage; any other failure ends it. */
static semel_status handle_outage(struct semel_relay *relay, semel_status status,
				  int64_t *pause_ms_out, const semel_error *error)
{
	*pause_ms_out = 0;
	if (status == SEMEL_OK || semel_status_class(status) != SEMEL_CLASS_OUTAGE)
		return status;
	*pause_ms_out = disconnect_for_outage(relay, error);
	return SEMEL_OK;
}

semel_status semel_relay_step(semel_relay *relay, bool *busy_out, int64_t *pause_ms_out,
			      semel_error *error)
{
	*busy_out = false;
	*pause_ms_out = 0;
	semel_status status = connect_all(relay, error);
	if (status != SEMEL_OK)
		return handle_outage(relay, status, pause_ms_out, error);
	status = maintain_lanes(relay, error);
	if (status != SEMEL_OK)
		return handle_outage(relay, status, pause_ms_out, error);
	status = semel_pipeline_step(relay->pipeline, next_step(relay), busy_out, error);
	if (status != SEMEL_OK)
		return handle_outage(relay, status, pause_ms_out, error);
	relay->outages = 0;
	return SEMEL_OK;
}

static int64_t sleep_ms(const struct semel_relay *relay, const struct semel_outbox_counts *counts)
{
	int64_t wait_ms = relay->options.poll_ms;
	int64_t maintain_ms = relay->lanes.maintain_at_ms - semel_steady_ms(relay->env);

	if (maintain_ms < wait_ms)
		wait_ms = maintain_ms;
	if (relay->source->driver->sleep_ms) {
		int64_t source_ms = relay->source->driver->sleep_ms(relay->source);
		wait_ms = source_ms < wait_ms ? source_ms : wait_ms;
	}
	if (counts->next_due_ms > 0 && counts->next_due_ms - semel_now_ms(relay->env) < wait_ms)
		wait_ms = counts->next_due_ms - semel_now_ms(relay->env);
	return wait_ms > 1 ? wait_ms : 1;
}

/* Sleeps until there is work or a wakeup. Arms the wakeup first, and reads once more where a commit
 * may have come before it was armed. */
static void sleep_until_due(struct semel_relay *relay)
{
	const struct semel_source_driver *driver = relay->source->driver;
	struct semel_outbox_counts none = { 0 };
	int64_t read_ms = relay->read_at_ms - semel_steady_ms(relay->env);
	int64_t most_ms = sleep_ms(relay, &none);

	if (read_ms < most_ms)
		most_ms = read_ms > 1 ? read_ms : 1;
	int64_t wait_ms = semel_pipeline_sleep_ms(relay->pipeline, most_ms);
	if (wait_ms == 0)
		return;
	if (semel_pipeline_can_read(relay->pipeline) &&
	    driver->arm_wakeup(relay->source, semel_pipeline_has_in_flight(relay->pipeline))) {
		relay->must_read = true;
		return;
	}
	semel_wake_sleep(relay->wake, wait_ms);
	relay->must_read = driver->check_wakeup(relay->source) || relay->must_read;
}

/* Polls and marks the outcomes that are still open, and renews the leases meanwhile: the grace
 * period is longer than a lease. */
static semel_status await_outcomes(struct semel_relay *relay, bool *busy, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(relay->env) + relay->grace_ms;

	while (*busy && !relay->broker->driver->blocked(relay->broker) &&
	       semel_steady_ms(relay->env) < until_ms) {
		semel_status status = semel_lanes_renew(&relay->lanes, relay->store, error);
		if (status != SEMEL_OK)
			return status;
		status = semel_pipeline_step(relay->pipeline, SEMEL_STEP_FINISH, busy, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Within the grace period. A broker that is blocked reports no outcomes: the events that it has are
 * published again, but what was answered is marked before the lanes are released. */
static semel_status finish(struct semel_relay *relay, semel_error *error)
{
	semel_error failure = { .status = SEMEL_OK };
	bool busy = relay->store && relay->broker;

	if (!busy)
		return SEMEL_OK;
	semel_status status = await_outcomes(relay, &busy, &failure);
	if (busy && (status == SEMEL_OK || semel_pipeline_has_lost_broker(relay->pipeline)))
		semel_pipeline_mark_answered(relay->pipeline);
	if (!busy || status != SEMEL_OK || relay->broker->driver->blocked(relay->broker))
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "the broker did not confirm all events within the grace period "
			       "(%lld ms); the unconfirmed ones will be published again",
			       (long long)relay->grace_ms);
}

semel_status semel_relay_run(semel_relay *relay, semel_error *error)
{
	semel_error failure = { .status = SEMEL_OK };
	semel_status status;

	while (!semel_wake_is_notified(relay->wake)) {
		bool busy = false;
		int64_t pause_ms = 0;
		status = semel_relay_step(relay, &busy, &pause_ms, &failure);
		if (status != SEMEL_OK)
			return semel_error_set(error, status, "%s", failure.text);
		if (pause_ms > 0)
			pause_for(relay, pause_ms);
		else
			sleep_until_due(relay);
	}
	return finish(relay, error);
}

static bool is_drained(const struct semel_outbox_counts *counts)
{
	return counts->waiting == 0 && counts->retrying == 0 && counts->blocked == 0;
}

static semel_status not_drained(const struct semel_relay *relay,
				const struct semel_outbox_counts *counts, semel_error *error)
{
	const char *why = counts->last_error[0] ? counts->last_error : relay->last_outage;
	const char *blocked = relay->broker ? relay->broker->driver->blocked(relay->broker) : NULL;
	bool owner = false;

	for (int32_t i = 0; i < relay->lanes.count; i++)
		owner = owner || relay->lanes.lanes[i].mine;
	if (blocked)
		why = blocked;
	if (!why[0])
		why = owner ? "the timeout was too short (use a longer --timeout)"
			    : "another relay owns the lanes (run: semel doctor)";
	return semel_error_set(error, SEMEL_NOT_FINISHED,
			       "outbox not drained: %llu events waiting, %llu retrying or "
			       "behind a retry, %llu blocked behind a dead letter: %s",
			       (unsigned long long)counts->waiting,
			       (unsigned long long)counts->retrying,
			       (unsigned long long)counts->blocked, why);
}

/* A busy step does not count the events. */
static void refresh_counts(struct semel_relay *relay, struct semel_outbox_counts *counts)
{
	if (relay->store)
		(void)relay->store->driver->outbox->count(relay->store, counts, NULL);
}

static void wait_for_answers(struct semel_relay *relay)
{
	int64_t wait_ms = semel_pipeline_sleep_ms(relay->pipeline, DRAIN_POLL_MS);

	if (wait_ms > 0)
		semel_wake_sleep(relay->wake, wait_ms);
}

static semel_status drain_step(struct semel_relay *relay, struct semel_outbox_counts *counts,
			       bool *drained_out, semel_error *error)
{
	bool busy = false;
	int64_t pause_ms = 0;
	relay->must_read = true; /* no wakeup is armed */
	semel_status status = semel_relay_step(relay, &busy, &pause_ms, error);

	if (status != SEMEL_OK)
		return status;
	if (pause_ms > 0)
		pause_for(relay, pause_ms);
	else if (busy)
		wait_for_answers(relay);
	if (busy || pause_ms > 0)
		return SEMEL_OK;
	status = relay->store->driver->outbox->count(relay->store, counts, error);
	if (status != SEMEL_OK)
		return status;
	*drained_out = is_drained(counts);
	if (!*drained_out)
		semel_wake_sleep(relay->wake, sleep_ms(relay, counts) < DRAIN_POLL_MS
						      ? sleep_ms(relay, counts)
						      : DRAIN_POLL_MS);
	return SEMEL_OK;
}

semel_status semel_relay_drain(semel_relay *relay, int64_t timeout_ms, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(relay->env) + timeout_ms;
	struct semel_outbox_counts counts = { 0 };
	semel_error failure = { .status = SEMEL_OK };
	bool drained = false;

	while (!drained && !semel_wake_is_notified(relay->wake)) {
		int64_t pause_ms = 0;
		semel_status status = handle_outage(
			relay, drain_step(relay, &counts, &drained, &failure), &pause_ms, &failure);
		if (status != SEMEL_OK)
			return semel_error_set(error, status, "%s", failure.text);
		if (pause_ms > 0)
			pause_for(relay, pause_ms);
		if (!drained && semel_steady_ms(relay->env) >= until_ms) {
			refresh_counts(relay, &counts);
			return not_drained(relay, &counts, error);
		}
	}
	return finish(relay, error);
}

void semel_relay_set_grace(semel_relay *relay, int64_t grace_ms)
{
	relay->grace_ms = grace_ms;
}

void semel_relay_stop(semel_relay *relay)
{
	semel_wake_notify(relay->wake);
}

uint64_t semel_relay_published(const semel_relay *relay)
{
	return semel_pipeline_published(relay->pipeline);
}

void semel_relay_close(semel_relay *relay)
{
	if (!relay)
		return;
	/* It may still refer to events in the pipeline. */
	semel_broker_close(relay->broker);
	relay->broker = NULL;
	semel_source_close(relay->source);
	semel_pipeline_close(relay->pipeline);
	semel_lanes_close(&relay->lanes, relay->store);
	disconnect_all(relay);
	semel_wake_free(relay->wake);
	free(relay->store_url);
	free(relay->broker_url);
	free(relay->slot);
	free(relay);
}
