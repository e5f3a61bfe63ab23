/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/http.h"

#include "admin/connections.h"
#include "admin/microhttpd.h"
#include "admin/problem.h"
#include "admin/streams.h"
#include "base/error.h"
#include "base/worker_pool.h"
#include "observe/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD_MAX           (32 * 1024)
#define IDLE_MS            60000
#define RESPONSE_MS        300000
#define STALL_MS           20000
#define SOCKETS            2 /* threads that serve sockets and wait for nothing else */
#define WORKERS            4 /* threads that serve requests */
#define WAITING_MAX        64
#define REQUESTS_MAX       1000                       /* over one connection */
#define BODY_BYTES_MAX     (16 * SEMEL_HTTP_BODY_MAX) /* of all requests that are arriving */
#define RESPONSE_BYTES_MAX (64 * 1024 * 1024)         /* of all responses that are being sent */
#define KERNEL_BYTES       (64 * 1024) /* per direction and connection; the kernel doubles it */
#define DEFER_SECONDS      3 /* until a silent connection is accepted; the kernel rounds it up */
#define FILES_PART         4 /* connections use at most this part of the file limit */
#define CONNECTIONS_MIN    32

/* For GnuTLS: TLS 1.2 and 1.3, with forward secrecy and authenticated encryption only. */
#define PRIORITIES                                                                                 \
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:"  \
	"+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM:-MAC-ALL:+AEAD:%SERVER_PRECEDENCE"

/* One request while it arrives and is answered. After it was submitted, only a worker uses it. */
struct exchange {
	struct semel_worker_job job; /* first */
	struct semel_http *http;
	struct semel_http_request request;
	struct semel_http_response response;
	struct semel_buffer body;
	size_t counted; /* of the body */
	bool too_large, busy, submitted;
};

struct semel_http {
	struct semel_http_options options;
	const struct semel_microhttpd *library;
	struct MHD_Daemon *daemon;
	int listener;
	uint16_t port;
	struct semel_connections *connections;
	struct semel_streams *streams;
	struct semel_worker_pool *workers;
	atomic_size_t body_bytes;
};

/* ---- responses ------------------------------------------------------------------------------- */

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

static void header(const struct semel_http *http, struct MHD_Response *mhd_response,
		   const char *name, const char *value)
{
	if (value && *value)
		http->library->add_response_header(mhd_response, name, value);
}

static void add_headers(const struct semel_http *http, struct MHD_Response *mhd_response,
			const struct semel_http_response *response)
{
	header(http, mhd_response, "Content-Type",
	       response->content_type ? response->content_type : "application/json");
	header(http, mhd_response, "Cache-Control",
	       response->cache_control ? response->cache_control : "no-store");
	header(http, mhd_response, "Allow", response->allow);
	header(http, mhd_response, "Location", response->location);
	header(http, mhd_response, "WWW-Authenticate", response->authenticate);
	header(http, mhd_response, "Link", response->link.failed ? NULL : response->link.data);
	header(http, mhd_response, "Retry-After", response->retry_after);
	for (size_t i = 0; i < sizeof always / sizeof *always; i++)
		header(http, mhd_response, always[i].name, always[i].value);
	if (http->options.certificate)
		header(http, mhd_response, "Strict-Transport-Security", "max-age=31536000");
}

static struct MHD_Response *plain_response(const struct semel_http *http,
					   struct semel_http_response *response)
{
	static char nothing[1];

	if (!response->body.data)
		return http->library->create_response_from_buffer(0, nothing,
								  MHD_RESPMEM_PERSISTENT);
	/* From here on libmicrohttpd owns the bytes and frees them. */
	return http->library->create_response_from_buffer(
		response->body.length, response->body.data, MHD_RESPMEM_MUST_FREE);
}

static void refuse_busy(struct semel_http_response *response)
{
	semel_response_problem(response, SEMEL_PROBLEM_BUSY,
			       "Too many requests at once; try again in a second.");
	response->retry_after = "1";
}

static struct MHD_Response *response_of(struct semel_http *http, struct MHD_Connection *connection,
					struct semel_http_response *response)
{
	if (response->stream && response->stream_owner[0] == '\0')
		semel_connection_address(http->connections, connection, response->stream_owner);
	struct MHD_Response *mhd_response =
		response->stream ? semel_streams_response(http->streams, connection, response)
				 : NULL;

