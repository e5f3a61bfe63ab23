/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/routes.h"

#include <stdio.h>
#include <string.h>

#define API "/api/admin"

const struct semel_route semel_routes[] = {
	{ .method = "GET",
	  .path = API "/dlq",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_dead_list,
	  .schema = "DeadLetter",
	  .is_list = true,
	  .summary = "Dead letters, the oldest failure first",
	  .query = { "limit", "status", "scope", "type", "since", "until", "after", "payload" } },
	{ .method = "GET",
	  .path = API "/dlq/count",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_dead_count,
	  .schema = "Count",
	  .summary = "How many are pending",
	  .query = { "scope" } },
	{ .method = "GET",
	  .path = API "/dlq/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_dead_one,
	  .schema = "DeadLetter",
	  .summary = "One dead letter with its whole event" },
	{ .method = "POST",
	  .path = API "/dlq/{id}/replay",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_replay,
	  .schema = "Done",
	  .summary = "Sends a pending one to its subscription again" },
	{ .method = "DELETE",
	  .path = API "/dlq/{id}",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_discard,
	  .schema = "Done",
	  .summary = "Gives a pending one up for good",
	  .query = { "reason" } },
	{ .method = "POST",
	  .path = API "/dlq/replay",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_replay_all,
	  .schema = "Bulk",
	  .summary = "Replays the pending ones of a filter; preview=1 only counts them",
	  .query = { "scope", "type", "since", "until", "limit", "after", "preview" } },
	{ .method = "POST",
	  .path = API "/dlq/discard",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_discard_all,
	  .schema = "Bulk",
	  .summary = "Discards the pending ones of a filter; preview=1 only counts them",
	  .query = { "scope", "type", "since", "until", "limit", "after", "preview", "reason" } },
	{ .method = "GET",
	  .path = API "/outbox",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_outbox,
	  .schema = "Outbox",
	  .summary = "What waits to be published" },
	{ .method = "GET",
	  .path = API "/subscriptions",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_subscriptions,
	  .schema = "Subscription",
	  .is_list = true,
	  .summary = "Who reads what, and how far" },
	{ .method = "POST",
	  .path = API "/subscriptions/{id}/pause",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_pause,
	  .schema = "Paused",
	  .summary = "Lets a subscription take nothing more" },
	{ .method = "POST",
	  .path = API "/subscriptions/{id}/resume",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_resume,
	  .schema = "Paused",
	  .summary = "Lets it go on" },
	{ .method = "GET",
	  .path = API "/audit",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_audit,
	  .schema = "Audit",
	  .is_list = true,
	  .summary = "What people did, the newest first",
	  .query = { "limit" } },
	{ .method = "GET",
	  .path = API "/trace/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_trace,
	  .schema = "Life",
	  .summary = "The life of one event" },
	{ .method = "GET",
	  .path = API "/replays",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_replay_list,
	  .schema = "Replay",
	  .is_list = true,
	  .summary = "Replay jobs of this process" },
	{ .method = "POST",
	  .path = API "/replays",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_replay_start,
	  .schema = "Replay",
	  .summary = "Starts a replay of what the outbox retains",
	  .status = 202,
	  .takes_body = true },
	{ .method = "GET",
	  .path = API "/replays/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_replay_one,
	  .schema = "Replay",
	  .summary = "How far a replay is" },
	{ .method = "DELETE",
	  .path = API "/replays/{id}",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_replay_cancel,
	  .schema = "Replay",
	  .summary = "Cancels a replay; what was sent stays sent" },
	{ .method = "GET",
	  .path = API "/stream",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_stream,
	  .summary = "What the page shows, as server-sent events, once a second" },
	{ .method = "GET",
	  .path = "/",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page,
	  .summary = "The page",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/app.js",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_script,
	  .summary = "Its script",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/app.css",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_style,
	  .summary = "Its looks",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/favicon.svg",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_icon,
	  .summary = "Its icon",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/api/openapi.json",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_openapi,
	  .summary = "This description",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/metrics",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_metrics,
	  .summary = "Numbers for Prometheus",
	  .is_monitoring = true },
	{ .method = "GET",
	  .path = "/livez",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_livez,
	  .schema = "Alive",
	  .summary = "Whether the process lives",
	  .is_monitoring = true,
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/readyz",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_readyz,
	  .schema = "Ready",
	  .summary = "Whether events move",
	  .is_monitoring = true,
	  .is_quick = true },
};
const size_t semel_route_count = sizeof semel_routes / sizeof *semel_routes;

/* ---- finding --------------------------------------------------------------------------------- */

/* The variable is one whole part of the path. */
static bool fits(const char *pattern, const char *path, char id_out[SEMEL_ROUTE_ID_SIZE])
{
	const char *variable = strstr(pattern, "{id}");
	size_t before = variable ? (size_t)(variable - pattern) : 0;

	id_out[0] = '\0';
	if (!variable)
		return strcmp(pattern, path) == 0;
	if (strncmp(pattern, path, before) != 0)
		return false;
	size_t length = strcspn(path + before, "/");
	if (length == 0 || length >= SEMEL_ROUTE_ID_SIZE ||
	    strcmp(path + before + length, variable + strlen("{id}")) != 0)
		return false;
	memcpy(id_out, path + before, length);
	id_out[length] = '\0';
	return true;
}

/* A path that is written out wins over one with a variable: "count" is no id. */
static bool is_written_out(const char *path)
{
	for (size_t i = 0; i < semel_route_count; i++)
		if (strcmp(semel_routes[i].path, path) == 0)
			return true;
	return false;
}

static bool is_method(const struct semel_route *route, const char *method)
{
	return strcmp(route->method, method) == 0 ||
	       (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

/* The same few lists come up again and again; the answer points at one of them. */
static const char *allow_list(bool get, bool post, bool delete)
{
	static const char *const lists[] = {
		"",       "GET, HEAD",         "POST",         "GET, HEAD, POST",
		"DELETE", "GET, HEAD, DELETE", "POST, DELETE", "GET, HEAD, POST, DELETE"
	};

	return lists[(get ? 1 : 0) + (post ? 2 : 0) + (delete ? 4 : 0)];
}

const struct semel_route *semel_route_find(const char *method, const char *path,
					   char id_out[SEMEL_ROUTE_ID_SIZE],
					   struct semel_http_response *response)
{
	bool get = false, post = false, delete = false;
	bool written_out = is_written_out(path);
	char detail[300];

	for (size_t i = 0; i < semel_route_count; i++) {
		const struct semel_route *route = &semel_routes[i];
		if (!fits(route->path, path, id_out) || (written_out && id_out[0] != '\0'))
			continue;
		if (is_method(route, method))
			return route;
		get = get || strcmp(route->method, "GET") == 0;
		post = post || strcmp(route->method, "POST") == 0;
		delete = delete || strcmp(route->method, "DELETE") == 0;
	}
	if (!get && !post && !delete) {
		snprintf(detail, sizeof detail, "Nothing is at %.200s.", path);
		semel_response_problem(response, 404, "not-found", detail);
		return NULL;
	}
	snprintf(detail, sizeof detail, "%.20s is not possible at %.200s.", method, path);
	semel_response_problem(response, 405, "method-not-allowed", detail);
	response->allow = allow_list(get, post, delete);
	return NULL;
}
