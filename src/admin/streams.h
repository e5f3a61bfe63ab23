/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of server-sent events: one thread fills them all about once a second, while their
 * connections are suspended, so that no socket thread waits for their content. */
#ifndef SEMEL_ADMIN_STREAMS_H
#define SEMEL_ADMIN_STREAMS_H

#include "admin/http.h"
#include "admin/microhttpd.h"

#define SEMEL_STREAMS_MAX 32

struct semel_streams;

struct semel_streams_options {
	const struct semel_microhttpd *library;
	const struct semel_env *env;
	uint32_t count_max; /* at most SEMEL_STREAMS_MAX; one owner can have half of them */
	/* Called before each event, on the writer thread, with the Authorization header that opened
	 * the stream (NULL: none); false ends the stream. */
	bool (*may_continue)(const char *authorization, void *user);
	void *user;
};

semel_status semel_streams_start(const struct semel_streams_options *options,
				 struct semel_streams **streams_out, semel_error *error);
/* NULL: there are too many streams, in total or of this owner, or there is no memory. */
struct MHD_Response *semel_streams_response(struct semel_streams *streams,
					    struct MHD_Connection *connection,
					    const struct semel_http_response *response);
/* Ends every stream and resumes its connection. Call this before the daemon is stopped. */
void semel_streams_stop(struct semel_streams *streams);
/* Call this after the daemon was stopped. streams may be NULL. */
void semel_streams_free(struct semel_streams *streams);

#endif
