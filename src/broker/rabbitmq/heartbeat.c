/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats, and the lock that lets a thread send them while the owner of the connection is busy
 * (in a slow handler) or asleep. We send them ourselves: the library has no thread for them, and
 * would send them in the middle of a frame that the socket accepted only in part.
 *
 * - The owner holds the mutex whenever it is inside a function of the driver; the thread takes it
 *   only for the moment of a heartbeat, so nothing is ever written into the middle of a frame.
 * - The thread never reads: what the broker sends waits until the owner comes back, and only the
 *   owner decides whether the broker has been silent for too long.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <signal.h>

#define STACK_BYTES (128 * 1024)

/* ---- sending --------------------------------------------------------------------------------- */

/* Half the agreed time, so that one may be late. */
static semel_status send_when_due(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t now_ms = semel_steady_ms(rabbit->env);
	if (now_ms - rabbit->sent_ms < rabbit->heartbeat_ms / 2)
		return SEMEL_OK;
	rabbit->sent_ms = now_ms;
	if (!semel_rabbit_write_heartbeat(rabbit))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a heartbeat");
	return semel_rabbit_flush(rabbit, error);
}

semel_status semel_rabbit_check_heartbeat(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t silent_ms = semel_steady_ms(rabbit->env) - rabbit->heard_ms;
	if (rabbit->heartbeat_ms == 0)
		return SEMEL_OK;
	if (silent_ms > rabbit->heartbeat_ms * 2)
		return semel_rabbit_set_lost(rabbit, AMQP_STATUS_HEARTBEAT_TIMEOUT, error);
	return send_when_due(rabbit, error);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void *send_heartbeats(void *argument)
{
	struct semel_rabbit *rabbit = argument;
	while (!semel_wake_is_notified(rabbit->heartbeat.wake)) {
		pthread_mutex_lock(&rabbit->heartbeat.mutex);
		if (!rabbit->lost)
			(void)send_when_due(rabbit, NULL); /* the owner reports a failure */
		pthread_mutex_unlock(&rabbit->heartbeat.mutex);
		(void)semel_wake_sleep(rabbit->heartbeat.wake, rabbit->heartbeat_ms / 4);
	}
	return NULL;
}

bool semel_rabbit_heartbeat_init(struct semel_rabbit *rabbit)
{
	return pthread_mutex_init(&rabbit->heartbeat.mutex, NULL) == 0 &&
	       semel_wake_new(&rabbit->heartbeat.wake, NULL) == SEMEL_OK;
}

/* All signals are blocked in this thread: they are for the application's own threads. */
void semel_rabbit_heartbeat_start(struct semel_rabbit *rabbit)
{
	sigset_t all, before;
	pthread_attr_t small;
	if (rabbit->heartbeat_ms == 0)
		return;
	sigfillset(&all);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rabbit->heartbeat.running =
		pthread_create(&rabbit->heartbeat.thread, &small, send_heartbeats, rabbit) == 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&small);
}

void semel_rabbit_heartbeat_stop(struct semel_rabbit *rabbit)
{
	if (!rabbit->heartbeat.running)
		return;
	semel_wake_notify(rabbit->heartbeat.wake);
	pthread_join(rabbit->heartbeat.thread, NULL);
	rabbit->heartbeat.running = false;
}

void semel_rabbit_heartbeat_free(struct semel_rabbit *rabbit)
{
	semel_wake_free(rabbit->heartbeat.wake);
	pthread_mutex_destroy(&rabbit->heartbeat.mutex);
}

/* ---- the lock -------------------------------------------------------------------------------- */

void semel_rabbit_lock(struct semel_broker *broker)
{
	pthread_mutex_lock(&semel_rabbit_of(broker)->heartbeat.mutex);
}

semel_status semel_rabbit_unlock(struct semel_broker *broker, semel_status status)
{
	pthread_mutex_unlock(&semel_rabbit_of(broker)->heartbeat.mutex);
	return status;
}