	if (!mhd_response && response->stream)
		refuse_busy(response);
	semel_connection_move(http->connections, connection,
			      mhd_response ? SEMEL_CONNECTION_STREAMS : SEMEL_CONNECTION_SENDS,
			      mhd_response ? 0 : response->body.length);
	return mhd_response ? mhd_response : plain_response(http, response);
}

static enum MHD_Result send_response(struct semel_http *http, struct MHD_Connection *connection,
				     struct semel_http_response *response)
{
	if (response->body.failed) {
		semel_buffer_free(&response->body);
		return MHD_NO;
	}
	struct MHD_Response *mhd_response = response_of(http, connection, response);
	if (!mhd_response)
		return MHD_NO;
	response->body = (struct semel_buffer){ 0 }; /* mhd_response owns it */
	add_headers(http, mhd_response, response);
	if (semel_connection_is_last_response(http->connections, connection))
		header(http, mhd_response, "Connection", "close");
	enum MHD_Result result = http->library->queue_response(
		connection, response->status ? response->status : MHD_HTTP_OK, mhd_response);
	http->library->destroy_response(mhd_response);
	return result;
}

/* ---- malformed requests ---------------------------------------------------------------------- */

/* Counts of headers that a proxy in between might interpret differently. */
struct framing {
	uint32_t hosts, lengths, encodings;
	bool chunked;
};

static enum MHD_Result count_framing(void *user, enum MHD_ValueKind kind, const char *name,
				     const char *value)
{
	struct framing *framing = user;

	(void)kind;
	framing->hosts += strcasecmp(name, "Host") == 0;
	framing->lengths += strcasecmp(name, "Content-Length") == 0;
	if (strcasecmp(name, "Transfer-Encoding") == 0) {
		framing->encodings++;
		framing->chunked = value && strcasecmp(value, "chunked") == 0;
	}
	return MHD_YES;
}

static bool is_ambiguous(const struct semel_http *http, const struct semel_http_request *request)
{
	struct framing framing = { 0 };

	http->library->get_connection_values(request->connection, MHD_HEADER_KIND, count_framing,
					     &framing);
	return framing.hosts > 1 || framing.lengths + framing.encodings > 1 ||
	       (framing.encodings == 1 && !framing.chunked);
}

static bool has_long_head(const struct semel_http *http, const struct semel_http_request *request)
{
	const union MHD_ConnectionInfo *info = http->library->get_connection_info(
		request->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);

	return info && info->header_size > HEAD_MAX;
}

/* A body that is slightly too large is read and dropped, so that its sender gets the response; one
 * that is far too large is not read. */
static bool declares_too_much(const struct semel_http_request *request)
{
	const char *length = semel_http_header(request, "Content-Length");

	return length && strtoull(length, NULL, 10) > 8 * SEMEL_HTTP_BODY_MAX;
}

static void refuse_too_large(struct semel_http_response *response)
{
	semel_response_problem(response, SEMEL_PROBLEM_TOO_LARGE, "A body can have at most 1 MiB.");
}

/* libmicrohttpd would truncate a text at a NUL byte and act on the rest. The addresses of these
 * two mark such a request, in place of an exchange, from the request line to the first call of
 * handle(). */
static char zero_in_path, zero_in_query;

static bool is_zero_mark(const void *context)
{
	return context == &zero_in_path || context == &zero_in_query;
}

static void *check_request_line(void *user, const char *uri, struct MHD_Connection *connection)
{
	struct semel_http *http = user;
	const char *zero = strstr(uri, "%00");

	semel_connection_move(http->connections, connection, SEMEL_CONNECTION_RECEIVES, 0);
	if (!zero)
		return NULL;
	return zero < uri + strcspn(uri, "?") ? &zero_in_path : &zero_in_query;
}

