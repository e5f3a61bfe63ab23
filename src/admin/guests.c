/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/guests.h"

#include "base/error.h"
#include "base/wake.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#define TICK_MS 1000

struct guest {
	struct guest *next, *previous;
	int fd;
	int64_t since_ms, deadline_ms; /* steady */
	bool at_work;                  /* its request is being served, or it listens to a stream */
	bool cut;
};

struct semel_guests {
	struct semel_guests_options options;
	struct semel_wake *wake;
	pthread_t keeper;
	bool keeper_runs;
	pthread_mutex_t lock; /* of what follows */
	struct guest *first;
	uint32_t count; /* of those who are not cut */
};

/* Under the lock. The library sees the end of the connection and does the rest. */
static void cut(struct semel_guests *guests, struct guest *guest)
{
	guest->cut = true;
	guests->count--;
	if (guest->fd >= 0)
		shutdown(guest->fd, SHUT_RDWR);
}

/* Under the lock. Whoever is being served stays. */
static void cut_most_silent(struct semel_guests *guests, const struct guest *newcomer)
{
	struct guest *silent = NULL;

	for (struct guest *guest = guests->first; guest; guest = guest->next)
		if (!guest->cut && !guest->at_work && guest != newcomer &&
		    (!silent || guest->since_ms <= silent->since_ms))
			silent = guest;
	if (silent)
		cut(guests, silent);
}

static void arrives(struct semel_guests *guests, struct MHD_Connection *connection, void **context)
{
	const union MHD_ConnectionInfo *info = guests->options.library->get_connection_info(
		connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct guest *guest = calloc(1, sizeof *guest);

	*context = guest;
	if (!guest)
		return;
	guest->fd = info ? info->connect_fd : -1;
	guest->since_ms = semel_steady_ms(guests->options.env);
	guest->deadline_ms = guest->since_ms + guests->options.request_ms;
	pthread_mutex_lock(&guests->lock);
	guest->next = guests->first;
	if (guest->next)
		guest->next->previous = guest;
	guests->first = guest;
	if (++guests->count > guests->options.crowded)
		cut_most_silent(guests, guest);
	pthread_mutex_unlock(&guests->lock);
}

static void leaves(struct semel_guests *guests, struct guest *guest)
{
	if (!guest)
		return;
	pthread_mutex_lock(&guests->lock);
	if (guest->next)
		guest->next->previous = guest->previous;
	if (guest->previous)
		guest->previous->next = guest->next;
	else
		guests->first = guest->next;
	if (!guest->cut)
		guests->count--;
	pthread_mutex_unlock(&guests->lock);
	free(guest);
}

void semel_guests_seen(void *user, struct MHD_Connection *connection, void **context,
		       enum MHD_ConnectionNotificationCode code)
{
	if (code == MHD_CONNECTION_NOTIFY_STARTED)
		arrives(user, connection, context);
	else
		leaves(user, *context);
}

static int64_t allowed_ms(const struct semel_guests_options *options, enum semel_guest_step step)
{
	switch (step) {
	case SEMEL_GUEST_ASKS:
		return options->request_ms;
	case SEMEL_GUEST_READS:
		return options->answer_ms;
	case SEMEL_GUEST_RESTS:
		return options->idle_ms;
	case SEMEL_GUEST_WAITS:
	case SEMEL_GUEST_LISTENS:
		break;
	}
	return INT64_MAX / 2;
}

void semel_guest_step(struct semel_guests *guests, struct MHD_Connection *connection,
		      enum semel_guest_step step)
{
	const union MHD_ConnectionInfo *info = guests->options.library->get_connection_info(
		connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct guest *guest = info ? info->socket_context : NULL;

	if (!guest)
		return;
	int64_t now_ms = semel_steady_ms(guests->options.env);
	pthread_mutex_lock(&guests->lock);
	guest->since_ms = now_ms;
	guest->deadline_ms = now_ms + allowed_ms(&guests->options, step);
	guest->at_work = step != SEMEL_GUEST_ASKS && step != SEMEL_GUEST_RESTS;
	pthread_mutex_unlock(&guests->lock);
}

static void *keep(void *user)
{
	struct semel_guests *guests = user;

	while (!semel_wake_rung(guests->wake)) {
		semel_wake_sleep(guests->wake, TICK_MS);
		int64_t now_ms = semel_steady_ms(guests->options.env);
		pthread_mutex_lock(&guests->lock);
		for (struct guest *guest = guests->first; guest; guest = guest->next)
			if (!guest->cut && now_ms > guest->deadline_ms)
				cut(guests, guest);
		pthread_mutex_unlock(&guests->lock);
	}
	return NULL;
}

semel_status semel_guests_start(const struct semel_guests_options *options,
				struct semel_guests **guests_out, semel_error *error)
{
	struct semel_guests *guests = calloc(1, sizeof *guests);

	*guests_out = NULL;
	if (!guests)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the admin server");
	guests->options = *options;
	pthread_mutex_init(&guests->lock, NULL);
	semel_status status = semel_wake_new(&guests->wake, error);
	if (status == SEMEL_OK && pthread_create(&guests->keeper, NULL, keep, guests) != 0)
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the admin server");
	guests->keeper_runs = status == SEMEL_OK;
	if (status != SEMEL_OK) {
		semel_guests_free(guests);
		return status;
	}
	*guests_out = guests;
	return SEMEL_OK;
}

void semel_guests_stop(struct semel_guests *guests)
{
	if (!guests->keeper_runs)
		return;
	semel_wake_ring(guests->wake);
	pthread_join(guests->keeper, NULL);
	guests->keeper_runs = false;
}

void semel_guests_free(struct semel_guests *guests)
{
	if (!guests)
		return;
	semel_wake_free(guests->wake);
	pthread_mutex_destroy(&guests->lock);
	free(guests);
}
