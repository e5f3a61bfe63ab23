/* SPDX-License-Identifier: Apache-2.0 */
/* What the functions behind the routes share: the server, the request, its store and audit row. */
#ifndef SEMEL_ADMIN_CONTEXT_H
#define SEMEL_ADMIN_CONTEXT_H

#include "admin/admin.h"
#include "admin/http.h"
#include "admin/problem.h"
#include "broker/broker.h"
#include "store/store.h"

#include <pthread.h>

#define SEMEL_RESPONSE_MAX ((size_t)8 * 1024 * 1024) /* bytes of a list */

struct semel_replays;
struct semel_health_monitor;
struct semel_dashboard;
struct semel_redaction;

/* One per server; shared by its threads. */
struct semel_admin_context {
	struct semel_admin_options options;
	const struct semel_env *env;
	struct semel_replays *replays;       /* started over HTTP */
	struct semel_health_monitor *health; /* what /readyz answers from */
	struct semel_dashboard *dashboard;   /* what the page and the stream show */
	struct semel_redaction *redaction;   /* what is hidden; NULL: nothing */
	pthread_mutex_t whole_event_mutex;   /* held while whole events are read: one at a time */
	pthread_mutex_t idle_mutex;          /* of the idle stores */
	semel_store *idle[4];
	size_t idle_count;
};

/* Fills in the defaults of options that are not set. */
void semel_admin_defaults(struct semel_admin_options *options);

/* One request to the rules. */
struct semel_admin_request {
	const char *who; /* for the audit */
	bool may_read;   /* a valid token was sent, or none is required */
	struct semel_admin_context *context;
	const struct semel_http_request *http;
	struct semel_http_response *response;
	const char *id; /* the variable part of the path; empty: none */
	struct semel_arena *arena;
	semel_store *store;
	int64_t audit_number; /* of the audit row; 0: none was written */
	char outcome[64];     /* for the audit row; empty: derived from the status */
	bool pooled;          /* the store was idle, and may have lost its connection since */
};

/* Sets request->store to an idle store or a new one. semel_admin_request_close_store returns it. */
semel_status semel_admin_request_open_store(struct semel_admin_request *request,
					    semel_error *error);
void semel_admin_request_close_store(struct semel_admin_request *request, bool keep_store);

/* Writes the audit row of a change before the change: a change that cannot be audited is refused.
 * The outcome is written when the request ends. */
semel_status semel_admin_request_audit(struct semel_admin_request *request, const char *what,
				       const char *target, const char *detail, semel_error *error);

/* Writes the outcome, if the store can be written. */
void semel_admin_request_audit_end(struct semel_admin_request *request, semel_status status);
/* Writes "done", "refused: not-pending", "failed: outage". */
void semel_audit_outcome(semel_status status, char *text, size_t size);

/* The body of the response, to be filled with JSON. */
static inline struct semel_buffer *semel_admin_request_body(struct semel_admin_request *request)
{
	return &request->response->body;
}

/* Appends the time as a JSON string, or null if it is 0. */
void semel_buffer_time(struct semel_buffer *buffer, int64_t time_ms);
/* Reads a query parameter; the fallback if it is absent. USAGE if it is not a number in the
 * range. */
semel_status semel_admin_request_number(struct semel_admin_request *request, const char *name,
					struct semel_range range, int64_t *number_out,
					semel_error *error);

#endif