/* True: the request is malformed, and the response says why. */
static bool refuse_malformed(const struct semel_http *http,
			     const struct semel_http_request *request, const void *context,
			     struct semel_http_response *response)
{
	if (has_long_head(http, request))
		semel_response_problem(response, SEMEL_PROBLEM_HEAD,
				       "Request line and headers can have at most 32 KiB.");
	else if (context == &zero_in_path)
		semel_response_problem(response, SEMEL_PROBLEM_NOT_FOUND,
				       "A path must not contain a NUL byte.");
	else if (context == &zero_in_query)
		semel_response_problem(response, SEMEL_PROBLEM_MALFORMED,
				       "A query must not contain a NUL byte.");
	else if (is_ambiguous(http, request))
		semel_response_problem(response, SEMEL_PROBLEM_MALFORMED,
				       "The header Host, Content-Length or Transfer-Encoding is "
				       "repeated, contradictory or not supported.");
	else if (declares_too_much(request))
		refuse_too_large(response);
	else
		return false;
	return true;
}

/* ---- requests -------------------------------------------------------------------------------- */

static enum MHD_Result begin(struct semel_http *http, struct semel_http_request *request,
			     void **context)
{
	struct semel_http_response response = { 0 };
	bool refused = refuse_malformed(http, request, *context, &response);

	*context = NULL;
	refused = refused || !http->options.check(request, &response, http->options.user);
	semel_connection_trust(http->connections, request->connection, response.is_trusted);
	if (refused)
		return send_response(http, request->connection, &response);
	semel_buffer_free(&response.body);
	struct exchange *exchange = calloc(1, sizeof *exchange);
	if (!exchange)
		return MHD_NO;
	exchange->http = http;
	exchange->request = *request;
	*context = exchange;
	return MHD_YES;
}

static void append_body(struct exchange *exchange, const char *data, size_t *size)
{
	struct semel_http *http = exchange->http;

	if (exchange->body.length + *size > SEMEL_HTTP_BODY_MAX)
		exchange->too_large = true;
	else if (atomic_fetch_add(&http->body_bytes, *size) + *size > BODY_BYTES_MAX)
		exchange->busy = true, atomic_fetch_sub(&http->body_bytes, *size);
	else
		semel_buffer_append(&exchange->body, data, *size), exchange->counted += *size;
	*size = 0;
}

/* Runs on a worker's thread. The connection is resumed last, because from then on the exchange
 * belongs to libmicrohttpd again. */
static void serve_exchange(struct semel_worker_job *job, void *worker, bool abandoned)
{
	struct exchange *exchange = (struct exchange *)job;
	struct semel_http *http = exchange->http;

	(void)worker;
	if (abandoned)
		refuse_busy(&exchange->response);
	else
		http->options.serve(&exchange->request, &exchange->response, http->options.user);
	http->library->resume_connection(exchange->request.connection);
}

/* When the connection is resumed, libmicrohttpd calls handle() again, without data. */
static enum MHD_Result submit(struct semel_http *http, struct exchange *exchange)
{
	struct MHD_Connection *connection = exchange->request.connection;

	exchange->submitted = true;
	exchange->job.run = serve_exchange;
	bool may_wait = semel_connection_can_wait(http->connections, connection);
	semel_connection_move(http->connections, connection, SEMEL_CONNECTION_WAITS, 0);
	http->library->suspend_connection(connection);
	if (!may_wait || !semel_worker_pool_submit(http->workers, &exchange->job)) {
		refuse_busy(&exchange->response);
		http->library->resume_connection(connection);
	}
	return MHD_YES;
}

static enum MHD_Result finish(struct semel_http *http, struct exchange *exchange)
{
	if (exchange->submitted)
		return send_response(http, exchange->request.connection, &exchange->response);
	exchange->request.body = semel_buffer_text(&exchange->body);
	if (!exchange->too_large && !exchange->busy && !http->options.is_quick(&exchange->request))
		return submit(http, exchange);
	if (exchange->too_large)
		refuse_too_large(&exchange->response);
	else if (exchange->busy)
		refuse_busy(&exchange->response);
	else
		http->options.serve(&exchange->request, &exchange->response, http->options.user);
	return send_response(http, exchange->request.connection, &exchange->response);
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
	if (!exchange || is_zero_mark(exchange))
		return begin(http, &request, context);
	if (*size > 0) {
		append_body(exchange, data, size);
		return MHD_YES;
	}
	return finish(http, exchange);
}

static void completed(void *user, struct MHD_Connection *connection, void **context,
		      enum MHD_RequestTerminationCode code)
{
	struct semel_http *http = user;
	struct exchange *exchange = *context;

