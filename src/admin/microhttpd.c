/* SPDX-License-Identifier: Apache-2.0 */
/* One row per function of libmicrohttpd. Never linked: see base/dynamic.h. */
#include "admin/microhttpd.h"

#include "base/dynamic.h"

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

static const struct semel_dynamic_library library = {
	.names = names,
	.needed_for = "the admin server",
	.package = "libmicrohttpd12",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static struct semel_microhttpd table; /* constant once it was loaded */
static bool loaded;

semel_status semel_microhttpd_load(const struct semel_microhttpd **library_out, semel_error *error)
{
	*library_out = &table;
	return semel_dynamic_load_once(&library, &table, &loaded, error);
}
