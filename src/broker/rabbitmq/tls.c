/* SPDX-License-Identifier: Apache-2.0 */
/* TLS under the connection. The library makes the session and reads from it; writing is ours, so
 * that amqp: and amqps: have one write path (write.c).
 *
 * - The library does not hand out its session, but OpenSSL calls back when the handshake begins, on
 *   the thread that opens the socket.
 * - A record that the socket took only half of is OpenSSL's to finish, with the same bytes. They
 *   are still at the start of the output then, and the library writes nothing before all of the
 *   output is written.
 * - The library frees the session when it closes the socket; a connection that is lost writes
 *   nothing any more.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <arpa/inet.h>
#include <limits.h>
#include <threads.h>

/* As openssl/ssl.h has them. */
#define CONTROL_MODE             33
#define MODE_PARTIAL_WRITE       1L
#define MODE_MOVING_WRITE_BUFFER 2L
#define ERROR_WANT_READ          2
#define ERROR_WANT_WRITE         3

static thread_local void *session_in_handshake;

static void note_session(const void *session, int where, int value)
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

/* The library compares names only, and would refuse every address: those are compared by OpenSSL,
 * as a part of the handshake. */
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
	return semel_error_set(error, SEMEL_CONFIG,
			       "cannot use %s for %s (is it PEM, and does the key fit the "
			       "certificate?)",
			       path, rabbit->address);
}

semel_status semel_rabbit_tls_prepare(struct semel_rabbit *rabbit, amqp_socket_t *socket,
				      semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	void *context = library->ssl_socket_get_context(socket);
	if (!verify_host(rabbit, socket, context) ||
	    library->ssl_socket_set_ssl_versions(socket, AMQP_TLSv1_2, AMQP_TLSvLATEST) !=
		    AMQP_STATUS_OK)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a connection");
	if (library->ssl_socket_set_cacert(socket, settings->cacert) != AMQP_STATUS_OK)
		return refuse_file(rabbit, settings->cacert, error);
	if (settings->cert &&
	    library->ssl_socket_set_key(socket, settings->cert, settings->key) != AMQP_STATUS_OK)
		return refuse_file(rabbit, settings->cert, error);
	library->tls_control(context, CONTROL_MODE, MODE_PARTIAL_WRITE | MODE_MOVING_WRITE_BUFFER,
			     NULL);
	library->tls_on_handshake(context, note_session);
	session_in_handshake = NULL;
	return SEMEL_OK;
}

void *semel_rabbit_tls_take_session(void)
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
	return code == ERROR_WANT_WRITE || code == ERROR_WANT_READ ? 0 : -1;
}
