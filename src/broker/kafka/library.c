/* SPDX-License-Identifier: Apache-2.0 */
/* librdkafka is never linked: see base/dynamic.h. */
#include "broker/kafka/library.h"

#include "base/dynamic.h"

#include <pthread.h>
#include <stdbool.h>

#define ROW(member) { "rd_kafka_" #member, offsetof(struct semel_kafka_library, member) },

static const struct semel_dynamic_symbol symbols[] = { SEMEL_KAFKA_FUNCTIONS(ROW) };

static const char *const names[] = { "librdkafka.so.1", "librdkafka.so", NULL };

static const struct semel_dynamic library = {
	.names = names,
	.needed_for = "a Kafka broker",
	.package = "librdkafka1",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct semel_kafka_library table; /* constant once it was loaded */
static bool loaded;

semel_status semel_kafka_library_get(const struct semel_kafka_library **library_out,
				     semel_error *error)
{
	pthread_mutex_lock(&load_lock);
	semel_status status = loaded ? SEMEL_OK : semel_dynamic_load(&library, &table, error);
	loaded = status == SEMEL_OK;
	pthread_mutex_unlock(&load_lock);
	*library_out = &table;
	return status;
}
