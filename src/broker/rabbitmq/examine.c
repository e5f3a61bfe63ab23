/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks of RabbitMQ.
 *
 * Only connections that publish are informed of an alarm. So a message without a body is published
 * to a queue that does not exist: the broker returns it and confirms, or says that it is blocked.
 *
 * AMQP has no request for bindings, nodes and disks: the management plugin reports them over HTTP.
 * A plugin that is not enabled is reported as advice, not as a problem.
 */
#include "base/curl.h"
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_MS     5000
#define BODY_MAX     (16 * 1024 * 1024)
#define TEXT_SIZE    1024
#define LIMIT_HIGH   1000 /* deliveries; no working consumer reaches a limit above this */
#define OLDEST_MAJOR 3
#define OLDEST_MINOR 10

/* ---- asking ---------------------------------------------------------------------------------- */

static void add_escaped(struct semel_buffer *url, const char *part)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789-._~";
	for (; *part; part++) {
		if (strchr(plain, *part))
			semel_buffer_append(url, part, 1);
		else
			semel_buffer_printf(url, "%%%02X", (unsigned char)*part);
	}
}

static void add_base(const struct semel_rabbit *rabbit, const char *management,
		     struct semel_buffer *url)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	size_t length = management ? strlen(management) : 0;
	while (length > 0 && management[length - 1] == '/')
		length--;
	if (management)
		semel_buffer_append(url, management, length);
	else
		semel_buffer_printf(url,
				    strchr(settings->host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
				    settings->tls ? "https" : "http", settings->host,
				    settings->tls ? 15671 : 15672);
}

static json_t *parse(long code, const struct semel_buffer *body, semel_error *error)
{
	json_t *answer = code == 200
				 ? json_loadb(body->data ? body->data : "", body->length, 0, NULL)
				 : NULL;
	if (!answer)
		(void)semel_error_set(error, code == 404 ? SEMEL_NOT_FOUND : SEMEL_OUTAGE,
				      "HTTP status %ld", code);
	return answer;
}

/* "/api/KIND", "/api/KIND/VHOST/NAME", "/api/KIND/VHOST/NAME/WHAT". The caller releases the result;
 * NULL: the error says why. */
