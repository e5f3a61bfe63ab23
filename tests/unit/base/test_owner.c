/* SPDX-License-Identifier: Apache-2.0 */
/* Owners that live, that died, and that cannot be known. */
#include "base/owner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void make(char owner_out[SEMEL_OWNER_SIZE])
{
	semel_owner_make(semel_env_system(), owner_out);
}

/* A child that writes its owner's name, and then lives until its end of the other pipe closes. */
struct child {
	pid_t pid;
	int life;
	char owner[SEMEL_OWNER_SIZE];
};

static struct child child_start(const char *program_name)
{
	struct child child;
	int name[2], life[2];
	assert_int_equal(pipe(name), 0);
	assert_int_equal(pipe(life), 0);
	child.pid = fork();
	if (child.pid == 0) {
		char owner[SEMEL_OWNER_SIZE], byte;
		close(life[1]);
		prctl(PR_SET_NAME, program_name);
		make(owner);
		ssize_t written = write(name[1], owner, sizeof(owner));
		ssize_t waited = read(life[0], &byte, 1);
		_exit(written > 0 && waited >= 0 ? 0 : 1);
	}
	close(life[0]);
	close(name[1]);
	child.life = life[1];
	assert_int_equal(read(name[0], child.owner, sizeof(child.owner)), sizeof(child.owner));
	close(name[0]);
	return child;
}

static void two_owners_in_one_process_differ_and_live(void **state)
{
	(void)state;
	char first[SEMEL_OWNER_SIZE], second[SEMEL_OWNER_SIZE];
	make(first);
	make(second);
	assert_string_not_equal(first, second);
	assert_false(semel_owner_is_dead(first));
	assert_false(semel_owner_is_dead(second));
}

static void a_killed_process_is_dead_at_once_even_as_a_zombie(void **state)
{
	(void)state;
	struct child child = child_start("worker");
	assert_false(semel_owner_is_dead(child.owner));
	kill(child.pid, SIGKILL);
	siginfo_t how;
	assert_int_equal(waitid(P_PID, (id_t)child.pid, &how, WEXITED | WNOWAIT), 0);
	assert_true(semel_owner_is_dead(child.owner));
	assert_int_equal(waitpid(child.pid, NULL, 0), child.pid);
	assert_true(semel_owner_is_dead(child.owner));
	close(child.life);
}

static void a_strange_program_name_does_not_mislead(void **state)
{
	(void)state;
	struct child child = child_start("x) Z 1 (1) 2");
	assert_false(semel_owner_is_dead(child.owner));
	close(child.life);
	assert_int_equal(waitpid(child.pid, NULL, 0), child.pid);
	assert_true(semel_owner_is_dead(child.owner));
}

static void a_number_used_again_is_another_process(void **state)
{
	(void)state;
	char owner[SEMEL_OWNER_SIZE], older[SEMEL_OWNER_SIZE];
	make(owner);
	char *pid = strchr(owner, ':') + 1;
	char *start = strchr(pid, ':') + 1;
	snprintf(older, sizeof(older), "%.*s1:abc", (int)(start - owner), owner);
	assert_true(semel_owner_is_dead(older));
	assert_true(semel_owner_is_gone(older, 5000, 4999));
}

static void an_owner_that_may_be_alive_is_gone_when_its_lease_is_over(void **state)
{
	(void)state;
	char owner[SEMEL_OWNER_SIZE];
	make(owner);
	assert_false(semel_owner_is_gone(owner, 5000, 4999));
	assert_true(semel_owner_is_gone(owner, 5000, 5000));
	assert_false(semel_owner_is_gone("of another machine", 5000, 4999));
}

/* Everything from the first colon on. */
static void replace_tail(char owner[SEMEL_OWNER_SIZE], const char *tail)
{
	size_t kept = strcspn(owner, ":");
	snprintf(owner + kept, SEMEL_OWNER_SIZE - kept, "%s", tail);
}

static void owners_on_other_machines_are_unknown(void **state)
{
	(void)state;
	char owner[SEMEL_OWNER_SIZE];
	make(owner);
	owner[0] = owner[0] == 'f' ? '0' : 'f';
	replace_tail(owner, ":999999:1:abc");
	assert_false(semel_owner_is_dead(owner));
}

static void malformed_names_are_not_known_to_be_dead(void **state)
{
	(void)state;
	char owner[SEMEL_OWNER_SIZE];
	assert_false(semel_owner_is_dead(NULL));
	assert_false(semel_owner_is_dead(""));
	assert_false(semel_owner_is_dead("x:1:2:3"));
	assert_false(semel_owner_is_dead("unknown:999999:0:3"));
	static const char *const tails[] = {
		":",           ":x:1:a",    ":0:1:a", ":-1:1:a", ":99999999999:1:a",
		":999999:x:a", ":999999:1", ""
	};
	for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
		make(owner);
		replace_tail(owner, tails[i]);
		assert_false(semel_owner_is_dead(owner));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_owners_in_one_process_differ_and_live),
		cmocka_unit_test(a_killed_process_is_dead_at_once_even_as_a_zombie),
		cmocka_unit_test(a_strange_program_name_does_not_mislead),
		cmocka_unit_test(a_number_used_again_is_another_process),
		cmocka_unit_test(an_owner_that_may_be_alive_is_gone_when_its_lease_is_over),
		cmocka_unit_test(owners_on_other_machines_are_unknown),
		cmocka_unit_test(malformed_names_are_not_known_to_be_dead),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
