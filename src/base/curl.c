/* SPDX-License-Identifier: Apache-2.0 */
/* One row per function of libcurl, which is never linked (see base/dynamic.h); and a GET request
 * that uses them. */
#include "base/curl.h"

#include "base/dynamic.h"
#include "base/error.h"

#include <stdbool.h>

#define ROW(member)                                                                                \
	{                                                                                          \
		"curl_" #member, offsetof(struct semel_curl, member)                               \
	}

static const struct semel_dynamic_symbol symbols[] = {
	ROW(global_init),   ROW(easy_init),        ROW(easy_perform),        ROW(easy_setopt),
	ROW(easy_getinfo),  ROW(easy_strerror),    ROW(easy_reset),          ROW(easy_cleanup),
	ROW(multi_init),    ROW(multi_add_handle), ROW(multi_remove_handle), ROW(multi_perform),
	ROW(multi_poll),    ROW(multi_wakeup),     ROW(multi_info_read),     ROW(multi_strerror),
	ROW(multi_cleanup), ROW(slist_append),     ROW(slist_free_all),      ROW(url),
	ROW(url_set),       ROW(url_get),          ROW(url_strerror),        ROW(url_cleanup),
	ROW(free),
};

static const char *const names[] = { "libcurl.so.4", "libcurl.so", NULL };

static semel_status begin(void *loaded_table, semel_error *error)
{
	const struct semel_curl *curl = loaded_table;
	CURLcode code = curl->global_init(CURL_GLOBAL_DEFAULT);

	return code == CURLE_OK ? SEMEL_OK
				: semel_error_set(error, SEMEL_OUTAGE, "libcurl does not start: %s",
						  curl->easy_strerror(code));
}

static const struct semel_dynamic_library library = {
	.names = names,
	.needed_for = "HTTP",
	.package = "libcurl4",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
	.begin = begin,
};

static struct semel_curl table; /* constant once loaded */
static bool loaded;

semel_status semel_curl_get(const struct semel_curl **curl_out, semel_error *error)
{
	*curl_out = &table;
	return semel_dynamic_load_once(&library, &table, &loaded, error);
}

/* ---- a whole request --------------------------------------------------------------------------
 */

struct body {
	struct semel_buffer *text;
	size_t max;
};

static size_t append_body(char *data, size_t size, size_t count, void *user)
{
	struct body *body = user;
	size_t length = size * count;

	if (body->text->length + length > body->max)
		return 0; /* too much: the transfer is aborted */
	semel_buffer_append(body->text, data, length);
	return length;
}

static void set_up(const struct semel_curl *curl, CURL *easy, const struct semel_fetch *fetch,
		   struct body *body)
{
	curl->easy_setopt(easy, CURLOPT_URL, fetch->url);
	curl->easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl->easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	curl->easy_setopt(easy, CURLOPT_PROXY, "");
	curl->easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl->easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)fetch->timeout_ms);
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, append_body);
	curl->easy_setopt(easy, CURLOPT_WRITEDATA, body);
	if (fetch->user != NULL) {
		curl->easy_setopt(easy, CURLOPT_USERNAME, fetch->user);
		curl->easy_setopt(easy, CURLOPT_PASSWORD, fetch->password);
	}
	if (fetch->authorities != NULL)
		curl->easy_setopt(easy, CURLOPT_CAINFO, fetch->authorities);
}

semel_status semel_fetch_run(const struct semel_fetch *fetch, long *code_out,
			     struct semel_buffer *text, semel_error *error)
{
	const struct semel_curl *curl = NULL;
	struct body body = { text, fetch->body_max };
	semel_status status = semel_curl_get(&curl, error);

	*code_out = 0;
	if (status != SEMEL_OK)
		return status;
	CURL *easy = curl->easy_init();
	if (easy == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a request");
	set_up(curl, easy, fetch, &body);
	CURLcode code = curl->easy_perform(easy);
	if (code == CURLE_OK)
		curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, code_out);
	else
		status = semel_error_set(error, SEMEL_OUTAGE, "%s", curl->easy_strerror(code));
	curl->easy_cleanup(easy);
	return status;
}
