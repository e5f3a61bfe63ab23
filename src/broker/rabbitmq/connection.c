/* SPDX-License-Identifier: Apache-2.0 */
/* The connection: opening it, what its errors mean, and closing it so that no ack is lost.
 *
 * - The broker is unreachable, or the connection breaks: OUTAGE. The login, the host or an argument
 *   is refused: CONFIG, with the broker's own words.
 *
 * TLS: the library makes the session and reads from it; we write, so that amqp: and amqps: have one
 * write path (write.c).
 *
 * - The library does not expose its session, but OpenSSL calls back when the handshake begins, on
 *   the thread that opens the socket.
 * - If the socket accepted only part of a record, OpenSSL has to finish it, with the same bytes.
 *   They are still at the start of the output then, and the library writes nothing before all of
 *   the output is written.
 * - The library frees the session when it closes the socket; a connection that is lost writes
 *   nothing any more.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "observe/log.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/time.h>
#include <threads.h>
#include <unistd.h>

#define CONNECT_TIMEOUT_S 5
#define CALL_TIMEOUT_S    30
#define CLOSE_TIMEOUT_S   5
#define FRAME_MAX         131072
#define CHANNEL_MAX       2047

/* As openssl/ssl.h has them. */
#define CONTROL_MODE             33
#define MODE_PARTIAL_WRITE       1L
#define MODE_MOVING_WRITE_BUFFER 2L
#define ERROR_WANT_READ          2
#define ERROR_WANT_WRITE         3

/* ---- TLS ------------------------------------------------------------------------------------- */

static thread_local void *session_in_handshake;

static void record_session(const void *session, int where, int value)
{
	(void)where;
	(void)value;
	session_in_handshake = (void *)(uintptr_t)session;
}

static bool is_address(const char *host)
{
	unsigned char bytes[sizeof(struct in6_addr)];
	return inet_pton(AF_INET, host, bytes) == 1 || inet_pton(AF_INET6, host, bytes) == 1;
}

/* The library compares names only, and would refuse every address: OpenSSL compares addresses, as a
 * part of the handshake. */
static bool verify_host(const struct semel_rabbit *rabbit, amqp_socket_t *socket, void *context)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const char *host = rabbit->settings.host;
	bool by_address = is_address(host);
	library->ssl_socket_set_verify_peer(socket, 1);
	library->ssl_socket_set_verify_hostname(socket, !by_address);
	if (!by_address)
		return true;
	void *parameters = library->tls_parameters(context);
	return parameters && library->tls_expect_address(parameters, host) == 1;
}

static semel_status refuse_file(const struct semel_rabbit *rabbit, const char *path,
				semel_error *error)
{
	return semel_error_set(
		error, SEMEL_CONFIG,
		"cannot use %s for %s (is it PEM, and does the key match the certificate?)", path,
		rabbit->address);
}

/* Called before the socket is opened: sets certificates, the expected host, and the callback that
 * finds the session. */
static semel_status prepare_tls(struct semel_rabbit *rabbit, amqp_socket_t *socket,
				semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	void *context = library->ssl_socket_get_context(socket);
	if (!verify_host(rabbit, socket, context) ||
	    library->ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST) !=
		    AMQP_STATUS_OK)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a connection");
	if (library->ssl_socket_set_cacert(socket, settings->cacert) != AMQP_STATUS_OK)
		return refuse_file(rabbit, settings->cacert, error);
	if (settings->cert &&
	    library->ssl_socket_set_key(socket, settings->cert, settings->key) != AMQP_STATUS_OK)
		return refuse_file(rabbit, settings->cert, error);
	library->tls_control(context, CONTROL_MODE, MODE_PARTIAL_WRITE | MODE_MOVING_WRITE_BUFFER,
			     NULL);
	library->tls_on_handshake(context, record_session);
	session_in_handshake = NULL;
	return SEMEL_OK;
}

