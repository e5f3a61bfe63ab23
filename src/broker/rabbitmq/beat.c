/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats while the owner of the connection is elsewhere: in a slow handler, or asleep. The
 * library has no thread for them, so there is one here.
 *
 * - The owner holds the line whenever it is inside a function of the driver; the thread takes it
 *   only for the moment of a heartbeat, so nothing is ever written into the middle of a frame.
 * - The thread never reads: what the broker has said waits until the owner comes back, and only the
 *   owner judges whether the broker is silent.
 */
#include "broker/rabbitmq/rabbitmq.h"

#include <signal.h>

#define STACK_BYTES (128 * 1024)

static void *beat(void *argument)
{
	struct semel_rabbit *rabbit = argument;
	while (!semel_wake_is_notified(rabbit->beater.bed)) {
		pthread_mutex_lock(&rabbit->beater.line);
		if (!rabbit->lost)
			(void)semel_rabbit_send_beat(rabbit, NULL); /* the owner hears of it */
		pthread_mutex_unlock(&rabbit->beater.line);
		(void)semel_wake_sleep(rabbit->beater.bed, rabbit->heartbeat_ms / 4);
	}
	return NULL;
}

bool semel_rabbit_beater_make(struct semel_rabbit *rabbit)
{
	return pthread_mutex_init(&rabbit->beater.line, NULL) == 0 &&
	       semel_wake_new(&rabbit->beater.bed, NULL) == SEMEL_OK;
}

/* Signals are for the application's own threads. */
void semel_rabbit_beater_start(struct semel_rabbit *rabbit)
{
	sigset_t all, before;
	pthread_attr_t small;
	if (rabbit->heartbeat_ms == 0)
		return;
	sigfillset(&all);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rabbit->beater.running = pthread_create(&rabbit->beater.thread, &small, beat, rabbit) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&small);
}

void semel_rabbit_beater_stop(struct semel_rabbit *rabbit)
{
	if (!rabbit->beater.running)
		return;
	semel_wake_notify(rabbit->beater.bed);
	pthread_join(rabbit->beater.thread, NULL);
	rabbit->beater.running = false;
}

void semel_rabbit_beater_free(struct semel_rabbit *rabbit)
{
	semel_wake_free(rabbit->beater.bed);
	pthread_mutex_destroy(&rabbit->beater.line);
}

void semel_rabbit_enter(struct semel_broker *broker)
{
	pthread_mutex_lock(&semel_rabbit_of(broker)->beater.line);
}

semel_status semel_rabbit_leave(struct semel_broker *broker, semel_status status)
{
	pthread_mutex_unlock(&semel_rabbit_of(broker)->beater.line);
	return status;
}
