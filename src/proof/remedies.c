/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about each discrepancy that verify finds. */
#include "proof/verify.h"

#include "base/time.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_SIZE        1024
#define INBOX_DEFAULT_MS ((int64_t)30 * 24 * 3600 * 1000) /* inbox retention unless configured */

struct listing {
	semel_verify_remedy_callback callback;
	void *user;
	int64_t now_ms;
};

bool semel_verify_scope_is_clean(const struct semel_verify_scope *scope)
{
	return scope->missing.count == 0 && scope->doubled.count == 0 &&
	       scope->orphaned.count == 0 && scope->waiting == 0 && scope->stuck.count == 0 &&
	       scope->unread.count == 0;
}

bool semel_verify_is_clean(const struct semel_verify_report *report)
{
	if (report->unexplained.count > 0 || report->unpublished > 0 || report->unread_count > 0)
		return false;
	for (size_t i = 0; i < report->scope_count; i++)
		if (!semel_verify_scope_is_clean(&report->scopes[i]))
			return false;
	return true;
}

static void add_remedy(const struct listing *listing, const char *problem, const char *scope,
		       const char *text, const char *command)
{
	const struct semel_verify_remedy remedy = { problem, scope, text, command };

	listing->callback(&remedy, listing->user);
}

#define COUNT_SIZE 32

/* "1 event", "2 events" */
static const char *count_events(uint64_t count, char text[COUNT_SIZE])
{
	snprintf(text, COUNT_SIZE, "%" PRIu64 " event%s", count, count == 1 ? "" : "s");
	return text;
}

/* ---- of one scope ---------------------------------------------------------------------------- */

static void list_stuck(const struct listing *listing, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE];

	snprintf(text, sizeof text,
		 "scope %.100s: %" PRIu64 " stuck event%s, which no consumer will process (semel "
		 "repair releases their holds or sends lost copies again)",
		 semel_text_shown(scope->scope), scope->stuck.count,
		 scope->stuck.count == 1 ? "" : "s");
	add_remedy(listing, "stuck", semel_text_string(scope->scope), text, "semel repair");
}

/* replay refuses an event whose own time is before the inbox window. Here the event is proven to be
 * missing, so the command forces this event alone, by its exact time. */
static void missing_command(const struct listing *listing, const struct semel_verify_scope *scope,
			    char command[TEXT_SIZE])
{
	char since[SEMEL_TIME_SIZE], until[SEMEL_TIME_SIZE];
	bool is_old = scope->missing_since_ms < listing->now_ms - INBOX_DEFAULT_MS;

	semel_time_format(scope->missing_since_ms, since);
	semel_time_format(scope->missing_since_ms + 1, until);
	if (is_old)
		snprintf(command, TEXT_SIZE,
			 "semel replay --scope %.100s --since %s --until %s --force",
			 semel_text_shown(scope->scope), since, until);
	else
		snprintf(command, TEXT_SIZE, "semel replay --scope %.100s --since %s",
			 semel_text_shown(scope->scope), since);
}

static void list_missing(const struct listing *listing, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE], count[COUNT_SIZE];

	snprintf(text, sizeof text,
		 "scope %.100s, %s: published, but neither in its tables nor at the broker (replay "
		 "sends them again; processed events are not repeated)",
		 semel_text_shown(scope->scope), count_events(scope->missing.count, count));
	missing_command(listing, scope, command);
	add_remedy(listing, "missing", semel_text_string(scope->scope), text, command);
}

static void list_unread(const struct listing *listing, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], count[COUNT_SIZE];

	snprintf(
		text, sizeof text,
		"scope %.100s, %s of topic %.200s: not consumed before the scope dropped the topic "
		"(start its consumer with --topic %.200s until they are consumed)",
		semel_text_shown(scope->scope), count_events(scope->unread.count, count),
		semel_text_shown(scope->unread_topic), semel_text_shown(scope->unread_topic));
	add_remedy(listing, "unread", semel_text_string(scope->scope), text, NULL);
}

