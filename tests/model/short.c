/* SPDX-License-Identifier: Apache-2.0 */
/* Runs all short sequences of the moves in move_table, depth first. Between two moves all parties
 * are stopped, as between two commands; so the files are the whole state, and are restored instead
 * of running the same moves again. A state that was already seen with at least as many moves left
 * is not explored again. */
#include "model/explore.h"

#include "fault/failpoint.h"

#include <stdlib.h>
#include <string.h>

#define STOP                                                                                       \
	{                                                                                          \
		.action = STEP_STOP, .a = STOP_ALL                                                 \
	}
#define RELAY                                                                                      \
	{                                                                                          \
		.action = STEP_RELAY, .a = 5                                                       \
	}
#define CONSUME(scope)                                                                             \
	{                                                                                          \
		.action = STEP_CONSUME, .a = scope, .c = 60                                        \
	}
#define KILLED(scope, n)                                                                           \
	{                                                                                          \
		.action = STEP_CONSUME, .a = scope, .c = 60, .fault = FAULT_KILL, .at = n          \
	}
#define PUBLISH(behaviour)                                                                         \
	{                                                                                          \
		.action = STEP_PUBLISH, .b = behaviour                                             \
	}
#define PASS(span)                                                                                 \
	{                                                                                          \
		.action = STEP_PASS, .a = span                                                     \
	}
#define JUST(what)                                                                                 \
	{                                                                                          \
		.action = what                                                                     \
	}

struct move {
	int count;
	struct step steps[4];
};

static const struct move move_table[] = {
	{ 3, { PUBLISH(BEHAVIOUR_BAD), RELAY, STOP } },
	{ 3, { CONSUME(0), CONSUME(1), STOP } },
	{ 2, { JUST(STEP_DLQ_DISCARD), STOP } },
	{ 2, { JUST(STEP_DLQ_REPLAY), STOP } },
	{ 2, { { .action = STEP_REPLAY, .b = 1, .c = 1 }, STOP } },
	{ 3, { KILLED(0, 2), KILLED(1, 2), STOP } },
	{ 3, { PUBLISH(BEHAVIOUR_GOOD), RELAY, STOP } },
	{ 2,
	  { { .action = STEP_DLQ_REPLAY, .fault = FAULT_POINT, .at = SEMEL_FP_DLQ_AFTER_PUBLISH },
	    STOP } },
	{ 3,
	  { { .action = STEP_DLQ_REPLAY,
	      .fault = FAULT_MEANWHILE,
	      .at = SEMEL_FP_DLQ_AFTER_PUBLISH },
	    JUST(STEP_DLQ_REPLAY),
	    STOP } },
	{ 2, { JUST(STEP_LOSE), STOP } },
	{ 3, { KILLED(0, 3), KILLED(1, 3), STOP } },
	{ 3, { PUBLISH(BEHAVIOUR_LATER), RELAY, STOP } },
	{ 3, { PASS(5), JUST(STEP_PRUNE), STOP } },
	{ 2, { { .action = STEP_VERDICT, .a = 0, .b = BEHAVIOUR_GOOD }, STOP } },
	{ 2, { PASS(4), STOP } },
	{ 2, { JUST(STEP_REPLAY), STOP } },
	{ 3, { KILLED(0, 4), KILLED(1, 4), STOP } },
	{ 2, { JUST(STEP_REPROCESS), STOP } },
	{ 2, { { .action = STEP_REPROCESS, .a = 1 }, STOP } },
	{ 2, { { .action = STEP_DLQ_DISCARD, .a = 1 }, STOP } },
	{ 2, { { .action = STEP_DLQ_REPLAY, .a = 1 }, STOP } },
};

enum { MOVES = sizeof move_table / sizeof move_table[0], DEPTH_MAX = 8, SEEN_SIZE = 1 << 20 };

struct walk {
	struct world *world;
	struct sequence *sequence;
	struct progress *progress;
	bool (*is_over)(void *user);
	void *user;
	int depth; /* of this walk: only sequences of this depth are new */
	struct saved saves[DEPTH_MAX + 1];
	struct {
		uint64_t digest;
		int left;
	} * seen;
};

/* Was the state seen with at least as many moves left? If not, it is recorded. */
static bool was_seen(struct walk *walk, uint64_t digest, int left)
{
	size_t at = digest & (SEEN_SIZE - 1);

	for (int i = 0; i < 64; i++, at = (at + 1) & (SEEN_SIZE - 1)) {
		if (walk->seen[at].digest == digest && walk->seen[at].left >= left)
			return true;
		if (walk->seen[at].digest == digest || walk->seen[at].digest == 0) {
			walk->seen[at].digest = digest;
			walk->seen[at].left = left;
			return false;
		}
	}
	return false;
}

static bool append_move(struct walk *walk, const struct move *move)
{
	struct sequence *sequence = walk->sequence;

	memcpy(&sequence->steps[sequence->count], move->steps, sizeof move->steps);
	sequence->count += move->count;
	for (int i = 0; i < move->count && !walk->world->broken;)
		i += step_run(walk->world, &move->steps[i], move->count - i);
	walk->progress->steps += (uint64_t)move->count;
	return !walk->world->broken;
}

static bool judge(struct walk *walk, uint64_t digest)
{
	walk->sequence->discards = digest % 2;
	walk->progress->sequences++;
	quiesce_and_judge(walk->world, walk->sequence->discards);
	return !walk->world->broken;
}

static bool go_into(struct walk *walk, int at)
{
	struct sequence *sequence = walk->sequence;
	int count = sequence->count;

	for (int i = 0; i < MOVES && !walk->is_over(walk->user); i++) {
		sequence->count = count;
		world_return(walk->world, &walk->saves[at]);
		if (!append_move(walk, &move_table[i]))
			return false;
		uint64_t digest = inspect_digest(walk->world);
		if (was_seen(walk, digest, walk->depth - at))
			continue;
		if (at + 1 == walk->depth) {
			if (!judge(walk, digest))
				return false;
			continue;
		}
		if (!world_save(walk->world, &walk->saves[at + 1]) || !go_into(walk, at + 1))
			return false;
	}
	return true;
}

bool walk_short(struct world *world, struct sequence *sequence, struct progress *progress,
		int depth, bool (*is_over)(void *user), void *user)
{
	struct walk walk = { .world = world,
			     .sequence = sequence,
			     .progress = progress,
			     .is_over = is_over,
			     .user = user,
			     .depth = depth };

	walk.seen = calloc(SEEN_SIZE, sizeof *walk.seen);
	if (!walk.seen || depth > DEPTH_MAX)
		abort();
	sequence->count = 0;
	world_reset(world, &settings[sequence->setting], sequence->seed);
	bool good = world_save(world, &walk.saves[0]) && go_into(&walk, 0);
	for (int i = 0; i <= depth; i++)
		saved_free(&walk.saves[i]);
	free(walk.seen);
	return good;
}
