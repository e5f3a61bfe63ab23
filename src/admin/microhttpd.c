/* SPDX-License-Identifier: Apache-2.0 */
/* One row per function of libmicrohttpd. Never linked: see base/dynamic.h. */
#include "admin/microhttpd.h"

#include "base/dynamic.h"

#include <pthread.h>
#include <stdbool.h>

#define ROW(member)                                                                                \
	{                                                                                          \
		"MHD_" #member, offsetof(struct semel_microhttpd, member)                          \
	}

static const struct semel_dynamic_symbol symbols[] = {
	ROW(start_daemon),
	ROW(stop_daemon),
	ROW(queue_response),
	ROW(create_response_from_buffer),
	ROW(create_response_from_callback),
	ROW(add_response_header),
	ROW(destroy_response),
	ROW(lookup_connection_value),
	ROW(get_connection_values),
	ROW(get_connection_info),
	ROW(suspend_connection),
	ROW(resume_connection),
	ROW(is_feature_supported),
};

static const char *const names[] = { "libmicrohttpd.so.12", "libmicrohttpd.so", NULL };

static const struct semel_dynamic library = {
	.names = names,
	.needed_for = "the admin server",
	.package = "libmicrohttpd12",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct semel_microhttpd table; /* constant once it was loaded */
static bool loaded;

semel_status semel_microhttpd_load(const struct semel_microhttpd **library_out, semel_error *error)
{
	semel_status status = SEMEL_OK;

	pthread_mutex_lock(&load_lock);
	if (!loaded)
		status = semel_dynamic_load(&library, &table, error);
	loaded = loaded || status == SEMEL_OK;
	pthread_mutex_unlock(&load_lock);
	*library_out = &table;
	return status;
}
