/* SPDX-License-Identifier: Apache-2.0 */
/* The resource dlq: the same rules, and the same JSON, as `semel dlq`. */
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

#define LIMIT_MAX 1000
#define LIST_ENDS 8 /* bytes around the entries */
#define REDACTED_MAX                                                                               \
	((size_t)64 * 1024) /* a list hides the reason of a larger event without reading it */

static semel_status read_status(struct semel_admin_request *request, semel_dead_status *status_out,
				semel_error *error)
{
	const char *text = semel_http_query(request->http, "status");

	*status_out = SEMEL_DEAD_ANY;
	if (!text)
		return SEMEL_OK;
	for (semel_dead_status status = SEMEL_DEAD_PENDING; status <= SEMEL_DEAD_DISCARDED;
	     status++)
		if (strcasecmp(text, semel_dead_status_name(status)) == 0) {
			*status_out = status;
			return SEMEL_OK;
		}
	return semel_error_set(error, SEMEL_USAGE, "status must be PENDING, REPLAYED or DISCARDED");
}

static semel_status read_time(struct semel_admin_request *request, const char *name,
			      int64_t *time_ms_out, semel_error *error)
{
	const char *text = semel_http_query(request->http, name);

	*time_ms_out = 0;
	if (text && !semel_time_parse(text, time_ms_out))
		return semel_error_set(error, SEMEL_USAGE,
				       "%s must be a time such as 2026-01-31T12:00:00Z", name);
	return SEMEL_OK;
}

