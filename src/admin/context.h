/* SPDX-License-Identifier: Apache-2.0 */
/* What the routes share: the request at hand, the connections, and the words of an answer. */
#ifndef SEMEL_ADMIN_DESK_H
#define SEMEL_ADMIN_DESK_H

#include "admin/admin.h"
#include "admin/http.h"
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
	struct semel_replays *replays;      /* replays */
	struct semel_health_monitor *watch; /* is anything stuck? */
	struct semel_dashboard *dashboard;  /* what the page shows */
	struct semel_redaction *redaction;  /* what is not shown; NULL: all is */
	pthread_mutex_t whole_event_mutex;  /* of who reads whole events: one at a time */
	pthread_mutex_t mutex;              /* of the pool */
	semel_store *spare[4];
	size_t spare_count;
};

/* What is not set gets its default. */
void semel_admin_defaults(struct semel_admin_options *options);

/* One request. */
struct semel_admin_request {
	const char *who; /* for the audit */
	bool may_read;   /* a token was given, or none is asked for */
	struct semel_admin_context *context;
	const struct semel_http_request *http;
	struct semel_http_response *response;
	const char *id; /* the variable part of the path; empty: none */
	struct semel_arena *arena;
	semel_store *store;
	int64_t audit_number; /* of the row in the audit; 0: nothing was written there */
	char outcome[64];     /* of what was done; empty: goes by the status */
	bool pooled;          /* the store was used before, and may have been cut off since */
};

/* A store for this request: from the pool, else opened. It goes back when the request ends. */
semel_status semel_admin_request_open_store(struct semel_admin_request *request,
					    semel_error *error);
void semel_admin_request_close_store(struct semel_admin_request *request, bool keep_store);

/* Writes down what a person does, before it is done: what cannot be written down is not done. How
 * it ended is written down when the request is over. */
semel_status semel_admin_request_audit(struct semel_admin_request *request, const char *what,
				       const char *target, const char *detail, semel_error *error);

/* How it ended, from the status; as far as the store can be written. */
void semel_admin_request_audit_end(struct semel_admin_request *request, semel_status status);
/* "done", "refused: not-pending", "failed: outage". */
void semel_audit_outcome(semel_status status, char *text, size_t size);

/* The body of the response, to be filled with JSON. */
static inline struct semel_buffer *semel_admin_request_body(struct semel_admin_request *request)
{
	return &request->response->body;
}

/* An RFC 9457 problem. type: the last part of "/problems/…". */
void semel_response_problem(struct semel_http_response *response, unsigned status, const char *type,
			    const char *detail);
/* The problem that a failed call is. */
void semel_response_failure(struct semel_http_response *response, semel_status status,
			    const char *detail);
/* "…" or null. */
void semel_buffer_time(struct semel_buffer *buffer, int64_t time_ms);
/* A number of the query within bounds. INVALID when it is none; the fallback when it is absent. */
semel_status semel_admin_request_number(struct semel_admin_request *request, const char *name,
					struct semel_range range, int64_t *number_out,
					semel_error *error);

#endif
