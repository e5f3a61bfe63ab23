/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/routes.h"

#include <semel/version.h>

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
	  .summary = "Replay pending dead letters that match the filter, at most 1,000 per "
		     "request; preview=1 only counts them",
	  .query = { "scope", "type", "since", "until", "limit", "after", "preview" } },
	{ .method = "POST",
	  .path = API "/dlq/discard",
	  .role = SEMEL_ROLE_OPERATE,
	  .serve = semel_serve_dead_discard_all,
	  .schema = "Bulk",
	  .summary = "Discard pending dead letters that match the filter, at most 1,000 per "
		     "request; preview=1 only counts them",
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

/* The variable part matches exactly one segment of the path. */
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

/* A literal path takes precedence over one with a variable: "count" is not an id. */
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

/* Static, because the response points to one of them. */
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
		semel_response_problem(response, SEMEL_PROBLEM_NOT_FOUND, detail);
		return NULL;
	}
	snprintf(detail, sizeof detail, "%.20s is not allowed at %.200s.", method, path);
	semel_response_problem(response, SEMEL_PROBLEM_METHOD, detail);
	response->allow = allow_list(get, post, delete);
	return NULL;
}

/* ---- the OpenAPI description ------------------------------------------------------------------
 *
 * Generated from the table. The schemas of responses are described here once; the tests compare
 * them with real responses. */

#define TEXT    "{\"type\":\"string\"}"
#define TEXT_OR "{\"type\":[\"string\",\"null\"]}"
#define TIME    "{\"type\":\"string\",\"format\":\"date-time\"}"
#define TIME_OR "{\"type\":[\"string\",\"null\"],\"format\":\"date-time\"}"
#define ID      "{\"type\":\"string\",\"format\":\"uuid\"}"
#define NUMBER  "{\"type\":\"integer\",\"minimum\":0}"
#define FLAG    "{\"type\":\"boolean\"}"
#define STATUS  "{\"type\":\"string\",\"enum\":[\"PENDING\",\"REPLAYED\",\"DISCARDED\"]}"

struct named {
	const char *name, *schema;
};

/* A name may occur in several queries, with the same meaning everywhere. */
static const struct named parameters[] = {
	{ "limit", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000}" },
	{ "status", STATUS },
	{ "since", TIME },
	{ "until", TIME },
	{ "payload", FLAG },
	{ "preview", "{\"type\":\"integer\",\"enum\":[1]}" },
};

struct schema {
	const char *name;
	struct named members[24]; /* NULL-terminated */
};

static const struct schema schemas[] = {
	{ "Problem",
	  { { "type", TEXT }, { "title", TEXT }, { "status", NUMBER }, { "detail", TEXT } } },
	{ "Alive", { { "alive", FLAG } } },
	{ "Ready", { { "reasons", "{\"type\":\"array\",\"items\":" TEXT "}" } } },
	{ "Count", { { "count", NUMBER } } },
	{ "Done", { { "status", TEXT }, { "dlqEntryId", ID } } },
	{ "Paused", { { "paused", FLAG }, { "scope", TEXT } } },
	{ "Bulk",
	  { { "failures", "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{"
			  "\"dlqEntryId\":" ID ",\"reason\":" TEXT "}}}" },
	    { "preview", FLAG },
	    { "chosen", NUMBER },
	    { "done", NUMBER } } },
	{ "DeadLetter",
	  { { "dlqEntryId", ID },
	    { "originalEventId", TEXT_OR },
	    { "eventType", TEXT_OR },
	    { "topicName", TEXT_OR },
	    { "eventRecord", "{\"type\":\"object\"}" },
	    { "failureReason", TEXT_OR },
	    { "failureTimestamp", TIME },
	    { "sourceService", TEXT_OR },
	    { "sagaId", TEXT_OR },
	    { "correlationId", TEXT_OR },
	    { "attempts", NUMBER },
	    { "replayCount", NUMBER },
	    { "status", STATUS },
	    { "discardReason", TEXT_OR },
	    { "parked", NUMBER },
	    { "payloadSize", NUMBER } } },
	{ "Outbox",
	  { { "waiting", NUMBER },
	    { "retrying", NUMBER },
	    { "parked", NUMBER },
	    { "blocked", NUMBER },
	    { "failed", NUMBER },
	    { "oldest", TIME_OR },
	    { "nextAttempt", TIME_OR },
	    { "lastError", TEXT_OR } } },
	{ "Subscription",
	  { { "scope", TEXT },
	    { "topics", "{\"type\":\"array\",\"items\":" TEXT "}" },
	    { "guarantee", TEXT_OR },
	    { "claim", TEXT_OR },
	    { "poison", TEXT_OR },
	    { "order", TEXT_OR },
	    { "dedupBy", TEXT_OR },
	    { "handler", TEXT_OR },
	    { "since", TIME_OR },
	    { "lag", "{\"type\":[\"integer\",\"null\"]}" },
	    { "delayed", "{\"type\":[\"integer\",\"null\"]}" },
	    { "breaker", "{\"type\":[\"integer\",\"null\"],\"enum\":[0,1,2,null]}" },
	    { "consumers", NUMBER },
	    { "inHand", NUMBER },
	    { "waitsFor", TEXT_OR },
	    { "paused", FLAG },
	    { "retrying", NUMBER },
	    { "blocked", NUMBER },
	    { "parked", NUMBER },
	    { "deadLetters", NUMBER } } },
	{ "Audit",
	  { { "at", TIME },
	    { "who", TEXT },
	    { "what", TEXT },
	    { "target", TEXT_OR },
	    { "detail", TEXT_OR },
	    { "outcome", TEXT_OR } } },
	{ "Trace",
	  { { "eventId", TEXT },
	    { "facts", "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}" },
	    { "verdicts", "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}" } } },
	{ "Replay",
	  { { "id", TEXT },
	    { "state",
	      "{\"type\":\"string\",\"enum\":[\"running\",\"cancelling\",\"cancelled\",\"done\","
	      "\"failed\"]}" },
	    { "dryRun", FLAG },
	    { "scope", TEXT_OR },
	    { "matching", NUMBER },
	    { "chosen", NUMBER },
	    { "replayed", NUMBER },
	    { "tooOld", NUMBER },
	    { "held", NUMBER },
	    { "started", TIME },
	    { "ended", TIME_OR },
	    { "error", TEXT_OR } } },
};

