/* SPDX-License-Identifier: Apache-2.0 */
/* librdkafka is never linked: see base/dynamic.h. */
#include "broker/kafka/library.h"

#include "base/dynamic.h"

#include <stdbool.h>

#define ROW(member) { "rd_kafka_" #member, offsetof(struct semel_kafka_library, member) },

static const struct semel_dynamic_symbol symbols[] = { SEMEL_KAFKA_FUNCTIONS(ROW) };

static const char *const names[] = { "librdkafka.so.1", "librdkafka.so", NULL };

static const struct semel_dynamic_library library = {
	.names = names,
	.needed_for = "a Kafka broker",
	.package = "librdkafka1",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static struct semel_kafka_library table; /* constant once it was loaded */
static bool loaded;

semel_status semel_kafka_library_get(const struct semel_kafka_library **library_out,
				     semel_error *error)
{
	*library_out = &table;
	return semel_dynamic_load_once(&library, &table, &loaded, error);
}
