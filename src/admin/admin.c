/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/admin.h"

#include "admin/dashboard.h"
#include "admin/health.h"
#include "admin/redact.h"
#include "admin/replays.h"
#include "admin/routes.h"
#include "base/error.h"
#include "observe/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK     ((size_t)16 * 1024)
#define CONNECTIONS_MAX 200
#define REQUEST_MS      30000
#define HOSTS_MAX       16
#define FILE_MAX        (1024 * 1024)

struct semel_admin {
	struct semel_admin_context context;
	struct semel_listen_address listen;
	pthread_mutex_t tokens_mutex;
	struct semel_tokens tokens;
	struct semel_http *http;
	char *store, *broker, *slot, *token_file, *certificate, *key;
	char *hosts[HOSTS_MAX + 1];
	char url[SEMEL_ADDRESS_SIZE + 24];
};

/* ---- access ---------------------------------------------------------------------------------- */

/* A copy without the secret, because the tokens may be reloaded during the request. An unknown
 * token has the role NONE. */
static struct semel_token token_of(struct semel_admin *admin, const struct semel_http_request *http)
{
	struct semel_token token = { .name = SEMEL_NAME_LOOPBACK, .role = SEMEL_ROLE_NONE };

	pthread_mutex_lock(&admin->tokens_mutex);
	const struct semel_token *found =
		semel_tokens_find(&admin->tokens, semel_http_header(http, "Authorization"));
	if (found)
		token = *found;
	pthread_mutex_unlock(&admin->tokens_mutex);
	token.text = NULL;
	return token;
}

/* In a relay or a consumer there are no tokens, so details that name hosts are hidden. */
static bool may_read(const struct semel_admin *admin, const struct semel_token *token)
{
	return admin->token_file ? token->role >= SEMEL_ROLE_READ
				 : !admin->context.options.metrics_only;
}

static bool check_role(const struct semel_admin *admin, const struct semel_route *route,
		       const struct semel_token *token, struct semel_http_response *response)
{
	if (!admin->token_file || token->role >= route->role)
		return true;
	if (token->role == SEMEL_ROLE_NONE) {
		/* The message is constant, so that requests without a token cannot flood the log,
		 * which omits repeated lines. */
		semel_log(SEMEL_LOG_WARN, "admin: refused a request without a valid token", NULL);
		semel_response_problem(response, SEMEL_PROBLEM_NO_TOKEN,
				       "Send the header Authorization: Bearer TOKEN.");
		response->authenticate = "Bearer";
	} else {
		semel_log(SEMEL_LOG_WARN, "admin: refused a change, the token has the role read",
			  &(struct semel_log_fields){ .detail = token->name });
		semel_response_problem(
			response, SEMEL_PROBLEM_ROLE,
			"This token has the role read; a change needs the role operate.");
	}
	return false;
}

static void refuse_host(const struct semel_admin *admin, const char *host,
			struct semel_http_response *response)
{
	char detail[320];

	if (!host)
		snprintf(detail, sizeof detail, "The request has no Host header.");
	else
		snprintf(detail, sizeof detail,
			 "The Host header \"%.200s\" does not name this server%s.", host,
			 admin->context.options.metrics_only ? "" : " (allow it with --host NAME)");
	semel_response_problem(response, SEMEL_PROBLEM_HOST, detail);
}

static bool check(struct semel_http_request *http, struct semel_http_response *response, void *user)
{
	struct semel_admin *admin = user;
	const char *host = semel_http_header(http, "Host");

	if (!semel_host_is_ours(host, &admin->listen, admin->context.options.hosts)) {
		refuse_host(admin, host, response);
		return false;
	}
	const struct semel_route *route =
		semel_route_find(http->method, http->path, http->id, response);
	if (!route)
		return false;
	http->route = route;
	if (admin->context.options.metrics_only && !route->is_monitoring) {
		semel_response_problem(response, SEMEL_PROBLEM_NOT_FOUND,
				       "Only /metrics, /livez and /readyz are served here.");
		return false;
	}
	if (strcmp(route->method, "GET") != 0 &&
	    !semel_origin_is_ours(semel_http_header(http, "Origin"), host)) {
		semel_response_problem(
			response, SEMEL_PROBLEM_ORIGIN,
			"Changes requested by a page of another origin are refused.");
		return false;
	}
	struct semel_token token = token_of(admin, http);
	response->is_trusted = token.role != SEMEL_ROLE_NONE;
	return check_role(admin, route, &token, response);
}

