/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of server-sent events: one thread fills them all about once a second, while their
 * connections are suspended, so that nobody who speaks with sockets waits for what they tell. */
#ifndef SEMEL_ADMIN_STREAMS_H
#define SEMEL_ADMIN_STREAMS_H

#include "admin/http.h"
#include "admin/microhttpd.h"

struct semel_streams;

semel_status semel_streams_start(const struct semel_microhttpd *library,
				 const struct semel_env *env, struct semel_streams **streams_out,
				 semel_error *error);
/* NULL: there are too many, or no memory. */
struct MHD_Response *semel_streams_response(struct semel_streams *streams,
					    struct MHD_Connection *connection,
					    const struct semel_http_answer *answer);
/* Every stream ends, and no connection is suspended for one any more. Before the daemon stops. */
void semel_streams_stop(struct semel_streams *streams);
/* After the daemon has ended. streams may be NULL. */
void semel_streams_free(struct semel_streams *streams);

#endif
