/* SPDX-License-Identifier: Apache-2.0 */
/* One row per function of libcurl. Never linked: see base/dynamic.h. */
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

static struct semel_curl table; /* constant once it was loaded */
static bool loaded;

semel_status semel_curl_get(const struct semel_curl **curl_out, semel_error *error)
{
	*curl_out = &table;
	return semel_dynamic_load_once(&library, &table, &loaded, error);
}
