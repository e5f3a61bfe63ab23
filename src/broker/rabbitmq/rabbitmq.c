/* SPDX-License-Identifier: Apache-2.0 */
/* The RabbitMQ broker: opening, closing, and the table of its functions. */
#include "broker/rabbitmq/rabbitmq.h"

#include "base/error.h"
#include "broker/rabbitmq/driver.h"

#include <stdio.h>
#include <stdlib.h>

#define ARENA_BLOCK (64 * 1024)

static void free_shares(struct semel_rabbit *rabbit)
{
	for (uint32_t i = 0; i < rabbit->share_count; i++) {
		free(rabbit->shares[i].queue);
		free((char *)(uintptr_t)rabbit->shares[i].topic);
		free(rabbit->shares[i].acked);
	}
	free(rabbit->shares);
}

static void rabbit_close(struct semel_broker *broker)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_rabbit_disconnect(rabbit);
	free_shares(rabbit);
	for (size_t i = 0; i < rabbit->topic_count; i++)
		free(rabbit->topics[i]);
	for (size_t i = 0; i < rabbit->tier_count; i++)
		free(rabbit->tiers[i].queue);
	free(rabbit->topics);
	free(rabbit->tiers);
	free(rabbit->homes);
	free(rabbit->scope);
	free(rabbit->out.data);
	semel_buffer_free(&rabbit->header_text);
	semel_arena_free(rabbit->scratch);
	semel_arena_free(rabbit->stage);
	semel_rabbit_window_free(&rabbit->window);
	semel_rabbit_settings_free(&rabbit->settings);
	free(rabbit);
}

/* Never the password. */
static void name_place(struct semel_rabbit *rabbit)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	snprintf(rabbit->place, sizeof(rabbit->place), "%s://%s@%s:%d%s%s",
		 settings->tls ? "amqps" : "amqp", settings->user, settings->host, settings->port,
		 settings->vhost[0] == '/' ? "" : "/", settings->vhost);
}

static semel_status rabbit_open(const struct semel_url *url, const struct semel_env *env,
				uint32_t window, struct semel_broker **broker_out,
				semel_error *error)
{
	const struct semel_rabbit_library *library = NULL;
	semel_status status = semel_rabbit_library_get(&library, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_rabbit *rabbit = calloc(1, sizeof(*rabbit));
	if (!rabbit)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the broker");
	rabbit->library = library;
	rabbit->env = env;
	rabbit->fd = rabbit->bell_fd = -1;
	rabbit->scratch = semel_arena_new(ARENA_BLOCK);
	rabbit->stage = semel_arena_new(ARENA_BLOCK);
	if (!rabbit->scratch || !rabbit->stage ||
	    !semel_rabbit_window_make(&rabbit->window, window))
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory for the broker");
	else
		status = semel_rabbit_settings_read(library, url, &rabbit->settings, error);
	rabbit->broker.driver =
		rabbit->settings.tls ? &semel_rabbit_tls_driver : &semel_rabbit_driver;
	if (status == SEMEL_OK) {
		name_place(rabbit);
		status = semel_rabbit_connect(rabbit, error);
	}
	if (status != SEMEL_OK) {
		rabbit_close(&rabbit->broker);
		return status;
	}
	*broker_out = &rabbit->broker;
	return SEMEL_OK;
}

static void rabbit_watch(struct semel_broker *broker, struct semel_wake *wake)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	rabbit->wake = wake;
	semel_wake_watch_fd(wake, rabbit->fd);
	semel_wake_watch_fd(wake, rabbit->bell_fd);
}

#define SLOTS                                                                                      \
	.open = rabbit_open, .close = rabbit_close, .watch = rabbit_watch,                         \
	.publish = semel_rabbit_publish, .poll = semel_rabbit_poll,                                \
	.blocked = semel_rabbit_blocked, .subscribe = semel_rabbit_subscribe,                      \
	.fetch = semel_rabbit_fetch, .ack = semel_rabbit_ack, .rewind = semel_rabbit_rewind,       \
	.requeue = semel_rabbit_requeue, .backlog = semel_rabbit_backlog,                          \
	.find = semel_rabbit_find, .prune = semel_rabbit_prune, .compare = semel_rabbit_compare

const struct semel_broker_driver semel_rabbit_driver = { .scheme = "amqp", SLOTS };
const struct semel_broker_driver semel_rabbit_tls_driver = { .scheme = "amqps", SLOTS };
