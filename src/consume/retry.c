/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/retry.h"

static int64_t at_least(int64_t delay_ms, int64_t requested_ms)
{
	if (requested_ms > SEMEL_RETRY_AFTER_MAX_MS)
		requested_ms = SEMEL_RETRY_AFTER_MAX_MS;
	return delay_ms > requested_ms ? delay_ms : requested_ms;
}

enum semel_retry semel_retry_next(const struct semel_retry_policy *policy,
				  const struct semel_attempt *attempt, uint64_t chance,
				  int64_t *delay_ms_out)
{
	*delay_ms_out = 0;
	if (semel_status_class(attempt->status) == SEMEL_CLASS_OUTAGE)
		return SEMEL_RETRY_FREE;
	if (semel_status_class(attempt->status) != SEMEL_CLASS_RETRY ||
	    attempt->number >= policy->attempts_max)
		return SEMEL_RETRY_GIVE_UP;
	if (attempt->number < policy->immediate_max && attempt->retry_after_ms == 0) {
		*delay_ms_out = semel_backoff_ms(policy->immediate, attempt->number, chance);
		return SEMEL_RETRY_NOW;
	}
	uint32_t tier = attempt->number < policy->immediate_max
				? 1
				: attempt->number - policy->immediate_max + 1;
	*delay_ms_out =
		at_least(semel_backoff_ms(policy->delayed, tier, chance), attempt->retry_after_ms);
	return SEMEL_RETRY_LATER;
}
