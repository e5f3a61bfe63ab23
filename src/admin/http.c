/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/http.h"

#include "admin/microhttpd.h"
#include "base/error.h"
#include "base/wake.h"
#include "observe/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_MAX    (32 * 1024)
#define IDLE_MS     60000
#define TICK_MS     1000
#define THREADS     4
#define STREAMS_MAX 32

/* One connection, and when it is cut. */
struct guest {
	struct guest *next, *previous;
	int fd;
	int64_t deadline_ms; /* steady */
};

/* One request while it comes in and is answered. */
struct exchange {
	struct semel_http *http;
	struct semel_buffer body;
	bool too_large;
};

struct stream {
	struct stream *next, *previous;
	struct semel_http *http;
	struct MHD_Connection *connection;
	bool (*fill)(struct semel_buffer *chunk, void *user);
	void *user;
	struct semel_buffer chunk;
	size_t sent;
	bool suspended;
};

struct semel_http {
	struct semel_http_options options;
	const struct semel_microhttpd *library;
	struct MHD_Daemon *daemon;
	int listener;
	uint16_t port;
	struct semel_wake *wake;
	pthread_t keeper;
	bool keeper_runs;
	pthread_mutex_t lock; /* of the lists and stopping */
	struct guest *guests;
	struct stream *streams;
	uint32_t stream_count;
	bool stopping;
};

/* ---- guests: who is connected, and for how long ---------------------------------------------- */

static void guest_arrives(struct semel_http *http, struct MHD_Connection *connection,
			  void **context)
{
	const union MHD_ConnectionInfo *info =
		http->library->get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct guest *guest = calloc(1, sizeof *guest);

	*context = guest;
	if (!guest)
		return;
	guest->fd = info ? info->connect_fd : -1;
	guest->deadline_ms = semel_steady_ms(http->options.env) + http->options.request_ms;
	pthread_mutex_lock(&http->lock);
	guest->next = http->guests;
	if (guest->next)
		guest->next->previous = guest;
	http->guests = guest;
	pthread_mutex_unlock(&http->lock);
}

static void guest_leaves(struct semel_http *http, struct guest *guest)
{
	if (!guest)
		return;
	pthread_mutex_lock(&http->lock);
	if (guest->next)
		guest->next->previous = guest->previous;
	if (guest->previous)
		guest->previous->next = guest->next;
	else
		http->guests = guest->next;
	pthread_mutex_unlock(&http->lock);
	free(guest);
}

static void connection_seen(void *user, struct MHD_Connection *connection, void **context,
			    enum MHD_ConnectionNotificationCode code)
{
	if (code == MHD_CONNECTION_NOTIFY_STARTED)
		guest_arrives(user, connection, context);
	else
		guest_leaves(user, *context);
}

static void allow_until(struct semel_http *http, struct MHD_Connection *connection,
			int64_t deadline_ms)
{
	const union MHD_ConnectionInfo *info =
		http->library->get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct guest *guest = info ? info->socket_context : NULL;

	if (!guest)
		return;
	pthread_mutex_lock(&http->lock);
	guest->deadline_ms = deadline_ms;
	pthread_mutex_unlock(&http->lock);
}

