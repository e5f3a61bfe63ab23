/* SPDX-License-Identifier: Apache-2.0 */
/* Children are real programs here: the traps are in the kernel, not in our code. */
#include "base/buffer.h"
#include "base/child.h"
#include "base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_MS 20000

static struct semel_child *start_fed(const char *command, bool capture,
				     const struct semel_text *input)
{
	struct semel_child *child = NULL;
	semel_error error = { 0 };
	const struct semel_child_options plan = {
		.command = command, .environment = environ, .capture = capture, .input = input
	};
	semel_status status = semel_child_start(&plan, &child, &error);
	if (status != SEMEL_OK)
		print_error("%s\n", error.text);
	assert_int_equal(status, SEMEL_OK);
	return child;
}

static struct semel_child *start(const char *command, bool capture)
{
	return start_fed(command, capture, NULL);
}

static enum semel_child_result run_with(struct semel_child *child, struct semel_text input)
{
	const struct semel_child_communication options = { .input = input,
							   .until_exit = true,
							   .timeout_ms = LONG_MS,
							   .interrupt_fd = -1,
							   .output_limit = 64 << 20 };
	return semel_child_communicate(child, &options);
}

static enum semel_child_result run_to_end(struct semel_child *child)
{
	return run_with(child, semel_text_from("", 0));
}

static enum semel_child_result send_line(struct semel_child *child, const char *line, size_t limit)
{
	const struct semel_child_communication options = { .input = semel_text_of(line),
							   .timeout_ms = LONG_MS,
							   .interrupt_fd = -1,
							   .output_limit = limit };
	return semel_child_communicate(child, &options);
}

static void assert_output(const struct semel_child *child, const char *expected)
{
	struct semel_text output = semel_child_output(child);
	assert_int_equal(output.length, strlen(expected));
	assert_memory_equal(output.data, expected, output.length);
}

static bool is_alive(pid_t pid)
{
	char path[64], state = 'X';
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return false;
	if (fscanf(file, "%*d %*s %c", &state) != 1)
		state = 'X';
	fclose(file);
	return state != 'Z' && state != 'X';
}

static void wait_until_gone(pid_t pid)
{
	int64_t until = semel_steady_ms(semel_env_system()) + LONG_MS;
	while (is_alive(pid) && semel_steady_ms(semel_env_system()) < until)
		usleep(1000);
	assert_false(is_alive(pid));
}

static void a_child_takes_and_gives_more_than_a_pipe_holds(void **state)
{
	(void)state;
	size_t size = 3 << 20;
	char *data = malloc(size);
	assert_non_null(data);
	for (size_t i = 0; i < size; i++)
		data[i] = (char)(i * 7 + i / 251);
	struct semel_child *child = start("cat", true);
	assert_int_equal(run_with(child, semel_text_from(data, size)), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_output(child).length, size);
	assert_memory_equal(semel_child_output(child).data, data, size);
	semel_child_end(child, 0);
	free(data);
}

/* Its input is complete, also when the process that started it has ended. */
static void an_input_given_beforehand_is_whole_without_us(void **state)
{
	(void)state;
	const size_t size = 1 << 20;
	char *much = malloc(size);
	assert_non_null(much);
	memset(much, 'x', size);
	const struct semel_text input = semel_text_from(much, size), none = { NULL, 0 };
	struct semel_child *child = start_fed("wc -c", true, &input);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_output(child, "1048576\n");
	semel_child_end(child, 0);
	child = start_fed("wc -c", true, &none);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_output(child, "0\n");
	semel_child_end(child, 0);
	free(much);
}

static volatile sig_atomic_t pipes_broken;

static void count_broken_pipe(int number)
{
	(void)number;
	pipes_broken++;
}

static void a_child_that_does_not_read_is_no_error_and_no_signal(void **state)
{
	(void)state;
	struct sigaction before, action = { .sa_handler = count_broken_pipe };
	sigaction(SIGPIPE, &action, &before);
	size_t size = 1 << 20;
	char *data = calloc(1, size);
	struct semel_child *child = start("exec <&-; exit 0", false);
	assert_int_equal(run_with(child, semel_text_from(data, size)), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_exit_code(child), 0);
	semel_child_end(child, 0);
	free(data);
	assert_int_equal(pipes_broken, 0);
	sigaction(SIGPIPE, &before, NULL);
}

static void its_exit_status_is_reported(void **state)
{
	(void)state;
	char text[64];
	struct semel_child *child = start("exit 65", false);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_exit_code(child), 65);
	semel_child_describe_exit(child, text, sizeof text);
	assert_string_equal(text, "exited with status 65");
	semel_child_end(child, 0);
}

