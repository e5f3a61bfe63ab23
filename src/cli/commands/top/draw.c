/* SPDX-License-Identifier: Apache-2.0 */
/* The dashboard as lines of text. */
#include "cli/commands/top/top.h"

#include "base/time.h"

#include <jansson.h>
#include <string.h>

#define SCOPE_WIDTH 24

/* ---- values ---------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

static json_int_t number_of(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

/* Leaves out control characters, which could move the cursor. */
static void put_plain(struct semel_buffer *text, const char *words)
{
	while (*words) {
		size_t length = strcspn(words, "\n\t");
		semel_buffer_visible(text, semel_text_from(words, length));
		words += length;
		semel_buffer_string(text, *words ? " " : "");
		words += *words != '\0';
	}
}

/* Writes a number in a column; "-" if it is not known. */
static void put_column(struct semel_buffer *text, const json_t *object, const char *name)
{
	if (json_is_integer(json_object_get(object, name)))
		semel_buffer_printf(text, " %9lld", (long long)number_of(object, name));
	else
		semel_buffer_string(text, "         -");
}

/* ---- sections -------------------------------------------------------------------------------- */

/* Writes an age in its two largest units. */
static void put_age(struct semel_buffer *text, long long seconds)
{
	if (seconds >= 86400)
		semel_buffer_printf(text, "%lldd%lldh", seconds / 86400, seconds / 3600 % 24);
	else if (seconds >= 3600)
		semel_buffer_printf(text, "%lldh%lldm", seconds / 3600, seconds / 60 % 60);
	else if (seconds >= 60)
		semel_buffer_printf(text, "%lldm%llds", seconds / 60, seconds % 60);
	else
		semel_buffer_printf(text, "%llds", seconds);
}

static void put_outbox(struct semel_buffer *text, const json_t *dashboard)
{
	const json_t *outbox = json_object_get(dashboard, "outbox");

	semel_buffer_printf(text, "%-14s %9s %9s %9s %9s %9s   %s\n", "", "waiting", "retrying",
			    "parked", "blocked", "dead", "oldest");
	semel_buffer_printf(text, "%-14s", "outbox");
	put_column(text, outbox, "waiting");
	put_column(text, outbox, "retrying");
	put_column(text, outbox, "parked");
	put_column(text, outbox, "blocked");
	put_column(text, dashboard, "pending");
	semel_buffer_string(text, "   ");
	if (number_of(outbox, "waiting") + number_of(outbox, "retrying") > 0)
		put_age(text, number_of(dashboard, "ageSeconds"));
	else
		semel_buffer_string(text, "-");
	semel_buffer_string(text, "\n");
	if (text_of(outbox, "lastError")[0]) {
		semel_buffer_string(text, "last refusal   ");
		put_plain(text, text_of(outbox, "lastError"));
		semel_buffer_string(text, "\n");
	}
}

static const json_t *scope_of(const json_t *dashboard, const char *scope)
{
	const json_t *subscriptions = json_object_get(dashboard, "subscriptions");

	for (size_t i = 0; i < json_array_size(subscriptions); i++) {
		const json_t *one = json_array_get(subscriptions, i);
		if (strcmp(text_of(one, "scope"), scope) == 0)
			return one;
	}
	return NULL;
}

static double seconds_between(const json_t *before, const json_t *dashboard)
{
	int64_t from_ms = 0, to_ms = 0;

	if (!before || !semel_time_parse(text_of(before, "time"), &from_ms) ||
	    !semel_time_parse(text_of(dashboard, "time"), &to_ms))
		return 0;
	return (double)(to_ms - from_ms) / 1000;
}

/* Writes how fast the lag grows (+) or shrinks (-). */
static void put_change(struct semel_buffer *text, const json_t *before, const json_t *one,
		       double seconds)
{
	bool known = before && seconds > 0 && json_is_integer(json_object_get(one, "lag")) &&
		     json_is_integer(json_object_get(before, "lag"));

	if (known)
		semel_buffer_printf(text, " %+9.1f",
				    (double)(number_of(one, "lag") - number_of(before, "lag")) /
					    seconds);
	else
		semel_buffer_string(text, "         -");
}

