/* SPDX-License-Identifier: Apache-2.0 */
/* One row per function of libcurl. Never linked: see base/dynamic.h. */
#include "base/curl.h"

#include "base/dynamic.h"
#include "base/error.h"

#include <pthread.h>
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

static const struct semel_dynamic library = {
	.names = names,
	.needed_for = "HTTP",
	.package = "libcurl4",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct semel_curl table; /* constant once it was loaded */
static bool loaded;

static semel_status load(semel_error *error)
{
	semel_status status = semel_dynamic_load(&library, &table, error);
	if (status != SEMEL_OK)
		return status;
	CURLcode code = table.global_init(CURL_GLOBAL_DEFAULT);
	if (code != CURLE_OK)
		return semel_error_set(error, SEMEL_OUTAGE, "libcurl does not start: %s",
				       table.easy_strerror(code));
	loaded = true;
	return SEMEL_OK;
}

semel_status semel_curl_get(const struct semel_curl **curl_out, semel_error *error)
{
	pthread_mutex_lock(&load_lock);
	semel_status status = loaded ? SEMEL_OK : load(error);
	pthread_mutex_unlock(&load_lock);
	*curl_out = &table;
	return status;
}