static json_t *get(const struct semel_rabbit *rabbit, const char *management, const char *kind,
		   const char *name, const char *what, semel_error *error)
{
	struct semel_buffer url = { 0 }, body = { 0 };
	long code = 0;
	json_t *answer = NULL;
	add_base(rabbit, management, &url);
	size_t base = url.length;
	semel_buffer_printf(&url, "/api/%s", kind);
	if (name) {
		semel_buffer_string(&url, "/");
		add_escaped(&url, rabbit->settings.vhost);
		semel_buffer_string(&url, "/");
		add_escaped(&url, name);
		semel_buffer_printf(&url, "%s%s", what ? "/" : "", what ? what : "");
	}
	const struct semel_fetch fetch = { .url = url.failed ? "" : url.data,
					   .user = rabbit->settings.user,
					   .password = rabbit->settings.password,
					   .authorities = rabbit->settings.cacert,
					   .timeout_ms = FETCH_MS,
					   .body_max = BODY_MAX };
	if (semel_fetch_run(&fetch, &code, &body, error) == SEMEL_OK)
		answer = parse(code, &body, error);
	char shown[256] = ""; /* --management may have a password in it */
	if (!url.failed && url.length > base) {
		url.data[base] = '\0';
		semel_url_redact(url.data, shown, sizeof(shown));
	}
	if (!answer)
		(void)semel_error_prefix(error, "the management plugin at %s", shown);
	semel_buffer_free(&url);
	semel_buffer_free(&body);
	return answer;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool is_true(const json_t *node, const char *name)
{
	return json_is_true(json_object_get(node, name));
}

static void examine_node(const json_t *node, const struct semel_examination *examination)
{
	const char *name = json_string_value(json_object_get(node, "name"));
	json_int_t disk_free = json_integer_value(json_object_get(node, "disk_free"));
	json_int_t limit = json_integer_value(json_object_get(node, "disk_free_limit"));
	char text[TEXT_SIZE];
	if (!name)
		name = "a node";
	if (json_is_false(json_object_get(node, "running"))) {
		snprintf(text, sizeof(text), "the node %.200s is not running", name);
		semel_examination_report(examination, SEMEL_CHECK_BROKER_ALARM,
					 SEMEL_SEVERITY_PROBLEM, text,
					 "start it, or take it out of the cluster");
		return;
	}
	if (json_array_size(json_object_get(node, "partitions")) > 0) {
		snprintf(text, sizeof(text),
			 "the node %.200s is cut off from others (a network partition)", name);
		semel_examination_report(
			examination, SEMEL_CHECK_BROKER_ALARM, SEMEL_SEVERITY_PROBLEM, text,
			"repair the network, then restart the nodes of the smaller partition");
	}
	if (is_true(node, "mem_alarm") || is_true(node, "disk_free_alarm")) {
		snprintf(text, sizeof(text), "the node %.200s has an alarm: %s", name,
			 is_true(node, "mem_alarm") ? "memory" : "disk");
		semel_examination_report(examination, SEMEL_CHECK_BROKER_ALARM,
					 SEMEL_SEVERITY_PROBLEM, text,
					 "docs/runbooks/broker-alarm.md");
	}
	if (disk_free > 0) {
		snprintf(text, sizeof(text), "%.200s above its limit of %lld MB", name,
			 (long long)(limit >> 20));
		semel_examination_disk_space(examination, SEMEL_CHECK_BROKER_DISK, text,
					     disk_free > limit ? (uint64_t)(disk_free - limit) : 0,
					     UINT64_MAX);
	}
}

void semel_rabbit_examine_nodes(struct semel_rabbit *rabbit,
				const struct semel_examination *examination)
{
	semel_error error = { 0 };
	json_t *nodes = get(rabbit, examination->management, "nodes", NULL, NULL, &error);
	for (size_t i = 0; i < json_array_size(nodes); i++)
		examine_node(json_array_get(nodes, i), examination);
	json_decref(nodes);
}

/* ---- bindings -------------------------------------------------------------------------------- */

static bool has_member(const json_t *object, const char *name, const char *expected)
{
	const char *value = json_string_value(json_object_get(object, name));
	return value && strcmp(value, expected) == 0;
}

/* key NULL: any. */
static bool binds(const json_t *bindings, const char *source, const char *key)
{
	for (size_t i = 0; i < json_array_size(bindings); i++) {
		const json_t *binding = json_array_get(bindings, i);
		if (has_member(binding, "source", source) &&
		    (!key || has_member(binding, "routing_key", key)))
			return true;
	}
	return false;
}

/* A binding of earlier settings stays, and brings events that the new one leaves out. */
static void report_extra_bindings(const json_t *bindings, const char *queue, const char *source,
				  const char *key, const struct semel_examination *examination)
{
	char text[TEXT_SIZE];
	for (size_t i = 0; key && i < json_array_size(bindings); i++) {
		const json_t *binding = json_array_get(bindings, i);
		const char *other = json_string_value(json_object_get(binding, "routing_key"));
		if (!has_member(binding, "source", source) || !other || strcmp(other, key) == 0)
			continue;
		snprintf(text, sizeof(text),
			 "%.200s is also bound to the exchange %.200s with the key %.200s, and "
			 "receives events that --bind %.200s excludes",
			 queue, source, other, key);
		semel_examination_report(
			examination, SEMEL_CHECK_BINDINGS, SEMEL_SEVERITY_ADVICE, text,
			"remove that binding at the broker, once no consumer of the "
			"earlier settings runs");
	}
}

struct expected_binding {
	const char *kind, *name, *what; /* their owner: "queues", its name, "bindings" */
	const char *source, *key;
};

/* False: the plugin cannot be queried, so the other bindings need not be checked. */
static bool examine_binding(const struct semel_rabbit *rabbit,
			    const struct expected_binding *expected,
			    const struct semel_examination *examination)
{
	char text[TEXT_SIZE];
	semel_error error = { 0 };
	json_t *bindings = get(rabbit, examination->management, expected->kind, expected->name,
			       expected->what, &error);
	if (!bindings && error.status == SEMEL_NOT_FOUND)
		return true; /* a missing queue or exchange has been reported already */
	if (!bindings) {
		snprintf(text, sizeof(text), "bindings cannot be read: %.900s", error.text);
		semel_examination_report(
			examination, SEMEL_CHECK_BINDINGS, SEMEL_SEVERITY_ADVICE, text,
			"rabbitmq-plugins enable rabbitmq_management, and give the user the tag "
			"monitoring; another address: --management URL. Or run semel topology "
			"apply, which creates what is missing");
		return false;
	}
	bool there = binds(bindings, expected->source, expected->key);
	report_extra_bindings(bindings, expected->name, expected->source, expected->key,
			      examination);
	json_decref(bindings);
	snprintf(text, sizeof(text), "%.255s is %sbound to the exchange %.255s%s%.255s",
		 expected->name, there ? "" : "not ", expected->source, expected->key ? " by " : "",
		 expected->key ? expected->key : "");
	semel_examination_report(examination, SEMEL_CHECK_BINDINGS,
				 there ? SEMEL_SEVERITY_FINE : SEMEL_SEVERITY_PROBLEM, text,
				 there ? NULL
				       : "semel topology apply binds it; what was published "
					 "meanwhile: semel replay --scope SCOPE");
	return true;
}

/* ---- delivery limits ------------------------------------------------------------------------- */

/* -1: none. */
static json_int_t number_of(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);
	return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* The lower one of both limits applies; without a limit, RabbitMQ 4 has a default. */
static void examine_limit(const struct semel_rabbit *rabbit, const char *queue,
			  const struct semel_examination *examination)
{
	char text[TEXT_SIZE], remedy[TEXT_SIZE];
	json_t *entity = get(rabbit, examination->management, "queues", queue, NULL, NULL);
	const json_t *arguments = json_object_get(entity, "arguments");
	const char *type = json_string_value(json_object_get(arguments, "x-queue-type"));
	const char *policy = json_string_value(json_object_get(entity, "policy"));
	json_int_t declared = number_of(arguments, "x-delivery-limit");
	json_int_t set =
		number_of(json_object_get(entity, "effective_policy_definition"), "delivery-limit");
	bool by_policy = set >= 0 && (declared < 0 || set < declared);
	json_int_t limit = by_policy ? set : declared;
	if (type && strcmp(type, "quorum") == 0 && limit >= 0 && limit < LIMIT_HIGH) {
		snprintf(text, sizeof(text),
			 "the queue %.255s drops an event after %lld deliveries%s%.255s", queue,
			 (long long)limit, by_policy ? ": by the policy " : "",
			 by_policy && policy ? policy : "");
		snprintf(remedy, sizeof(remedy),
			 by_policy ? "take delivery-limit out of the policy %.255s; what was "
				     "dropped: semel replay --scope SCOPE"
				   : "let the queue drain, delete it, and run semel topology apply",
			 policy ? policy : "");
		semel_examination_report(examination, SEMEL_CHECK_LIMITS, SEMEL_SEVERITY_PROBLEM,
					 text, remedy);
	} else if (entity) {
		snprintf(text, sizeof(text), "%.255s drops no event", queue);
		semel_examination_report(examination, SEMEL_CHECK_LIMITS, SEMEL_SEVERITY_FINE, text,
					 NULL);
	}
	json_decref(entity);
}

static bool examine_subscription(const struct semel_rabbit *rabbit,
				 const struct semel_rabbit_subscription *subscription,
				 const struct semel_examination *examination)
{
	char first[SEMEL_RABBIT_NAME_SIZE], queue[SEMEL_RABBIT_NAME_SIZE];
	if (semel_rabbit_queue_name(subscription, 0, first, NULL) != SEMEL_OK)
		return true;
	bool partitioned = subscription->partitions > 1;
	const struct expected_binding of_topic = { .kind = partitioned ? "exchanges" : "queues",
						   .name = first,
						   .what = partitioned ? "bindings/destination"
								       : "bindings",
						   .source = subscription->topic,
						   .key = subscription->bind };
	bool asked = examine_binding(rabbit, &of_topic, examination);
	if (asked && !partitioned)
		examine_limit(rabbit, first, examination);
	for (uint32_t number = 1; partitioned && asked && number <= subscription->partitions;
	     number++) {
		const struct expected_binding of_part = {
			.kind = "queues", .name = queue, .what = "bindings", .source = first
		};
		if (semel_rabbit_queue_name(subscription, number, queue, NULL) == SEMEL_OK)
			asked = examine_binding(rabbit, &of_part, examination);
		if (asked)
			examine_limit(rabbit, queue, examination);
	}
	return asked;
}

void semel_rabbit_examine_bindings(struct semel_broker *broker,
				   const struct semel_subscribe_options *options,
				   const struct semel_examination *examination)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	bool asked = true;
	for (uint32_t i = 0; options->topics[i] && asked; i++) {
		struct semel_rabbit_subscription subscription = { .scope = options->scope,
								  .topic = options->topics[i],
								  .bind = options->bind };
		semel_rabbit_lock(broker);
		semel_status status =
			semel_rabbit_partitions_of(rabbit, subscription.scope, subscription.topic,
						   &subscription.partitions, NULL);
		(void)semel_rabbit_unlock(broker, status);
		if (status != SEMEL_OK || subscription.partitions == 0)
			continue;
		asked = examine_subscription(rabbit, &subscription, examination);
	}
}