/* Called after the socket was opened, on the same thread. NULL: there is no session. */
static void *take_session(void)
{
	void *session = session_in_handshake;
	session_in_handshake = NULL;
	return session;
}

ssize_t semel_rabbit_tls_write(struct semel_rabbit *rabbit, const char *data, size_t length)
{
	const struct semel_rabbit_library *library = rabbit->library;
	library->tls_clear_errors();
	int written = library->tls_write(rabbit->tls_session, data,
					 length < INT_MAX ? (int)length : INT_MAX);
	if (written > 0)
		return written;
	int code = library->tls_error(rabbit->tls_session, written);
	rabbit->tls_wants_read = code == ERROR_WANT_READ;
	return code == ERROR_WANT_WRITE || code == ERROR_WANT_READ ? 0 : -1;
}

/* ---- errors ---------------------------------------------------------------------------------- */

semel_status semel_rabbit_set_lost(struct semel_rabbit *rabbit, int code, semel_error *error)
{
	rabbit->lost = true;
	return semel_error_set(error, SEMEL_OUTAGE, "lost the connection to %s: %s",
			       rabbit->address, rabbit->library->error_string2(code));
}

semel_status semel_rabbit_error_lost(const struct semel_rabbit *rabbit, semel_error *error)
{
	return semel_error_set(error, SEMEL_OUTAGE, "the connection to %s was lost earlier",
			       rabbit->address);
}

static semel_status connection_closed(struct semel_rabbit *rabbit,
				      const amqp_connection_close_t *close, semel_error *error)
{
	semel_status status =
		close->reply_code == AMQP_ACCESS_REFUSED || close->reply_code == AMQP_NOT_ALLOWED
			? SEMEL_CONFIG
			: SEMEL_OUTAGE;
	rabbit->lost = true;
	return semel_error_set(error, status, "%s closed the connection: %.*s", rabbit->address,
			       (int)close->reply_text.len, (const char *)close->reply_text.bytes);
}

static bool has_words(amqp_bytes_t text, const char *words)
{
	return memmem(text.bytes, text.len, words, strlen(words)) != NULL;
}

/* Not an error in the settings: a consumer time-out, or a restarted node that answers before its
 * replicas of streams run. */
static bool is_transient(amqp_bytes_t text)
{
	return has_words(text, "delivery acknowledgement") ||
	       has_words(text, "replica on the local node");
}

static semel_status status_of(const amqp_channel_close_t *close)
{
	switch (close->reply_code) {
	case AMQP_NOT_FOUND:
		return has_words(close->reply_text, "down or inaccessible") ? SEMEL_OUTAGE
									    : SEMEL_NOT_FOUND;
	case AMQP_PRECONDITION_FAILED:
		return is_transient(close->reply_text) ? SEMEL_OUTAGE : SEMEL_CONFIG;
	case AMQP_ACCESS_REFUSED:
	case AMQP_RESOURCE_LOCKED:
	case AMQP_NOT_ALLOWED:
	case AMQP_NOT_IMPLEMENTED:
		return SEMEL_CONFIG;
	default:
		return SEMEL_OUTAGE;
	}
}

semel_status semel_rabbit_channel_closed(struct semel_rabbit *rabbit, uint16_t channel,
					 const amqp_channel_close_t *close, semel_error *error)
{
	amqp_channel_close_ok_t ok = { 0 };
	semel_status status =
		semel_error_set(error, status_of(close), "%.*s (%s)", (int)close->reply_text.len,
				(const char *)close->reply_text.bytes, rabbit->address);
	if (channel < SEMEL_RABBIT_ASSIGNMENTS)
		rabbit->open_channels[channel] = false;
	if (channel == SEMEL_RABBIT_CONTROL || channel >= SEMEL_RABBIT_ASSIGNMENTS)
		semel_rabbit_count_failed(rabbit, channel, status, error ? error->text : "");
	if (semel_rabbit_call_begin(rabbit, NULL) == SEMEL_OK)
		(void)rabbit->library->send_method(rabbit->connection, channel,
						   AMQP_CHANNEL_CLOSE_OK_METHOD, &ok);
	return status;
}

