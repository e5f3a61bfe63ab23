/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters over HTTP: the same rules, and the same record, as `semel dlq`. */
#include "admin/json_mask.h"
#include "admin/redact.h"
#include "admin/routes.h"
#include "base/error.h"
#include "base/time.h"
#include "base/uuid.h"
#include "deadletter/deadletter.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LIMIT_MAX    1000
#define LIST_ENDS    8                   /* what stands around the entries */
#define REDACTED_MAX ((size_t)64 * 1024) /* of a larger event a list hides the reason unread */

static semel_status read_status(struct semel_visit *visit, semel_dead_status *status_out,
				semel_error *error)
{
	const char *text = semel_http_query(visit->request, "status");

	*status_out = SEMEL_DEAD_ANY;
	if (!text)
		return SEMEL_OK;
	for (semel_dead_status status = SEMEL_DEAD_PENDING; status <= SEMEL_DEAD_DISCARDED;
	     status++)
		if (strcasecmp(text, semel_dead_status_name(status)) == 0) {
			*status_out = status;
			return SEMEL_OK;
		}
	return semel_error_set(error, SEMEL_USAGE,
			       "status has to be PENDING, REPLAYED or DISCARDED");
}

static semel_status read_time(struct semel_visit *visit, const char *name, int64_t *time_ms_out,
			      semel_error *error)
{
	const char *text = semel_http_query(visit->request, name);

	*time_ms_out = 0;
	if (text && !semel_time_parse(text, time_ms_out))
		return semel_error_set(error, SEMEL_USAGE,
				       "%s has to be a time such as 2026-01-31T12:00:00Z", name);
	return SEMEL_OK;
}

static semel_status read_filter(struct semel_visit *visit, int64_t fallback,
				semel_dead_filter *filter_out, semel_error *error)
{
	int64_t limit = 0;
	semel_status status = semel_visit_number(
		visit, "limit", (struct semel_range){ 1, LIMIT_MAX, fallback }, &limit, error);

	*filter_out = (semel_dead_filter){
		.limit = (uint32_t)limit,
		.scope = semel_http_query(visit->request, "scope"),
		.type = semel_http_query(visit->request, "type"),
		.after = semel_http_query(visit->request, "after"),
	};
	if (status == SEMEL_OK)
		status = read_status(visit, &filter_out->status, error);
	if (status == SEMEL_OK)
		status = read_time(visit, "since", &filter_out->since_ms, error);
	if (status == SEMEL_OK)
		status = read_time(visit, "until", &filter_out->until_ms, error);
	return status == SEMEL_OK ? semel_visit_store(visit, error) : status;
}

/* ---- showing ----------------------------------------------------------------------------------
 *
 * An answer is bounded in bytes. The store is asked for a list in brief; a whole event is read only
 * for who asks for payloads, or to know what has to be hidden in its reason: one at a time in this
 * process, so that large ones do not add up.
 */

struct listing {
	struct semel_visit *visit;
	bool payloads;
	bool ended; /* the rest does not fit */
	uint32_t count;
	char last[SEMEL_DESK_ID_SIZE]; /* the entry that was shown last */
	struct semel_buffer entry;
	semel_status status;
	semel_error *error;
};

static size_t room_of(const struct listing *listing)
{
	size_t used = semel_visit_body(listing->visit)->length + LIST_ENDS;

	return used < SEMEL_ANSWER_MAX ? SEMEL_ANSWER_MAX - used : 0;
}

static void draw(struct listing *listing, const semel_dead_letter *letter, bool with_payload)
{
	semel_buffer_clear(&listing->entry);
	listing->status = semel_redaction_show(listing->visit->desk->redaction, letter,
					       with_payload, &listing->entry);
	if (listing->status != SEMEL_OK || listing->entry.failed)
		listing->status = semel_error_set(listing->error, SEMEL_INTERNAL,
						  "no memory for a dead letter");
}

static void draw_whole(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;

	draw(listing, letter, listing->payloads && letter->payload_size <= room_of(listing));
	if (listing->payloads && listing->entry.length > room_of(listing))
		draw(listing, letter, false); /* as JSON it is longer */
}