static semel_status read_filter(struct semel_admin_request *request, int64_t fallback,
				semel_dead_letter_filter *filter_out, semel_error *error)
{
	int64_t limit = 0;
	semel_status status = semel_admin_request_number(
		request, "limit", (struct semel_range){ 1, LIMIT_MAX, fallback }, &limit, error);

	*filter_out = (semel_dead_letter_filter){
		.limit = (uint32_t)limit,
		.scope = semel_http_query(request->http, "scope"),
		.type = semel_http_query(request->http, "type"),
		.after = semel_http_query(request->http, "after"),
	};
	if (status != SEMEL_OK)
		return status;
	status = read_status(request, &filter_out->status, error);
	if (status != SEMEL_OK)
		return status;
	status = read_time(request, "since", &filter_out->since_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = read_time(request, "until", &filter_out->until_ms, error);
	if (status != SEMEL_OK)
		return status;
	return semel_admin_request_open_store(request, error);
}

/* ---- reading ----------------------------------------------------------------------------------
 *
 * A response is bounded in bytes. A list is read from the store without payloads. A whole event is
 * read only if payloads are requested, or to find what has to be hidden in its reason; this process
 * reads one at a time, so that large events do not add up in memory.
 */

struct listing {
	struct semel_admin_request *request;
	bool payloads;
	bool ended; /* the rest exceeds the size limit */
	uint32_t count;
	char last[SEMEL_ROUTE_ID_SIZE]; /* the last entry that was written */
	struct semel_buffer entry;
	semel_status status;
	semel_error *error;
};

static size_t bytes_left(const struct listing *listing)
{
	size_t used = semel_admin_request_body(listing->request)->length + LIST_ENDS;

	return used < SEMEL_RESPONSE_MAX ? SEMEL_RESPONSE_MAX - used : 0;
}

static void render(struct listing *listing, const semel_dead_letter *letter, bool with_payload)
{
	semel_buffer_clear(&listing->entry);
	listing->status = semel_redaction_write_json(listing->request->context->redaction, letter,
						     with_payload, &listing->entry);
	if (listing->status != SEMEL_OK || listing->entry.failed)
		listing->status = semel_error_set(listing->error, SEMEL_INTERNAL,
						  "out of memory for a dead letter");
}

static void render_whole(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;

	render(listing, letter, listing->payloads && letter->payload_size <= bytes_left(listing));
	if (listing->payloads && listing->entry.length > bytes_left(listing))
		render(listing, letter, false); /* its JSON form is longer than its payload */
}

/* For an event that was not read: its free texts may quote what is hidden in it. */
static void render_brief(struct listing *listing, const semel_dead_letter *letter)
{
	semel_dead_letter shown = *letter;

	if (listing->request->context->redaction && letter->failure_reason)
		shown.failure_reason = SEMEL_HIDDEN;
	if (listing->request->context->redaction && letter->discard_reason)
		shown.discard_reason = SEMEL_HIDDEN;
	render(listing, &shown, false);
}

static bool needs_whole(const struct listing *listing, const semel_dead_letter *letter)
{
	if (listing->payloads && letter->payload_size <= bytes_left(listing))
		return true;
	return listing->request->context->redaction && letter->payload_size <= REDACTED_MAX;
}

static void render_entry(struct listing *listing, const semel_dead_letter *letter)
{
	semel_status status = SEMEL_NOT_FOUND;

	semel_buffer_clear(&listing->entry);
	if (needs_whole(listing, letter))
		status = semel_dead_letter_get(listing->request->store, letter->entry_id,
					       render_whole, listing, listing->error);
	if (status == SEMEL_NOT_FOUND) /* not needed, or removed since */
		render_brief(listing, letter);
	else if (status != SEMEL_OK)
		listing->status = status;
}

static void append_entry(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;
	struct semel_buffer *body = semel_admin_request_body(listing->request);

	if (listing->status != SEMEL_OK || listing->ended)
		return;
	render_entry(listing, letter);
	listing->ended = listing->count > 0 && listing->entry.length > bytes_left(listing);
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

/* Writes the link to the next page: the same query, after the last entry. */
static void write_next_link(const struct listing *listing, const semel_dead_letter_filter *filter)
{
	static const char *const names[] = {
		"status", "scope", "type", "since", "until", "payload"
	};
	struct semel_admin_request *request = listing->request;
	struct semel_buffer *link = &request->response->link;

	semel_buffer_printf(link, "</api/admin/dlq?limit=%u", filter->limit);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = semel_http_query(request->http, names[i]);
		if (!value)
			continue;
		semel_buffer_printf(link, "&%s=", names[i]);
		append_encoded(link, value);
	}
	semel_buffer_printf(link, "&after=%s>; rel=\"next\"", listing->last);
}

static semel_status read_payload_flag(struct semel_admin_request *request, bool *flag_out,
				      semel_error *error)
{
	const char *text = semel_http_query(request->http, "payload");

	*flag_out = text && strcmp(text, "true") == 0;
	if (text && !*flag_out && strcmp(text, "false") != 0)
		return semel_error_set(error, SEMEL_USAGE, "payload must be true or false");
	return SEMEL_OK;
}

static void ignore(const semel_dead_letter *letter, void *user)
{
	(void)letter;
	(void)user;
}

/* If the entry named by after does not exist the list is empty, which a client would take for its
 * end. */
static semel_status check_after(const struct listing *listing,
				const semel_dead_letter_filter *filter)
{
	if (filter->after == NULL || listing->count > 0 || listing->status != SEMEL_OK)
		return SEMEL_OK;
	semel_status status = semel_dead_letter_get(listing->request->store, filter->after, ignore,
						    NULL, listing->error);
	if (status != SEMEL_NOT_FOUND)
		return status;
	return semel_error_set(listing->error, SEMEL_NOT_FOUND,
			       "after: dead letter %s not found (start with the first page "
			       "again)",
			       filter->after);
}

static semel_status list_letters(struct listing *listing, const semel_dead_letter_filter *filter)
{
	struct semel_admin_request *request = listing->request;
	bool reads_whole = listing->payloads || request->context->redaction;

	if (reads_whole)
		pthread_mutex_lock(&request->context->whole_event_mutex);
	semel_buffer_string(semel_admin_request_body(request), "[");
	semel_status status = semel_dead_letter_list_brief(request->store, filter, append_entry,
							   listing, listing->error);
	semel_buffer_string(semel_admin_request_body(request), "]\n");
	if (status != SEMEL_OK)
		goto unlock;
	status = check_after(listing, filter); /* the mutex is held */
unlock:
	if (reads_whole)
		pthread_mutex_unlock(&request->context->whole_event_mutex);
	semel_buffer_free(&listing->entry);
	if (status != SEMEL_OK)
		return status;
	if (listing->ended || listing->count == filter->limit)
		write_next_link(listing, filter);
	return listing->status;
}

semel_status semel_serve_dead_list(struct semel_admin_request *request, semel_error *error)
{
	struct listing listing = { .request = request, .error = error };
	semel_dead_letter_filter filter;
	semel_status status = read_payload_flag(request, &listing.payloads, error);

	if (status != SEMEL_OK)
		return status;
	status = read_filter(request, SEMEL_DEAD_LIST_DEFAULT, &filter, error);
	if (status != SEMEL_OK)
		return status;
	return list_letters(&listing, &filter);
}

semel_status semel_serve_dead_count(struct semel_admin_request *request, semel_error *error)
{
	uint64_t count = 0;
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_dead_letter_count(request->store, semel_http_query(request->http, "scope"),
					 &count, error);
	if (status != SEMEL_OK)
		return status;
	semel_buffer_printf(semel_admin_request_body(request), "{\"count\":%" PRIu64 "}\n", count);
	return SEMEL_OK;
}

/* A malformed id is reported as not found, like any other unknown one. */
static semel_status open_store_for_entry(struct semel_admin_request *request, semel_error *error)
{
	if (!semel_uuid_is_valid(request->id))
		return semel_error_set(error, SEMEL_NOT_FOUND, "dead letter %.100s not found",
				       request->id);
	return semel_admin_request_open_store(request, error);
}

struct one {
	struct semel_admin_request *request;
	semel_status status;
};

static void write_one(const semel_dead_letter *letter, void *user)
{
	struct one *one = user;
	struct semel_admin_request *request = one->request;

	one->status = semel_redaction_write_json(request->context->redaction, letter, true,
						 semel_admin_request_body(request));
}

semel_status semel_serve_dead_one(struct semel_admin_request *request, semel_error *error)
{
	struct one one = { .request = request };
	semel_status status = open_store_for_entry(request, error);

	if (status != SEMEL_OK)
		return status;
	pthread_mutex_lock(&request->context->whole_event_mutex);
	status = semel_dead_letter_get(request->store, request->id, write_one, &one, error);
	pthread_mutex_unlock(&request->context->whole_event_mutex);
	semel_buffer_string(semel_admin_request_body(request), "\n");
	if (status != SEMEL_OK || one.status == SEMEL_OK)
		return status;
	return semel_error_set(error, one.status, "out of memory for a dead letter");
}

static void write_done(struct semel_admin_request *request, const char *what)
{
	semel_buffer_printf(semel_admin_request_body(request),
			    "{\"status\":\"%s\",\"dlqEntryId\":", what);
	semel_buffer_json(semel_admin_request_body(request), semel_text_of(request->id));
	semel_buffer_string(semel_admin_request_body(request), "}\n");
}

semel_status semel_serve_dead_replay(struct semel_admin_request *request, semel_error *error)
{
	semel_status status = open_store_for_entry(request, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_admin_request_audit(request, "replay", request->id, NULL, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_dead_letter_replay(request->store, request->context->options.broker,
					  request->id, error);
	if (status != SEMEL_OK)
		return status;
	write_done(request, "replayed");
	return SEMEL_OK;
}

semel_status semel_serve_dead_discard(struct semel_admin_request *request, semel_error *error)
{
	const char *reason = semel_http_query(request->http, "reason");
	semel_status status = open_store_for_entry(request, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_admin_request_audit(request, "discard", request->id, reason, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_dead_letter_discard(request->store, request->id, reason, error);
	if (status != SEMEL_OK)
		return status;
	write_done(request, "discarded");
	return SEMEL_OK;
}

/* ---- bulk ------------------------------------------------------------------------------------ */

struct selected {
	struct semel_arena *arena;
	const char **ids;
	uint32_t count;
};

static void select_entry(const semel_dead_letter *letter, void *user)
{
	struct selected *selected = user;

	selected->ids[selected->count++] =
		semel_arena_printf(selected->arena, "%s", letter->entry_id);
}

/* Selects the pending entries that match the filter, at most its limit. */
static semel_status select_pending(struct semel_admin_request *request, struct selected *selected,
				   semel_error *error)
{
	semel_dead_letter_filter filter;
	semel_status status = read_filter(request, LIMIT_MAX, &filter, error);

	if (status != SEMEL_OK)
		return status;
	filter.status = SEMEL_DEAD_PENDING;
	*selected = (struct selected){ .arena = request->arena,
				       .ids = semel_arena_alloc(
					       request->arena, LIMIT_MAX * sizeof *selected->ids) };
	if (!selected->ids)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a list");
	return semel_dead_letter_list_brief(request->store, &filter, select_entry, selected, error);
}

typedef semel_status (*action)(struct semel_admin_request *request, const char *entry_id,
			       semel_error *error);

static semel_status replay_one(struct semel_admin_request *request, const char *entry_id,
			       semel_error *error)
{
	return semel_dead_letter_replay(request->store, request->context->options.broker, entry_id,
					error);
}

static semel_status discard_one(struct semel_admin_request *request, const char *entry_id,
				semel_error *error)
{
	return semel_dead_letter_discard(request->store, entry_id,
					 semel_http_query(request->http, "reason"), error);
}

/* For the audit: "3 entries, scope billing". */
static const char *describe_selection(struct semel_admin_request *request, uint32_t count)
{
	static const char *const names[] = { "scope", "type", "since", "until", "reason" };
	const char *text = semel_arena_printf(request->arena, "%u entries", count);

	for (size_t i = 0; text && i < sizeof names / sizeof *names; i++) {
		const char *value = semel_http_query(request->http, names[i]);
		if (value)
			text = semel_arena_printf(request->arena, "%s, %s %s", text, names[i],
						  value);
	}
	return text;
}

/* A failure is reported with its reason and does not stop the others; an outage does. */
static semel_status act_on_selected(struct semel_admin_request *request, const char *what,
				    action act, semel_error *error)
{
	struct semel_buffer *body = semel_admin_request_body(request);
	bool preview = semel_http_query(request->http, "preview") != NULL;
	struct selected selected;
	uint32_t done = 0, failed = 0;
	semel_status status = select_pending(request, &selected, error);

	if (status != SEMEL_OK)
		return status;
	if (!preview)
		status = semel_admin_request_audit(
			request, what, NULL, describe_selection(request, selected.count), error);
	if (status != SEMEL_OK)
		return status;
	semel_buffer_string(body, "{\"failures\":[");
	for (uint32_t i = 0; i < selected.count && !preview && status == SEMEL_OK; i++) {
		semel_error failure = { .status = SEMEL_OK };
		semel_status result = act(request, selected.ids[i], &failure);
		done += result == SEMEL_OK;
		if (semel_status_class(result) == SEMEL_CLASS_OUTAGE)
			status = semel_error_set(error, result, "after %u of %u: %s", done,
						 selected.count, failure.text);
		if (result == SEMEL_OK || status != SEMEL_OK)
			continue;
		semel_buffer_printf(body,
				    "%s{\"dlqEntryId\":\"%s\",\"reason\":", failed++ ? "," : "",
				    selected.ids[i]);
		semel_buffer_json(body,
				  semel_text_of(semel_redaction_error(request->context->redaction,
								      result, failure.text)));
		semel_buffer_string(body, "}");
	}
	snprintf(request->outcome, sizeof request->outcome, "done: %u of %u", done, selected.count);
	semel_buffer_printf(body, "],\"preview\":%s,\"chosen\":%u,\"done\":%u}\n",
			    preview ? "true" : "false", selected.count, done);
	return status;
}

semel_status semel_serve_dead_replay_all(struct semel_admin_request *request, semel_error *error)
{
	return act_on_selected(request, "replay all", replay_one, error);
}

semel_status semel_serve_dead_discard_all(struct semel_admin_request *request, semel_error *error)
{
	return act_on_selected(request, "discard all", discard_one, error);
}
