/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/crew.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS_MAX 16

struct semel_crew {
	pthread_t threads[THREADS_MAX];
	uint32_t thread_count;
	uint32_t waiting_max;
	pthread_mutex_t mutex; /* of what follows */
	pthread_cond_t news;
	struct semel_task *first, *last;
	uint32_t waiting;
	bool stopped;
};

/* Under the lock; NULL: none waits. */
static struct semel_task *take_first(struct semel_crew *crew)
{
	struct semel_task *task = crew->first;

	if (!task)
		return NULL;
	crew->first = task->next;
	if (!crew->first)
		crew->last = NULL;
	crew->waiting--;
	return task;
}

static void *work(void *user)
{
	struct semel_crew *crew = user;

	pthread_mutex_lock(&crew->mutex);
	for (;;) {
		while (!crew->first && !crew->stopped)
			pthread_cond_wait(&crew->news, &crew->mutex);
		struct semel_task *task = take_first(crew);
		if (!task)
			break;
		bool given_up = crew->stopped;
		pthread_mutex_unlock(&crew->mutex);
		task->run(task, given_up);
		pthread_mutex_lock(&crew->mutex);
	}
	pthread_mutex_unlock(&crew->mutex);
	return NULL;
}

semel_status semel_crew_start(uint32_t threads, uint32_t waiting_max, struct semel_crew **crew_out,
			      semel_error *error)
{
	struct semel_crew *crew = calloc(1, sizeof *crew);

	*crew_out = NULL;
	if (!crew)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the admin server");
	crew->waiting_max = waiting_max;
	pthread_mutex_init(&crew->mutex, NULL);
	pthread_cond_init(&crew->news, NULL);
	for (uint32_t i = 0; i < threads && i < THREADS_MAX; i++) {
		if (pthread_create(&crew->threads[i], NULL, work, crew) != 0) {
			semel_crew_stop(crew);
			semel_crew_free(crew);
			return semel_error_set(error, SEMEL_INTERNAL,
					       "no thread for the admin server");
		}
		crew->thread_count++;
	}
	*crew_out = crew;
	return SEMEL_OK;
}

bool semel_crew_hand(struct semel_crew *crew, struct semel_task *task)
{
	pthread_mutex_lock(&crew->mutex);
	bool room = !crew->stopped && crew->waiting < crew->waiting_max;
	if (room) {
		task->next = NULL;
		if (crew->last)
			crew->last->next = task;
		else
			crew->first = task;
		crew->last = task;
		crew->waiting++;
		pthread_cond_signal(&crew->news);
	}
	pthread_mutex_unlock(&crew->mutex);
	return room;
}

void semel_crew_stop(struct semel_crew *crew)
{
	pthread_mutex_lock(&crew->mutex);
	crew->stopped = true;
	pthread_cond_broadcast(&crew->news);
	pthread_mutex_unlock(&crew->mutex);
	for (uint32_t i = 0; i < crew->thread_count; i++)
		pthread_join(crew->threads[i], NULL);
	crew->thread_count = 0;
}

void semel_crew_free(struct semel_crew *crew)
{
	if (!crew)
		return;
	pthread_cond_destroy(&crew->news);
	pthread_mutex_destroy(&crew->mutex);
	free(crew);
}
