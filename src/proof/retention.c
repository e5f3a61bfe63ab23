/* SPDX-License-Identifier: Apache-2.0 */
/* Retention.
 *
 * - An inbox must remember an event for longer than the event can be sent again, from the outbox
 *   (replay) or from the broker's log. So the broker's log has the retention of the outbox, and an
 *   inbox that forgets before the outbox is refused.
 * - Each step is a short transaction, so that writers wait only briefly.
 */
#include "proof/retention.h"

#include "base/error.h"
#include "base/time.h"

semel_status semel_retention_check(const struct semel_retention_ages *ages, semel_error *error)
{
	if (ages->inbox_ms >= ages->outbox_ms)
		return SEMEL_OK;
	char outbox[SEMEL_TIME_SIZE];
	char inbox[SEMEL_TIME_SIZE];
	semel_duration_format(ages->outbox_ms, outbox);
	semel_duration_format(ages->inbox_ms, inbox);
	return semel_error_set(
		error, SEMEL_CONFIG,
		"the inbox retention %s is shorter than the outbox retention %s, so "
		"replayed events would be processed twice (set retention.inbox to at "
		"least %s, or retention.outbox to at most %s)",
		inbox, outbox, outbox, inbox);
}

static semel_status prune_rows(const struct semel_retention_plan *plan, int64_t now_ms,
			       struct semel_retention_counts *counts_out, semel_error *error)
{
	struct semel_prune_counts *rows = &counts_out->rows;
	struct semel_retention_cutoffs cutoffs = { .outbox_ms = now_ms - plan->ages.outbox_ms,
						   .inbox_ms = now_ms - plan->ages.inbox_ms,
						   .dead_ms = now_ms - plan->ages.dead_ms };
	bool more = true;
	while (more) {
		if (plan->wake && semel_wake_is_notified(plan->wake))
			return semel_error_set(error, SEMEL_STOPPED, "stopped");
		struct semel_prune_counts step = { 0 };
		semel_status status = plan->store->driver->upkeep->prune(
			plan->store, &cutoffs, plan->dry_run, &step, &more, error);
		if (status != SEMEL_OK)
			return status;
		rows->outbox += step.outbox;
		rows->inbox += step.inbox;
		rows->dead += step.dead;
		if (plan->progress)
			plan->progress(counts_out, plan->user);
	}
	return SEMEL_OK;
}

semel_status semel_retention_run(const struct semel_retention_plan *plan,
				 struct semel_retention_counts *counts_out, semel_error *error)
{
	*counts_out = (struct semel_retention_counts){ 0 };
	semel_status status = semel_retention_check(&plan->ages, error);
	if (status != SEMEL_OK)
		return status;

	int64_t now_ms = semel_now_ms(plan->env);
	status = prune_rows(plan, now_ms, counts_out, error);
	if (status != SEMEL_OK || !plan->broker || !plan->broker->driver->prune)
		return status;
	return plan->broker->driver->prune(plan->broker, now_ms - plan->ages.outbox_ms,
					   plan->dry_run, &counts_out->broker, error);
}
