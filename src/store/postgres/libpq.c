/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libpq. Never linked: see base/dynamic.h. */
#include "store/postgres/libpq.h"

#include "base/dynamic.h"

#include <stdbool.h>
#include <stddef.h>

#define ROW(name, result, parameters) { "PQ" #name, offsetof(struct semel_libpq, name) },

static const struct semel_dynamic_symbol symbols[] = { SEMEL_LIBPQ_FUNCTIONS(ROW) };

static const char *const names[] = { "libpq.so.5", "libpq.so", NULL };

static const struct semel_dynamic_library library = {
	.names = names,
	.needed_for = "a PostgreSQL store",
	.package = "libpq5",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

struct semel_libpq semel_libpq;

static bool loaded;

semel_status semel_libpq_load(semel_error *error)
{
	return semel_dynamic_load_once(&library, &semel_libpq, &loaded, error);
}
