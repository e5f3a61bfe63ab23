/* SPDX-License-Identifier: Apache-2.0 */
/* The RabbitMQ broker: opening, closing, and the table of its functions. */
#include "broker/rabbitmq/rabbitmq.h"
#include "base/dynamic.h"
#include "base/error.h"
#include "broker/rabbitmq/library.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BLOCK (64 * 1024)

/* ---- librabbitmq, which is never linked: see base/dynamic.h ---------------------------------- */

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

static const struct semel_dynamic_library librabbitmq = {
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
	return semel_dynamic_load_once(&librabbitmq, &table, &loaded, error);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_assignments(struct semel_rabbit *rabbit)
{
	for (uint32_t i = 0; i < rabbit->assignment_count; i++) {
		free(rabbit->assignments[i].queue);
		free((char *)(uintptr_t)rabbit->assignments[i].topic);
		free(rabbit->assignments[i].acked);
		free(rabbit->assignments[i].unacked);
		free(rabbit->assignments[i].log.offsets);
		free(rabbit->assignments[i].log.acked_ahead);
	}
	free(rabbit->assignments);
}

void semel_rabbit_free(struct semel_rabbit *rabbit)
{
	if (!rabbit)
		return;
	semel_rabbit_free(rabbit->publisher);
	semel_rabbit_heartbeat_stop(rabbit);
	semel_rabbit_disconnect(rabbit);
	for (uint32_t i = 0; rabbit->settings.stream && i < rabbit->assignment_count; i++)
		semel_rabbit_stream_release(rabbit, i);
	semel_rabbit_unacked_list_free(rabbit);
	free_assignments(rabbit);
	for (size_t i = 0; i < rabbit->topic_count; i++)
		free(rabbit->topics[i]);
	for (size_t i = 0; i < rabbit->tier_count; i++)
		free(rabbit->tiers[i].queue);
	free(rabbit->topics);
	free(rabbit->tiers);
	free(rabbit->known);
	free(rabbit->scope);
	free(rabbit->bind);
	free(rabbit->output.data);
	semel_buffer_free(&rabbit->header_text);
	semel_arena_free(rabbit->scratch);
	semel_rabbit_window_free(&rabbit->window);
	if (!rabbit->is_second)
		semel_rabbit_settings_free(&rabbit->settings);
	semel_rabbit_heartbeat_free(rabbit);
	free(rabbit);
}

static void rabbit_close(struct semel_broker *broker)
{
	semel_rabbit_free(semel_rabbit_of(broker));
}

/* Not connected yet. */
static struct semel_rabbit *make(const struct semel_rabbit_library *library,
				 const struct semel_env *env, uint32_t window)
{
	struct semel_rabbit *rabbit = calloc(1, sizeof(*rabbit));
	if (!rabbit)
		return NULL;
	rabbit->library = library;
	rabbit->env = env;
	rabbit->fd = rabbit->ready_fd = -1;
	rabbit->scratch = semel_arena_new(ARENA_BLOCK);
	if (semel_rabbit_heartbeat_init(rabbit) && rabbit->scratch &&
	    semel_rabbit_window_new(&rabbit->window, window))
		return rabbit;
	semel_rabbit_free(rabbit);
	return NULL;
}

/* Never the password. */
static void write_address(struct semel_rabbit *rabbit)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	bool bracketed = strchr(settings->host, ':') != NULL; /* IPv6 */
	snprintf(rabbit->address, sizeof(rabbit->address), "%s://%s@%s%s%s:%d%s%s",
		 settings->tls ? "amqps" : "amqp", settings->user, bracketed ? "[" : "",
		 settings->host, bracketed ? "]" : "", settings->port,
		 settings->vhost[0] == '/' ? "" : "/", settings->vhost);
}