	(void)code;
	semel_connection_move(http->connections, connection, SEMEL_CONNECTION_IDLE, 0);
	if (!exchange || is_zero_mark(exchange))
		return;
	atomic_fetch_sub(&http->body_bytes, exchange->counted);
	semel_buffer_free(&exchange->body);
	semel_buffer_free(&exchange->response.body);
	semel_buffer_free(&exchange->response.link);
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

static enum MHD_Result find_broken(void *user, enum MHD_ValueKind kind, const char *name,
				   const char *value)
{
	const char **found = user;

	(void)kind;
	if (semel_text_is_utf8(semel_text_of(value)))
		return MHD_YES;
	*found = name;
	return MHD_NO;
}

const char *semel_http_broken_query(const struct semel_http_request *request)
{
	const struct semel_microhttpd *library = NULL;
	const char *found = NULL;

	if (semel_microhttpd_load(&library, NULL) != SEMEL_OK)
		return NULL;
	library->get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, find_broken,
				       &found);
	return found;
}

static enum MHD_Result find_unknown(void *user, enum MHD_ValueKind kind, const char *name,
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
	library->get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, find_unknown,
				       &unknown);
	return unknown.found;
}

/* ---- starting and stopping ------------------------------------------------------------------- */

static socklen_t socket_address(const struct semel_listen_address *listen,
				struct sockaddr_storage *out)
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
	const struct semel_listen_address *listen_at = &http->options.listen;
	struct sockaddr_storage address;
	socklen_t length = socket_address(listen_at, &address);
	int yes = 1, bytes = KERNEL_BYTES, seconds = DEFER_SECONDS;
	unsigned stall_ms = STALL_MS;

	http->listener = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (http->listener >= 0) {
		setsockopt(http->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
		/* Connections inherit this; otherwise the kernel would hold megabytes for each. */
		setsockopt(http->listener, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
		setsockopt(http->listener, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
		/* Bounds how long data may stay unacknowledged, even after the connection was
		 * closed. */
		setsockopt(http->listener, IPPROTO_TCP, TCP_USER_TIMEOUT, &stall_ms,
			   sizeof stall_ms);
		/* A connection is accepted only when it has sent something. */
		setsockopt(http->listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
	}
	if (http->listener < 0 || bind(http->listener, (struct sockaddr *)&address, length) != 0 ||
	    listen(http->listener, SOMAXCONN) != 0)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"cannot listen on %s port %u: %s (choose another address with "
			"--listen or --metrics)",
			listen_at->address, listen_at->port, strerror(errno));
	getsockname(http->listener, (struct sockaddr *)&address, &length);
	http->port = ntohs(listen_at->is_ipv6 ? ((struct sockaddr_in6 *)&address)->sin6_port
					      : ((struct sockaddr_in *)&address)->sin_port);
	*http->options.port_out = http->port;
	return SEMEL_OK;
}

static void log_line(void *user, const char *format, va_list arguments) SEMEL_PRINTF(2, 0);
static void log_line(void *user, const char *format, va_list arguments)
{
	char text[256];

	(void)user;
	vsnprintf(text, sizeof text, format, arguments);
	text[strcspn(text, "\n")] = '\0';
	semel_log(SEMEL_LOG_DEBUG, "admin: message from libmicrohttpd",
		  &(struct semel_log_fields){ .detail = text });
}

static semel_status start_daemon(struct semel_http *http, semel_error *error)
{
	const struct semel_http_options *options = &http->options;
	unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
			 MHD_USE_ERROR_LOG | (options->certificate ? MHD_USE_TLS : 0);
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)options->certificate },
		{ MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)options->key },
		{ MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)PRIORITIES },
		{ MHD_OPTION_END, 0, NULL },
	};

	if (options->certificate && !http->library->is_feature_supported(MHD_FEATURE_TLS))
		return semel_error_set(
			error, SEMEL_CONFIG,
			"libmicrohttpd on this machine was built without TLS (install a build with "
			"GnuTLS, or remove --tls-cert and --tls-key)");
	http->daemon = http->library->start_daemon(
		flags, http->port, NULL, NULL, handle, http, MHD_OPTION_EXTERNAL_LOGGER, log_line,
		NULL, MHD_OPTION_LISTEN_SOCKET, http->listener, MHD_OPTION_THREAD_POOL_SIZE,
		(unsigned)SOCKETS, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)(SOCKETS * options->connections_max), /* each may have all of them */
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_MAX * 2,
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(IDLE_MS / 1000),
		MHD_OPTION_NOTIFY_CONNECTION, semel_connections_notice, http->connections,
		MHD_OPTION_URI_LOG_CALLBACK, check_request_line, http, MHD_OPTION_NOTIFY_COMPLETED,
		completed, http, MHD_OPTION_ARRAY, options->certificate ? tls : tls + 3,
		MHD_OPTION_END);
	if (!http->daemon)
		return semel_error_set(
			error, SEMEL_CONFIG, "cannot start the admin server on %s port %u (%s)",
			options->listen.address, http->port,
			options->certificate ? "is the certificate PEM, and does the key "
					       "belong to it?"
					     : "the reason is logged with "
					       "SEMEL_LOG_LEVEL=debug");
	http->listener = -1; /* closed with the daemon */
	return SEMEL_OK;
}