static void cut_overdue(struct semel_http *http)
{
	int64_t now_ms = semel_steady_ms(http->options.env);

	for (struct guest *guest = http->guests; guest; guest = guest->next)
		if (guest->fd >= 0 && now_ms > guest->deadline_ms)
			shutdown(guest->fd, SHUT_RDWR);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void resume(struct stream *stream)
{
	if (!stream->suspended)
		return;
	stream->suspended = false;
	stream->http->library->resume_connection(stream->connection);
}

static ssize_t stream_read(void *user, uint64_t position, char *out, size_t max)
{
	struct stream *stream = user;
	struct semel_http *http = stream->http;

	(void)position;
	pthread_mutex_lock(&http->lock);
	bool stopping = http->stopping;
	pthread_mutex_unlock(&http->lock);
	if (stopping)
		return MHD_CONTENT_READER_END_OF_STREAM;
	if (stream->sent == stream->chunk.length) {
		semel_buffer_clear(&stream->chunk);
		stream->sent = 0;
		if (!stream->fill(&stream->chunk, stream->user) || stream->chunk.failed)
			return MHD_CONTENT_READER_END_OF_STREAM;
	}
	size_t left = stream->chunk.length - stream->sent;
	size_t taken = left < max ? left : max;
	memcpy(out, stream->chunk.data + stream->sent, taken);
	stream->sent += taken;
	if (stream->sent < stream->chunk.length)
		return (ssize_t)taken;
	pthread_mutex_lock(&http->lock);
	if (!http->stopping && !stream->suspended) {
		stream->suspended = true;
		http->library->suspend_connection(stream->connection);
	}
	pthread_mutex_unlock(&http->lock);
	return (ssize_t)taken;
}

static void stream_free(void *user)
{
	struct stream *stream = user;
	struct semel_http *http = stream->http;

	pthread_mutex_lock(&http->lock);
	if (stream->next)
		stream->next->previous = stream->previous;
	if (stream->previous)
		stream->previous->next = stream->next;
	else if (http->streams == stream)
		http->streams = stream->next;
	http->stream_count--;
	pthread_mutex_unlock(&http->lock);
	semel_buffer_free(&stream->chunk);
	free(stream);
}

/* NULL: too many, or no memory. */
static struct stream *stream_new(struct semel_http *http, struct MHD_Connection *connection,
				 const struct semel_http_answer *answer)
{
	struct stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	*stream = (struct stream){ .http = http,
				   .connection = connection,
				   .fill = answer->stream,
				   .user = answer->stream_user };
	pthread_mutex_lock(&http->lock);
	bool room = http->stream_count < STREAMS_MAX && !http->stopping;
	if (room) {
		http->stream_count++;
		stream->next = http->streams;
		if (stream->next)
			stream->next->previous = stream;
		http->streams = stream;
	}
	pthread_mutex_unlock(&http->lock);
	if (room)
		return stream;
	free(stream);
	return NULL;
}

/* ---- the keeper: once a second it cuts who is overdue and feeds the streams -------------------
 */

static void *keep(void *user)
{
	struct semel_http *http = user;

	while (!semel_wake_rung(http->wake)) {
		semel_wake_sleep(http->wake, TICK_MS);
		pthread_mutex_lock(&http->lock);
		cut_overdue(http);
		for (struct stream *stream = http->streams; stream; stream = stream->next)
			resume(stream);
		pthread_mutex_unlock(&http->lock);
	}
	return NULL;
}

/* ---- answers --------------------------------------------------------------------------------- */

static const struct {
	const char *name, *value;
} always[] = {
	{ "X-Content-Type-Options", "nosniff" },
	{ "X-Frame-Options", "DENY" },
	{ "Referrer-Policy", "no-referrer" },
	{ "Cross-Origin-Resource-Policy", "same-origin" },
	{ "Cross-Origin-Opener-Policy", "same-origin" },
	{ "Content-Security-Policy",
	  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
	  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
};

static void header(const struct semel_http *http, struct MHD_Response *response, const char *name,
		   const char *value)
{
	if (value && *value)
		http->library->add_response_header(response, name, value);
}

static void add_headers(const struct semel_http *http, struct MHD_Response *response,
			const struct semel_http_answer *answer)
{
	header(http, response, "Content-Type",
	       answer->content_type ? answer->content_type : "application/json");
	header(http, response, "Cache-Control",
	       answer->cache_control ? answer->cache_control : "no-store");
	header(http, response, "Allow", answer->allow);
	header(http, response, "Location", answer->location);
	header(http, response, "WWW-Authenticate", answer->authenticate);
	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		header(http, response, always[i].name, always[i].value);
	if (http->options.certificate)
		header(http, response, "Strict-Transport-Security", "max-age=31536000");
}

static struct MHD_Response *plain_response(const struct semel_http *http,
					   struct semel_http_answer *answer)
{
	static char nothing[1];

	if (!answer->body.data)
		return http->library->create_response_from_buffer(0, nothing,
								  MHD_RESPMEM_PERSISTENT);
	/* From here on the bytes are the library's: it frees them. */
	return http->library->create_response_from_buffer(answer->body.length, answer->body.data,
							  MHD_RESPMEM_MUST_FREE);
}

static struct MHD_Response *stream_response(struct semel_http *http,
					    struct MHD_Connection *connection,
					    struct semel_http_answer *answer)
{
	struct stream *stream = stream_new(http, connection, answer);

	if (!stream) {
		answer->status = MHD_HTTP_SERVICE_UNAVAILABLE;
		return plain_response(http, answer);
	}
	allow_until(http, connection, INT64_MAX);
	return http->library->create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, stream_read,
							    stream, stream_free);
}

static enum MHD_Result send_answer(struct semel_http *http, struct MHD_Connection *connection,
				   struct semel_http_answer *answer)
{
	if (answer->body.failed) {
		semel_buffer_free(&answer->body);
		return MHD_NO;
	}
	struct MHD_Response *response = answer->stream ? stream_response(http, connection, answer)
						       : plain_response(http, answer);
	if (!response)
		return MHD_NO;
	add_headers(http, response, answer);
	enum MHD_Result result = http->library->queue_response(
		connection, answer->status ? answer->status : MHD_HTTP_OK, response);
	http->library->destroy_response(response);
	return result;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A body somewhat too large is read and thrown away, so that its sender hears the answer; what is
 * far too large is not worth reading. */
static bool declares_too_much(const struct semel_http_request *request)
{
	const char *length = semel_http_header(request, "Content-Length");

	return length && strtoull(length, NULL, 10) > 8 * SEMEL_HTTP_BODY_MAX;
}

static void say_too_large(struct semel_http_answer *answer)
{
	answer->status = MHD_HTTP_CONTENT_TOO_LARGE;
	answer->content_type = "application/problem+json";
	semel_buffer_string(&answer->body,
			    "{\"type\":\"/problems/too-large\",\"title\":\"The body is too large\","
			    "\"status\":413,\"detail\":\"A body may have 1 MiB.\"}");
}

static enum MHD_Result begin(struct semel_http *http, struct semel_http_request *request,
			     void **context)
{
	struct semel_http_answer answer = { 0 };

	if (declares_too_much(request))
		say_too_large(&answer);
	else if (http->options.check(request, &answer, http->options.user))
		goto go_on;
	return send_answer(http, request->connection, &answer);

go_on:
	semel_buffer_free(&answer.body);
	struct exchange *exchange = calloc(1, sizeof *exchange);
	if (!exchange)
		return MHD_NO;
	exchange->http = http;
	*context = exchange;
	return MHD_YES;
}

static void take_part(struct exchange *exchange, const char *data, size_t *size)
{
	if (exchange->body.length + *size > SEMEL_HTTP_BODY_MAX)
		exchange->too_large = true;
	else
		semel_buffer_append(&exchange->body, data, *size);
	*size = 0;
}

static enum MHD_Result finish(struct semel_http *http, struct semel_http_request *request,
			      struct exchange *exchange)
{
	struct semel_http_answer answer = { 0 };

	request->body = semel_buffer_text(&exchange->body);
	if (exchange->too_large)
		say_too_large(&answer);
	else
		http->options.serve(request, &answer, http->options.user);
	return send_answer(http, request->connection, &answer);
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *path,
			      const char *method, const char *version, const char *data,
			      size_t *size, void **context)
{
	struct semel_http *http = user;
	struct semel_http_request request = { .method = method,
					      .path = path,
					      .connection = connection };
	struct exchange *exchange = *context;

	(void)version;
	if (!exchange)
		return begin(http, &request, context);
	if (*size > 0) {
		take_part(exchange, data, size);
		return MHD_YES;
	}
	return finish(http, &request, exchange);
}

static void completed(void *user, struct MHD_Connection *connection, void **context,
		      enum MHD_RequestTerminationCode code)
{
	struct semel_http *http = user;
	struct exchange *exchange = *context;

	(void)code;
	allow_until(http, connection, semel_steady_ms(http->options.env) + IDLE_MS);
	if (!exchange)
		return;
	semel_buffer_free(&exchange->body);
	free(exchange);
	*context = NULL;
}

const char *semel_http_query(const struct semel_http_request *request, const char *name)
{
	const struct semel_microhttpd *library = NULL;

	if (semel_microhttpd_load(&library, NULL) != SEMEL_OK)
		return NULL;
	return library->lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *semel_http_header(const struct semel_http_request *request, const char *name)
{
	const struct semel_microhttpd *library = NULL;

	if (semel_microhttpd_load(&library, NULL) != SEMEL_OK)
		return NULL;
	return library->lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

struct unknown {
	const char *const *known;
	const char *found;
};

static enum MHD_Result look_at_query(void *user, enum MHD_ValueKind kind, const char *name,
				     const char *value)
{
	struct unknown *unknown = user;

	(void)kind;
	(void)value;
	for (size_t i = 0; unknown->known && unknown->known[i]; i++)
		if (strcmp(unknown->known[i], name) == 0)
			return MHD_YES;
	unknown->found = name;
	return MHD_NO;
}

const char *semel_http_unknown_query(const struct semel_http_request *request,
				     const char *const *known)
{
	const struct semel_microhttpd *library = NULL;
	struct unknown unknown = { .known = known };

	if (semel_microhttpd_load(&library, NULL) != SEMEL_OK)
		return NULL;
	library->get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, look_at_query,
				       &unknown);
	return unknown.found;
}

/* ---- starting and stopping ------------------------------------------------------------------- */

static socklen_t socket_address(const struct semel_listen *listen, struct sockaddr_storage *out)
{
	struct sockaddr_in *four = (struct sockaddr_in *)out;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

	*out = (struct sockaddr_storage){ 0 };
	if (listen->is_ipv6) {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(listen->port);
		inet_pton(AF_INET6, listen->address, &six->sin6_addr);
		return sizeof *six;
	}
	four->sin_family = AF_INET;
	four->sin_port = htons(listen->port);
	inet_pton(AF_INET, listen->address, &four->sin_addr);
	return sizeof *four;
}

static semel_status open_listener(struct semel_http *http, semel_error *error)
{
	const struct semel_listen *listen_at = &http->options.listen;
	struct sockaddr_storage address;
	socklen_t length = socket_address(listen_at, &address);
	int yes = 1;

	http->listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (http->listener >= 0)
		setsockopt(http->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (http->listener < 0 || bind(http->listener, (struct sockaddr *)&address, length) != 0 ||
	    listen(http->listener, SOMAXCONN) != 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "cannot listen on %s port %u: %s; choose another with "
				       "--listen",
				       listen_at->address, listen_at->port, strerror(errno));
	getsockname(http->listener, (struct sockaddr *)&address, &length);
	http->port = ntohs(listen_at->is_ipv6 ? ((struct sockaddr_in6 *)&address)->sin6_port
					      : ((struct sockaddr_in *)&address)->sin_port);
	http->options.listen.port = http->port;
	return SEMEL_OK;
}

static void say(void *user, const char *format, va_list arguments) SEMEL_PRINTF(2, 0);
static void say(void *user, const char *format, va_list arguments)
{
	char text[256];

	(void)user;
	vsnprintf(text, sizeof text, format, arguments);
	text[strcspn(text, "\n")] = '\0';
	semel_logf(SEMEL_LOG_DEBUG, "admin server: %s", text);
}

static semel_status start_daemon(struct semel_http *http, semel_error *error)
{
	const struct semel_http_options *options = &http->options;
	unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
			 MHD_USE_ERROR_LOG | (options->certificate ? MHD_USE_TLS : 0);
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)options->certificate },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)options->key },
		{ MHD_OPTION_END, 0, NULL },
	};

	if (options->certificate && !http->library->is_feature_supported(MHD_FEATURE_TLS))
		return semel_error_set(error, SEMEL_CONFIG,
				       "this machine's libmicrohttpd was built without TLS");
	http->daemon = http->library->start_daemon(
		flags, http->port, NULL, NULL, handle, http, MHD_OPTION_EXTERNAL_LOGGER, say, NULL,
		MHD_OPTION_LISTEN_SOCKET, http->listener, MHD_OPTION_THREAD_POOL_SIZE,
		(unsigned)THREADS, MHD_OPTION_CONNECTION_LIMIT, (unsigned)options->connections_max,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_MAX * 2,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(IDLE_MS / 1000),
		MHD_OPTION_NOTIFY_CONNECTION, connection_seen, http, MHD_OPTION_NOTIFY_COMPLETED,
		completed, http, MHD_OPTION_ARRAY, options->certificate ? tls : tls + 2,
		MHD_OPTION_END);
	if (!http->daemon)
		return semel_error_set(error, SEMEL_CONFIG,
				       options->certificate
					       ? "the admin server does not start: is the "
						 "certificate PEM, and the key its own?"
					       : "the admin server does not start");
	http->listener = -1; /* closed with the daemon */
	return SEMEL_OK;
}

