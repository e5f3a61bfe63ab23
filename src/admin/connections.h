/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of the admin server: quotas, deadlines, and which connection is evicted when
 * there are too many.
 *
 * Invariants:
 * - A new connection is always accepted. When the capacity is used up, or the quota of its address,
 *   another connection is evicted for it.
 * - Connections without a token are evicted before those with one; then those of the address that
 *   has the most; then the one that has gone longest without progress. A response that is being
 *   sent does not protect its connection.
 * - A quarter of the capacity is for connections that were opened just now and have had no response
 *   yet, such as health probes.
 * - Only two kinds of connection are never evicted: those whose request a worker has or will have,
 *   and open streams. Both are bounded elsewhere, well below the capacity.
 * - Every connection has a deadline in every state. The only progress is bytes that the client's
 *   machine acknowledges.
 */
#ifndef SEMEL_ADMIN_CONNECTIONS_H
#define SEMEL_ADMIN_CONNECTIONS_H

#include "admin/microhttpd.h"
#include "base/env.h"

#include <stdbool.h>
#include <stdint.h>

#define SEMEL_CLIENT_ADDRESS_SIZE 64

struct semel_connections;

struct semel_connections_options {
	const struct semel_microhttpd *library;
	const struct semel_env *env;
	uint32_t count_max;               /* a connection beyond this evicts another one */
	uint32_t per_address_max;         /* likewise per address (IPv6: per /64) */
	uint32_t waiting_per_address_max; /* requests that wait for a worker */
	uint32_t requests_max;            /* over one connection */
	uint64_t response_bytes_max;      /* of all responses being sent; beyond it the one with
					   * the least progress is aborted */
	int64_t request_ms;               /* a request must arrive within this time */
	int64_t idle_ms;                  /* between two requests */
	int64_t response_ms;              /* a response must be received within this time */
	int64_t stall_ms;                 /* of a response or a stream without progress */
};

/* Starts the thread that closes overdue connections. */
semel_status semel_connections_start(const struct semel_connections_options *options,
				     struct semel_connections **connections_out,
				     semel_error *error);
/* From now on no connection is evicted or aborted. */
void semel_connections_stop(struct semel_connections *connections);
/* Call this after the daemon has stopped. connections may be NULL. */
void semel_connections_free(struct semel_connections *connections);

/* MHD_NotifyConnectionCallback; user: the connections. */
void semel_connections_notice(void *user, struct MHD_Connection *connection, void **context,
			      enum MHD_ConnectionNotificationCode code);

enum semel_connection_state {
	SEMEL_CONNECTION_RECEIVES, /* the request line has arrived */
	SEMEL_CONNECTION_WAITS,    /* the request is complete; a worker has it or will have it */
	SEMEL_CONNECTION_SENDS,    /* the response is being sent */
	SEMEL_CONNECTION_STREAMS,  /* server-sent events */
	SEMEL_CONNECTION_IDLE,     /* the response was sent */
};
/* bytes: the size of the response in SENDS, else 0. */
void semel_connection_move(struct semel_connections *connections, struct MHD_Connection *connection,
			   enum semel_connection_state state, uint64_t bytes);
/* Did its last request carry a valid token? */
void semel_connection_trust(struct semel_connections *connections,
			    struct MHD_Connection *connection, bool trusted);
/* False: this address has as many requests waiting as it may have. */
bool semel_connection_can_wait(struct semel_connections *connections,
			       struct MHD_Connection *connection);
/* Is this the last response on the connection? It is if the connection has had its maximum of
 * requests, or if capacity is scarce. */
bool semel_connection_is_last_response(struct semel_connections *connections,
				       struct MHD_Connection *connection);
/* Writes the address as text, for IPv6 the /64; empty if it is unknown. */
void semel_connection_address(struct semel_connections *connections,
			      struct MHD_Connection *connection,
			      char address_out[SEMEL_CLIENT_ADDRESS_SIZE]);

/* Aborts overdue connections; the thread calls it every second. */
void semel_connections_check(struct semel_connections *connections);

#endif
