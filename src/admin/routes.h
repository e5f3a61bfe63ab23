/* SPDX-License-Identifier: Apache-2.0 */
/* The table of routes. Serving, roles, the query parameters that are accepted and the OpenAPI
 * description are made from it; a new resource is a row here and a function that serves it. */
#ifndef SEMEL_ADMIN_ROUTES_H
#define SEMEL_ADMIN_ROUTES_H

#include "admin/context.h"

#define SEMEL_ROUTE_QUERY_MAX 10

struct semel_route {
	const char *method;
	const char *path;     /* "/api/admin/dlq/{id}" */
	enum semel_role role; /* the least that is needed; NONE: everyone */
	/* A status other than OK becomes an RFC 9457 problem. */
	semel_status (*serve)(struct semel_admin_request *request, semel_error *error);
	const char *summary;
	const char *query[SEMEL_ROUTE_QUERY_MAX]; /* parameters; NULL-ended */
	const char *schema;                       /* of the response, in openapi.c; NULL: no JSON */
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

/* openapi.c */
semel_status semel_serve_openapi(struct semel_admin_request *request, semel_error *error);

/* dead_letters.c */
semel_status semel_serve_dead_list(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_count(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_one(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_replay(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_discard(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_replay_all(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_dead_discard_all(struct semel_admin_request *request, semel_error *error);
/* resources.c */
semel_status semel_serve_outbox(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_subscriptions(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_pause(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_resume(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_audit(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_trace(struct semel_admin_request *request, semel_error *error);
/* replays.c */
semel_status semel_serve_replay_start(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_replay_list(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_replay_one(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_replay_cancel(struct semel_admin_request *request, semel_error *error);
/* dashboard.c */
semel_status semel_serve_stream(struct semel_admin_request *request, semel_error *error);
/* page.c */
semel_status semel_serve_page(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_page_script(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_page_style(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_page_icon(struct semel_admin_request *request, semel_error *error);
/* health.c, metrics.c */
semel_status semel_serve_livez(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_readyz(struct semel_admin_request *request, semel_error *error);
semel_status semel_serve_metrics(struct semel_admin_request *request, semel_error *error);

#endif
