/* SPDX-License-Identifier: Apache-2.0 */
/* Dead letters over HTTP: the same rules, and the same record, as `semel dlq`. */
#include "admin/routes.h"
#include "base/error.h"
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
	struct semel_buffer *body;
	uint64_t count;
};

static void list_seen(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;

	semel_buffer_string(listing->body, listing->count++ ? ",\n " : "");
	semel_dead_letter_to_json(letter, listing->body);
}

semel_status semel_serve_dead_list(struct semel_visit *visit, semel_error *error)
{
	semel_dead_filter filter = { .scope = semel_http_query(visit->request, "scope") };
	struct listing listing = { .body = semel_visit_body(visit) };
	int64_t limit = 0;
	semel_status status = semel_visit_number(
		visit, "limit", (struct semel_range){ 1, LIMIT_MAX, SEMEL_DEAD_LIST_DEFAULT },
		&limit, error);

	if (status == SEMEL_OK)
		status = read_status(visit, &filter.status, error);
	if (status == SEMEL_OK)
		status = semel_visit_store(visit, error);
	if (status != SEMEL_OK)
		return status;
	filter.limit = (uint32_t)limit;
	semel_buffer_string(listing.body, "[");
	status = semel_dead_letter_list(visit->store, &filter, list_seen, &listing, error);
	semel_buffer_string(listing.body, "]\n");
	return status;
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

static void one_seen(const semel_dead_letter *letter, void *user)
{
	semel_dead_letter_to_json(letter, user);
}

semel_status semel_serve_dead_one(struct semel_visit *visit, semel_error *error)
{
	semel_status status = find_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_dead_letter_get(visit->store, visit->id, one_seen,
					       semel_visit_body(visit), error);
	semel_buffer_string(semel_visit_body(visit), "\n");
	return status;
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
		status = semel_dead_letter_replay(visit->store, visit->desk->options.broker,
						  visit->id, error);
	say_done(visit, "replayed");
	return status;
}

semel_status semel_serve_dead_discard(struct semel_visit *visit, semel_error *error)
{
	semel_status status = find_store(visit, error);

	if (status == SEMEL_OK)
		status = semel_dead_letter_discard(
			visit->store, visit->id, semel_http_query(visit->request, "reason"), error);
	say_done(visit, "discarded");
	return status;
}
