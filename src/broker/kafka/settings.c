/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a kafka: URL: kafka://host:port,host:port/?name=value. Most are librdkafka's,
 * by its names; those that the delivery guarantee depends on cannot be set. Secrets come from
 * files, so that they are neither in a URL nor in a process list. */
#include "base/error.h"
#include "base/text.h"
#include "broker/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECRET_MAX      4096
#define SHOWN_MAX       100
#define PORT_DIGITS_MAX 9
#define PASSWORD_FILE   "SEMEL_KAFKA_PASSWORD_FILE"

/* Ours. The last two name files with the value of the setting of that name. */
static const char *const own[] = {
	"prefix",     "create-topics", "dead-letter-topics", "offsets",
	"partitions", "replication",   "sasl.password-file", "ssl.key.password-file"
};

/* librdkafka's, forwarded unchanged. */
static const char *const forwarded[] = {
	"client.id",
	"client.rack",
	"security.protocol",
	"sasl.mechanisms",
	"sasl.mechanism",
	"sasl.username",
	"sasl.kerberos.service.name",
	"sasl.kerberos.principal",
	"sasl.kerberos.keytab",
	"sasl.oauthbearer.method",
	"sasl.oauthbearer.client.id",
	"sasl.oauthbearer.token.endpoint.url",
	"sasl.oauthbearer.scope",
	"ssl.ca.location",
	"ssl.certificate.location",
	"ssl.key.location",
	"ssl.crl.location",
	"ssl.cipher.suites",
	"ssl.endpoint.identification.algorithm",
	"enable.ssl.certificate.verification",
	"compression.type",
	"compression.codec",
	"compression.level",
	"linger.ms",
	"queue.buffering.max.ms",
	"batch.size",
	"batch.num.messages",
	"message.max.bytes",
	"request.timeout.ms",
	"partitioner",
	"session.timeout.ms",
	"heartbeat.interval.ms",
	"max.poll.interval.ms",
	"group.instance.id",
	"isolation.level",
	"fetch.wait.max.ms",
	"fetch.min.bytes",
	"fetch.max.bytes",
	"max.partition.fetch.bytes",
	"queued.min.messages",
	"queued.max.messages.kbytes",
	"receive.message.max.bytes",
	"socket.timeout.ms",
	"socket.keepalive.enable",
	"socket.connection.setup.timeout.ms",
	"reconnect.backoff.ms",
	"reconnect.backoff.max.ms",
	"connections.max.idle.ms",
	"metadata.max.age.ms",
	"topic.metadata.refresh.interval.ms",
	"broker.address.family",
	"debug",
};

#define OWN_COUNT       (sizeof(own) / sizeof(own[0]))
#define FORWARDED_COUNT (sizeof(forwarded) / sizeof(forwarded[0]))

static bool is_secret(const char *name)
{
	return strcmp(name, "sasl.password") == 0 || strcmp(name, "ssl.key.password") == 0 ||
	       strcmp(name, "sasl.oauthbearer.client.secret") == 0;
}

