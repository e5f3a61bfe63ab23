/* SPDX-License-Identifier: Apache-2.0 */
/* The failure matrix, and the rules that trigger its rows.
 *
 * Rules are armed once, before any thread starts, and only read afterwards; the hit counters are
 * atomic, so that exactly one hit is the third one, even with many threads. */
#include "fault/failpoint.h"

#include "base/error.h"
#include "base/text.h"

#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { RULES_MAX = 32, PAUSE_MS_MAX = 3600000 };

static const struct semel_failpoint_row rows[SEMEL_FP_COUNT] = {
	[SEMEL_FP_PUBLISH_BEFORE_COMMIT] = { "publish.before-commit", "producer",
					     "the business change and the outbox row are written, "
					     "nothing is committed",
					     "neither exists: no change, no event" },
	[SEMEL_FP_PUBLISH_AFTER_COMMIT] = { "publish.after-commit", "producer",
					    "the business change and the outbox row are committed, "
					    "the producer got no answer",
					    "both exist; the event is delivered" },
	[SEMEL_FP_RELAY_AFTER_CLAIM] = { "relay.after-claim", "relay",
					 "a batch was read from the outbox, none of it was sent to "
					 "the broker",
					 "the next owner of the lane reads it again; nothing is "
					 "lost or duplicated" },
	[SEMEL_FP_RELAY_BEFORE_PUBLISH] = { "relay.before-publish", "relay",
					    "the event is next, and was not sent to the broker",
					    "the next owner of the lane publishes it; nothing is "
					    "lost or duplicated" },
	[SEMEL_FP_RELAY_AFTER_PUBLISH] = { "relay.after-publish", "relay",
					   "the event was sent to the broker, which has not "
					   "confirmed it",
					   "it is published again with the same id; a second copy "
					   "is a duplicate to consumers" },
	[SEMEL_FP_RELAY_AFTER_CONFIRM] = { "relay.after-confirm", "relay",
					   "the broker has confirmed the event, it is not marked "
					   "in the outbox",
					   "it is published again with the same id; consumers "
					   "detect a duplicate" },
	[SEMEL_FP_RELAY_AFTER_MARK] = { "relay.after-mark", "relay",
					"the event is confirmed and marked as published",
					"it is not published again" },
	[SEMEL_FP_CONSUME_AFTER_RECEIVE] = { "consume.after-receive", "consumer",
					     "the event was received, nothing was done with it",
					     "it is delivered again, and its effect applied once" },
	[SEMEL_FP_CONSUME_AFTER_CLAIM] = { "consume.after-claim", "consumer",
					   "the event is claimed, its effect has not begun",
					   "same-tx: no claim is left, it is delivered again, its "
					   "effect applied once; "
					   "separate: a dead letter in doubt" },
	[SEMEL_FP_CONSUME_AFTER_EFFECT] = { "consume.after-effect", "consumer",
					    "the effect was applied, nothing is committed",
					    "claim and effect are rolled back; it is delivered "
					    "again, its effect applied once" },
	[SEMEL_FP_CONSUME_AFTER_COMMIT] = { "consume.after-commit", "consumer",
					    "claim and effect are committed, no ack was sent",
					    "it is redelivered and found to be a duplicate; the "
					    "effect is applied once" },
	[SEMEL_FP_CONSUME_AFTER_ACK] = { "consume.after-ack", "consumer",
					 "claim and effect are committed and the delivery is "
					 "acknowledged",
					 "it is not delivered again" },
	[SEMEL_FP_CONSUME_AFTER_REQUEUE] = { "consume.after-requeue", "consumer",
					     "a retry is scheduled at the broker, the original is "
					     "not acknowledged",
					     "both copies are delivered; the attempt is counted "
					     "once, the effect applied once" },
	[SEMEL_FP_DLQ_AFTER_PUBLISH] = { "dlq.after-publish", "operator",
					 "the event of a dead letter was sent again, the "
					 "transaction that marks its entry is open",
					 "the consumer that processes it settles the entry; the "
					 "effect is applied once" },
	[SEMEL_FP_DLQ_AFTER_MARK] = { "dlq.after-mark", "operator",
				      "the event of a dead letter was sent again, its entry is "
				      "marked as replayed",
				      "it is not sent again; the effect is applied once" },
	[SEMEL_FP_REPLAY_AFTER_PUBLISH] = { "replay.after-publish", "operator",
					    "some of the selected events were sent again, the rest "
					    "were not",
					    "the same replay, run again, sends them all; events "
					    "already processed are skipped as duplicates" },
};

enum action { ACTION_KILL, ACTION_ERROR, ACTION_PAUSE };

struct rule {
	enum semel_failpoint point;
	enum action action;
	long long pause_ms;
	long long nth; /* 0: every hit */
};

