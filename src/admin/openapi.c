/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenAPI description, made from the table of routes. The schemas of responses are described
 * here once; the tests compare them with real responses. */
#include "admin/routes.h"

#include <semel/version.h>

#include <string.h>

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

/* A name may occur in several queries; it means the same everywhere. */
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
	struct named members[24]; /* NULL-ended */
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