static const char *state_of(const json_t *one)
{
	static const char *const breakers[] = { "", "breaker half-open", "breaker open" };
	json_int_t breaker = number_of(one, "breaker");

	if (json_is_true(json_object_get(one, "paused")))
		return "paused";
	if (json_is_integer(json_object_get(one, "consumers")) && number_of(one, "consumers") == 0)
		return "no consumer";
	return breaker > 0 && breaker < 3 ? breakers[breaker] : "";
}

/* Do events wait for this subscription, which fetches nothing? It may be paused. */
static bool is_not_consuming(const json_t *one)
{
	return text_of(one, "waitsFor")[0] &&
	       (number_of(one, "lag") > 0 || number_of(one, "consumers") > 0);
}

static bool put_not_consuming(struct semel_buffer *text, const json_t *dashboard)
{
	const json_t *subscriptions = json_object_get(dashboard, "subscriptions");
	bool any = false;

	for (size_t i = 0; i < json_array_size(subscriptions); i++) {
		const json_t *one = json_array_get(subscriptions, i);
		if (!is_not_consuming(one))
			continue;
		any = true;
		semel_buffer_string(text, "not consuming: ");
		put_plain(text, text_of(one, "scope"));
		semel_buffer_string(text, ": ");
		put_plain(text, text_of(one, "waitsFor"));
		semel_buffer_string(text, "\n");
	}
	return any;
}

static void put_subscriptions(struct semel_buffer *text, const json_t *before,
			      const json_t *dashboard)
{
	const json_t *subscriptions = json_object_get(dashboard, "subscriptions");
	double seconds = seconds_between(before, dashboard);

	if (json_array_size(subscriptions) == 0)
		return;
	semel_buffer_printf(text, "\n%-*s %9s %9s %9s %9s %9s %9s %9s\n", SCOPE_WIDTH,
			    "subscription", "lag", "lag/s", "delayed", "held", "parked", "blocked",
			    "dead");
	for (size_t i = 0; i < json_array_size(subscriptions); i++) {
		const json_t *one = json_array_get(subscriptions, i);
		const char *scope = text_of(one, "scope");
		size_t from = text->length;
		put_plain(text, scope);
		semel_buffer_printf(text, "%*s",
				    text->length - from < SCOPE_WIDTH
					    ? (int)(SCOPE_WIDTH - (text->length - from))
					    : 0,
				    "");
		put_column(text, one, "lag");
		put_change(text, scope_of(before, scope), one, seconds);
		put_column(text, one, "delayed");
		put_column(text, one, "retrying");
		put_column(text, one, "parked");
		put_column(text, one, "blocked");
		put_column(text, one, "deadLetters");
		semel_buffer_printf(text, "  %s\n", state_of(one));
	}
}

static void put_reasons(struct semel_buffer *text, const json_t *dashboard)
{
	const json_t *reasons = json_object_get(dashboard, "reasons");

	semel_buffer_string(text, "\n");
	if (!put_not_consuming(text, dashboard) && json_array_size(reasons) == 0)
		semel_buffer_string(text, "ready\n");
	for (size_t i = 0; i < json_array_size(reasons); i++) {
		semel_buffer_string(text, "not ready: ");
		put_plain(text, json_string_value(json_array_get(reasons, i)));
		semel_buffer_string(text, "\n");
	}
}

bool semel_top_draw(const char *before, const char *dashboard, struct semel_buffer *text)
{
	json_t *then = before ? json_loads(before, JSON_ALLOW_NUL, NULL) : NULL;
	json_t *now = json_loads(dashboard, JSON_ALLOW_NUL, NULL);

	if (now) {
		semel_buffer_printf(text, "semel top      %s\n\n", text_of(now, "time"));
		put_outbox(text, now);
		put_subscriptions(text, then, now);
		put_reasons(text, now);
	}
	json_decref(then);
	json_decref(now);
	return now != NULL;
}
