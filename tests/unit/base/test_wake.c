/* SPDX-License-Identifier: Apache-2.0 */
/* What wakes a sleeper, and what does not. Long waits stand for "forever": a test that reaches
 * one has failed. */
#include "base/env.h"
#include "base/wake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOR_EVER_MS = 30000, A_MOMENT_MS = 20 };

static struct semel_wake *wake;
static char folder[] = "/tmp/semel-wake-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
	(void)state;
	return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
	(void)state;
	return rmdir(folder);
}

static int make(void **state)
{
	(void)state;
	snprintf(path, sizeof(path), "%s/shop.db", folder);
	return semel_wake_new(&wake, NULL) == SEMEL_OK ? 0 : -1;
}

static int drop(void **state)
{
	(void)state;
	semel_wake_free(wake);
	return 0;
}

static void touch(const char *suffix)
{
	char file[80];
	snprintf(file, sizeof(file), "%s%s", path, suffix);
	int fd = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "x", 1), 1);
	close(fd);
}

static void forget(const char *suffix)
{
	char file[80];
	snprintf(file, sizeof(file), "%s%s", path, suffix);
	unlink(file);
}

static void without_a_reason_it_sleeps_its_time(void **state)
{
	(void)state;
	int64_t before = semel_steady_ms(semel_env_system());
	assert_false(semel_wake_sleep(wake, A_MOMENT_MS));
	assert_true(semel_steady_ms(semel_env_system()) - before >= A_MOMENT_MS - 1);
	assert_false(semel_wake_sleep(wake, 0));
	assert_false(semel_wake_sleep(wake, -5));
}

static void a_wakeup_is_remembered_for_ever(void **state)
{
	(void)state;
	assert_false(semel_wake_is_notified(wake));
	semel_wake_notify(wake);
	semel_wake_notify(wake);
	for (int i = 0; i < 3; i++)
		assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	assert_true(semel_wake_is_notified(wake));
}

static void *notify(void *unused)
{
	(void)unused;
	semel_wake_notify(wake);
	return NULL;
}

static void a_wakeup_from_another_thread_wakes(void **state)
{
	(void)state;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, notify, NULL), 0);
	assert_true(semel_wake_sleep(wake, INT64_MAX));
	pthread_join(thread, NULL);
}

static void on_alarm(int signal_number)
{
	(void)signal_number;
}

static void a_signal_wakes(void **state)
{
	(void)state;
	struct sigaction action = { .sa_handler = on_alarm }, old;
	sigaction(SIGALRM, &action, &old);
	/* again and again: the first may come before we sleep */
	ualarm(A_MOMENT_MS * 1000, A_MOMENT_MS * 1000);
	assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	ualarm(0, 0);
	sigaction(SIGALRM, &old, NULL);
}

static void a_write_to_the_database_or_its_log_wakes(void **state)
{
	(void)state;
	static const char *const suffixes[] = { "", "-wal", "-journal" };
	semel_wake_watch_database(wake, path); /* before the file is there */
	for (size_t i = 0; i < 3; i++) {
		touch(suffixes[i]);
		assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
		assert_false(semel_wake_sleep(wake, 0)); /* many writes are one reason */
		touch(suffixes[i]);
		touch(suffixes[i]);
		assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
		forget(suffixes[i]);
		assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
		assert_false(semel_wake_sleep(wake, 0));
	}
}

/* The write is noticed before its commit is visible. */
static void a_write_causes_a_few_short_sleeps(void **state)
{
	(void)state;
	int sleeps = 0;
	semel_wake_watch_database(wake, path);
	touch("-wal");
	while (sleeps < 100 && semel_wake_sleep(wake, 200))
		sleeps++;
	assert_in_range(sleeps, 3, 10);
	assert_false(semel_wake_sleep(wake, 200)); /* and then sleep is sleep */
	forget("-wal");
}

