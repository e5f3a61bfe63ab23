/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libcurl that we use, loaded with the first HTTP request: the library
 * more than doubles the memory of a process. */
#ifndef SEMEL_BASE_CURL_H
#define SEMEL_BASE_CURL_H

#include "base/buffer.h"

#include <semel/status.h>

#include <curl/curl.h>
#include <stdint.h>

struct semel_curl {
	CURLcode (*global_init)(long flags);
	CURL *(*easy_init)(void);
	CURLcode (*easy_perform)(CURL *easy);
	CURLcode (*easy_setopt)(CURL *easy, CURLoption option, ...);
	CURLcode (*easy_getinfo)(CURL *easy, CURLINFO info, ...);
	const char *(*easy_strerror)(CURLcode code);
	void (*easy_reset)(CURL *easy);
	void (*easy_cleanup)(CURL *easy);
	CURLM *(*multi_init)(void);
	CURLMcode (*multi_add_handle)(CURLM *multi, CURL *easy);
	CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *easy);
	CURLMcode (*multi_perform)(CURLM *multi, int *running);
	CURLMcode (*multi_poll)(CURLM *multi, struct curl_waitfd *extra, unsigned int extra_count,
				int timeout_ms, int *ready);
	CURLMcode (*multi_wakeup)(CURLM *multi);
	CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
	const char *(*multi_strerror)(CURLMcode code);
	CURLMcode (*multi_cleanup)(CURLM *multi);
	struct curl_slist *(*slist_append)(struct curl_slist *list, const char *line);
	void (*slist_free_all)(struct curl_slist *list);
	CURLU *(*url)(void);
	CURLUcode (*url_set)(CURLU *url, CURLUPart part, const char *text, unsigned int flags);
	CURLUcode (*url_get)(CURLU *url, CURLUPart part, char **text_out, unsigned int flags);
	const char *(*url_strerror)(CURLUcode code);
	void (*url_cleanup)(CURLU *url);
	void (*free)(void *memory);
};

/* Any thread. CONFIG when it is not installed. The table lives until the process ends. */
semel_status semel_curl_get(const struct semel_curl **curl_out, semel_error *error);

/* One GET whose answer is held in memory. */
struct semel_fetch {
	const char *url;
	const char *user, *password; /* NULL: none */
	const char *authorities;     /* of TLS; NULL: the system's */
	int64_t timeout_ms;
	size_t body_max;
};

/* OUTAGE when there is no answer; else *code_out is the HTTP status. Redirects are not followed and
 * proxies of the environment are not used: the password is sent to the given host only. */
semel_status semel_fetch_run(const struct semel_fetch *fetch, long *code_out,
			     struct semel_buffer *body, semel_error *error);

#endif
