/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/consumers.h"

#include "base/time.h"

#include <stdio.h>
#include <string.h>

struct count {
	struct semel_consumers *all;
	int64_t now_ms;
};

static void add_consumer(const struct semel_presence *presence, void *user)
{
	struct count *count = user;
	struct semel_consumers *all = count->all;
	char owner[SEMEL_OWNER_SIZE];

	snprintf(owner, sizeof owner, "%s", semel_text_shown_or(presence->owner, ""));
	if (semel_owner_is_gone(owner, presence->expires_at_ms, count->now_ms))
		return;
	all->alive++;
	all->in_flight += presence->in_flight;
	all->paused = all->paused || presence->paused;
	if (presence->waits_since_ms == 0)
		return;
	all->waiting++;
	if (presence->breaker > all->breaker)
		all->breaker = presence->breaker;
	if (presence->reason.data && !all->reason[0])
		snprintf(all->reason, sizeof all->reason, "%s", semel_text_shown(presence->reason));
	if (all->since_ms == 0 || presence->waits_since_ms < all->since_ms)
		all->since_ms = presence->waits_since_ms;
	if (presence->next_try_ms > 0 &&
	    (all->next_try_ms == 0 || presence->next_try_ms < all->next_try_ms))
		all->next_try_ms = presence->next_try_ms;
}

semel_status semel_consumers_read(semel_store *store, struct semel_text scope, int64_t now_ms,
				  struct semel_consumers *consumers_out, semel_error *error)
{
	struct count count = { consumers_out, now_ms };

	*consumers_out = (struct semel_consumers){ 0 };
	return store->driver->upkeep->presence_each(store, scope, add_consumer, &count, error);
}

void semel_consumers_hide_reason(struct semel_consumers *consumers)
{
	if (consumers->breaker > 0 && consumers->reason[0])
		snprintf(consumers->reason, sizeof consumers->reason, "%s", SEMEL_HIDDEN);
}

/* "09:53:12 UTC"; with the date if it was another day. */
static void append_since(struct semel_buffer *text, int64_t since_ms, int64_t now_ms)
{
	char time[SEMEL_TIME_SIZE], today[SEMEL_TIME_SIZE];

	semel_time_format(since_ms, time);
	semel_time_format(now_ms, today);
	if (strncmp(time, today, strlen("2026-11-16")) == 0)
		semel_buffer_printf(text, " since %.8s UTC", time + strlen("2026-11-16T"));
	else
		semel_buffer_printf(text, " since %s", time);
}

bool semel_consumers_explain(const struct semel_consumers *consumers, int64_t now_ms,
			     struct semel_buffer *text)
{
	if (consumers->alive == 0) {
		semel_buffer_string(text, "no consumer is running");
		return true;
	}
	if (consumers->paused) {
		semel_buffer_string(text, "the subscription is paused");
	} else if (consumers->waiting == consumers->alive) {
		semel_buffer_string(text,
				    consumers->reason[0]
					    ? consumers->reason
					    : "its consumers are waiting and reported no reason");
	} else {
		return false;
	}
	if (consumers->since_ms > 0)
		append_since(text, consumers->since_ms, now_ms);
	if (!consumers->paused && consumers->next_try_ms > 0)
		semel_buffer_printf(
			text, ", next try in %lld s",
			(long long)(consumers->next_try_ms > now_ms
					    ? (consumers->next_try_ms - now_ms + 999) / 1000
					    : 0));
	return true;
}