static void list_waiting(const struct listing *listing, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE], count[COUNT_SIZE];
	struct semel_buffer why = { 0 };
	bool waits = semel_consumers_explain(&scope->consumers, listing->now_ms, &why);
	bool paused = scope->paused || scope->consumers.paused;
	bool absent = scope->consumers.alive == 0 && !paused;

	snprintf(command, sizeof command, "semel subscriptions resume %.100s",
		 semel_text_shown(scope->scope));
	snprintf(text, sizeof text, "scope %.100s, %s: %.600s%s", semel_text_shown(scope->scope),
		 count_events(scope->waiting, count),
		 scope->paused       ? "the subscription is paused"
		 : waits && why.data ? why.data
				     : "delivery is in progress",
		 paused   ? ""
		 : absent ? " (start a consumer: semel consume, or semel run)"
		 : waits  ? ""
			  : " (wait for them: semel verify --wait 1m)");
	semel_buffer_free(&why);
	add_remedy(listing, "waiting", semel_text_string(scope->scope), text,
		   paused ? command : NULL);
}

static void list_contradictions(const struct listing *listing,
				const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE], count[COUNT_SIZE];

	if (scope->doubled.count > 0) {
		snprintf(
			text, sizeof text,
			"scope %.100s, %s: processed twice, with two different times (the producer "
			"must keep the time of a repeated id)",
			semel_text_shown(scope->scope), count_events(scope->doubled.count, count));
		snprintf(command, sizeof command, "semel trace %.255s",
			 semel_text_shown(scope->doubled.ids[0]));
		add_remedy(listing, "doubled", semel_text_string(scope->scope), text, command);
	}
	if (scope->orphaned.count > 0) {
		snprintf(text, sizeof text,
			 "scope %.100s, %s: processed, but not in this outbox (was the outbox "
			 "restored, or do the events come from another database?)",
			 semel_text_shown(scope->scope),
			 count_events(scope->orphaned.count, count));
		snprintf(command, sizeof command, "semel trace %.255s",
			 semel_text_shown(scope->orphaned.ids[0]));
		add_remedy(listing, "orphaned", semel_text_string(scope->scope), text, command);
	}
}

static void list_scope(const struct listing *listing, const struct semel_verify_scope *scope)
{
	if (scope->stuck.count > 0)
		list_stuck(listing, scope);
	if (scope->missing.count > 0)
		list_missing(listing, scope);
	if (scope->unread.count > 0)
		list_unread(listing, scope);
	if (scope->waiting > 0)
		list_waiting(listing, scope);
	list_contradictions(listing, scope);
}

/* ---- of all ---------------------------------------------------------------------------------- */

static void list_topic(const struct listing *listing, const struct semel_verify_topic *topic)
{
	char text[TEXT_SIZE], count[COUNT_SIZE];

	snprintf(text, sizeof text,
		 "topic %.200s, %s: published, but no subscription reads the topic%s%.200s%s (add "
		 "--topic %.200s to a subscription, or name it with --read-elsewhere)",
		 semel_text_shown(topic->topic), count_events(topic->events, count),
		 topic->nearest.data ? "; did the producer mean " : "",
		 semel_text_shown_or(topic->nearest, ""), topic->nearest.data ? "?" : "",
		 semel_text_shown(topic->topic));
	add_remedy(listing, "unread", NULL, text, NULL);
}

void semel_verify_list_remedies(const struct semel_verify_report *report, int64_t now_ms,
				semel_verify_remedy_callback callback, void *user)
{
	const struct listing listing = { callback, user, now_ms };
	char text[TEXT_SIZE], count[COUNT_SIZE];

	if (report->refused > 0) {
		snprintf(text, sizeof text,
			 "%s: refused by the broker and retried: %s (run: semel doctor)",
			 count_events(report->refused, count), report->last_refusal);
		add_remedy(&listing, "unpublished", NULL, text, "semel doctor");
	}
	if (report->unpublished > report->refused) {
		snprintf(text, sizeof text,
			 "%s: not published yet (start a relay; if one is running, semel doctor "
			 "shows what stops it)",
			 count_events(report->unpublished - report->refused, count));
		add_remedy(&listing, "unpublished", NULL, text, "semel relay --drain");
	}
	for (size_t i = 0; i < report->scope_count; i++)
		list_scope(&listing, &report->scopes[i]);
	for (size_t i = 0; i < report->unread_count; i++)
		list_topic(&listing, &report->unread[i]);
}
