/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of the admin server: who holds how many, for how long, and who has to go when
 * there are too many.
 *
 * Invariants:
 * - A new connection always gets in. When all places are taken, or its address has its share,
 * another one is closed for it.
 * - That is one without a token before one with; then one of the address that has most of them;
 * then the one that has made no progress for longest. An answer that is being sent is no reason to
 * stay.
 * - A quarter of the places is for those who came just now and had no answer yet, as probes do.
 * - Only a request that is at work and an open stream stay in any case; both are bounded elsewhere,
 * well below the number of places.
 * - Whatever a connection does, it has a deadline; bytes that the client's machine acknowledges are
 * progress, nothing else is.
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
	uint32_t count_max;       /* a connection beyond this closes another one */
	uint32_t per_address_max; /* so does one beyond this from one address (IPv6: one /64) */
	uint32_t waiting_per_address_max; /* requests that wait for a worker */
	uint32_t requests_max;            /* over one connection */
	uint64_t answer_bytes_max; /* of all answers that are being sent; beyond it the one with
				    * the least progress is cut */
	int64_t request_ms;        /* a request arrives within this */
	int64_t idle_ms;           /* between two requests */
	int64_t answer_ms;         /* an answer is taken within this */
	int64_t stall_ms;          /* of an answer or a stream: without progress */
};

/* Starts the thread that closes overdue connections. */
semel_status semel_connections_start(const struct semel_connections_options *options,
				     struct semel_connections **connections_out,
				     semel_error *error);
/* Closes no connection any more. */
void semel_connections_stop(struct semel_connections *connections);
/* After the daemon has ended. connections may be NULL. */
void semel_connections_free(struct semel_connections *connections);

/* MHD_NotifyConnectionCallback; user: the connections. */
void semel_connections_notice(void *user, struct MHD_Connection *connection, void **context,
			      enum MHD_ConnectionNotificationCode code);

enum semel_connection_state {
	SEMEL_CONNECTION_RECEIVES, /* the first line of a request is there */
	SEMEL_CONNECTION_WAITS,    /* the request is complete; a worker has it, or will */
	SEMEL_CONNECTION_SENDS,    /* the answer goes out */
	SEMEL_CONNECTION_STREAMS,  /* an answer without end */
	SEMEL_CONNECTION_IDLE,     /* the answer is out */
};
/* bytes: the size of the answer when it SENDS, else 0. */
void semel_connection_move(struct semel_connections *connections, struct MHD_Connection *connection,
			   enum semel_connection_state state, uint64_t bytes);
/* Its last request carried a token that is valid (true), or did not. */
void semel_connection_trust(struct semel_connections *connections,
			    struct MHD_Connection *connection, bool trusted);
/* false: this address has as many requests waiting as it may. */
bool semel_connection_may_wait(struct semel_connections *connections,
			       struct MHD_Connection *connection);
/* The connection ends with this answer: it has had its requests, or places are scarce. */
bool semel_connection_is_last_answer(struct semel_connections *connections,
				     struct MHD_Connection *connection);
/* As text, an IPv6 one by its /64; empty when it is unknown. */
void semel_connection_address(struct semel_connections *connections,
			      struct MHD_Connection *connection,
			      char address_out[SEMEL_CLIENT_ADDRESS_SIZE]);

/* Closes what is overdue at this time; the thread does so every second. */
void semel_connections_check(struct semel_connections *connections);

#endif