static semel_status check_names(const struct semel_url *url, semel_error *error)
{
	const char *known[OWN_COUNT + FORWARDED_COUNT];
	memcpy(known, own, sizeof(own));
	memcpy(known + OWN_COUNT, forwarded, sizeof(forwarded));
	for (size_t i = 0; i < url->param_count; i++)
		if (is_secret(url->params[i].name))
			return semel_error_set(
				error, SEMEL_CONFIG,
				"%s must not be in the URL, where others can read it "
				"(put it into a file and set %s-file=PATH)",
				url->params[i].name, url->params[i].name);
	return semel_url_check_params(url, known, OWN_COUNT + FORWARDED_COUNT, error);
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

static semel_status forward(struct semel_kafka_settings *settings, const char *name,
			    const char *value, semel_error *error)
{
	struct semel_kafka_setting *setting = &settings->forwarded[settings->forwarded_count++];
	setting->name = strdup(name);
	setting->value = strdup(value);
	return setting->name && setting->value ? SEMEL_OK : no_memory(error);
}

static bool is_forwarded(const char *name)
{
	for (size_t i = 0; i < FORWARDED_COUNT; i++)
		if (strcmp(name, forwarded[i]) == 0)
			return true;
	return false;
}

/* The first line of the file. */
static semel_status forward_secret(struct semel_kafka_settings *settings, const char *name,
				   const char *path, semel_error *error)
{
	char secret[SECRET_MAX] = "";
	FILE *file = fopen(path, "re");
	if (!file)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s-file=%.200s: the file cannot be read", name, path);
	bool there = fgets(secret, sizeof(secret), file) != NULL;
	fclose(file);
	secret[strcspn(secret, "\r\n")] = '\0';
	semel_status status =
		there && secret[0]
			? forward(settings, name, secret, error)
			: semel_error_set(error, SEMEL_CONFIG, "%s-file=%.200s: the file is empty",
					  name, path);
	explicit_bzero(secret, sizeof(secret));
	return status;
}

static semel_status forward_secrets(const struct semel_url *url,
				    struct semel_kafka_settings *settings, semel_error *error)
{
	const char *password = semel_url_param(url, "sasl.password-file");
	const char *key = semel_url_param(url, "ssl.key.password-file");
	if (!password)
		password = getenv(PASSWORD_FILE);
	if (password && password[0]) {
		semel_status status = forward_secret(settings, "sasl.password", password, error);
		if (status != SEMEL_OK)
			return status;
	}
	return key ? forward_secret(settings, "ssl.key.password", key, error) : SEMEL_OK;
}

/* No colon, or a number after the only one; an IPv6 address without brackets has several colons and
 * no port. */
static bool has_good_port(const char *server, size_t length)
{
	const char *bracket = memchr(server, ']', length);
	const char *begin = bracket ? bracket : server, *end = server + length;
	const char *colon = memchr(begin, ':', (size_t)(end - begin));
	if (!colon || memchr(colon + 1, ':', (size_t)(end - colon - 1)))
		return true;
	size_t digits = strspn(colon + 1, "0123456789");
	long port = digits <= PORT_DIGITS_MAX ? strtol(colon + 1, NULL, 10) : 0;
	return colon + 1 + digits == end && port > 0 && port <= UINT16_MAX;
}

static semel_status check_servers(const char *servers, semel_error *error)
{
	for (const char *at = servers; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
		size_t length = strcspn(at, ",");
		if (length == 0 || (at[0] == ':' && at[1] != ':') || !has_good_port(at, length))
			return semel_error_set(
				error, SEMEL_CONFIG,
				"the kafka: URL has \"%.*s\" where host:port is "
				"expected (write: kafka://host:port,host:port; a port "
				"is a number from 1 to 65535)",
				(int)(length < SHOWN_MAX ? length : SHOWN_MAX), at);
	}
	return SEMEL_OK;
}

static semel_status read_servers(const struct semel_url *url, struct semel_kafka_settings *settings,
				 semel_error *error)
{
	const char *at = strncmp(url->path, "//", 2) == 0 ? url->path + 2 : url->path;
	size_t length = strcspn(at, "/");
	if (length == 0 || at[strspn(at + length, "/") + length] != '\0' || memchr(at, '@', length))
		return semel_error_set(error, SEMEL_CONFIG,
				       "invalid kafka: URL (write: "
				       "kafka://host:port,host:port/?name=value; set a user by "
				       "sasl.username=NAME)");
	settings->servers = strndup(at, length);
	return settings->servers ? check_servers(settings->servers, error) : no_memory(error);
}

/* The default is yes. */
static semel_status read_choice(const struct semel_url *url, const char *name, const char *meaning,
				bool *choice_out, semel_error *error)
{
	const char *word = semel_url_param(url, name);
	*choice_out = !word || strcmp(word, "yes") == 0;
	if (*choice_out || strcmp(word, "no") == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG, "%s=%.40s: must be yes (the default: %s) or no",
			       name, word, meaning);
}

static semel_status read_prefix(const struct semel_url *url, struct semel_kafka_settings *settings,
				semel_error *error)
{
	const char *word = semel_url_param(url, "prefix");
	settings->prefix = strdup(word ? word : "");
	return settings->prefix ? SEMEL_OK : no_memory(error);
}

static semel_status read_creation(const struct semel_url *url,
				  struct semel_kafka_settings *settings, semel_error *error)
{
	const struct semel_range partitions = { 1, 100000, 0 }, replication = { 1, 1000, 0 };
	semel_status status = read_choice(url, "create-topics", "missing topics are created",
					  &settings->create_topics, error);
	if (status != SEMEL_OK)
		return status;
	status = read_choice(url, "dead-letter-topics", "dead letters are copied to a topic",
			     &settings->publishes_dead_letters, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_url_param_int(url, "partitions", partitions, &settings->partitions, error);
	if (status != SEMEL_OK)
		return status;
	return semel_url_param_int(url, "replication", replication, &settings->replication, error);
}

static semel_status read_offsets(const struct semel_url *url, struct semel_kafka_settings *settings,
				 semel_error *error)
{
	const char *word = semel_url_param(url, "offsets");
	settings->offsets_in_store = word && strcmp(word, "store") == 0;
	if (!word || settings->offsets_in_store || strcmp(word, "broker") == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "offsets=%.40s: must be broker (the default: in the group) or store "
			       "(with the effects, in their transaction)",
			       word);
}

semel_status semel_kafka_settings_read(const struct semel_url *url,
				       struct semel_kafka_settings *settings_out,
				       semel_error *error)
{
	*settings_out = (struct semel_kafka_settings){ 0 };
	semel_status status = check_names(url, error);
	if (status != SEMEL_OK)
		return status;
	status = read_servers(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_prefix(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_creation(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	status = read_offsets(url, settings_out, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < url->param_count; i++) {
		if (!is_forwarded(url->params[i].name))
			continue;
		status = forward(settings_out, url->params[i].name, url->params[i].value, error);
		if (status != SEMEL_OK)
			return status;
	}
	return forward_secrets(url, settings_out, error);
}

void semel_kafka_settings_free(struct semel_kafka_settings *settings)
{
	for (size_t i = 0; i < settings->forwarded_count; i++) {
		char *name = (char *)(uintptr_t)settings->forwarded[i].name;
		char *value = (char *)(uintptr_t)settings->forwarded[i].value;
		if (value)
			explicit_bzero(value, strlen(value));
		free(name);
		free(value);
	}
	free(settings->servers);
	free(settings->prefix);
	*settings = (struct semel_kafka_settings){ 0 };
}
