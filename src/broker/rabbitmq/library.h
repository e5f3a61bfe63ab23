/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of librabbitmq that we use, loaded when the first amqp: or amqps: URL is opened. */
#ifndef SEMEL_BROKER_RABBITMQ_LIBRARY_H
#define SEMEL_BROKER_RABBITMQ_LIBRARY_H

#include <semel/status.h>

#include <amqp.h>
#include <amqp_ssl_socket.h>
#include <amqp_tcp_socket.h>

/* One row per function; the type is that of the header. */
#define SEMEL_RABBIT_FUNCTIONS(ROW)                                                                \
	ROW(new_connection)                                                                        \
	ROW(destroy_connection)                                                                    \
	ROW(get_sockfd)                                                                            \
	ROW(tune_connection)                                                                       \
	ROW(get_channel_max)                                                                       \
	ROW(get_frame_max)                                                                         \
	ROW(get_heartbeat)                                                                         \
	ROW(get_server_properties)                                                                 \
	ROW(parse_url)                                                                             \
	ROW(default_connection_info)                                                               \
	ROW(tcp_socket_new)                                                                        \
	ROW(ssl_socket_new)                                                                        \
	ROW(ssl_socket_set_cacert)                                                                 \
	ROW(ssl_socket_set_key)                                                                    \
	ROW(ssl_socket_set_verify_peer)                                                            \
	ROW(ssl_socket_set_verify_hostname)                                                        \
	ROW(ssl_socket_get_context)                                                                \
	ROW(ssl_socket_set_ssl_versions)                                                           \
	ROW(socket_open_noblock)                                                                   \
	ROW(set_handshake_timeout)                                                                 \
	ROW(set_rpc_timeout)                                                                       \
	ROW(login_with_properties)                                                                 \
	ROW(connection_close)                                                                      \
	ROW(channel_open)                                                                          \
	ROW(channel_close)                                                                         \
	ROW(confirm_select)                                                                        \
	ROW(exchange_declare)                                                                      \
	ROW(exchange_bind)                                                                         \
	ROW(exchange_delete)                                                                       \
	ROW(queue_declare)                                                                         \
	ROW(queue_bind)                                                                            \
	ROW(queue_delete)                                                                          \
	ROW(basic_qos)                                                                             \
	ROW(basic_consume)                                                                         \
	ROW(basic_cancel)                                                                          \
	ROW(get_rpc_reply)                                                                         \
	ROW(send_method)                                                                           \
	ROW(simple_wait_frame_noblock)                                                             \
	ROW(frames_enqueued)                                                                       \
	ROW(data_in_buffer)                                                                        \
	ROW(maybe_release_buffers_on_channel)                                                      \
	ROW(encode_method)                                                                         \
	ROW(encode_properties)                                                                     \
	ROW(error_string2)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has its own */
#define SEMEL_RABBIT_MEMBER(name) __typeof__(amqp_##name) *name;

struct semel_rabbit_library {
	SEMEL_RABBIT_FUNCTIONS(SEMEL_RABBIT_MEMBER)
	/* From the OpenSSL that the library is linked to; used in connection.c only. */
	void *(*tls_parameters)(void *context);
	int (*tls_expect_address)(void *parameters, const char *address);
	long (*tls_control)(void *context, int command, long number, void *pointer);
	void (*tls_on_handshake)(void *context,
				 void (*callback)(const void *session, int where, int value));
	int (*tls_write)(void *session, const void *data, int length);
	int (*tls_error)(const void *session, int result);
	void (*tls_clear_errors)(void);
};

/* Any thread. CONFIG: librabbitmq is not installed. The table lives until the process ends. */
semel_status semel_rabbit_library_get(const struct semel_rabbit_library **library_out,
				      semel_error *error);

#endif
