/* SPDX-License-Identifier: Apache-2.0 */
/* The crew does what it is handed, refuses what is too much, and gives up what waits when it stops.
 */
#include "admin/crew.h"

#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct errand {
	struct semel_task task; /* first */
	sem_t begun, may_end;
	int done, given_up;
};

static void run_errand(struct semel_task *task, bool given_up)
{
	struct errand *errand = (struct errand *)task;

	sem_post(&errand->begun);
	if (!given_up)
		sem_wait(&errand->may_end);
	errand->done += !given_up;
	errand->given_up += given_up;
}

static struct errand new_errand(void)
{
	return (struct errand){ .task = { .run = run_errand } };
}

static void init(struct errand *errand)
{
	*errand = new_errand();
	sem_init(&errand->begun, 0, 0);
	sem_init(&errand->may_end, 0, 0);
}

static void what_is_too_much_is_refused_and_the_rest_is_done(void **state)
{
	struct semel_crew *crew = NULL;
	struct errand first, second, third;

	(void)state;
	init(&first), init(&second), init(&third);
	assert_int_equal(semel_crew_start(1, 1, &crew, NULL), SEMEL_OK);
	assert_true(semel_crew_hand(crew, &first.task));
	sem_wait(&first.begun); /* nobody waits in the row now */
	assert_true(semel_crew_hand(crew, &second.task));
	assert_false(semel_crew_hand(crew, &third.task));
	sem_post(&first.may_end);
	sem_wait(&second.begun);
	assert_true(semel_crew_hand(crew, &third.task));
	sem_post(&second.may_end);
	sem_wait(&third.begun);
	sem_post(&third.may_end);
	semel_crew_stop(crew);
	assert_int_equal(first.done + second.done + third.done, 3);
	semel_crew_free(crew);
}

static void *let_it_end(void *user)
{
	struct errand *errand = user;

	sem_post(&errand->may_end);
	return NULL;
}

static void a_stopped_crew_gives_up_what_waits_and_takes_nothing(void **state)
{
	struct semel_crew *crew = NULL;
	struct errand errands[4];
	pthread_t helper;

	(void)state;
	for (size_t i = 0; i < 4; i++)
		init(&errands[i]);
	assert_int_equal(semel_crew_start(1, 10, &crew, NULL), SEMEL_OK);
	for (size_t i = 0; i < 3; i++)
		assert_true(semel_crew_hand(crew, &errands[i].task));
	sem_wait(&errands[0].begun);
	for (size_t i = 1; i < 3; i++)
		sem_post(&errands[i].may_end);
	assert_int_equal(pthread_create(&helper, NULL, let_it_end, &errands[0]), 0);
	semel_crew_stop(crew);
	pthread_join(helper, NULL);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(errands[i].done + errands[i].given_up, 1);
	assert_int_equal(errands[0].done, 1);
	assert_false(semel_crew_hand(crew, &errands[3].task));
	semel_crew_free(crew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_too_much_is_refused_and_the_rest_is_done),
		cmocka_unit_test(a_stopped_crew_gives_up_what_waits_and_takes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
