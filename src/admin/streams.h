/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of server-sent events: one thread fills them all about once a second, while their
 * connections are suspended, so that nobody who speaks with sockets waits for what they tell. */
#ifndef SEMEL_ADMIN_STREAMS_H
#define SEMEL_ADMIN_STREAMS_H

#include "admin/http.h"
#include "admin/microhttpd.h"

#define SEMEL_STREAMS_MAX 32

struct semel_streams;

struct semel_streams_options {
	const struct semel_microhttpd *library;
	const struct semel_env *env;
	uint32_t count_max; /* of all, at most SEMEL_STREAMS_MAX; one owner has half of them */
	/* Asked before each part, on the thread that fills: may whoever sent this Authorization
	 * (NULL: nobody did) go on? */
	bool (*may_go_on)(const char *authorization, void *user);
	void *user;
};

semel_status semel_streams_start(const struct semel_streams_options *options,
				 struct semel_streams **streams_out, semel_error *error);
/* NULL: there are too many, in all or of this owner; or no memory. */
struct MHD_Response *semel_streams_response(struct semel_streams *streams,
					    struct MHD_Connection *connection,
					    const struct semel_http_response *response);
/* Every stream ends, and no connection is suspended for one any more. Before the daemon stops. */
void semel_streams_stop(struct semel_streams *streams);
/* After the daemon has ended. streams may be NULL. */
void semel_streams_free(struct semel_streams *streams);

#endif