/* Free texts may repeat what is hidden in the event, and that was not looked at. */
static void draw_brief(struct listing *listing, const semel_dead_letter *letter)
{
	semel_dead_letter shown = *letter;

	if (listing->visit->desk->redaction && letter->failure_reason)
		shown.failure_reason = SEMEL_HIDDEN;
	if (listing->visit->desk->redaction && letter->discard_reason)
		shown.discard_reason = SEMEL_HIDDEN;
	draw(listing, &shown, false);
}

static bool wants_whole(const struct listing *listing, const semel_dead_letter *letter)
{
	if (listing->payloads && letter->payload_size <= room_of(listing))
		return true;
	return listing->visit->desk->redaction && letter->payload_size <= REDACTED_MAX;
}

static void draw_entry(struct listing *listing, const semel_dead_letter *letter)
{
	semel_status status = SEMEL_NOT_FOUND;

	semel_buffer_clear(&listing->entry);
	if (wants_whole(listing, letter))
		status = semel_dead_letter_get(listing->visit->store, letter->entry_id, draw_whole,
					       listing, listing->error);
	if (status == SEMEL_NOT_FOUND) /* it is not wanted, or has gone since */
		draw_brief(listing, letter);
	else if (status != SEMEL_OK)
		listing->status = status;
}

static void list_seen(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;
	struct semel_buffer *body = semel_visit_body(listing->visit);

	if (listing->status != SEMEL_OK || listing->ended)
		return;
	draw_entry(listing, letter);
	listing->ended = listing->count > 0 && listing->entry.length > room_of(listing);
	if (listing->status != SEMEL_OK || listing->ended)
		return;
	semel_buffer_string(body, listing->count++ ? ",\n " : "");
	semel_buffer_append(body, listing->entry.data, listing->entry.length);
	snprintf(listing->last, sizeof listing->last, "%s", letter->entry_id);
}

static void append_encoded(struct semel_buffer *link, const char *value)
{
	for (; *value; value++) {
		bool plain = isascii(*value) && (isalnum(*value) || strchr("-._~", *value));
		semel_buffer_printf(link, plain ? "%c" : "%%%02X", (unsigned char)*value);
	}
}

/* Where the list goes on: the same question, behind the last entry. */
static void tell_next(const struct listing *listing, const semel_dead_filter *filter)
{
	static const char *const names[] = {
		"status", "scope", "type", "since", "until", "payload"
	};
	struct semel_visit *visit = listing->visit;
	struct semel_buffer *link = &visit->answer->link;

	semel_buffer_printf(link, "</api/admin/dlq?limit=%u", filter->limit);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = semel_http_query(visit->request, names[i]);
		if (!value)
			continue;
		semel_buffer_printf(link, "&%s=", names[i]);
		append_encoded(link, value);
	}
	semel_buffer_printf(link, "&after=%s>; rel=\"next\"", listing->last);
}

static semel_status read_payload_flag(struct semel_visit *visit, bool *flag_out, semel_error *error)
{
	const char *text = semel_http_query(visit->request, "payload");

	*flag_out = text && strcmp(text, "true") == 0;
	if (text && !*flag_out && strcmp(text, "false") != 0)
		return semel_error_set(error, SEMEL_USAGE, "payload has to be true or false");
	return SEMEL_OK;
}

static void ignore(const semel_dead_letter *letter, void *user)
{
	(void)letter;
	(void)user;
}

/* Nothing stands behind an entry that is gone: that would look like the end of the list. */
static semel_status find_after(const struct listing *listing, const semel_dead_filter *filter)
{
	if (filter->after == NULL || listing->count > 0 || listing->status != SEMEL_OK)
		return SEMEL_OK;
	semel_status status = semel_dead_letter_get(listing->visit->store, filter->after, ignore,
						    NULL, listing->error);
	return status != SEMEL_NOT_FOUND
		       ? status
		       : semel_error_set(listing->error, SEMEL_NOT_FOUND,
					 "the dead letter of after is gone: begin with the first "
					 "page again");
}