static int library_code(const amqp_rpc_reply_t *reply)
{
	return reply->reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION ? reply->library_error
								    : AMQP_STATUS_CONNECTION_CLOSED;
}

semel_status semel_rabbit_call_begin(struct semel_rabbit *rabbit, semel_error *error)
{
	return semel_rabbit_flush_all(rabbit, CALL_TIMEOUT_S * 1000, error);
}

semel_status semel_rabbit_call_end(struct semel_rabbit *rabbit, uint16_t channel, bool *closed_out,
				   semel_error *error)
{
	amqp_rpc_reply_t reply = rabbit->library->get_rpc_reply(rabbit->connection);
	semel_rabbit_signal_ready(rabbit);
	rabbit->sent_ms = rabbit->heard_ms = semel_steady_ms(rabbit->env);
	if (closed_out)
		*closed_out = false;
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return SEMEL_OK;
	if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION)
		return semel_rabbit_set_lost(rabbit, library_code(&reply), error);
	if (reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD)
		return connection_closed(rabbit, reply.reply.decoded, error);
	if (reply.reply.id != AMQP_CHANNEL_CLOSE_METHOD)
		return semel_rabbit_set_lost(rabbit, AMQP_STATUS_UNEXPECTED_STATE, error);
	if (closed_out)
		*closed_out = true;
	return semel_rabbit_channel_closed(rabbit, channel, reply.reply.decoded, error);
}

/* Has the library read frames from the socket that we have not taken, and can take? */
static bool has_frames(const struct semel_rabbit *rabbit)
{
	return !semel_rabbit_unacked_list_is_full(rabbit) &&
	       (rabbit->library->frames_enqueued(rabbit->connection) ||
		rabbit->library->data_in_buffer(rabbit->connection));
}

void semel_rabbit_signal_ready(struct semel_rabbit *rabbit)
{
	uint64_t one = 1;
	if (has_frames(rabbit) || rabbit->unacked.waiting > rabbit->unacked.waiting_before) {
		ssize_t written = write(rabbit->ready_fd, &one, sizeof(one));
		(void)written; /* fails only when the count is full, so it is readable already */
		rabbit->ready_signalled = true;
	}
}

/* ---- channels -------------------------------------------------------------------------------- */