bool semel_failpoints_armed;

static struct rule rules[RULES_MAX];
static size_t rule_count;
static atomic_llong hits[SEMEL_FP_COUNT];
static semel_failpoint_fn watcher;
static void *watcher_user;

const struct semel_failpoint_row *semel_failpoint_rows(void)
{
	return rows;
}

static semel_status read_point(const char *name, enum semel_failpoint *point_out,
			       semel_error *error)
{
	const char *names[SEMEL_FP_COUNT];
	for (int i = 0; i < SEMEL_FP_COUNT; i++) {
		names[i] = rows[i].name;
		if (strcmp(names[i], name) == 0) {
			*point_out = (enum semel_failpoint)i;
			return SEMEL_OK;
		}
	}
	const char *nearest = semel_text_nearest(name, names, SEMEL_FP_COUNT);
	return semel_error_set(error, SEMEL_CONFIG,
			       "SEMEL_FAILPOINT: there is no failpoint \"%s\"%s%s%s (semel "
			       "failpoints lists them)",
			       name, nearest ? ": did you mean \"" : "", nearest ? nearest : "",
			       nearest ? "\"?" : "");
}

static bool read_action(char *text, struct rule *rule)
{
	char *at = strchr(text, '@');
	if (at) {
		*at = '\0';
		if (!semel_text_to_int64(at + 1, 1, LLONG_MAX, &rule->nth))
			return false;
	}
	if (strcmp(text, "kill") == 0) {
		rule->action = ACTION_KILL;
		return true;
	}
	if (strcmp(text, "error") == 0) {
		rule->action = ACTION_ERROR;
		return true;
	}
	rule->action = ACTION_PAUSE;
	return strncmp(text, "pause=", 6) == 0 &&
	       semel_text_to_int64(text + 6, 0, PAUSE_MS_MAX, &rule->pause_ms);
}

static semel_status read_rule(const char *text, size_t length, semel_error *error)
{
	char copy[128];
	if (rule_count == RULES_MAX || length >= sizeof(copy))
		return semel_error_set(error, SEMEL_CONFIG, "SEMEL_FAILPOINT is too long");
	memcpy(copy, text, length);
	copy[length] = '\0';

	struct rule rule = { 0 };
	char *colon = strchr(copy, ':');
	if (colon)
		*colon = '\0';
	semel_status status = read_point(copy, &rule.point, error);
	if (status != SEMEL_OK)
		return status;
	if (!colon || !read_action(colon + 1, &rule))
		return semel_error_set(error, SEMEL_CONFIG,
				       "SEMEL_FAILPOINT: \"%.*s\" is not NAME:ACTION[@N]; ACTION "
				       "is kill, error or pause=MS (up to %d), N counts from 1",
				       (int)length, text, PAUSE_MS_MAX);
	rules[rule_count++] = rule;
	return SEMEL_OK;
}

semel_status semel_failpoints_arm(const char *specification, semel_error *error)
{
	semel_failpoints_armed = false;
	rule_count = 0;
	for (int i = 0; i < SEMEL_FP_COUNT; i++)
		atomic_store(&hits[i], 0);

	for (const char *at = specification; at && *at;) {
		size_t length = strcspn(at, ",");
		semel_status status = read_rule(at, length, error);
		if (status != SEMEL_OK)
			return status;
		at += length;
		at += *at == ',';
	}
	semel_failpoints_armed = rule_count > 0 || watcher;
	return SEMEL_OK;
}

void semel_failpoints_watch(semel_failpoint_fn seen, void *user)
{
	watcher = seen;
	watcher_user = user;
	semel_failpoints_armed = rule_count > 0 || watcher;
}

static void sleep_ms(long long ms)
{
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };
	while (nanosleep(&left, &left) != 0)
		;
}

static semel_status act(const struct rule *rule, semel_error *error)
{
	switch (rule->action) {
	case ACTION_KILL:
		raise(SIGKILL);
		return SEMEL_OK;
	case ACTION_PAUSE:
		sleep_ms(rule->pause_ms);
		return SEMEL_OK;
	case ACTION_ERROR:
	default:
		return semel_error_set(error, SEMEL_OUTAGE,
				       "failpoint %s returned an error (SEMEL_FAILPOINT is set)",
				       rows[rule->point].name);
	}
}

semel_status semel_failpoint_hit(enum semel_failpoint point, semel_error *error)
{
	semel_status status = SEMEL_OK;
	long long hit = atomic_fetch_add(&hits[point], 1) + 1;
	if (watcher)
		watcher(point, watcher_user);
	for (size_t i = 0; i < rule_count && status == SEMEL_OK; i++)
		if (rules[i].point == point && (rules[i].nth == 0 || rules[i].nth == hit))
			status = act(&rules[i], error);
	return status;
}