semel_status semel_http_start(const struct semel_http_options *options,
			      struct semel_http **http_out, semel_error *error)
{
	struct semel_http *http = calloc(1, sizeof *http);

	*http_out = NULL;
	if (!http)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the admin server");
	http->options = *options;
	http->listener = -1;
	pthread_mutex_init(&http->lock, NULL);
	semel_status status = semel_microhttpd_load(&http->library, error);
	if (status == SEMEL_OK)
		status = semel_wake_new(&http->wake, error);
	if (status == SEMEL_OK)
		status = open_listener(http, error);
	if (status == SEMEL_OK)
		status = start_daemon(http, error);
	if (status == SEMEL_OK && pthread_create(&http->keeper, NULL, keep, http) != 0)
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the admin server");
	http->keeper_runs = status == SEMEL_OK;
	if (status != SEMEL_OK) {
		semel_http_stop(http);
		return status;
	}
	*http_out = http;
	return SEMEL_OK;
}

uint16_t semel_http_port(const struct semel_http *http)
{
	return http->port;
}

void semel_http_stop(struct semel_http *http)
{
	if (!http)
		return;
	if (http->keeper_runs) {
		semel_wake_ring(http->wake);
		pthread_join(http->keeper, NULL);
	}
	pthread_mutex_lock(&http->lock);
	http->stopping = true;
	for (struct stream *stream = http->streams; stream; stream = stream->next)
		resume(stream);
	pthread_mutex_unlock(&http->lock);
	if (http->daemon)
		http->library->stop_daemon(http->daemon);
	if (http->listener >= 0)
		close(http->listener);
	semel_wake_free(http->wake);
	pthread_mutex_destroy(&http->lock);
	free(http);
}