/* ---- the broker itself ----------------------------------------------------------------------- */

static struct semel_text server_property(struct semel_rabbit *rabbit, const char *name)
{
	const amqp_table_t *table = rabbit->library->get_server_properties(rabbit->connection);
	for (int i = 0; table && i < table->num_entries; i++) {
		const amqp_table_entry_t *entry = &table->entries[i];
		if (entry->value.kind == AMQP_FIELD_KIND_UTF8 &&
		    semel_text_equal(semel_rabbit_text(entry->key), semel_text_of(name)))
			return semel_rabbit_text(entry->value.value.bytes);
	}
	return SEMEL_TEXT("unknown");
}

static void examine_version(struct semel_rabbit *rabbit,
			    const struct semel_examination *examination)
{
	struct semel_text product = server_property(rabbit, "product");
	struct semel_text version = server_property(rabbit, "version");
	char text[TEXT_SIZE], number[32];
	char *rest = NULL;
	snprintf(text, sizeof(text), "%.*s %.*s", (int)product.length, semel_text_shown(product),
		 (int)version.length, semel_text_shown(version));
	snprintf(number, sizeof(number), "%.*s", (int)version.length, semel_text_shown(version));
	long major = strtol(number, &rest, 10);
	long minor = *rest == '.' ? strtol(rest + 1, NULL, 10) : 0;
	bool old = major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR);
	semel_examination_report(
		examination, SEMEL_CHECK_BROKER_VERSION,
		old ? SEMEL_SEVERITY_PROBLEM : SEMEL_SEVERITY_FINE, text,
		old ? "upgrade it: before 3.10 a message on its way out of a retry "
		      "tier can be lost"
		    : NULL);
}