semel_status semel_rabbit_open_channel(struct semel_rabbit *rabbit,
				       enum semel_rabbit_channel channel, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	if (rabbit->open_channels[channel])
		return SEMEL_OK;
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	library->channel_open(rabbit->connection, (amqp_channel_t)channel);
	status = semel_rabbit_call_end(rabbit, (uint16_t)channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	if (channel == SEMEL_RABBIT_PUBLISH || channel == SEMEL_RABBIT_REQUEUE) {
		library->confirm_select(rabbit->connection, (amqp_channel_t)channel);
		status = semel_rabbit_call_end(rabbit, (uint16_t)channel, NULL, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (channel == SEMEL_RABBIT_PUBLISH)
		rabbit->window.last_tag = 0;
	if (channel == SEMEL_RABBIT_REQUEUE)
		rabbit->requeue.tag = 0;
	rabbit->open_channels[channel] = true;
	return SEMEL_OK;
}

semel_status semel_rabbit_control_begin(struct semel_rabbit *rabbit, semel_error *error)
{
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_call_begin(rabbit, error);
}

semel_status semel_rabbit_control_end(struct semel_rabbit *rabbit, semel_error *error)
{
	return semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, error);
}

semel_status semel_rabbit_close_channel(struct semel_rabbit *rabbit, uint16_t channel,
					semel_error *error)
{
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	amqp_rpc_reply_t reply =
		rabbit->library->channel_close(rabbit->connection, channel, AMQP_REPLY_SUCCESS);
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		return semel_rabbit_set_lost(rabbit, library_code(&reply), error);
	return semel_rabbit_pump_all(rabbit, 0, error);
}

/* ---- opening --------------------------------------------------------------------------------- */

static semel_status make_socket(struct semel_rabbit *rabbit, amqp_socket_t **socket_out,
				semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const bool tls = rabbit->settings.tls;
	*socket_out = tls ? library->ssl_socket_new(rabbit->connection)
			  : library->tcp_socket_new(rabbit->connection);
	if (!*socket_out)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a connection");
	return tls ? prepare_tls(rabbit, *socket_out, error) : SEMEL_OK;
}

static semel_status open_socket(struct semel_rabbit *rabbit, semel_error *error)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	struct timeval timeout = { .tv_sec = CONNECT_TIMEOUT_S };
	amqp_socket_t *socket = NULL;
	semel_status status = make_socket(rabbit, &socket, error);
	if (status != SEMEL_OK)
		return status;
	int code = rabbit->library->socket_open_noblock(socket, settings->host, settings->port,
							&timeout);
	rabbit->tls_session = settings->tls ? take_session() : NULL;
	if (code == AMQP_STATUS_OK && settings->tls && !rabbit->tls_session)
		return semel_error_set(
			error, SEMEL_INTERNAL,
			"librabbitmq made a TLS connection to %s without OpenSSL (semel needs a "
			"librabbitmq built with OpenSSL; try: apt install librabbitmq4)",
			rabbit->address);
	if (code == AMQP_STATUS_OK)
		return SEMEL_OK;
	bool is_untrusted = code == AMQP_STATUS_SSL_HOSTNAME_VERIFY_FAILED ||
			    code == AMQP_STATUS_SSL_PEER_VERIFY_FAILED;
	if (is_untrusted)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"cannot trust %s: %s (its certificate must be for %s and issued "
			"by an authority in %s; name another list: ?cacert=FILE)",
			rabbit->address, rabbit->library->error_string2(code), settings->host,
			settings->cacert);
	return semel_error_set(error, SEMEL_OUTAGE, "cannot reach %s: %s (%s)", rabbit->address,
			       rabbit->library->error_string2(code),
			       code == AMQP_STATUS_SSL_CONNECTION_FAILED
				       ? "does this port speak TLS? if not, write amqp://"
				       : "is RabbitMQ running there?");
}

static amqp_table_entry_t flag_entry(const char *name)
{
	return (amqp_table_entry_t){ .key = semel_rabbit_string(name),
				     .value = { .kind = AMQP_FIELD_KIND_BOOLEAN,
						.value.boolean = 1 } };
}

/* Announces our capabilities: without them the broker would block, cancel and refuse silently. */
static amqp_rpc_reply_t login(struct semel_rabbit *rabbit)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	amqp_table_entry_t capabilities[] = {
		flag_entry("connection.blocked"),
		flag_entry("consumer_cancel_notify"),
		flag_entry("basic.nack"),
		flag_entry("publisher_confirms"),
	};
	amqp_table_entry_t properties[] = {
		{ .key = semel_rabbit_string("connection_name"),
		  .value = { .kind = AMQP_FIELD_KIND_UTF8,
			     .value.bytes = semel_rabbit_string("semel") } },
		{ .key = semel_rabbit_string("capabilities"),
		  .value = { .kind = AMQP_FIELD_KIND_TABLE,
			     .value.table = { .num_entries = sizeof(capabilities) /
							     sizeof(capabilities[0]),
					      .entries = capabilities } } },
	};
	amqp_table_t table = { .num_entries = 2, .entries = properties };
	return rabbit->library->login_with_properties(
		rabbit->connection, settings->vhost, CHANNEL_MAX, FRAME_MAX,
		(int)settings->heartbeat_s, &table, AMQP_SASL_METHOD_PLAIN, settings->user,
		settings->password);
}