static semel_status list_letters(struct listing *listing, const semel_dead_filter *filter)
{
	struct semel_visit *visit = listing->visit;
	bool reads_whole = listing->payloads || visit->desk->redaction;

	if (reads_whole)
		pthread_mutex_lock(&visit->desk->whole_lock);
	semel_buffer_string(semel_visit_body(visit), "[");
	semel_status status = semel_dead_letter_list_brief(visit->store, filter, list_seen, listing,
							   listing->error);
	semel_buffer_string(semel_visit_body(visit), "]\n");
	if (status == SEMEL_OK)
		status = find_after(listing, filter);
	if (reads_whole)
		pthread_mutex_unlock(&visit->desk->whole_lock);
	semel_buffer_free(&listing->entry);
	if (status == SEMEL_OK && (listing->ended || listing->count == filter->limit))
		tell_next(listing, filter);
	return status == SEMEL_OK ? listing->status : status;
}

semel_status semel_serve_dead_list(struct semel_visit *visit, semel_error *error)
{
	struct listing listing = { .visit = visit, .error = error };
	semel_dead_filter filter;
	semel_status status = read_payload_flag(visit, &listing.payloads, error);

	if (status == SEMEL_OK)
		status = read_filter(visit, SEMEL_DEAD_LIST_DEFAULT, &filter, error);
	if (status != SEMEL_OK)
		return status;
	return list_letters(&listing, &filter);
}

semel_status semel_serve_dead_count(struct semel_visit *visit, semel_error *error)
{
	uint64_t count = 0;
	semel_status status = semel_visit_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_dead_letter_count(
			visit->store, semel_http_query(visit->request, "scope"), &count, error);
	semel_buffer_printf(semel_visit_body(visit), "{\"count\":%" PRIu64 "}\n", count);
	return status;
}

/* An id that cannot be one is as unknown as any other. */
static semel_status find_store(struct semel_visit *visit, semel_error *error)
{
	if (!semel_uuid_is_valid(visit->id))
		return semel_error_set(error, SEMEL_NOT_FOUND, "no dead letter has this id");
	return semel_visit_store(visit, error);
}

struct one {
	struct semel_visit *visit;
	semel_status status;
};

static void one_seen(const semel_dead_letter *letter, void *user)
{
	struct one *one = user;
	struct semel_visit *visit = one->visit;

	one->status =
		semel_redaction_show(visit->desk->redaction, letter, true, semel_visit_body(visit));
}

semel_status semel_serve_dead_one(struct semel_visit *visit, semel_error *error)
{
	struct one one = { .visit = visit };
	semel_status status = find_store(visit, error);

	if (status != SEMEL_OK)
		return status;
	pthread_mutex_lock(&visit->desk->whole_lock);
	status = semel_dead_letter_get(visit->store, visit->id, one_seen, &one, error);
	pthread_mutex_unlock(&visit->desk->whole_lock);
	semel_buffer_string(semel_visit_body(visit), "\n");
	return status == SEMEL_OK && one.status != SEMEL_OK
		       ? semel_error_set(error, one.status, "no memory for a dead letter")
		       : status;
}

static void say_done(struct semel_visit *visit, const char *what)
{
	semel_buffer_printf(semel_visit_body(visit), "{\"status\":\"%s\",\"dlqEntryId\":", what);
	semel_buffer_json(semel_visit_body(visit), semel_text_of(visit->id));
	semel_buffer_string(semel_visit_body(visit), "}\n");
}

semel_status semel_serve_dead_replay(struct semel_visit *visit, semel_error *error)
{
	semel_status status = find_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_visit_audit(visit, "replay", visit->id, NULL, error);
	if (status == SEMEL_OK)
		status = semel_dead_letter_replay(visit->store, visit->desk->options.broker,
						  visit->id, error);
	say_done(visit, "replayed");
	return status;
}

semel_status semel_serve_dead_discard(struct semel_visit *visit, semel_error *error)
{
	const char *reason = semel_http_query(visit->request, "reason");
	semel_status status = find_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_visit_audit(visit, "discard", visit->id, reason, error);
	if (status == SEMEL_OK)
		status = semel_dead_letter_discard(visit->store, visit->id, reason, error);
	say_done(visit, "discarded");
	return status;
}

/* ---- many at once ---------------------------------------------------------------------------- */

struct chosen {
	struct semel_arena *arena;
	const char **ids;
	uint32_t count;
};