static void examine_alarm(struct semel_rabbit *rabbit, const struct semel_examination *examination)
{
	const struct semel_text name = SEMEL_TEXT_CONST("semel.doctor.probe");
	const struct semel_event event = { .id = name,
					   .type = name,
					   .aggregate_type = name,
					   .aggregate_id = name,
					   .topic = name,
					   .routing_key = name,
					   .content_type = SEMEL_TEXT_CONST("application/json"),
					   .headers = SEMEL_TEXT_CONST("{}"),
					   .payload = SEMEL_TEXT_CONST(""),
					   .time_ms = semel_now_ms(rabbit->env) };
	const struct semel_publish_metadata metadata = { .attempt = 0 };
	const struct semel_rabbit_outgoing outgoing = { .channel = SEMEL_RABBIT_REQUEUE,
							.exchange = SEMEL_TEXT_CONST(""),
							.key = name,
							.event = &event,
							.metadata = &metadata };
	char text[TEXT_SIZE];
	semel_error error = { 0 };
	/* The first message makes this a connection that publishes, and is answered in any case. */
	semel_rabbit_lock(&rabbit->broker);
	semel_status status = semel_rabbit_send_confirmed(rabbit, &outgoing, &error);
	if (status != SEMEL_BUSY && status != SEMEL_CONFIG)
		status = semel_rabbit_send_confirmed(rabbit, &outgoing, &error);
	status = semel_rabbit_unlock(&rabbit->broker, status);
	snprintf(text, sizeof(text), "the broker blocks publishing: %.400s", error.text);
	if (status == SEMEL_BUSY)
		semel_examination_report(
			examination, SEMEL_CHECK_BROKER_ALARM, SEMEL_SEVERITY_PROBLEM, text,
			"free memory or disk space: docs/runbooks/broker-alarm.md");
	else if (status == SEMEL_CONFIG)
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_RIGHTS, &error);
	else
		semel_examination_fine(examination, SEMEL_CHECK_BROKER_ALARM,
				       "the broker accepts events");
}

semel_status semel_rabbit_examine(const struct semel_url *url,
				  const struct semel_examination *examination)
{
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	semel_status status = semel_rabbit_driver.open(url, examination->env, 1, &broker, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return status;
	}
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s", rabbit->address);
	examine_version(rabbit, examination);
	examine_alarm(rabbit, examination);
	semel_rabbit_examine_nodes(rabbit, examination);
	broker->driver->close(broker);
	return SEMEL_OK;
}
