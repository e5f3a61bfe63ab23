/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks of RabbitMQ itself.
 *
 * Only connections that publish are informed of an alarm. So a message without a body is published
 * to a queue that does not exist: the broker returns it and confirms, or says that it is blocked.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <stdlib.h>

#define OLDEST_MAJOR 3
#define OLDEST_MINOR 10
#define TEXT_SIZE    512

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
	/* The first one makes this a connection that publishes, and is answered in any case. */
	semel_rabbit_lock(&rabbit->broker);
	semel_status status = semel_rabbit_send_confirmed(rabbit, &outgoing, &error);
	if (status != SEMEL_BUSY && status != SEMEL_CONFIG)
		status = semel_rabbit_send_confirmed(rabbit, &outgoing, &error);
	status = semel_rabbit_unlock(&rabbit->broker, status);
	snprintf(text, sizeof(text), "the broker blocks publishing: %.400s", error.text);
	if (status == SEMEL_BUSY)
		semel_examination_report(examination, SEMEL_CHECK_BROKER_ALARM,
					 SEMEL_SEVERITY_PROBLEM, text,
					 "give it memory or disk: docs/runbooks/broker-alarm.md");
	else if (status == SEMEL_CONFIG)
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_RIGHTS, &error);
	else
		semel_examination_fine(examination, SEMEL_CHECK_BROKER_ALARM,
				       "the broker takes events");
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
