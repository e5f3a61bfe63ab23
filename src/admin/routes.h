/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes. Serving, roles, the query parameters that are accepted and the OpenAPI
 * description are made from it; a new resource is a row here and a function that serves it. */
#ifndef SEMEL_ADMIN_ROUTES_H
#define SEMEL_ADMIN_ROUTES_H

#include "admin/context.h"

#define SEMEL_ROUTE_QUERY_MAX 10

/* A status other than OK becomes an RFC 9457 problem. */
typedef semel_status semel_serve_fn(struct semel_admin_request *request, semel_error *error);

struct semel_route {
	const char *method;
	const char *path;     /* "/api/admin/dlq/{id}" */
	enum semel_role role; /* the lowest role that is needed; NONE: none is needed */
	semel_serve_fn *serve;
	const char *summary;
	const char *query[SEMEL_ROUTE_QUERY_MAX]; /* parameters; NULL-terminated */
	const char *schema;                       /* of the response; NULL: no JSON */
	bool is_list;                             /* an array of it */
	unsigned status;                          /* of success; 0: 200 */
	bool takes_body;
	bool is_monitoring; /* metrics and health */
	bool is_quick; /* answered on the socket thread: it waits for neither store nor broker */
};

extern const struct semel_route semel_routes[];
extern const size_t semel_route_count;

/* The route, or NULL with the response filled: 404, or 405 with Allow. id_out: the variable
 * segment of the path. */
const struct semel_route *semel_route_find(const char *method, const char *path,
					   char id_out[SEMEL_ROUTE_ID_SIZE],
					   struct semel_http_response *response);

semel_serve_fn semel_serve_openapi;
/* dead_letters.c */
semel_serve_fn semel_serve_dead_list, semel_serve_dead_count, semel_serve_dead_one;
semel_serve_fn semel_serve_dead_replay, semel_serve_dead_discard;
semel_serve_fn semel_serve_dead_replay_all, semel_serve_dead_discard_all;
/* resources.c */
semel_serve_fn semel_serve_outbox, semel_serve_audit, semel_serve_trace;
semel_serve_fn semel_serve_subscriptions, semel_serve_pause, semel_serve_resume;
void semel_outbox_to_json(const struct semel_admin_context *context,
			  const struct semel_outbox_counts *counts, struct semel_buffer *text);
/* False: the store or the broker could not be read; its members are zero or null. broker may be
 * NULL. */
bool semel_subscription_to_json(struct semel_admin_request *request, struct semel_broker *broker,
				const struct semel_subscription_row *row,
				struct semel_buffer *text);
/* replays.c */
semel_serve_fn semel_serve_replay_start, semel_serve_replay_list;
semel_serve_fn semel_serve_replay_one, semel_serve_replay_cancel;
/* dashboard.c */
semel_serve_fn semel_serve_stream, semel_serve_page, semel_serve_page_script;
semel_serve_fn semel_serve_page_style, semel_serve_page_icon;
/* health.c, metrics.c */
semel_serve_fn semel_serve_livez, semel_serve_readyz, semel_serve_metrics;

#endif
