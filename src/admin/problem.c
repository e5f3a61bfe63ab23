/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/problem.h"

#include "base/error.h"

#include <string.h>

struct row {
	const char *type; /* after "/problems/" */
	unsigned status;
	const char *title;
};

static const struct row rows[SEMEL_PROBLEM_COUNT] = {
	[SEMEL_PROBLEM_MALFORMED] = { "malformed", 400, "Bad request" },
	[SEMEL_PROBLEM_USAGE] = { "usage", 400, "Bad request" },
	[SEMEL_PROBLEM_NO_TOKEN] = { "no-token", 401, "Authentication required" },
	[SEMEL_PROBLEM_ROLE] = { "role", 403, "Forbidden" },
	[SEMEL_PROBLEM_HOST] = { "host", 403, "Forbidden" },
	[SEMEL_PROBLEM_ORIGIN] = { "origin", 403, "Forbidden" },
	[SEMEL_PROBLEM_NOT_FOUND] = { "not-found", 404, "Not found" },
	[SEMEL_PROBLEM_METHOD] = { "method-not-allowed", 405, "Method not allowed" },
	[SEMEL_PROBLEM_NOT_PENDING] = { "not-pending", 409, "Dead letter not pending" },
	[SEMEL_PROBLEM_REPLAY_LIMIT] = { "replay-limit", 409, "Replay limit reached" },
	[SEMEL_PROBLEM_TOO_LARGE] = { "too-large", 413, "Body too large" },
	[SEMEL_PROBLEM_INVALID] = { "invalid", 422, "Request refused" },
	[SEMEL_PROBLEM_HEAD] = { "head", 431, "Request header too large" },
	[SEMEL_PROBLEM_INTERNAL] = { "internal", 500, "Internal error" },
	[SEMEL_PROBLEM_BUSY] = { "busy", 503, "Server or store busy" },
	[SEMEL_PROBLEM_OUTAGE] = { "outage", 503, "Store or broker unavailable" },
	[SEMEL_PROBLEM_STORAGE_FULL] = { "storage-full", 503, "Disk full" },
	[SEMEL_PROBLEM_NO_SCHEMA] = { "no-schema", 503, "Tables missing" },
	[SEMEL_PROBLEM_SCHEMA_NEWER] = { "schema-newer", 503, "Tables created by a newer version" },
	[SEMEL_PROBLEM_NOT_A_DATABASE] = { "not-a-database", 503, "File is not a database" },
};

/* By the name of the status; where it has no row, by its class. The row "too-large" is about the
 * body of a request; the status of this name, about an event that store or broker refuse. */
static struct row row_of(semel_status status)
{
	bool is_outage = semel_status_class(status) == SEMEL_CLASS_OUTAGE;
	struct row row = rows[is_outage ? SEMEL_PROBLEM_OUTAGE : SEMEL_PROBLEM_INTERNAL];

	row.type = semel_status_name(status);
	for (size_t i = 0; i < SEMEL_PROBLEM_COUNT; i++)
		if (i != SEMEL_PROBLEM_TOO_LARGE && strcmp(rows[i].type, row.type) == 0)
			return rows[i];
	return row;
}

static void write_problem(struct semel_http_response *response, struct row row, const char *detail)
{
	struct semel_buffer *body = &response->body;

	semel_buffer_clear(body);
	response->stream = NULL;
	response->status = row.status;
	response->content_type = "application/problem+json";
	semel_buffer_printf(body, "{\"type\":\"/problems/%s\",\"title\":\"%s\",\"status\":%u",
			    row.type, row.title, row.status);
	semel_buffer_string(body, ",\"detail\":");
	semel_buffer_json(body, semel_text_of(detail));
	semel_buffer_string(body, "}\n");
}

void semel_response_problem(struct semel_http_response *response, enum semel_problem problem,
			    const char *detail)
{
	write_problem(response, rows[problem], detail);
}

void semel_response_failure(struct semel_http_response *response, semel_status status,
			    const char *detail)
{
	write_problem(response, row_of(status), detail);
}

unsigned semel_problem_status(semel_status status)
{
	return row_of(status).status;
}
