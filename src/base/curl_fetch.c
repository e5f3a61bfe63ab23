/* SPDX-License-Identifier: Apache-2.0 */
#include "base/curl_fetch.h"

#include "base/curl.h"
#include "base/error.h"

struct body {
	struct semel_buffer *text;
	size_t max;
};

static size_t keep(char *data, size_t size, size_t count, void *user)
{
	struct body *body = user;
	size_t length = size * count;

	if (body->text->length + length > body->max)
		return 0; /* an end to an endless answer */
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
	curl->easy_setopt(easy, CURLOPT_WRITEFUNCTION, keep);
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
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a request");
	set_up(curl, easy, fetch, &body);
	CURLcode code = curl->easy_perform(easy);
	if (code == CURLE_OK)
		curl->easy_getinfo(easy, CURLINFO_RESPONSE_CODE, code_out);
	else
		status = semel_error_set(error, SEMEL_OUTAGE, "%s", curl->easy_strerror(code));
	curl->easy_cleanup(easy);
	return status;
}