static void a_signal_that_killed_it_is_reported(void **state)
{
	(void)state;
	char text[64];
	struct semel_child *child = start("kill -9 $$", false);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_exit_code(child), 128 + 9);
	semel_child_describe_exit(child, text, sizeof text);
	assert_string_equal(text, "was killed by signal 9 (Killed)");
	semel_child_end(child, 0);
}

static void the_last_4_KiB_of_its_complaint_are_kept(void **state)
{
	(void)state;
	char text[SEMEL_CHILD_STDERR_MAX + 1];
	struct semel_child *child = start(
		"i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1", false);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	semel_child_stderr(child, text, sizeof text);
	assert_in_range(strlen(text), SEMEL_CHILD_STDERR_MAX - 1, SEMEL_CHILD_STDERR_MAX);
	assert_string_equal(text + strlen(text) - strlen("line 1998\nline 1999"),
			    "line 1998\nline 1999");
	semel_child_end(child, 0);
}

static void stderr_is_cut_between_characters_and_has_no_zero_bytes(void **state)
{
	(void)state;
	char text[7];
	struct semel_child *child = start("printf 'a\\303\\274b\\000cde \\n\\n' >&2", false);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	semel_child_stderr(child, text, sizeof text);
	assert_string_equal(text, "b cde");
	semel_child_end(child, 0);
}

static void lines_are_returned_one_by_one(void **state)
{
	(void)state;
	struct semel_child *child =
		start("read x; echo one $x; echo two; read x; echo three $x", true);
	assert_int_equal(send_line(child, "a\n", 100), SEMEL_CHILD_LINE);
	assert_output(child, "one a");
	assert_int_equal(send_line(child, "b\n", 100), SEMEL_CHILD_LINE);
	assert_output(child, "two");
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_LINE);
	assert_output(child, "three b");
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_EXITED);
	semel_child_end(child, 0);
}

static void a_line_beyond_the_limit_is_too_much(void **state)
{
	(void)state;
	struct semel_child *child = start("while :; do printf xxxxxxxxxxxxxxxx; done", true);
	assert_int_equal(send_line(child, "", 1000), SEMEL_CHILD_TOO_MUCH);
	semel_child_end(child, 0);
}

static void a_time_out_ends_the_whole_group(void **state)
{
	(void)state;
	struct semel_child *child = start("sleep 1000 & echo $!; wait", true);
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_LINE);
	pid_t grandchild = (pid_t)atoi(semel_text_string(semel_child_output(child)));
	assert_true(is_alive(grandchild));
	const struct semel_child_communication options = {
		.until_exit = true, .timeout_ms = 20, .interrupt_fd = -1, .output_limit = 100
	};
	assert_int_equal(semel_child_communicate(child, &options), SEMEL_CHILD_TIMED_OUT);
	semel_child_end(child, 0);
	wait_until_gone(grandchild);
}

static void an_immediate_stop_kills_all_groups(void **state)
{
	(void)state;
	struct semel_child *child = start("sleep 1000 & echo $!; wait", true);
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_LINE);
	pid_t grandchild = (pid_t)atoi(semel_text_string(semel_child_output(child)));
	semel_child_kill_all();
	wait_until_gone(grandchild);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	semel_child_kill_all(); /* its number is not ours any more, and is left alone */
	semel_child_end(child, 0);
}

static void a_child_that_ignores_sigterm_is_killed(void **state)
{
	(void)state;
	struct semel_child *child =
		start("trap '' TERM; echo $$; while :; do sleep 1000; done", true);
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_LINE);
	pid_t pid = (pid_t)atoi(semel_text_string(semel_child_output(child)));
	semel_child_end(child, 0);
	assert_false(is_alive(pid));
}

static void a_child_that_ends_when_its_stdin_does_gets_no_signal(void **state)
{
	(void)state;
	char path[] = "/tmp/semel-child-XXXXXX", command[256], word[16] = "";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	snprintf(command, sizeof command,
		 "trap 'echo signal > %s; exit' TERM; echo up; cat > /dev/null; echo end > %s",
		 path, path);
	struct semel_child *child = start(command, true);
	assert_int_equal(send_line(child, "", 100), SEMEL_CHILD_LINE);
	semel_child_end(child, LONG_MS);
	assert_int_equal(pread(fd, word, sizeof word - 1, 0), 4);
	assert_string_equal(word, "end\n");
	close(fd);
	unlink(path);
}

static void *interrupt(void *event_fd)
{
	eventfd_write(*(int *)event_fd, 1);
	return NULL;
}

