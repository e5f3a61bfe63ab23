/* SPDX-License-Identifier: Apache-2.0 */
/* `semel relay`: sets the options of a relay, runs or drains it, and prints the count. */
#include "relay/relay.h"
#include "base/error.h"
#include "cli/arguments/admin_options.h"
#include "cli/arguments/adopt.h"
#include "cli/arguments/delivery_options.h"
#include "cli/commands/from_arguments.h"
#include "cli/process/notify.h"
#include "cli/process/progress.h"
#include "cli/process/signals.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FINISH_LIMIT_MS 3000 /* after the grace period: to mark confirmed events, then exit */

static semel_relay_options read_options(const struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	return (semel_relay_options){
		.store = invocation->store,
		.broker = invocation->broker,
		.window = (uint32_t)semel_args_number(args, "window"),
		.window_bytes = (uint64_t)semel_args_number(args, "window-bytes"),
		.confirm_timeout_ms = semel_args_duration_ms(args, "confirm-timeout"),
		.attempts = (uint32_t)semel_args_number(args, "attempts"),
		.first_delay_ms = semel_args_duration_ms(args, "first-delay"),
		.delay_max_ms = semel_args_duration_ms(args, "delay-max"),
		.poll_ms = semel_args_duration_ms(args, "poll"),
		.lease_ms = semel_args_duration_ms(args, "lease"),
		.poison = (semel_poison)semel_args_choice(args, "poison"),
		.source = (semel_source_kind)semel_args_choice(args, "source"),
		.slot = semel_args_text(args, "slot"),
		.slot_budget = (uint64_t)semel_args_number(args, "slot-budget"),
		.marks = (semel_marks)semel_args_choice(args, "marks"),
		.transactions = semel_args_flag(args, "transactions"),
	};
}

static void stop(void *relay)
{
	semel_relay_stop(relay);
}

static void report(const struct semel_invocation *invocation, const semel_relay *relay)
{
	uint64_t published = semel_relay_published(relay);
	if (invocation->json)
		printf("{\"published\":%" PRIu64 "}\n", published);
	else
		printf("published %" PRIu64 " event%s\n", published, published == 1 ? "" : "s");
}

semel_status semel_relay_from_arguments(struct semel_invocation *invocation,
					semel_relay **relay_out)
{
	semel_error *error = &invocation->error;
	semel_relay_options options = read_options(invocation);
	*relay_out = NULL;
	semel_status status = semel_adopt_check(invocation);
	if (status != SEMEL_OK)
		return status;
	status = semel_relay_open(&options, relay_out, error);
	if (status != SEMEL_OK)
		return status;
	semel_relay_set_grace(*relay_out, semel_args_duration_ms(invocation->args, "grace"));
	return SEMEL_OK;
}

static semel_status drain(struct semel_invocation *invocation, semel_relay *relay)
{
	semel_progress_follow("events published", SEMEL_METRIC_PUBLISHED, NULL);
	semel_status status = semel_relay_drain(
		relay, semel_args_duration_ms(invocation->args, "timeout"), &invocation->error);
	semel_progress_end();
	return status;
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	semel_error *error = &invocation->error;
	semel_relay *relay = NULL;
	semel_status status = semel_relay_from_arguments(invocation, &relay);
	if (status != SEMEL_OK)
		return status;
	struct semel_admin *admin = NULL;
	status = semel_metrics_start(invocation, &admin);
	semel_signals_watch(stop, relay, semel_args_duration_ms(args, "grace") + FINISH_LIMIT_MS);
	if (status != SEMEL_OK)
		goto close;
	semel_notify("READY=1");
	if (semel_args_flag(args, "drain"))
		status = drain(invocation, relay);
	else
		status = semel_relay_run(relay, error);
	report(invocation, relay);
close:
	semel_signals_forget();
	semel_admin_stop(admin);
	semel_relay_close(relay);
	return status;
}

static const struct semel_example examples[] = {
	{ "semel relay", "run until SIGTERM" },
	{ "semel relay --drain --timeout 1m", "publish the waiting events, then exit" },
	{ 0 },
};

const struct semel_command semel_command_relay = {
	.name = "relay",
	.run = run,
	.group = SEMEL_GROUP_DELIVER,
	.summary = "publish committed events of the outbox to the broker",
	.options = semel_relay_rows,
	.details =
		"A row is marked as published only after the broker has confirmed that event. "
		"Several relays may run at once: they divide the lanes by leases, and one takes "
		"over when another dies. A broker outage does not count as an attempt: the relay "
		"retries until it is over.\n\n"
		"On SIGTERM or SIGINT it stops reading, finishes what is in flight, and exits 0; a "
		"second signal terminates it immediately. The section relay of the config file "
		"accepts these options as keys.",
	.examples = examples,
	.config_part = SEMEL_CONFIG_PART_RELAY,
};
