/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences run in a child process: one that crashes the child is found like any other, and the
 * memory that a killed party leaves is freed with the child. */
#include "model/explore.h"

#include "model/disk.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SEQUENCES_OF_CHILD = 400, HANG_S = 30, DEEPEST = 6 };

static struct progress *progress;
static const char *wanted; /* what a shortened sequence must break */
static double until_s;

static double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Also restarts the alarm, which ends a child that hangs. */
static bool is_over_in_child(void *user)
{
	(void)user;
	alarm(HANG_S);
	return seconds_now() >= until_s;
}

static bool is_over(void)
{
	return seconds_now() >= until_s;
}

static uint64_t next_number(void *user)
{
	uint64_t *state = user;
	uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);
	mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ mixed >> 31;
}

static void make_sequence(const struct exploration *exploration, uint64_t seed,
			  struct sequence *sequence)
{
	uint64_t state = seed;

	*sequence = (struct sequence){ .seed = seed };
	sequence->setting = exploration->setting >= 0
				    ? exploration->setting
				    : (int)(next_number(&state) % (unsigned)setting_count);
	sequence->discards = next_number(&state) % 2;
	sequence->count = 3 + (int)(next_number(&state) % (unsigned)exploration->steps);
	if (sequence->count > SEQUENCE_MAX)
		sequence->count = SEQUENCE_MAX;
	for (int i = 0; i < sequence->count; i++) {
		const struct step *last = i > 0 ? &sequence->steps[i - 1] : NULL;
		sequence->steps[i] = step_draw(next_number, &state);
		/* Two parties often do the same thing at the same time. */
		if (last && last->fault == FAULT_MEANWHILE && next_number(&state) % 2 == 0) {
			sequence->steps[i] = *last;
			sequence->steps[i].fault = FAULT_NONE;
		}
	}
}

/* ---- in the child ---------------------------------------------------------------------------- */

static void begin_world(struct world *world)
{
	disk_setup();
	if (!world_begin(world)) {
		fprintf(stderr, "cannot begin: %s\n", world->error.text);
		_exit(2);
	}
}

static void report_progress(struct world *world)
{
	progress->turns += world->turns;
	world->turns = 0;
	if (!world->broken)
		return;
	progress->broken = true;
	snprintf(progress->what, sizeof progress->what, "%s", world->broken);
	snprintf(progress->detail, sizeof progress->detail, "%s", world->detail);
}

static bool run_sequence(struct world *world, const struct sequence *sequence)
{
	alarm(HANG_S);
	world_reset(world, &settings[sequence->setting], sequence->seed);
	for (int i = 0; i < sequence->count && !world->broken;)
		i += step_run(world, &sequence->steps[i], sequence->count - i);
	if (!world->broken)
		quiesce_and_judge(world, sequence->discards);
	progress->sequences++;
	progress->steps += (uint64_t)sequence->count;
	report_progress(world);
	return !world->broken;
}

/* ---- children -------------------------------------------------------------------------------- */

static pid_t begin_child(void)
{
	fflush(NULL);
	return fork();
}

/* If a signal has ended the child, its sequence has broken the promise, too. */
static void end_child(pid_t child)
{
	int code = 0;

	waitpid(child, &code, 0);
	if (!WIFSIGNALED(code))
		return;
	progress->broken = true;
	snprintf(progress->what, sizeof progress->what, "the process was ended");
	snprintf(progress->detail, sizeof progress->detail, "signal %d", WTERMSIG(code));
}

static bool breaks(const struct sequence *sequence)
{
	struct world world;

	progress->broken = false;
	pid_t child = begin_child();
	if (child == 0) {
		begin_world(&world);
		run_sequence(&world, sequence);
		world_end(&world);
		_exit(0);
	}
	end_child(child);
	return progress->broken && strcmp(progress->what, wanted) == 0;
}