/* Called after the settings were read. */
static semel_status connect(struct semel_rabbit *rabbit, semel_error *error)
{
	rabbit->broker.driver =
		rabbit->settings.tls ? &semel_rabbit_tls_driver : &semel_rabbit_driver;
	write_address(rabbit);
	semel_status status = semel_rabbit_connect(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	semel_rabbit_heartbeat_start(rabbit);
	return SEMEL_OK;
}

semel_status semel_rabbit_open_second(const struct semel_rabbit *first,
				      struct semel_rabbit **second_out, semel_error *error)
{
	struct semel_rabbit *rabbit = make(first->library, first->env, 1);
	if (!rabbit)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a connection");
	rabbit->settings = first->settings;
	rabbit->is_second = true;
	semel_status status = connect(rabbit, error);
	if (status != SEMEL_OK) {
		semel_rabbit_free(rabbit);
		return status;
	}
	*second_out = rabbit;
	return SEMEL_OK;
}

static semel_status rabbit_open(const struct semel_url *url, const struct semel_env *env,
				uint32_t window, struct semel_broker **broker_out,
				semel_error *error)
{
	const struct semel_rabbit_library *library = NULL;
	semel_status status = semel_rabbit_library_get(&library, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit *rabbit = make(library, env, window);
	if (!rabbit)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the broker");
	status = semel_rabbit_settings_read(library, url, &rabbit->settings, error);
	if (status != SEMEL_OK)
		goto free_rabbit;
	status = connect(rabbit, error);
	if (status != SEMEL_OK)
		goto free_rabbit;
	*broker_out = &rabbit->broker;
	return SEMEL_OK;

free_rabbit:
	semel_rabbit_free(rabbit);
	return status;
}

static void rabbit_watch(struct semel_broker *broker, struct semel_wake *wake)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	rabbit->wake = wake;
	semel_wake_watch_fd(wake, rabbit->fd);
	semel_wake_watch_fd(wake, rabbit->ready_fd);
}

static void rabbit_set_offset_store(struct semel_broker *broker,
				    const struct semel_offset_store *offset_store)
{
	semel_rabbit_of(broker)->offset_store = offset_store;
}

/* ---- the functions of the table, each with the mutex of heartbeat.c -------------------------- */

#define LOCKED(name, parameters, ...)                                                              \
	static semel_status locked_##name parameters                                               \
	{                                                                                          \
		semel_rabbit_lock(broker);                                                         \
		return semel_rabbit_unlock(broker, semel_rabbit_##name(broker, __VA_ARGS__));      \
	}

LOCKED(publish,
       (struct semel_broker * broker, const struct semel_event *event,
	const struct semel_publish_metadata *metadata, void *token, semel_error *error),
       event, metadata, token, error)
LOCKED(poll,
       (struct semel_broker * broker, int64_t wait_ms, semel_outcome_callback callback, void *user,
	semel_error *error),
       wait_ms, callback, user, error)
LOCKED(subscribe,
       (struct semel_broker * broker, const struct semel_subscribe_options *options,
	semel_error *error),
       options, error)
LOCKED(fetch,
       (struct semel_broker * broker, uint32_t max, struct semel_arena *arena,
	struct semel_delivery *deliveries_out, uint32_t *count_out, semel_error *error),
       max, arena, deliveries_out, count_out, error)
LOCKED(ack,
       (struct semel_broker * broker, const struct semel_delivery *deliveries, size_t count,
	semel_error *error),
       deliveries, count, error)
LOCKED(rewind, (struct semel_broker * broker, semel_error *error), error)
LOCKED(requeue,
       (struct semel_broker * broker, const char *scope, const struct semel_event *event,
	const struct semel_publish_metadata *metadata, int64_t delay_ms, semel_error *error),
       scope, event, metadata, delay_ms, error)
LOCKED(publish_dead_letter,
       (struct semel_broker * broker, const struct semel_dead_letter_copy *letter,
	semel_error *error),
       letter, error)
LOCKED(backlog,
       (struct semel_broker * broker, const char *scope, const char *const *topics,
	struct semel_backlog *backlog_out, semel_error *error),
       scope, topics, backlog_out, error)
LOCKED(next_due,
       (struct semel_broker * broker, const char *scope, const char *const *topics,
	int64_t *due_ms_out, semel_error *error),
       scope, topics, due_ms_out, error)
LOCKED(find_event,
       (struct semel_broker * broker, const char *scope, const char *const *topics,
	const char *event_id, bool *waiting_out, semel_error *error),
       scope, topics, event_id, waiting_out, error)
LOCKED(compare,
       (struct semel_broker * broker, const struct semel_subscribe_options *options,
	semel_difference_callback report, void *user, semel_error *error),
       options, report, user, error)
LOCKED(remove,
       (struct semel_broker * broker, const char *topic, const char *const *scopes,
	semel_error *error),
       topic, scopes, error)

#define FUNCTIONS                                                                                  \
	.open = rabbit_open, .close = rabbit_close, .watch = rabbit_watch,                         \
	.watch_outcomes = rabbit_watch, .publish = locked_publish, .poll = locked_poll,            \
	.blocked = semel_rabbit_blocked, .set_offset_store = rabbit_set_offset_store,              \
	.subscribe = locked_subscribe, .fetch = locked_fetch, .ack = locked_ack,                   \
	.count_in_flight = semel_rabbit_count_in_flight, .rewind = locked_rewind,                  \
	.requeue = locked_requeue, .publish_dead_letter = locked_publish_dead_letter,              \
	.backlog = locked_backlog, .next_due = locked_next_due, .find_event = locked_find_event,   \
	.compare = locked_compare, .examine = semel_rabbit_examine,                                \
	.examine_bindings = semel_rabbit_examine_bindings, .remove = locked_remove

const struct semel_broker_driver semel_rabbit_driver = {
	.scheme = "amqp", .form = "amqp://user@host/", .has_exchanges = true, FUNCTIONS
};
const struct semel_broker_driver semel_rabbit_tls_driver = { .scheme = "amqps",
							     .has_exchanges = true,
							     FUNCTIONS };
