/* SPDX-License-Identifier: Apache-2.0 */
/* An event's metadata as the headers of an HTTP request: CloudEvents in binary mode, our own, and
 * the event's. */
#ifndef SEMEL_CONSUME_HTTP_HEADERS_H
#define SEMEL_CONSUME_HTTP_HEADERS_H

#include "base/curl.h"
#include "event/event.h"

struct semel_http_heading {
	const struct semel_curl *curl;
	struct semel_arena *arena; /* for what is only needed on the way */
	const struct semel_event *event;
	uint32_t attempt;
};

/* HANDLER_REJECT, naming the field, when a value of the envelope cannot stand in a header; OUTAGE
 * on no memory. headers_out is the caller's to free also then. Headers of the event that no
 * request can carry, or that are ours or HTTP's to set, are left out. */
semel_status semel_http_headers(const struct semel_http_heading *heading,
				struct curl_slist **headers_out, semel_error *error);

#endif