/* The body that starts a replay; all members are optional. */
static const struct schema replay_request = { "ReplayRequest",
					      { { "type", TEXT },
						{ "scope", TEXT },
						{ "aggregate", TEXT },
						{ "since", TIME },
						{ "until", TIME },
						{ "max", NUMBER },
						{ "rate", NUMBER },
						{ "reprocess", FLAG },
						{ "force", FLAG },
						{ "dryRun", FLAG } } };

static void write_schema(struct semel_buffer *body, const struct schema *schema, bool all_required)
{
	semel_buffer_printf(body, "\"%s\":{\"type\":\"object\",\"properties\":{", schema->name);
	for (size_t i = 0; schema->members[i].name; i++)
		semel_buffer_printf(body, "%s\"%s\":%s", i ? "," : "", schema->members[i].name,
				    schema->members[i].schema);
	semel_buffer_string(body, "},\"required\":[");
	for (size_t i = 0; all_required && schema->members[i].name; i++)
		semel_buffer_printf(body, "%s\"%s\"", i ? "," : "", schema->members[i].name);
	semel_buffer_string(body, "]}");
}

static void write_parameter(struct semel_buffer *body, const char **comma, const char *name,
			    const char *where)
{
	const char *schema = TEXT;

	for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
		if (strcmp(parameters[i].name, name) == 0)
			schema = parameters[i].schema;
	semel_buffer_printf(body, "%s{\"name\":\"%s\",\"in\":\"%s\",\"required\":%s,\"schema\":%s}",
			    *comma, name, where, strcmp(where, "path") == 0 ? "true" : "false",
			    schema);
	*comma = ",";
}

#define REFERENCE "{\"$ref\":\"#/components/schemas/%s\"}"

static void write_response(struct semel_buffer *body, const struct semel_route *route)
{
	semel_buffer_printf(body, "\"%u\":{\"description\":\"%s\"",
			    route->status ? route->status : 200, route->summary);
	if (route->schema)
		semel_buffer_printf(
			body,
			route->is_list ? ",\"content\":{\"application/json\":{"
					 "\"schema\":{\"type\":\"array\",\"items\":" REFERENCE "}}}"
				       : ",\"content\":{\"application/json\":{"
					 "\"schema\":" REFERENCE "}}",
			route->schema);
	semel_buffer_string(body, "}");
}

static void write_operation(struct semel_buffer *body, const struct semel_route *route)
{
	const char *comma = "";
	char method[8] = "";

	for (size_t i = 0; route->method[i] && i + 1 < sizeof method; i++)
		method[i] = (char)(route->method[i] | 0x20);
	semel_buffer_printf(body, "\"%s\":{\"summary\":\"%s\",\"parameters\":[", method,
			    route->summary);
	if (strstr(route->path, "{id}"))
		write_parameter(body, &comma, "id", "path");
	for (size_t i = 0; route->query[i]; i++)
		write_parameter(body, &comma, route->query[i], "query");
	semel_buffer_string(body, "],");
	if (route->takes_body)
		semel_buffer_printf(body,
				    "\"requestBody\":{\"content\":{\"application/json\":{"
				    "\"schema\":" REFERENCE "}}},",
				    replay_request.name);
	semel_buffer_string(body, "\"responses\":{");
	write_response(body, route);
	semel_buffer_printf(body,
			    ",\"default\":{\"description\":\"problem details\",\"content\":{"
			    "\"application/problem+json\":{\"schema\":" REFERENCE "}}}}}",
			    "Problem");
}

static bool is_first_of_path(size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (strcmp(semel_routes[i].path, semel_routes[at].path) == 0)
			return false;
	return true;
}

static void write_path(struct semel_buffer *body, size_t at)
{
	const char *comma = "";

	semel_buffer_printf(body, "\"%s\":{", semel_routes[at].path);
	for (size_t i = at; i < semel_route_count; i++) {
		if (strcmp(semel_routes[i].path, semel_routes[at].path) != 0)
			continue;
		semel_buffer_string(body, comma);
		write_operation(body, &semel_routes[i]);
		comma = ",";
	}
	semel_buffer_string(body, "}");
}

semel_status semel_serve_openapi(struct semel_admin_request *request, semel_error *error)
{
	struct semel_buffer *body = semel_admin_request_body(request);
	const char *comma = "";

	(void)error;
	semel_buffer_printf(body,
			    "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Semel\",\"version\":"
			    "\"%s\"},\"components\":{\"securitySchemes\":{\"token\":{\"type\":"
			    "\"http\",\"scheme\":\"bearer\"}},\"schemas\":{",
			    semel_version());
	for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
		write_schema(body, &schemas[i], true);
		semel_buffer_string(body, ",");
	}
	write_schema(body, &replay_request, false);
	semel_buffer_string(body, "}},\"security\":[{},{\"token\":[]}],\"paths\":{");
	for (size_t i = 0; i < semel_route_count; i++) {
		if (!is_first_of_path(i))
			continue;
		semel_buffer_string(body, comma);
		write_path(body, i);
		comma = ",";
	}
	semel_buffer_string(body, "}}\n");
	return SEMEL_OK;
}