/* ---- serving --------------------------------------------------------------------------------- */

static semel_status check_query(const struct semel_route *route,
				const struct semel_http_request *http, semel_error *error)
{
	const char *unknown = semel_http_unknown_query(http, route->query);
	size_t known = 0;

	if (!unknown)
		return SEMEL_OK;
	while (route->query[known])
		known++;
	const char *nearest = semel_text_nearest(unknown, route->query, known);
	return semel_error_set(error, SEMEL_USAGE, "unknown query parameter %.40s%s%s%s", unknown,
			       nearest ? " (did you mean " : "", nearest ? nearest : "",
			       nearest ? "?)" : "");
}

/* Texts are passed to the store unchanged, and a store accepts only UTF-8. */
static semel_status check_texts(const struct semel_admin_request *request, semel_error *error)
{
	const char *broken = semel_http_broken_query(request->http);

	if (broken)
		return semel_error_set(error, SEMEL_USAGE, "query parameter %.40s must be UTF-8",
				       broken);
	if (!semel_text_is_utf8(semel_text_of(request->id)))
		return semel_error_set(error, SEMEL_NOT_FOUND, "id not found: it is not UTF-8");
	return SEMEL_OK;
}

static void log_change(const struct semel_http_request *http, const char *who, unsigned status)
{
	char detail[320];

	if (strcmp(http->method, "GET") == 0 || strcmp(http->method, "HEAD") == 0)
		return;
	snprintf(detail, sizeof detail, "%s %.200s by %s: status %u", http->method, http->path, who,
		 status ? status : 200);
	semel_log(SEMEL_LOG_INFO, "admin: change requested",
		  &(struct semel_log_fields){ .detail = detail });
}

static semel_status run_route(struct semel_admin_request *request, semel_error *error)
{
	const struct semel_route *route = request->http->route;
	semel_status status = check_query(route, request->http, error);

	if (status != SEMEL_OK)
		return status;
	status = check_texts(request, error);
	if (status != SEMEL_OK)
		return status;
	status = route->serve(request, error);
	/* An idle store may have lost its connection, and then the other idle ones probably have
	 * too: tries again until a new store is opened. */
	while (strcmp(route->method, "GET") == 0 && request->pooled &&
	       semel_status_class(status) == SEMEL_CLASS_OUTAGE) {
		semel_admin_request_close_store(request, false);
		semel_buffer_clear(&request->response->body);
		status = route->serve(request, error);
	}
	return status;
}

static void serve(const struct semel_http_request *http, struct semel_http_response *response,
		  void *user)
{
	struct semel_admin *admin = user;
	struct semel_token token = token_of(admin, http);
	struct semel_admin_request request = { .context = &admin->context,
					       .http = http,
					       .id = http->id,
					       .response = response,
					       .who = token.name,
					       .may_read = may_read(admin, &token) };
	semel_error error = { .status = SEMEL_OK };

	/* Checked again: the token may have been withdrawn while the body arrived. */
	if (!check_role(admin, http->route, &token, response))
		return;
	if (token.role != SEMEL_ROLE_NONE)
		snprintf(response->stream_owner, sizeof response->stream_owner, "%s", token.name);
	request.arena = semel_arena_new(ARENA_BLOCK);
	semel_status status = request.arena ? run_route(&request, &error)
					    : semel_error_set(&error, SEMEL_INTERNAL,
							      "out of memory for a request");
	semel_admin_request_audit_end(&request, status);
	if (status != SEMEL_OK)
		semel_response_failure(
			response, status,
			semel_redaction_error(admin->context.redaction, status, error.text));
	semel_admin_request_close_store(&request, semel_status_class(status) != SEMEL_CLASS_OUTAGE);
	semel_arena_free(request.arena);
	log_change(http, token.name, response->status);
}

