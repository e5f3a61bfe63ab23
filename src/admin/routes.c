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
	  .summary = "List dead letters, oldest failure first",
	  .query = { "limit", "status", "scope", "type", "since", "until", "after", "payload" } },
	{ .method = "GET",
	  .path = API "/dlq/count",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_dead_count,
	  .schema = "Count",
	  .summary = "Number of pending dead letters",
	  .query = { "scope" } },
	{ .method = "GET",
	  .path = API "/dlq/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_dead_one,
	  .schema = "DeadLetter",
	  .summary = "Get one dead letter with its whole event" },
	{ .method = "POST",
	  .path = API "/dlq/{id}/replay",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_replay,
	  .schema = "Done",
	  .summary = "Replay a pending dead letter: send its event to its subscription again" },
	{ .method = "DELETE",
	  .path = API "/dlq/{id}",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_discard,
	  .schema = "Done",
	  .summary = "Discard a pending dead letter for good",
	  .query = { "reason" } },
	{ .method = "POST",
	  .path = API "/dlq/replay",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_replay_all,
	  .schema = "Bulk",
	  .summary = "Replay all pending dead letters that match the filter; preview=1 only counts "
		     "them",
	  .query = { "scope", "type", "since", "until", "limit", "after", "preview" } },
	{ .method = "POST",
	  .path = API "/dlq/discard",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_discard_all,
	  .schema = "Bulk",
	  .summary = "Discard all pending dead letters that match the filter; preview=1 only "
		     "counts them",
	  .query = { "scope", "type", "since", "until", "limit", "after", "preview", "reason" } },
	{ .method = "GET",
	  .path = API "/outbox",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_outbox,
	  .schema = "Outbox",
	  .summary = "Count the outbox rows that wait to be published" },
	{ .method = "GET",
	  .path = API "/subscriptions",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_subscriptions,
	  .schema = "Subscription",
	  .is_list = true,
	  .summary = "List subscriptions with lag, state and settings" },
	{ .method = "POST",
	  .path = API "/subscriptions/{id}/pause",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_pause,
	  .schema = "Paused",
	  .summary = "Pause subscription" },
	{ .method = "POST",
	  .path = API "/subscriptions/{id}/resume",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_resume,
	  .schema = "Paused",
	  .summary = "Resume subscription" },
	{ .method = "GET",
	  .path = API "/audit",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_audit,
	  .schema = "Audit",
	  .is_list = true,
	  .summary = "List the audit log, newest entry first",
	  .query = { "limit" } },
	{ .method = "GET",
	  .path = API "/trace/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_trace,
	  .schema = "Trace",
	  .summary = "Trace one event" },
	{ .method = "GET",
	  .path = API "/replays",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_replay_list,
	  .schema = "Replay",
	  .is_list = true,
	  .summary = "List the replays of this process" },
	{ .method = "POST",
	  .path = API "/replays",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_replay_start,
	  .schema = "Replay",
	  .summary = "Start a replay of events that the outbox retains",
	  .status = 202,
	  .takes_body = true },
	{ .method = "GET",
	  .path = API "/replays/{id}",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_replay_one,
	  .schema = "Replay",
	  .summary = "Get the progress of a replay" },
	{ .method = "DELETE",
	  .path = API "/replays/{id}",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_replay_cancel,
	  .schema = "Replay",
	  .summary = "Cancel a replay; events already sent stay sent" },
	{ .method = "GET",
	  .path = API "/stream",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_stream,
	  .summary = "Stream the dashboard as server-sent events, once a second" },
	{ .method = "GET",
	  .path = "/",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page,
	  .summary = "Admin page",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/app.js",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_script,
	  .summary = "Script of the admin page",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/app.css",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_style,
	  .summary = "Style sheet of the admin page",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/favicon.svg",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_page_icon,
	  .summary = "Icon of the admin page",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/api/openapi.json",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_openapi,
	  .summary = "Get this OpenAPI description",
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/metrics",
	  .role = SEMEL_ROLE_READ,
	  .serve = semel_serve_metrics,
	  .summary = "Metrics in the Prometheus text format",
	  .is_monitoring = true },
	{ .method = "GET",
	  .path = "/livez",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_livez,
	  .schema = "Alive",
	  .summary = "Liveness: the process is running",
	  .is_monitoring = true,
	  .is_quick = true },
	{ .method = "GET",
	  .path = "/readyz",
	  .role = SEMEL_ROLE_NONE,
	  .serve = semel_serve_readyz,
	  .schema = "Ready",
	  .summary = "Readiness: events are moving, and the store is reachable",
	  .is_monitoring = true,
	  .is_quick = true },
};
const size_t semel_route_count = sizeof semel_routes / sizeof *semel_routes;

/* ---- resolving --------------------------------------------------------------------------------
 */

/* The variable is one whole segment of the path. */
static bool matches(const char *pattern, const char *path, char id_out[SEMEL_ROUTE_ID_SIZE])
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

/* A literal path wins over one with a variable: "count" is no id. */
static bool is_literal(const char *path)
{
	for (size_t i = 0; i < semel_route_count; i++)
		if (strcmp(semel_routes[i].path, path) == 0)
			return true;
	return false;
}

static bool allows_method(const struct semel_route *route, const char *method)
{
	return strcmp(route->method, method) == 0 ||
	       (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

/* Static, because the response points at one of them. */
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
	bool literal = is_literal(path);
	char detail[300];

	for (size_t i = 0; i < semel_route_count; i++) {
		const struct semel_route *route = &semel_routes[i];
		if (!matches(route->path, path, id_out) || (literal && id_out[0] != '\0'))
			continue;
		if (allows_method(route, method))
			return route;
		get = get || strcmp(route->method, "GET") == 0;
		post = post || strcmp(route->method, "POST") == 0;
		delete = delete || strcmp(route->method, "DELETE") == 0;
	}
	if (!get && !post && !delete) {
		snprintf(detail, sizeof detail, "There is no resource at %.200s.", path);
		semel_response_problem(response, 404, "not-found", detail);
		return NULL;
	}
	snprintf(detail, sizeof detail, "%.20s is not allowed at %.200s.", method, path);
	semel_response_problem(response, 405, "method-not-allowed", detail);
	response->allow = allow_list(get, post, delete);
	return NULL;
}
