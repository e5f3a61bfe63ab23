/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters over HTTP: the same rules, and the same record, as `semel dlq`. */
#include "admin/redact.h"
#include "admin/routes.h"
#include "base/error.h"
#include "base/time.h"
#include "base/uuid.h"
#include "deadletter/deadletter.h"

#include <inttypes.h>
#include <strings.h>

#define LIMIT_MAX 1000

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

struct listing {
	struct semel_visit *visit;
	uint64_t count;
	semel_status status;
};

static void list_seen(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;
	struct semel_visit *visit = listing->visit;

	semel_buffer_string(semel_visit_body(visit), listing->count++ ? ",\n " : "");
	if (listing->status == SEMEL_OK)
		listing->status = semel_redaction_show(visit->desk->redaction, letter,
						       semel_visit_body(visit));
}

static semel_status listed(const struct listing *listing, semel_status status, semel_error *error)
{
	return status == SEMEL_OK && listing->status != SEMEL_OK
		       ? semel_error_set(error, listing->status, "no memory for a dead letter")
		       : status;
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

semel_status semel_serve_dead_list(struct semel_visit *visit, semel_error *error)
{
	struct listing listing = { .visit = visit };
	semel_dead_filter filter;
	semel_status status = read_filter(visit, SEMEL_DEAD_LIST_DEFAULT, &filter, error);

	if (status != SEMEL_OK)
		return status;
	semel_buffer_string(semel_visit_body(visit), "[");
	status = semel_dead_letter_list(visit->store, &filter, list_seen, &listing, error);
	semel_buffer_string(semel_visit_body(visit), "]\n");
	return listed(&listing, status, error);
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

semel_status semel_serve_dead_one(struct semel_visit *visit, semel_error *error)
{
	struct listing listing = { .visit = visit };
	semel_status status = find_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_dead_letter_get(visit->store, visit->id, list_seen, &listing, error);
	semel_buffer_string(semel_visit_body(visit), "\n");
	return listed(&listing, status, error);
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
		       ? semel_dead_letter_list(visit->store, &filter, choose, chosen, error)
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