/* The token may have been withdrawn, or have lost its role, since the stream was opened. */
static bool may_stream(const char *authorization, void *user)
{
	struct semel_admin *admin = user;

	if (!admin->token_file)
		return true;
	pthread_mutex_lock(&admin->tokens_mutex);
	const struct semel_token *token = semel_tokens_find(&admin->tokens, authorization);
	bool may = token && token->role >= SEMEL_ROLE_READ;
	pthread_mutex_unlock(&admin->tokens_mutex);
	return may;
}

static bool is_quick(const struct semel_http_request *http)
{
	return http->route->is_quick;
}

/* ---- starting -------------------------------------------------------------------------------- */

static semel_status read_file(const char *path, char **text_out, semel_error *error)
{
	FILE *file = fopen(path, "re");
	char *text = file ? calloc(1, FILE_MAX + 1) : NULL;
	size_t length = text ? fread(text, 1, FILE_MAX, file) : 0;
	bool failed = !text || ferror(file) || strlen(text) != length;

	if (failed)
		(void)semel_error_set(error, SEMEL_CONFIG, "cannot read %s: %s", path,
				      file ? "not a text file" : strerror(errno));
	if (file)
		fclose(file);
	*text_out = failed ? NULL : text;
	if (failed)
		free(text);
	return failed ? SEMEL_CONFIG : SEMEL_OK;
}

static semel_status refuse_address(const struct semel_admin_options *options, semel_error *error)
{
	if (options->metrics_only)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"--metrics %s is not a loopback address; beyond loopback use "
			"semel run with a section admin, which has a token and TLS",
			options->listen);
	return semel_error_set(error, SEMEL_CONFIG,
			       "%s is not a loopback address, so a token and TLS are required (add "
			       "--token-file, --tls-cert and --tls-key)",
			       options->listen);
}

static semel_status read_tokens(const char *path, struct semel_tokens *tokens_out,
				semel_error *error)
{
	char *text = NULL;
	semel_status status = read_file(path, &text, error);

	if (status != SEMEL_OK)
		return status;
	status = semel_tokens_parse(text, tokens_out, error);
	explicit_bzero(text, strlen(text));
	free(text);
	return status;
}

