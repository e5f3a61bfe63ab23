/* SPDX-License-Identifier: Apache-2.0 */
/* The Kafka broker: opening, closing, and the table of its functions. */
#include "broker/kafka/kafka.h"
#include "base/dynamic.h"
#include "base/error.h"
#include "broker/kafka/library.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ARENA_BLOCK (64 * 1024)

/* ---- librdkafka, which is never linked: see base/dynamic.h ----------------------------------- */

#define ROW(member) { "rd_kafka_" #member, offsetof(struct semel_kafka_library, member) },

static const struct semel_dynamic_symbol symbols[] = { SEMEL_KAFKA_FUNCTIONS(ROW) };

static const char *const names[] = { "librdkafka.so.1", "librdkafka.so", NULL };

static const struct semel_dynamic_library librdkafka = {
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
	return semel_dynamic_load_once(&librdkafka, &table, &loaded, error);
}

/* ---- the driver ------------------------------------------------------------------------------ */

static void kafka_close(struct semel_broker *broker)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	if (kafka->wake)
		semel_wake_unwatch_fd(kafka->wake, kafka->event_fd);
	semel_kafka_anchor_close(kafka);
	semel_kafka_group_leave(kafka);
	semel_kafka_producer_free(kafka);
	semel_kafka_assignments_free(kafka);
	semel_kafka_topics_free(kafka);
	semel_kafka_window_free(kafka);
	semel_kafka_settings_free(&kafka->settings);
	semel_buffer_free(&kafka->header_text);
	semel_arena_free(kafka->scratch);
	free(kafka->group_join);
	free(kafka->scope);
	free(kafka->transaction.name);
	if (kafka->event_fd >= 0)
		close(kafka->event_fd);
	free(kafka);
}

static semel_status kafka_open(const struct semel_url *url, const struct semel_env *env,
			       uint32_t window, struct semel_broker **broker_out,
			       semel_error *error)
{
	const struct semel_kafka_library *library = NULL;
	semel_status status = semel_kafka_library_get(&library, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_kafka *kafka = calloc(1, sizeof(*kafka));
	if (!kafka)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the broker");
	kafka->broker.driver = &semel_kafka_driver;
	kafka->library = library;
	kafka->env = env;
	kafka->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	kafka->scratch = semel_arena_new(ARENA_BLOCK);
	if (kafka->event_fd < 0 || !kafka->scratch ||
	    !semel_kafka_window_new(&kafka->window, window)) {
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for the broker");
		goto close;
	}
	status = semel_kafka_settings_read(url, &kafka->settings, error);
	if (status != SEMEL_OK)
		goto close;
	snprintf(kafka->address, sizeof(kafka->address), "kafka://%s", kafka->settings.servers);
	status = semel_kafka_producer_new(kafka, error);
	if (status != SEMEL_OK)
		goto close;
	status = semel_kafka_connect(kafka, error);
	if (status != SEMEL_OK)
		goto close;
	*broker_out = &kafka->broker;
	return SEMEL_OK;

close:
	kafka_close(&kafka->broker);
	return status;
}

static void kafka_watch(struct semel_broker *broker, struct semel_wake *wake)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	kafka->wake = wake;
	semel_kafka_notify_on(kafka, kafka->producer_queue);
	if (kafka->consumer_queue)
		semel_kafka_notify_on(kafka, kafka->consumer_queue);
	for (uint32_t i = 0; i < kafka->assignment_count; i++)
		if (kafka->assignments[i].queue)
			semel_kafka_notify_on(kafka, kafka->assignments[i].queue);
	semel_wake_watch_fd(wake, kafka->event_fd);
}

static void kafka_set_offset_store(struct semel_broker *broker,
				   const struct semel_offset_store *offset_store)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	kafka->offset_store = kafka->settings.offsets_in_store ? offset_store : NULL;
	kafka->former_offset_store = kafka->settings.offsets_in_store ? NULL : offset_store;
}

const struct semel_broker_driver semel_kafka_driver = {
	.scheme = "kafka",
	.form = "kafka://host:9092",
	.works_in_background = true, /* librdkafka's threads */
	.open = kafka_open,
	.close = kafka_close,
	.watch = kafka_watch,
	.set_offset_store = kafka_set_offset_store,
	.publish = semel_kafka_publish,
	.poll = semel_kafka_poll,
	.init_transactions = semel_kafka_init_transactions,
	.complete_transaction = semel_kafka_complete_transaction,
	.blocked = semel_kafka_blocked,
	.subscribe = semel_kafka_subscribe,
	.fetch = semel_kafka_fetch,
	.ack = semel_kafka_ack,
	.rewind = semel_kafka_rewind,
	.requeue = semel_kafka_requeue,
	.publish_dead_letter = semel_kafka_publish_dead_letter,
	.backlog = semel_kafka_backlog,
	.find_event = semel_kafka_find_event,
	.compare = semel_kafka_compare,
	.examine = semel_kafka_examine,
	.remove = semel_kafka_remove,
};
