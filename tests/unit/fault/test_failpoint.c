/* SPDX-License-Identifier: Apache-2.0 */
/* Failpoints: the table is complete, the grammar strict, and each action does what it says. */
#include "base/env.h"
#include "fault/failpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int disarm(void **state)
{
	(void)state;
	return semel_failpoints_arm(NULL, NULL) == SEMEL_OK ? 0 : -1;
}

static void every_row_is_complete_and_has_a_name_of_its_own(void **state)
{
	(void)state;
	const struct semel_failpoint_row *rows = semel_failpoint_rows();
	for (int i = 0; i < SEMEL_FP_COUNT; i++) {
		assert_non_null(rows[i].name);
		assert_non_null(rows[i].process);
		assert_non_null(rows[i].window);
		assert_non_null(rows[i].outcome);
		for (int j = 0; j < i; j++)
			assert_string_not_equal(rows[i].name, rows[j].name);
	}
	assert_string_equal(rows[SEMEL_FP_RELAY_AFTER_CONFIRM].name, "relay.after-confirm");
	assert_string_equal(rows[SEMEL_FP_REPLAY_AFTER_PUBLISH].name, "replay.after-publish");
}

static void unset_they_do_nothing(void **state)
{
	(void)state;
	assert_int_equal(semel_failpoints_arm("", NULL), SEMEL_OK);
	assert_false(semel_failpoints_armed);
	for (int i = 0; i < SEMEL_FP_COUNT; i++)
		assert_int_equal(semel_failpoint((enum semel_failpoint)i, NULL), SEMEL_OK);
}

static void an_error_comes_at_every_hit_or_at_the_nth(void **state)
{
	(void)state;
	semel_error error;
	assert_int_equal(
		semel_failpoints_arm("relay.after-claim:error,dlq.after-mark:error@3", &error),
		SEMEL_OK);
	for (int hit = 1; hit <= 5; hit++) {
		assert_int_equal(semel_failpoint(SEMEL_FP_RELAY_AFTER_CLAIM, &error), SEMEL_OUTAGE);
		assert_non_null(strstr(error.text, "relay.after-claim"));
		assert_int_equal(semel_failpoint(SEMEL_FP_DLQ_AFTER_MARK, &error),
				 hit == 3 ? SEMEL_OUTAGE : SEMEL_OK);
		assert_int_equal(semel_failpoint(SEMEL_FP_DLQ_AFTER_PUBLISH, &error), SEMEL_OK);
	}
}

static void a_pause_lasts_as_long_as_asked(void **state)
{
	(void)state;
	const struct semel_env *env = semel_env_system();
	assert_int_equal(semel_failpoints_arm("consume.after-ack:pause=30@2", NULL), SEMEL_OK);
	assert_int_equal(semel_failpoint(SEMEL_FP_CONSUME_AFTER_ACK, NULL), SEMEL_OK);
	int64_t before = semel_steady_ms(env);
	assert_int_equal(semel_failpoint(SEMEL_FP_CONSUME_AFTER_ACK, NULL), SEMEL_OK);
	assert_true(semel_steady_ms(env) - before >= 29);
}

static void a_kill_is_minus_nine(void **state)
{
	(void)state;
	assert_int_equal(semel_failpoints_arm("publish.before-commit:kill@2", NULL), SEMEL_OK);
	pid_t child = fork();
	if (child == 0) {
		semel_status first = semel_failpoint(SEMEL_FP_PUBLISH_BEFORE_COMMIT, NULL);
		semel_status second = semel_failpoint(SEMEL_FP_PUBLISH_BEFORE_COMMIT, NULL);
		_exit(first == SEMEL_OK && second == SEMEL_OK ? 0 : 1);
	}
	int how;
	assert_int_equal(waitpid(child, &how, 0), child);
	assert_true(WIFSIGNALED(how));
	assert_int_equal(WTERMSIG(how), SIGKILL);
}

static void wrong_specifications_arm_nothing(void **state)
{
	(void)state;
	static const char *const wrong[] = {
		"relay.after-claim",
		"relay.after-claim:",
		"relay.after-claim:die",
		"relay.after-claim:kill@0",
		"relay.after-claim:kill@",
		"relay.after-claim:kill@x",
		"relay.after-claim:pause",
		"relay.after-claim:pause=",
		"relay.after-claim:pause=-1",
		"relay.after-claim:kill@-1",
		":kill",
		"nothing.like-this:kill",
	};
	semel_error error;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(semel_failpoints_arm(wrong[i], &error), SEMEL_CONFIG);
		assert_non_null(strstr(error.text, "SEMEL_FAILPOINT"));
		assert_false(semel_failpoints_armed);
	}
	assert_int_equal(semel_failpoints_arm("relay.after-confrim:kill", &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "\"relay.after-confirm\""));
}

static atomic_int errors_seen;

static void *hit_many_times(void *unused)
{
	(void)unused;
	for (int i = 0; i < 1000; i++)
		if (semel_failpoint(SEMEL_FP_CONSUME_AFTER_CLAIM, NULL) != SEMEL_OK)
			atomic_fetch_add(&errors_seen, 1);
	return NULL;
}

static void the_nth_hit_is_one_moment_for_all_threads(void **state)
{
	(void)state;
	pthread_t threads[4];
	assert_int_equal(semel_failpoints_arm("consume.after-claim:error@2500", NULL), SEMEL_OK);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hit_many_times, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&errors_seen), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_is_complete_and_has_a_name_of_its_own),
		cmocka_unit_test_teardown(unset_they_do_nothing, disarm),
		cmocka_unit_test_teardown(an_error_comes_at_every_hit_or_at_the_nth, disarm),
		cmocka_unit_test_teardown(a_pause_lasts_as_long_as_asked, disarm),
		cmocka_unit_test_teardown(a_kill_is_minus_nine, disarm),
		cmocka_unit_test_teardown(wrong_specifications_arm_nothing, disarm),
		cmocka_unit_test_teardown(the_nth_hit_is_one_moment_for_all_threads, disarm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