static void choose(const semel_dead_letter *letter, void *user)
{
	struct chosen *chosen = user;

	chosen->ids[chosen->count++] = semel_arena_printf(chosen->arena, "%s", letter->entry_id);
}

/* The pending ones of the filter, at most limit. */
static semel_status choose_pending(struct semel_visit *visit, struct chosen *chosen,
				   semel_error *error)
{
	semel_dead_filter filter;
	semel_status status = read_filter(visit, LIMIT_MAX, &filter, error);

	filter.status = SEMEL_DEAD_PENDING;
	*chosen = (struct chosen){ .arena = visit->arena,
				   .ids = semel_arena_alloc(visit->arena,
							    LIMIT_MAX * sizeof *chosen->ids) };
	if (status == SEMEL_OK && !chosen->ids)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a list");
	return status == SEMEL_OK
		       ? semel_dead_letter_list_brief(visit->store, &filter, choose, chosen, error)
		       : status;
}

typedef semel_status (*action)(struct semel_visit *visit, const char *entry_id, semel_error *error);

static semel_status replay_one(struct semel_visit *visit, const char *entry_id, semel_error *error)
{
	return semel_dead_letter_replay(visit->store, visit->desk->options.broker, entry_id, error);
}

static semel_status discard_one(struct semel_visit *visit, const char *entry_id, semel_error *error)
{
	return semel_dead_letter_discard(visit->store, entry_id,
					 semel_http_query(visit->request, "reason"), error);
}

/* How many, and which: "3 entries, scope billing". For the audit. */
static const char *tell_choice(struct semel_visit *visit, uint32_t count)
{
	static const char *const names[] = { "scope", "type", "since", "until", "reason" };
	const char *text = semel_arena_printf(visit->arena, "%u entries", count);

	for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
		const char *value = semel_http_query(visit->request, names[i]);
		if (value)
			text = semel_arena_printf(visit->arena, "%s, %s %s", text, names[i], value);
	}
	return text;
}

/* One that fails says why and does not stop the others; an outage does. */
static semel_status act_on_all(struct semel_visit *visit, const char *what, action act,
			       semel_error *error)
{
	struct semel_buffer *body = semel_visit_body(visit);
	bool preview = semel_http_query(visit->request, "preview") != NULL;
	struct chosen chosen;
	uint32_t done = 0, failed = 0;
	semel_status status = choose_pending(visit, &chosen, error);

	if (status == SEMEL_OK && !preview)
		status = semel_visit_audit(visit, what, NULL, tell_choice(visit, chosen.count),
					   error);
	if (status != SEMEL_OK)
		return status;
	semel_buffer_string(body, "{\"failures\":[");
	for (uint32_t i = 0; i < chosen.count && !preview && status == SEMEL_OK; i++) {
		semel_error said = { .status = SEMEL_OK };
		semel_status answer = act(visit, chosen.ids[i], &said);
		done += answer == SEMEL_OK;
		if (semel_status_class(answer) == SEMEL_CLASS_OUTAGE)
			status = semel_error_set(error, answer, "after %u of %u: %s", done,
						 chosen.count, said.text);
		if (answer == SEMEL_OK || status != SEMEL_OK)
			continue;
		semel_buffer_printf(body,
				    "%s{\"dlqEntryId\":\"%s\",\"reason\":", failed++ ? "," : "",
				    chosen.ids[i]);
		semel_buffer_json(body, semel_text_of(semel_redaction_error(visit->desk->redaction,
									    answer, said.text)));
		semel_buffer_string(body, "}");
	}
	snprintf(visit->outcome, sizeof visit->outcome, "done: %u of %u", done, chosen.count);
	semel_buffer_printf(body, "],\"preview\":%s,\"chosen\":%u,\"done\":%u}\n",
			    preview ? "true" : "false", chosen.count, done);
	return status;
}

semel_status semel_serve_dead_replay_all(struct semel_visit *visit, semel_error *error)
{
	return act_on_all(visit, "replay all", replay_one, error);
}

semel_status semel_serve_dead_discard_all(struct semel_visit *visit, semel_error *error)
{
	return act_on_all(visit, "discard all", discard_one, error);
}
