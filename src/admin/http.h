/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP on libmicrohttpd: listens, bounds what may come in, and hands whole requests on.
 *
 * Invariants:
 * - At most so many connections, of which some are closed when they run out (connections.h); a
 * request's head is at most 32 KiB, its body 1 MiB; one that is not complete within 30 s is cut,
 * however steadily it drips.
 * - Whoever speaks with sockets waits for nothing else: requests are served on other threads, and
 * the quick ones are answered at once even while all of those wait for a store.
 * - Nothing is served before the caller's check has let the head pass.
 * - Every answer carries the headers that keep a browser from guessing, framing and leaking.
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
	/* Set by check, once; everything behind it reads them. */
	const struct semel_route *route;
	char id[SEMEL_ROUTE_ID_SIZE]; /* the variable part of the path; empty: none */
	struct semel_text body;
	void *connection; /* libmicrohttpd's */
};

struct semel_http_response {
	unsigned status;          /* 200 unless set */
	const char *content_type; /* application/json unless set */
	const char *allow;        /* NULL: no such header; so are the next ones */
	char location[128];
	const char *authenticate;
	const char *retry_after;
	const char *cache_control; /* no-store unless set */
	bool is_trusted;           /* set by check: the request has a valid token */
	struct semel_buffer link;  /* empty: no such header */
	struct semel_buffer body;
	/* A stream of server-sent events instead of the body: called about once a second with an
	 * empty buffer to fill; false ends it. */
	bool (*stream)(struct semel_buffer *chunk, void *user);
	void *stream_user;
	char stream_owner[SEMEL_STREAM_OWNER_SIZE]; /* who it counts for; empty: the address */
};

/* Resolves the route of a request whose head has arrived, and checks who asks. False: the response
 * says what is wrong, and nothing else is called for this request. */
typedef bool (*semel_http_check)(struct semel_http_request *request,
				 struct semel_http_response *response, void *user);
typedef void (*semel_http_serve)(const struct semel_http_request *request,
				 struct semel_http_response *response, void *user);

struct semel_http_options {
	struct semel_listen_address listen; /* port 0: any that is free */
	uint16_t *port_out;                 /* the port it is, before anybody can ask */
	const char *certificate;            /* PEM; NULL: no TLS */
	const char *key;
	uint32_t connections_max;
	int64_t request_ms;
	const struct semel_env *env;
	semel_http_check check;
	semel_http_serve serve; /* on several threads at once */
	/* true: it is answered without waiting for anybody, however busy those threads are. */
	bool (*is_quick)(const struct semel_http_request *request);
	/* Asked before each part of a stream, with the Authorization that opened it (NULL: none):
	 * false ends it. */
	bool (*may_stream)(const char *authorization, void *user);
	void *user;
};

struct semel_http;

/* Listens and serves on threads of its own until it is stopped. CONFIG when the address cannot be
 * had, or the certificate not be used. */
semel_status semel_http_start(const struct semel_http_options *options,
			      struct semel_http **http_out, semel_error *error);
/* Ends streams and connections; returns when nobody is in serve any more. http may be NULL. */
void semel_http_stop(struct semel_http *http);

/* NULL when absent. */
const char *semel_http_query(const struct semel_http_request *request, const char *name);
const char *semel_http_header(const struct semel_http_request *request, const char *name);
/* The first query parameter that is not in the NULL-ended list, or NULL. */
const char *semel_http_unknown_query(const struct semel_http_request *request,
				     const char *const *known);
/* The first query parameter whose value is no UTF-8, or NULL. */
const char *semel_http_broken_query(const struct semel_http_request *request);

#endif