static semel_status start_parts(struct semel_http *http, semel_error *error)
{
	const struct semel_http_options *options = &http->options;
	/* The rest is for connections that were aborted and are not closed yet. What cannot be
	 * evicted (waiting requests, streams) is bounded well below the capacity. */
	uint32_t capacity = options->connections_max - options->connections_max / 4;
	uint32_t waiting_max = capacity / 2 < WAITING_MAX ? capacity / 2 : WAITING_MAX;
	struct semel_connections_options connections = {
		.library = http->library,
		.env = options->env,
		.count_max = capacity,
		.per_address_max = options->connections_max / 2,
		.waiting_per_address_max = waiting_max / 2,
		.requests_max = REQUESTS_MAX,
		.response_bytes_max = RESPONSE_BYTES_MAX,
		.request_ms = options->request_ms,
		.idle_ms = IDLE_MS,
		.response_ms = RESPONSE_MS,
		.stall_ms = STALL_MS,
	};
	struct semel_streams_options streams = {
		.library = http->library,
		.env = options->env,
		.count_max = capacity / 4 < SEMEL_STREAMS_MAX ? capacity / 4 : SEMEL_STREAMS_MAX,
		.may_continue = options->may_stream,
		.user = options->user,
	};
	const struct semel_worker_pool_options workers = { .threads = WORKERS,
							   .queue_max = waiting_max };
	semel_status status = semel_connections_start(&connections, &http->connections, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_streams_start(&streams, &http->streams, error);
	if (status != SEMEL_OK)
		return status;
	return semel_worker_pool_start(&workers, &http->workers, error);
}

/* Other parts of the process open files too, so a flood of connections must not use up the
 * limit. */
static uint32_t bound_by_files(uint32_t connections)
{
	struct rlimit files = { 0 };

	if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / FILES_PART >= connections)
		return connections;
	uint32_t fewer = (uint32_t)(files.rlim_cur / FILES_PART);
	return fewer > CONNECTIONS_MIN ? fewer : CONNECTIONS_MIN;
}

semel_status semel_http_start(const struct semel_http_options *options,
			      struct semel_http **http_out, semel_error *error)
{
	struct semel_http *http = calloc(1, sizeof *http);

	*http_out = NULL;
	if (!http)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the admin server");
	http->options = *options;
	http->options.connections_max = bound_by_files(options->connections_max);
	http->listener = -1;
	semel_status status = semel_microhttpd_load(&http->library, error);
	if (status != SEMEL_OK)
		goto stop;
	status = open_listener(http, error);
	if (status != SEMEL_OK)
		goto stop;
	status = start_parts(http, error);
	if (status != SEMEL_OK)
		goto stop;
	status = start_daemon(http, error);
	if (status != SEMEL_OK)
		goto stop;
	*http_out = http;
	return SEMEL_OK;

stop:
	semel_http_stop(http);
	return status;
}

/* No connection may be suspended when the daemon stops, so what resumes them stops first. */
void semel_http_stop(struct semel_http *http)
{
	if (!http)
		return;
	if (http->connections)
		semel_connections_stop(http->connections);
	semel_worker_pool_stop(http->workers);
	if (http->streams)
		semel_streams_stop(http->streams);
	if (http->daemon)
		http->library->stop_daemon(http->daemon);
	if (http->listener >= 0)
		close(http->listener);
	semel_worker_pool_free(http->workers);
	semel_streams_free(http->streams);
	semel_connections_free(http->connections);
	free(http);
}
