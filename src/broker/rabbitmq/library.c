/* SPDX-License-Identifier: Apache-2.0 */
/* librabbitmq is never linked: see base/dynamic.h. */
#include "broker/rabbitmq/library.h"

#include "base/dynamic.h"

#include <stdbool.h>

#define ROW(member) { "amqp_" #member, offsetof(struct semel_rabbit_library, member) },

static const struct semel_dynamic_symbol symbols[] = {
	SEMEL_RABBIT_FUNCTIONS(ROW) /* and, found through it: */
	{ "SSL_CTX_get0_param", offsetof(struct semel_rabbit_library, tls_parameters) },
	{ "X509_VERIFY_PARAM_set1_ip_asc",
	  offsetof(struct semel_rabbit_library, tls_expect_address) },
	{ "SSL_CTX_ctrl", offsetof(struct semel_rabbit_library, tls_control) },
	{ "SSL_CTX_set_info_callback", offsetof(struct semel_rabbit_library, tls_on_handshake) },
	{ "SSL_write", offsetof(struct semel_rabbit_library, tls_write) },
	{ "SSL_get_error", offsetof(struct semel_rabbit_library, tls_error) },
	{ "ERR_clear_error", offsetof(struct semel_rabbit_library, tls_clear_errors) },
};

static const char *const names[] = { "librabbitmq.so.4", "librabbitmq.so", NULL };

static const struct semel_dynamic_library library = {
	.names = names,
	.needed_for = "a RabbitMQ broker",
	.package = "librabbitmq4",
	.symbols = symbols,
	.symbol_count = sizeof symbols / sizeof *symbols,
};

static struct semel_rabbit_library table; /* constant once it was loaded */
static bool loaded;

semel_status semel_rabbit_library_get(const struct semel_rabbit_library **library_out,
				      semel_error *error)
{
	*library_out = &table;
	return semel_dynamic_load_once(&library, &table, &loaded, error);
}
