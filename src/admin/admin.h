/* SPDX-License-Identifier: Apache-2.0 */
/* The admin server: the REST API, the page, health and metrics, over HTTP.
 *
 * Reads and changes go through the same rules as the command line; there is no SQL in this room. A
 * request is resolved to a route (routes.c), checked (access.c) and served by one of a few workers,
 * each with a store of its own. Only redact.c decides what a response must not show. http.c,
 * connections.c and streams.c are the only files that use libmicrohttpd.
 *
 * To change here: a resource is a row of the table in routes.c and a function that serves it. Names
 * of paths, members and problem types are a contract and stay; what a client may send, hold and
 * receive is bounded, and each bound has its row in docs/admin.md. */
#ifndef SEMEL_ADMIN_ADMIN_H
#define SEMEL_ADMIN_ADMIN_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

/* Calls the callback for every reason why the process around the server is not ready. */
typedef void (*semel_reason_callback)(const char *reason, void *user);
typedef void (*semel_reasons_source)(semel_reason_callback seen, void *seen_user, void *user);

/* Copied when the server starts. */
struct semel_admin_options {
	const char *store, *broker; /* URLs */
	const char *listen;         /* "127.0.0.1:8082" */
	const char *token_file;     /* NULL: none */
	const char *tls_cert, *tls_key;
	const char *const *hosts;     /* additional host names; NULL-terminated, may be NULL */
	const char *const *redact;    /* paths of what is hidden (redact.h); likewise */
	bool metrics_only;            /* metrics and health only: in a relay or a consumer */
	int64_t ready_stall_ms;       /* 0: 60 s */
	int64_t inbox_retention_ms;   /* for replays */
	const char *slot;             /* of the change stream; NULL: "semel" */
	uint64_t slot_budget;         /* bytes; 0: 4 GiB */
	semel_reasons_source reasons; /* may be NULL; called on any thread */
	void *reasons_user;
};

struct semel_admin;

/* Listens, and serves on threads of its own. CONFIG if the address is beyond loopback and the token
 * or TLS is missing, or if a file cannot be used. The store may be unreachable. */
semel_status semel_admin_start(const struct semel_admin_options *options,
			       struct semel_admin **admin_out, semel_error *error);
/* Reloads the token file, if there is one, so that a token can be withdrawn. A file that cannot be
 * used changes nothing, and is logged. admin may be NULL. */
void semel_admin_reload_tokens(struct semel_admin *admin);
/* "http://127.0.0.1:8082" */
const char *semel_admin_url(const struct semel_admin *admin);
/* admin may be NULL. */
void semel_admin_stop(struct semel_admin *admin);

#endif
