/* SPDX-License-Identifier: Apache-2.0 */
/* What any client may send to the admin server. The first byte chooses the reader, the rest is what
 * it gets: a request line, a header, a token file, or the body of a replay. No client gains access
 * by chance, and every refusal is a problem in valid JSON. */
#include "admin/access.h"
#include "admin/replays.h"
#include "admin/routes.h"
#include "base/json.h"

#include "fuzz.h"

/* The table of routes wants them; nothing is served here. */
#define STUB(name)                                                                                 \
	semel_status semel_serve_##name(struct semel_admin_request *request, semel_error *error)   \
	{                                                                                          \
		(void)request;                                                                     \
		(void)error;                                                                       \
		return SEMEL_OK;                                                                   \
	}
STUB(dead_list)
STUB(dead_count)
STUB(dead_one)
STUB(dead_replay)
STUB(dead_discard)
STUB(dead_replay_all)
STUB(dead_discard_all)
STUB(outbox)
STUB(subscriptions)
STUB(pause)
STUB(resume)
STUB(audit)
STUB(trace)
STUB(replay_start)
STUB(replay_list)
STUB(replay_one)
STUB(replay_cancel)
STUB(stream)
STUB(page)
STUB(page_script)
STUB(page_style)
STUB(page_icon)
STUB(livez)
STUB(readyz)
STUB(metrics)

semel_status semel_store_open(const char *url, semel_store **store_out, semel_error *error)
{
	(void)url;
	(void)error;
	*store_out = NULL;
	return SEMEL_OK;
}

void semel_store_close(semel_store *store)
{
	(void)store;
}

const char *semel_http_query(const struct semel_http_request *request, const char *name)
{
	(void)name;
	return request->path;
}

static void check_problem(struct semel_http_response *response)
{
	struct semel_text body = semel_buffer_text(&response->body);
	struct semel_arena *arena = semel_arena_new(4096);

	PROMISE(response->status >= 400 && response->status < 600);
	PROMISE(semel_text_is_utf8(body) && semel_json_is_valid(body));
	PROMISE(semel_json_member(body, "title", arena).length > 0);
	semel_arena_free(arena);
	semel_buffer_free(&response->body);
}

static void try_route(char *text)
{
	static const char *const methods[] = { "GET", "POST", "DELETE", "HEAD", "PUT", "" };
	struct semel_http_response response = { 0 };
	char id[SEMEL_ROUTE_ID_SIZE];

	for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
		const struct semel_route *route = semel_route_find(methods[i], text, id, &response);
		if (!route) {
			check_problem(&response);
			continue;
		}
		PROMISE(strlen(id) < sizeof id && !strchr(id, '/'));
		PROMISE((id[0] != '\0') == (strstr(route->path, "{id}") != NULL));
		PROMISE(id[0] == '\0' || strstr(text, id));
	}
}

/* Whatever a foreign page can make a browser send, it does not pass as ours. */
static void try_host(char *text)
{
	struct semel_listen_address listen, other;
	semel_error error = { 0 };

	PROMISE(semel_listen_parse("127.0.0.1:8082", &listen, &error) == SEMEL_OK);
	if (semel_host_is_ours(text, &listen, NULL))
		PROMISE(strcasecmp(text, "127.0.0.1:8082") == 0 ||
			strcasecmp(text, "localhost:8082") == 0);
	if (semel_origin_is_ours(text, "localhost:8082"))
		PROMISE(strlen(text) >= strlen("://localhost:8082") &&
			strcasecmp(text + strlen(text) - strlen("://localhost:8082"),
				   "://localhost:8082") == 0);
	if (semel_listen_parse(text, &other, &error) != SEMEL_OK)
		PROMISE(error.text[0] != '\0');
}

static void try_token(char *text)
{
	struct semel_tokens tokens = { 0 };
	semel_error error = { 0 };
	char *second = strchr(text, '\n');

	if (second)
		*second++ = '\0';
	if (semel_tokens_parse("operate 0123456789abcdef0123456789abcdef", &tokens, &error) ==
		    SEMEL_OK &&
	    semel_tokens_find(&tokens, text))
		PROMISE(strstr(text, "0123456789abcdef0123456789abcdef"));
	semel_tokens_free(&tokens);
	if (second && semel_tokens_parse(second, &tokens, &error) != SEMEL_OK)
		PROMISE(error.text[0] != '\0');
	semel_tokens_free(&tokens);
}

static void try_body(char *text, size_t size)
{
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_replay_plan plan = { 0 };
	struct semel_http_response response = { 0 };
	semel_error error = { 0 };
	semel_status status =
		semel_replay_request_read(semel_text_from(text, size), arena, &plan, &error);

	if (status == SEMEL_OK) {
		PROMISE(!plan.reprocess || plan.scope);
		PROMISE(!plan.filter.aggregate_type || plan.filter.aggregate_id[0] != '\0');
	} else {
		PROMISE(status == SEMEL_USAGE);
		semel_response_failure(&response, status, error.text);
		PROMISE(response.status == 400);
		check_problem(&response);
	}
	semel_arena_free(arena);
}

static void try_number(char *text)
{
	struct semel_http_request http = { .path = text };
	struct semel_admin_request request = { .http = &http };
	semel_error error = { 0 };
	int64_t number = 0;

	if (semel_admin_request_number(&request, "limit", (struct semel_range){ 1, 1000, 20 },
				       &number, &error) == SEMEL_OK)
		PROMISE(number >= 1 && number <= 1000 && strspn(text, "0123456789") > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	char *copy = fuzz_copy(data + 1, size - 1);
	switch (data[0] % 5) {
	case 0:
		try_route(copy);
		break;
	case 1:
		try_host(copy);
		break;
	case 2:
		try_token(copy);
		break;
	case 3:
		try_body(copy, size - 1);
		break;
	default:
		try_number(copy);
	}
	free(copy);
	return 0;
}