static void a_neighbour_does_not_wake(void **state)
{
	(void)state;
	semel_wake_watch_database(wake, path);
	touch("-shm");
	touch("2");
	assert_false(semel_wake_sleep(wake, A_MOMENT_MS));
	forget("-shm");
	forget("2");
	assert_false(semel_wake_sleep(wake, A_MOMENT_MS));
}

static void two_databases_in_one_folder_both_wake(void **state)
{
	(void)state;
	char second[80];
	snprintf(second, sizeof(second), "%s-broker", path);
	semel_wake_watch_database(wake, path);
	semel_wake_watch_database(wake, second);
	touch("-broker-wal");
	assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	touch("-wal");
	assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	forget("-broker-wal");
	forget("-wal");
}

static void a_link_is_followed_to_the_real_file(void **state)
{
	(void)state;
	char link[80];
	touch("");
	snprintf(link, sizeof(link), "%s/link", folder);
	assert_int_equal(symlink("shop.db", link), 0);
	semel_wake_watch_database(wake, link);
	touch("-wal");
	assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	unlink(link);
	forget("");
	forget("-wal");
}

static void a_missing_folder_is_no_error(void **state)
{
	(void)state;
	semel_wake_watch_database(wake, "/nowhere/at/all.db");
	semel_wake_watch_database(wake, "");
	assert_false(semel_wake_sleep(wake, 0));
}

static void a_readable_descriptor_wakes(void **state)
{
	(void)state;
	int ends[2];
	assert_int_equal(pipe(ends), 0);
	semel_wake_watch_fd(wake, ends[0]);
	assert_false(semel_wake_sleep(wake, 0));
	assert_int_equal(write(ends[1], "x", 1), 1);
	assert_true(semel_wake_sleep(wake, FOR_EVER_MS));
	close(ends[0]);
	close(ends[1]);
}

static int64_t test_clock_ms;

static int64_t read_clock(void *user)
{
	(void)user;
	return test_clock_ms;
}

static void pass_time(void *user, int64_t wait_ms)
{
	(void)user;
	test_clock_ms += wait_ms;
}

static void on_the_clock_of_a_test_time_passes_without_sleeping(void **state)
{
	(void)state;
	const struct semel_env env = { .now_ms = read_clock,
				       .steady_ms = read_clock,
				       .advance = pass_time };
	int64_t before_ms = semel_steady_ms(semel_env_system());
	semel_wake_set_env(wake, &env);
	assert_false(semel_wake_sleep(wake, FOR_EVER_MS));
	semel_env_sleep_ms(&env, FOR_EVER_MS);
	assert_int_equal(test_clock_ms, 2 * FOR_EVER_MS);
	assert_true(semel_steady_ms(semel_env_system()) - before_ms < FOR_EVER_MS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(without_a_reason_it_sleeps_its_time, make, drop),
		cmocka_unit_test_setup_teardown(a_wakeup_is_remembered_for_ever, make, drop),
		cmocka_unit_test_setup_teardown(a_wakeup_from_another_thread_wakes, make, drop),
		cmocka_unit_test_setup_teardown(a_signal_wakes, make, drop),
		cmocka_unit_test_setup_teardown(a_write_to_the_database_or_its_log_wakes, make,
						drop),
		cmocka_unit_test_setup_teardown(a_write_causes_a_few_short_sleeps, make, drop),
		cmocka_unit_test_setup_teardown(a_neighbour_does_not_wake, make, drop),
		cmocka_unit_test_setup_teardown(two_databases_in_one_folder_both_wake, make, drop),
		cmocka_unit_test_setup_teardown(a_link_is_followed_to_the_real_file, make, drop),
		cmocka_unit_test_setup_teardown(a_missing_folder_is_no_error, make, drop),
		cmocka_unit_test_setup_teardown(a_readable_descriptor_wakes, make, drop),
		cmocka_unit_test_setup_teardown(on_the_clock_of_a_test_time_passes_without_sleeping,
						make, drop),
	};
	return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
