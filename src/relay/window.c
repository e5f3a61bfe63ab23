/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/window.h"

#include "base/error.h"

void semel_window_reset(struct semel_window *window)
{
	semel_loads_ground(&window->loads);
	window->rows = window->unanswered = window->unnoted = 0;
	window->bytes = 0;
	window->refused = false;
}

/* ---- offered, answered, marked --------------------------------------------------------------- */

void semel_window_add(struct semel_window *window, struct semel_load *load)
{
	int64_t now_ms = semel_steady_ms(window->env);

	semel_load_launch(&window->loads, load);
	load->offered_at_ms = now_ms;
	load->unanswered = load->batch.count;
	for (uint32_t i = 0; i < load->batch.count; i++) {
		load->flights[i] = (struct semel_flight){ .load = load };
		load->bytes += load->batch.rows[i].event.payload.length;
	}
	window->seldom = now_ms > window->offered_at_ms;
	window->offered_at_ms = now_ms;
	window->unanswered += load->batch.count;
	window->rows += load->batch.count;
	window->bytes += load->bytes;
}

void semel_window_answer(struct semel_window *window, struct semel_flight *flight,
			 semel_status answer, const char *reason)
{
	struct semel_load *load = flight->load;

	flight->answered = true;
	flight->answer = answer;
	flight->reason = answer == SEMEL_OK ? NULL : semel_arena_printf(load->arena, "%s", reason);
	load->unanswered--;
	if (load->unanswered == 0)
		load->answered_at_ms = semel_steady_ms(window->env);
	window->unanswered--;
	if (answer == SEMEL_OK)
		return;
	load->refused = window->refused = true;
	if (answer != SEMEL_HELD) {
		load->unnoted++;
		window->unnoted++;
	}
}

void semel_window_note(struct semel_window *window, struct semel_load *load)
{
	window->unnoted -= load->unnoted;
	load->unnoted = 0;
}

static bool has_refused(const struct semel_window *window)
{
	for (const struct semel_load *load = window->loads.flying; load; load = load->next)
		if (load->refused)
			return true;
	return false;
}

void semel_window_remove(struct semel_window *window, struct semel_load *load)
{
	semel_window_note(window, load);
	window->bytes -= load->bytes;
	window->rows -= load->batch.count;
	semel_load_land(&window->loads, load);
	semel_load_give_back(&window->loads, load);
	window->refused = window->refused && has_refused(window);
}

/* ---- questions ------------------------------------------------------------------------------- */

struct semel_room semel_window_room(const struct semel_window *window, bool amid)
{
	if (window->rows >= window->limits.rows_max || (window->refused && !amid) ||
	    window->bytes >= window->limits.bytes_max)
		return (struct semel_room){ 0 };
	return (struct semel_room){ .rows = window->limits.rows_max - window->rows,
				    .bytes = window->limits.bytes_max - window->bytes };
}

bool semel_window_is_behind_refused(const struct semel_window *window,
				    const struct semel_load *mine, uint32_t at)
{
	const struct semel_event *event = &mine->batch.rows[at].event;

	if (!window->refused)
		return false;
	for (const struct semel_load *load = window->loads.flying; load; load = load->next) {
		uint32_t count = load == mine ? at : load->batch.count;
		for (uint32_t i = 0; load->refused && i < count; i++)
			if (load->flights[i].answered && load->flights[i].answer != SEMEL_OK &&
			    semel_event_is_sibling(&load->batch.rows[i].event, event))
				return true;
	}
	return false;
}

bool semel_window_has_answered_load(const struct semel_window *window)
{
	for (const struct semel_load *load = window->loads.flying; load; load = load->next)
		if (load->unanswered == 0)
			return true;
	return false;
}

/* The mark of exceptions lets others of their aggregates go, and a load without a lane is gathered
 * by its source. */
void semel_window_tell_marks(const struct semel_window *window, struct semel_mark_facts *facts)
{
	facts->loads = facts->rows = 0;
	facts->answered_at_ms = INT64_MAX;
	facts->urgent = false;
	facts->refused = window->refused;
	for (const struct semel_load *load = window->loads.flying; load; load = load->next) {
		if (load->unanswered > 0)
			continue;
		facts->loads++;
		facts->rows += load->batch.count;
		facts->urgent = facts->urgent || load->exceptions || !load->lane;
		if (load->answered_at_ms < facts->answered_at_ms)
			facts->answered_at_ms = load->answered_at_ms;
	}
}

semel_status semel_window_check_time(struct semel_window *window, bool blocked, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(window->env);

	for (struct semel_load *load = window->loads.flying; load; load = load->next) {
		if (blocked)
			load->offered_at_ms = now_ms;
		if (load->unanswered > 0 &&
		    now_ms - load->offered_at_ms > window->limits.confirm_timeout_ms)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "the broker has not answered for %u events in %lld "
					       "ms",
					       load->unanswered,
					       (long long)window->limits.confirm_timeout_ms);
	}
	return SEMEL_OK;
}