static void another_thread_interrupts_a_communication(void **state)
{
	(void)state;
	int event_fd = eventfd(0, EFD_CLOEXEC);
	pthread_t thread;
	struct semel_child *child = start("sleep 1000", false);
	assert_int_equal(pthread_create(&thread, NULL, interrupt, &event_fd), 0);
	const struct semel_child_communication options = { .until_exit = true,
							   .interrupt_fd = event_fd };
	assert_int_equal(semel_child_communicate(child, &options), SEMEL_CHILD_INTERRUPTED);
	semel_child_end(child, 0);
	pthread_join(thread, NULL);
	close(event_fd);
}

static void no_descriptor_of_ours_reaches_it(void **state)
{
	(void)state;
	char command[64];
	int leaky = open("/dev/null", O_RDONLY); /* as an application might: without O_CLOEXEC */
	snprintf(command, sizeof command, "[ ! -e /proc/self/fd/%d ]", leaky);
	struct semel_child *child = start(command, false);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_exit_code(child), 0);
	semel_child_end(child, 0);
	close(leaky);
}

static void our_signal_state_does_not_reach_it(void **state)
{
	(void)state;
	sigset_t blocked, before;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	void (*handler)(int) = signal(SIGPIPE, SIG_IGN);
	/* Signals 32 and 33 are libc's own; what posix_spawn made of them cannot be undone. */
	struct semel_child *child =
		start("while read -r name value; do case $name in"
		      " SigBlk:|SigIgn:) echo $name $((0x$value & ~0x180000000));;"
		      " esac; done </proc/self/status",
		      true);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_output(child, "SigBlk: 0\nSigIgn: 0\n");
	semel_child_end(child, 0);
	signal(SIGPIPE, handler);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void a_process_that_it_left_behind_is_not_waited_for(void **state)
{
	(void)state;
	struct semel_child *child = start("sleep 1000 & echo $!", true);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_int_equal(kill((pid_t)atoi(semel_text_string(semel_child_output(child))), SIGKILL),
			 0);
	semel_child_end(child, 0);
}

static void an_environment_that_the_system_does_not_take_is_too_large(void **state)
{
	(void)state;
	size_t size = 4 << 20;
	char *entry = malloc(size);
	memset(entry, 'x', size);
	memcpy(entry, "A=", 2);
	entry[size - 1] = '\0';
	char *environment[] = { entry, NULL };
	const struct semel_child_options plan = { .command = "true", .environment = environment };
	struct semel_child *child = NULL;
	semel_error error;
	assert_int_equal(semel_child_start(&plan, &child, &error), SEMEL_TOO_LARGE);
	free(entry);
}

static void *start_and_leave(void *argument)
{
	struct semel_child **child_out = argument;
	*child_out = start("echo up; exec sleep 1000", true);
	assert_int_equal(send_line(*child_out, "", 100), SEMEL_CHILD_LINE);
	return NULL;
}

static void it_dies_with_the_thread_that_started_it(void **state)
{
	(void)state;
	struct semel_child *child = NULL;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, start_and_leave, &child), 0);
	pthread_join(thread, NULL);
	assert_int_equal(run_to_end(child), SEMEL_CHILD_EXITED);
	assert_int_equal(semel_child_exit_code(child), 128 + SIGKILL);
	semel_child_end(child, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_child_takes_and_gives_more_than_a_pipe_holds),
		cmocka_unit_test(an_input_given_beforehand_is_whole_without_us),
		cmocka_unit_test(a_child_that_does_not_read_is_no_error_and_no_signal),
		cmocka_unit_test(its_exit_status_is_reported),
		cmocka_unit_test(a_signal_that_killed_it_is_reported),
		cmocka_unit_test(the_last_4_KiB_of_its_complaint_are_kept),
		cmocka_unit_test(stderr_is_cut_between_characters_and_has_no_zero_bytes),
		cmocka_unit_test(lines_are_returned_one_by_one),
		cmocka_unit_test(a_line_beyond_the_limit_is_too_much),
		cmocka_unit_test(a_time_out_ends_the_whole_group),
		cmocka_unit_test(an_immediate_stop_kills_all_groups),
		cmocka_unit_test(a_child_that_ignores_sigterm_is_killed),
		cmocka_unit_test(a_child_that_ends_when_its_stdin_does_gets_no_signal),
		cmocka_unit_test(another_thread_interrupts_a_communication),
		cmocka_unit_test(no_descriptor_of_ours_reaches_it),
		cmocka_unit_test(our_signal_state_does_not_reach_it),
		cmocka_unit_test(a_process_that_it_left_behind_is_not_waited_for),
		cmocka_unit_test(an_environment_that_the_system_does_not_take_is_too_large),
		cmocka_unit_test(it_dies_with_the_thread_that_started_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