static semel_status read_secrets(struct semel_admin *admin,
				 const struct semel_admin_options *options, semel_error *error)
{
	if (!options->tls_cert != !options->tls_key)
		return semel_error_set(error, SEMEL_CONFIG,
				       "--tls-cert and --tls-key must be given together");
	if (!admin->listen.is_loopback && (!options->token_file || !options->tls_cert))
		return refuse_address(options, error);
	if (admin->token_file) {
		semel_status status = read_tokens(admin->token_file, &admin->tokens, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (!options->tls_cert)
		return SEMEL_OK;
	semel_status status = read_file(options->tls_cert, &admin->certificate, error);
	if (status != SEMEL_OK)
		return status;
	return read_file(options->tls_key, &admin->key, error);
}

static semel_status listen_and_serve(struct semel_admin *admin, semel_error *error)
{
	struct semel_http_options http = {
		.listen = admin->listen,
		.port_out = &admin->listen.port,
		.certificate = admin->certificate,
		.key = admin->key,
		.connections_max = CONNECTIONS_MAX,
		.request_ms = REQUEST_MS,
		.env = admin->context.env,
		.check = check,
		.serve = serve,
		.is_quick = is_quick,
		.may_stream = may_stream,
		.user = admin,
	};
	semel_status status = semel_http_start(&http, &admin->http, error);

	if (status != SEMEL_OK)
		return status;
	snprintf(admin->url, sizeof admin->url,
		 admin->listen.is_ipv6 ? "%s://[%s]:%u" : "%s://%s:%u",
		 admin->certificate ? "https" : "http", admin->listen.address, admin->listen.port);
	return SEMEL_OK;
}

static semel_status copy_options(struct semel_admin *admin,
				 const struct semel_admin_options *options, semel_error *error)
{
	pthread_mutex_init(&admin->context.idle_mutex, NULL);
	pthread_mutex_init(&admin->context.whole_event_mutex, NULL);
	pthread_mutex_init(&admin->tokens_mutex, NULL);
	admin->store = strdup(options->store);
	admin->broker = strdup(options->broker);
	admin->context.options = *options;
	admin->context.options.store = admin->store;
	admin->context.options.broker = admin->broker;
	semel_admin_defaults(&admin->context.options);
	admin->slot = strdup(admin->context.options.slot);
	admin->context.options.slot = admin->slot;
	admin->token_file = options->token_file ? strdup(options->token_file) : NULL;
	admin->context.options.token_file = admin->token_file;
	admin->context.options.hosts = (const char *const *)admin->hosts;
	for (size_t i = 0; options->hosts && options->hosts[i]; i++) {
		if (i == HOSTS_MAX)
			return semel_error_set(error, SEMEL_CONFIG, "more than %d --host names",
					       HOSTS_MAX);
		admin->hosts[i] = strdup(options->hosts[i]);
		if (!admin->hosts[i])
			return semel_error_set(error, SEMEL_INTERNAL,
					       "out of memory for host names");
	}
	admin->context.env = semel_env_system();
	admin->context.replays = semel_replays_new();
	admin->context.dashboard = semel_dashboard_new(&admin->context);
	if (!admin->store || !admin->broker || !admin->slot || !admin->context.replays ||
	    !admin->context.dashboard || !admin->token_file != !options->token_file)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the admin server");
	semel_status status =
		semel_redaction_new(options->redact, &admin->context.redaction, error);
	if (status != SEMEL_OK)
		return status;
	return semel_listen_parse(options->listen, &admin->listen, error);
}

semel_status semel_admin_start(const struct semel_admin_options *options,
			       struct semel_admin **admin_out, semel_error *error)
{
	struct semel_admin *admin = calloc(1, sizeof *admin);

	*admin_out = NULL;
	if (!admin)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the admin server");
	semel_status status = copy_options(admin, options, error);
	if (status != SEMEL_OK)
		goto stop;
	status = read_secrets(admin, options, error);
	if (status != SEMEL_OK)
		goto stop;
	status = semel_health_monitor_start(&admin->context, &admin->context.health, error);
	if (status != SEMEL_OK)
		goto stop;
	status = listen_and_serve(admin, error);
	if (status != SEMEL_OK)
		goto stop;
	*admin_out = admin;
	return SEMEL_OK;

stop:
	semel_admin_stop(admin);
	return status;
}

void semel_admin_reload_tokens(struct semel_admin *admin)
{
	struct semel_tokens tokens = { 0 };
	semel_error error = { .status = SEMEL_OK };

	if (!admin || !admin->token_file)
		return;
	semel_status status = read_tokens(admin->token_file, &tokens, &error);
	if (status != SEMEL_OK) {
		semel_log(SEMEL_LOG_ERROR,
			  "admin: cannot reload the token file, the old tokens stay valid",
			  &(struct semel_log_fields){ .error = error.text });
		goto free_tokens;
	}
	pthread_mutex_lock(&admin->tokens_mutex);
	struct semel_tokens old = admin->tokens;
	admin->tokens = tokens;
	tokens = old;
	pthread_mutex_unlock(&admin->tokens_mutex);
	semel_log(SEMEL_LOG_INFO, "admin: token file reloaded", NULL);

free_tokens:
	semel_tokens_free(&tokens);
}

const char *semel_admin_url(const struct semel_admin *admin)
{
	return admin->url;
}

void semel_admin_stop(struct semel_admin *admin)
{
	if (!admin)
		return;
	semel_http_stop(admin->http);
	semel_health_monitor_stop(admin->context.health);
	semel_replays_free(admin->context.replays);
	semel_dashboard_free(admin->context.dashboard);
	semel_redaction_free(admin->context.redaction);
	for (size_t i = 0; i < admin->context.idle_count; i++)
		semel_store_close(admin->context.idle[i]);
	pthread_mutex_destroy(&admin->context.idle_mutex);
	pthread_mutex_destroy(&admin->context.whole_event_mutex);
	pthread_mutex_destroy(&admin->tokens_mutex);
	semel_tokens_free(&admin->tokens);
	if (admin->key)
		explicit_bzero(admin->key, strlen(admin->key));
	free(admin->key);
	free(admin->certificate);
	for (size_t i = 0; admin->hosts[i]; i++)
		free(admin->hosts[i]);
	free(admin->store);
	free(admin->broker);
	free(admin->slot);
	free(admin->token_file);
	free(admin);
}
