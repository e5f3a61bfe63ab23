/* SPDX-License-Identifier: Apache-2.0 */
/* One GET whose answer is kept in memory. */
#ifndef SEMEL_BASE_CURL_FETCH_H
#define SEMEL_BASE_CURL_FETCH_H

#include "base/buffer.h"

#include <semel/status.h>

#include <stdint.h>

struct semel_fetch {
	const char *url;
	const char *user, *password; /* NULL: none */
	const char *authorities;     /* of TLS; NULL: the system's */
	int64_t timeout_ms;
	size_t body_max;
};

/* OUTAGE when there is no answer; else *code_out is the HTTP status. Redirects are not followed and
 * proxies of the environment are not used: the password goes where the user said, or nowhere. */
semel_status semel_fetch_run(const struct semel_fetch *fetch, long *code_out,
			     struct semel_buffer *body, semel_error *error);

#endif
