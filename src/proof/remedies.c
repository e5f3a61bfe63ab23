/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/remedies.h"

#include "base/time.h"

#include <inttypes.h>
#include <stdio.h>

#define TEXT_SIZE        1024
#define INBOX_DEFAULT_MS ((int64_t)30 * 24 * 3600 * 1000) /* its retention, unless configured */

struct telling {
	semel_verify_remedy_callback seen;
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

static void tell(const struct telling *telling, const char *problem, const char *scope,
		 const char *text, const char *command)
{
	const struct semel_verify_remedy advice = { problem, scope, text, command };

	telling->seen(&advice, telling->user);
}

/* ---- of one scope ---------------------------------------------------------------------------- */

static void tell_stuck(const struct telling *telling, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE];

	snprintf(text, sizeof text,
		 "%" PRIu64 " in %.100s wait, and nothing will ever move them: repair releases "
		 "what nothing holds, and sends again what is gone",
		 scope->stuck.count, semel_text_shown(scope->scope));
	tell(telling, "stuck", semel_text_string(scope->scope), text, "semel repair");
}

/* An event that is older by its own time than the inbox remembers is refused by replay. That it is
 * missing was proved, so it alone may be forced: by its very time. */
static void missing_command(const struct telling *telling, const struct semel_verify_scope *scope,
			    char command[TEXT_SIZE])
{
	char since[SEMEL_TIME_SIZE], until[SEMEL_TIME_SIZE];
	bool is_old = scope->missing_since_ms < telling->now_ms - INBOX_DEFAULT_MS;

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

static void tell_missing(const struct telling *telling, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE];

	snprintf(text, sizeof text,
		 "%" PRIu64 " of %.100s were published, and are neither in its tables nor at the "
		 "broker: send them again; what was processed stays as it is",
		 scope->missing.count, semel_text_shown(scope->scope));
	missing_command(telling, scope, command);
	tell(telling, "missing", semel_text_string(scope->scope), text, command);
}

static void tell_unread(const struct telling *telling, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE];

	snprintf(text, sizeof text,
		 "%" PRIu64 " of %.200s were not read before %.100s stopped to read that topic: "
		 "start its consumer with --topic %.200s again until they are read",
		 scope->unread.count, semel_text_shown(scope->unread_topic),
		 semel_text_shown(scope->scope), semel_text_shown(scope->unread_topic));
	tell(telling, "unread", semel_text_string(scope->scope), text, NULL);
}

static void tell_waiting(const struct telling *telling, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE];
	struct semel_buffer why = { 0 };
	bool stands = semel_consumers_explain(&scope->consumers, telling->now_ms, &why);
	bool paused = scope->paused || scope->consumers.paused;
	bool absent = scope->consumers.alive == 0 && !paused;

	snprintf(command, sizeof command, "semel subscriptions resume %.100s",
		 semel_text_shown(scope->scope));
	snprintf(text, sizeof text, "%" PRIu64 " wait for %.100s: %.600s%s", scope->waiting,
		 semel_text_shown(scope->scope),
		 scope->paused        ? "the subscription is paused"
		 : stands && why.data ? why.data
				      : "they are on their way",
		 paused   ? ""
		 : absent ? " (start one: semel consume, or semel run)"
		 : stands ? ""
			  : " (verify --wait 1m lets them arrive)");
	semel_buffer_free(&why);
	tell(telling, "waiting", semel_text_string(scope->scope), text, paused ? command : NULL);
}

static void tell_oddities(const struct telling *telling, const struct semel_verify_scope *scope)
{
	char text[TEXT_SIZE], command[TEXT_SIZE];

	if (scope->doubled.count > 0) {
		snprintf(text, sizeof text,
			 "%" PRIu64 " were processed twice by %.100s: one id with two times is "
			 "two events to it; the producer must keep the time of a repeated id",
			 scope->doubled.count, semel_text_shown(scope->scope));
		snprintf(command, sizeof command, "semel trace %.255s",
			 semel_text_shown(scope->doubled.ids[0]));
		tell(telling, "doubled", semel_text_string(scope->scope), text, command);
	}
	if (scope->orphaned.count > 0) {
		snprintf(text, sizeof text,
			 "%" PRIu64 " were processed by %.100s and are not in this outbox: is it "
			 "another database's, or was it restored?",
			 scope->orphaned.count, semel_text_shown(scope->scope));
		snprintf(command, sizeof command, "semel trace %.255s",
			 semel_text_shown(scope->orphaned.ids[0]));
		tell(telling, "orphaned", semel_text_string(scope->scope), text, command);
	}
}

static void tell_scope(const struct telling *telling, const struct semel_verify_scope *scope)
{
	if (scope->stuck.count > 0)
		tell_stuck(telling, scope);
	if (scope->missing.count > 0)
		tell_missing(telling, scope);
	if (scope->unread.count > 0)
		tell_unread(telling, scope);
	if (scope->waiting > 0)
		tell_waiting(telling, scope);
	tell_oddities(telling, scope);
}

/* ---- of all ---------------------------------------------------------------------------------- */

static void tell_topic(const struct telling *telling, const struct semel_verify_topic *topic)
{
	char text[TEXT_SIZE];

	snprintf(text, sizeof text,
		 "%" PRIu64 " were published to %.200s, which no subscription reads%s%.200s%s: add "
		 "--topic %.200s to the one that wants them, or name it with --read-elsewhere",
		 topic->events, semel_text_shown(topic->topic),
		 topic->nearest.data ? " (did the producer mean " : "",
		 semel_text_shown_or(topic->nearest, ""), topic->nearest.data ? "?)" : "",
		 semel_text_shown(topic->topic));
	tell(telling, "unread", NULL, text, NULL);
}

void semel_verify_list_remedies(const struct semel_verify_report *report, int64_t now_ms,
				semel_verify_remedy_callback seen, void *user)
{
	const struct telling telling = { seen, user, now_ms };
	char text[TEXT_SIZE];

	if (report->refused > 0) {
		snprintf(text, sizeof text,
			 "%" PRIu64 " are refused by the broker, and tried again: %s; doctor says "
			 "what to do",
			 report->refused, report->last_refusal);
		tell(&telling, "unpublished", NULL, text, "semel doctor");
	}
	if (report->unpublished > report->refused) {
		snprintf(text, sizeof text,
			 "%" PRIu64 " are not published yet: a relay does that; if one runs, "
			 "doctor says what keeps it",
			 report->unpublished - report->refused);
		tell(&telling, "unpublished", NULL, text, "semel relay --drain");
	}
	for (size_t i = 0; i < report->scope_count; i++)
		tell_scope(&telling, &report->scopes[i]);
	for (size_t i = 0; i < report->unread_count; i++)
		tell_topic(&telling, &report->unread[i]);
}
