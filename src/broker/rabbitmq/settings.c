/* SPDX-License-Identifier: Apache-2.0 */
/* The settings in an amqp: URL: amqp[s]://user:password@host:port/vhost?name=value. The library's
 * own parser reads the first half; passwords never reach a message. */
#include "base/error.h"
#include "base/text.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const known[] = {
	"queue-type", "single-active", "alternate-exchange", "cacert",     "cert",
	"key",        "heartbeat",     "max-message",        "partitions",
};

static bool copy(char **copy_out, const char *text)
{
	*copy_out = text ? strdup(text) : NULL;
	return !text || *copy_out;
}

static semel_status read_address(const struct semel_rabbit_library *library,
				 const struct semel_url *url,
				 struct semel_rabbit_settings *settings, semel_error *error)
{
	struct semel_buffer text = { 0 };
	struct amqp_connection_info info;
	semel_buffer_printf(&text, "%s:%s", url->scheme, url->path);
	if (text.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	library->default_connection_info(&info);
	if (library->parse_url(text.data, &info) != AMQP_STATUS_OK) {
		semel_buffer_free(&text);
		return semel_error_set(error, SEMEL_CONFIG,
				       "the %s: URL cannot be read (write: "
				       "%s://user:password@host:port/vhost, and %%2F for a / in a "
				       "name)",
				       url->scheme, url->scheme);
	}
	bool copied = copy(&settings->user, info.user) &&
		      copy(&settings->password, info.password) &&
		      copy(&settings->host, info.host) &&
		      copy(&settings->vhost, info.vhost[0] ? info.vhost : "/");
	settings->port = info.port;
	settings->tls = info.ssl;
	semel_buffer_free(&text);
	return copied ? SEMEL_OK : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

static semel_status read_queue_type(const struct semel_url *url,
				    struct semel_rabbit_settings *settings, semel_error *error)
{
	const char *type = semel_url_param(url, "queue-type");
	settings->queue_type = "quorum";
	if (!type || strcmp(type, "quorum") == 0)
		return SEMEL_OK;
	settings->queue_type = "classic";
	if (strcmp(type, "classic") == 0)
		return SEMEL_OK;
	settings->queue_type = "stream";
	settings->stream = true;
	if (strcmp(type, "stream") == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "queue-type=%.40s: must be quorum (the default), classic or stream",
			       type);
}

static semel_status read_single_active(const struct semel_url *url,
				       struct semel_rabbit_settings *settings, semel_error *error)
{
	const char *word = semel_url_param(url, "single-active");
	settings->single_active = !word || strcmp(word, "yes") == 0;
	if (!settings->single_active && settings->stream)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"single-active=%.40s: a stream has one reader of a scope at a "
			"time (spread it: ?partitions=N)",
			word);
	if (settings->single_active || strcmp(word, "no") == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "single-active=%.40s: must be yes (the default: order is kept) or "
			       "no (consumers compete, and overtake each other)",
			       word);
}

static semel_status read_file(const struct semel_url *url, const char *name, char **path_out,
			      semel_error *error)
{
	const char *path = semel_url_param(url, name);
	if (path && access(path, R_OK) != 0)
		return semel_error_set(error, SEMEL_CONFIG, "%s=%.200s: the file cannot be read",
				       name, path);
	return copy(path_out, path) ? SEMEL_OK
				    : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

/* Where systems keep the list of certificate authorities that they trust. */
static const char *system_authorities(void)
{
	static const char *const places[] = { "/etc/ssl/certs/ca-certificates.crt",
					      "/etc/pki/tls/certs/ca-bundle.crt",
					      "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem" };
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if (access(places[i], R_OK) == 0)
			return places[i];
	return NULL;
}

static semel_status read_tls(const struct semel_url *url, struct semel_rabbit_settings *settings,
			     semel_error *error)
{
	static const char *const names[] = { "cacert", "cert", "key" };
	char **const paths[] = { &settings->cacert, &settings->cert, &settings->key };
	for (size_t i = 0; i < 3; i++) {
		semel_status status = read_file(url, names[i], paths[i], error);
		if (status != SEMEL_OK)
			return status;
		if (*paths[i] && !settings->tls)
			return semel_error_set(error, SEMEL_CONFIG,
					       "%s is for amqps: URLs only (write amqps://…)",
					       names[i]);
	}
	if (!settings->tls)
		return SEMEL_OK;
	if (!settings->cert != !settings->key)
		return semel_error_set(error, SEMEL_CONFIG,
				       "cert and key of the amqps: URL belong together: give both");
	if (settings->cacert)
		return SEMEL_OK;
	const char *authorities = system_authorities();
	if (!authorities)
		return semel_error_set(error, SEMEL_CONFIG,
				       "this system has no list of trusted authorities (try: apt "
				       "install ca-certificates, or give ?cacert=FILE)");
	return copy(&settings->cacert, authorities)
		       ? SEMEL_OK
		       : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

static semel_status read_numbers(const struct semel_url *url,
				 struct semel_rabbit_settings *settings, semel_error *error)
{
	const struct {
		const char *name;
		struct semel_range range;
		int64_t *value;
	} numbers[] = {
		{ "heartbeat", { 1, 600, 10 }, &settings->heartbeat_s },
		{ "max-message", { 1, (int64_t)1 << 31, 0 }, &settings->max_message },
		{ "partitions", { 1, SEMEL_WIRE_LANES, 0 }, &settings->partitions },
	};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		semel_status status = semel_url_param_int(url, numbers[i].name, numbers[i].range,
							  numbers[i].value, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_settings_read(const struct semel_rabbit_library *library,
					const struct semel_url *url,
					struct semel_rabbit_settings *settings_out,
					semel_error *error)
{
	*settings_out = (struct semel_rabbit_settings){ 0 };
	semel_status status =
		semel_url_check_params(url, known, sizeof(known) / sizeof(known[0]), error);
	if (status != SEMEL_OK)
		return status;
	status = read_address(library, url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_queue_type(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_single_active(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_tls(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_numbers(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	if (!copy(&settings_out->alternate_exchange, semel_url_param(url, "alternate-exchange")))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	return SEMEL_OK;
}

void semel_rabbit_settings_free(struct semel_rabbit_settings *settings)
{
	char *const texts[] = { settings->user,   settings->password,
				settings->host,   settings->vhost,
				settings->cacert, settings->cert,
				settings->key,    settings->alternate_exchange };
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		free(texts[i]);
	*settings = (struct semel_rabbit_settings){ 0 };
}
