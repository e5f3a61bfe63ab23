/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP on libmicrohttpd: listens, bounds what a client may send and hold, and calls back with whole
 * requests.
 *
 * Invariants:
 * - The number of connections is bounded; beyond it connections are evicted (connections.h). The
 *   head of a request is at most 32 KiB, its body 1 MiB; a request that is not complete within 30 s
 *   is closed, however steadily it arrives.
 * - The socket threads wait for nothing but sockets: requests are served by workers, and quick ones
 *   at once, even while all workers wait for a store.
 * - Nothing is served before the caller's check has accepted the head.
 * - Every response carries the headers that keep a browser from sniffing, framing and leaking.
 */
#ifndef SEMEL_ADMIN_HTTP_H
#define SEMEL_ADMIN_HTTP_H

#include "admin/access.h"
#include "base/buffer.h"
#include "base/env.h"

#define SEMEL_HTTP_BODY_MAX     (1024 * 1024)
#define SEMEL_STREAM_OWNER_SIZE 80 /* a token's name, or an address */
#define SEMEL_ROUTE_ID_SIZE     128

struct semel_route; /* routes.h */

struct semel_http_request {
	const char *method, *path;
	/* Set once, by check; all later callbacks may read them. */
	const struct semel_route *route;
	char id[SEMEL_ROUTE_ID_SIZE]; /* the variable part of the path; empty: none */
	struct semel_text body;
	void *connection; /* libmicrohttpd's */
};

struct semel_http_response {
	unsigned status;          /* 200 unless set */
	const char *content_type; /* application/json unless set */
	const char *allow;        /* NULL: no such header; likewise below */
	char location[128];
	const char *authenticate;
	const char *retry_after;
	const char *cache_control; /* no-store unless set */
	bool is_trusted;           /* set by check: the request has a valid token */
	struct semel_buffer link;  /* empty: no such header */
	struct semel_buffer body;
	/* Server-sent events instead of the body: called about once a second to fill an empty
	 * buffer; false ends the stream. */
	bool (*stream)(struct semel_buffer *chunk, void *user);
	void *stream_user;
	char stream_owner[SEMEL_STREAM_OWNER_SIZE]; /* whose quota it uses; empty: the address */
};

/* Resolves the route of a request whose head has arrived, and checks its access. False: the
 * response says what is wrong, and no other callback is called for this request. */
typedef bool (*semel_http_check)(struct semel_http_request *request,
				 struct semel_http_response *response, void *user);
typedef void (*semel_http_serve)(const struct semel_http_request *request,
				 struct semel_http_response *response, void *user);

struct semel_http_options {
	struct semel_listen_address listen; /* port 0: any that is free */
	uint16_t *port_out;                 /* the port, set before the first request */
	const char *certificate;            /* PEM; NULL: no TLS */
	const char *key;
	uint32_t connections_max;
	int64_t request_ms;
	const struct semel_env *env;
	semel_http_check check;
	semel_http_serve serve; /* on several threads at once */
	/* True: the request is served on the socket thread, because it waits for nothing. */
	bool (*is_quick)(const struct semel_http_request *request);
	/* Called before each event of a stream, with the Authorization header that opened it (NULL:
	 * none); false ends the stream. */
	bool (*may_stream)(const char *authorization, void *user);
	void *user;
};

struct semel_http;

/* Listens, and serves on threads of its own until it is stopped. CONFIG if the address cannot be
 * bound, or the certificate cannot be used. */
semel_status semel_http_start(const struct semel_http_options *options,
			      struct semel_http **http_out, semel_error *error);
/* Ends streams and connections; returns when no call of serve is running. http may be NULL. */
void semel_http_stop(struct semel_http *http);

/* NULL if it is absent. */
const char *semel_http_query(const struct semel_http_request *request, const char *name);
const char *semel_http_header(const struct semel_http_request *request, const char *name);
/* The first query parameter that is not in the NULL-terminated list, or NULL. */
const char *semel_http_unknown_query(const struct semel_http_request *request,
				     const char *const *known);
/* The first query parameter whose value is not UTF-8, or NULL. */
const char *semel_http_broken_query(const struct semel_http_request *request);

#endif