static void explore_by_chance(const struct exploration *exploration)
{
	struct world world;
	uint64_t seed = exploration->seed;

	for (; !is_over() && !progress->broken; seed += SEQUENCES_OF_CHILD) {
		pid_t child = begin_child();
		if (child == 0) {
			bool good = true;
			begin_world(&world);
			for (uint64_t i = 0; i < SEQUENCES_OF_CHILD && good && !is_over(); i++) {
				make_sequence(exploration, seed + i, &progress->now);
				good = run_sequence(&world, &progress->now);
			}
			world_end(&world);
			_exit(0);
		}
		end_child(child);
	}
}

static void explore_short(const struct exploration *exploration)
{
	struct world world;
	int first = exploration->setting < 0 ? 0 : exploration->setting;
	int last = exploration->setting < 0 ? setting_count - 1 : exploration->setting;

	for (int depth = 1; depth <= DEEPEST; depth++)
		for (int setting = first; setting <= last && !is_over() && !progress->broken;
		     setting++) {
			pid_t child = begin_child();
			if (child == 0) {
				begin_world(&world);
				progress->now = (struct sequence){ .setting = setting,
								   .seed = exploration->seed };
				walk_short(&world, &progress->now, progress, depth,
					   is_over_in_child, NULL);
				report_progress(&world);
				if (setting == last && !is_over() && !world.broken)
					progress->depth = depth;
				world_end(&world);
				_exit(0);
			}
			end_child(child);
		}
}

/* ---- all together ---------------------------------------------------------------------------- */

static void show_work(double begun)
{
	struct rusage usage = { 0 };

	getrusage(RUSAGE_CHILDREN, &usage);
	double busy = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
		      (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
	printf("# %llu sequences, %llu steps and %llu turns in %.1f s, %.0f of them a second of "
	       "processor time",
	       (unsigned long long)progress->sequences, (unsigned long long)progress->steps,
	       (unsigned long long)progress->turns, seconds_now() - begun,
	       (double)(progress->steps + progress->turns) / (busy > 0 ? busy : 1));
	if (progress->depth > 0)
		printf("; all of %d moves", progress->depth);
	putchar('\n');
}

static void show_found(const struct exploration *exploration)
{
	struct sequence sequence = progress->now;
	char what[160];

	snprintf(what, sizeof what, "%s", progress->what);
	wanted = what;
	printf("# broken: %s (%s)\n", what, progress->detail);
	if (!exploration->plant) {
		if (breaks(&sequence))
			sequence_shorten(&sequence, breaks);
		else
			printf("# (it is not broken by the sequence alone)\n");
		if (breaks(&sequence))
			printf("# shortest found: %s\n", progress->detail);
		progress->broken = true;
	}
	sequence_print(&sequence, stdout);
	printf("# again: semel_model --sequence ");
	sequence_write(&sequence, stdout);
	printf("%s%s\n", exploration->plant ? " --plant " : "",
	       exploration->plant ? exploration->plant : "");
}

int explore(const struct exploration *exploration)
{
	double begun = seconds_now();

	until_s = begun + exploration->seconds;
	progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	if (progress == MAP_FAILED)
		return 2;
	if (strcmp(exploration->kind, "print") == 0) {
		make_sequence(exploration, exploration->seed, &progress->now);
		for (int i = 0; i < progress->now.count; i++)
			step_print_json(&progress->now.steps[i], stdout);
		return 0;
	}
	if (exploration->steps_given) {
		wanted = "";
		if (!sequence_read(exploration->steps_given, &progress->now))
			return 64;
		(void)breaks(&progress->now);
	} else if (strcmp(exploration->kind, "one") == 0) {
		wanted = "";
		make_sequence(exploration, exploration->seed, &progress->now);
		(void)breaks(&progress->now);
	} else if (strcmp(exploration->kind, "short") == 0) {
		explore_short(exploration);
	} else {
		explore_by_chance(exploration);
	}
	show_work(begun);
	if (progress->broken)
		show_found(exploration);
	return progress->broken == (exploration->plant != NULL) ? 0 : 1;
}