static semel_status log_in(struct semel_rabbit *rabbit, semel_error *error)
{
	amqp_rpc_reply_t reply = login(rabbit);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return SEMEL_OK;
	if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION &&
	    reply.reply.id == AMQP_CONNECTION_CLOSE_METHOD) {
		semel_status status = connection_closed(rabbit, reply.reply.decoded, error);
		return status == SEMEL_CONFIG
			       ? semel_error_prefix(error,
						    "cannot log in (are user, password and the "
						    "virtual host right?)")
			       : status;
	}
	return semel_error_set(
		error, SEMEL_OUTAGE, "%s does not speak AMQP: %s (%s)", rabbit->address,
		rabbit->library->error_string2(library_code(&reply)),
		rabbit->settings.tls ? "is RabbitMQ listening there?"
				     : "is RabbitMQ listening there? for TLS, write amqps://");
}

/* The library sends no heartbeats from now on: heartbeat.c does. */
static void tune_connection(struct semel_rabbit *rabbit)
{
	const struct semel_rabbit_library *library = rabbit->library;
	rabbit->sent_ms = rabbit->heard_ms = semel_steady_ms(rabbit->env);
	rabbit->frame_max = (size_t)library->get_frame_max(rabbit->connection);
	rabbit->heartbeat_ms = (int64_t)library->get_heartbeat(rabbit->connection) * 1000;
	library->tune_connection(rabbit->connection, library->get_channel_max(rabbit->connection),
				 (int)rabbit->frame_max, 0);
}

semel_status semel_rabbit_connect(struct semel_rabbit *rabbit, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	struct timeval call = { .tv_sec = CALL_TIMEOUT_S };
	struct timeval handshake = { .tv_sec = CONNECT_TIMEOUT_S * 2 };
	rabbit->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rabbit->connection = library->new_connection();
	if (rabbit->ready_fd < 0 || !rabbit->connection)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a connection");
	semel_status status = open_socket(rabbit, error);
	if (status != SEMEL_OK)
		goto set_lost;
	library->set_handshake_timeout(rabbit->connection, &handshake);
	library->set_rpc_timeout(rabbit->connection, &call);
	status = log_in(rabbit, error);
	if (status != SEMEL_OK)
		goto set_lost;
	rabbit->fd = library->get_sockfd(rabbit->connection);
	tune_connection(rabbit);
	semel_log_detail(SEMEL_LOG_DEBUG, "connected to RabbitMQ", "%s", rabbit->address);
	return SEMEL_OK;

set_lost:
	rabbit->lost = true;
	return status;
}

static semel_status await_acks(struct semel_rabbit *rabbit)
{
	semel_status status = semel_rabbit_flush_all(rabbit, CLOSE_TIMEOUT_S * 1000, NULL);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		status = semel_rabbit_assignment_await_acks(rabbit, i, NULL);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* A broker that blocks the connection would not read a request to close it. */
void semel_rabbit_disconnect(struct semel_rabbit *rabbit)
{
	struct timeval timeout = { .tv_sec = CLOSE_TIMEOUT_S };
	if (rabbit->wake) {
		semel_wake_unwatch_fd(rabbit->wake, rabbit->fd);
		semel_wake_unwatch_fd(rabbit->wake, rabbit->ready_fd);
	}
	if (rabbit->connection && !rabbit->lost && !rabbit->blocked[0]) {
		rabbit->library->set_rpc_timeout(rabbit->connection, &timeout);
		if (await_acks(rabbit) == SEMEL_OK)
			(void)rabbit->library->connection_close(rabbit->connection,
								AMQP_REPLY_SUCCESS);
	}
	if (rabbit->connection)
		rabbit->library->destroy_connection(rabbit->connection);
	if (rabbit->ready_fd >= 0)
		close(rabbit->ready_fd);
}
