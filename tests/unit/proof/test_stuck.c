/* SPDX-License-Identifier: Apache-2.0 */
/* What moves each thing that waits. */
#include "proof/stuck.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define NOW INT64_C(1763208000000)

static struct semel_wait parked(enum semel_hold_state state, enum semel_dead_status letter,
				bool settled)
{
	return (struct semel_wait){ .kind = SEMEL_WAIT_PARKED,
				    .event_id = SEMEL_TEXT("follower"),
				    .head_id = SEMEL_TEXT("head"),
				    .state = state,
				    .letter = letter,
				    .settled = settled };
}

static void assert_fix(struct semel_wait wait, enum semel_fix kind, const char *awaited_id)
{
	struct semel_wait_fix fix = semel_wait_find_fix(&wait, NOW);
	assert_int_equal(fix.kind, kind);
	if (awaited_id)
		assert_string_equal(fix.awaited_id.data, awaited_id);
	else
		assert_null(fix.awaited_id.data);
}

static void what_nothing_holds_is_to_be_released(void **state)
{
	(void)state;
	assert_fix(parked(SEMEL_HOLD_NONE, SEMEL_DEAD_ANY, false), SEMEL_FIX_RELEASE, NULL);
}

static void what_a_consumer_moves_needs_nothing(void **state)
{
	(void)state;
	assert_fix(parked(SEMEL_HOLD_RELEASED, SEMEL_DEAD_ANY, false), SEMEL_FIX_NONE, NULL);
	assert_fix(parked(SEMEL_HOLD_GAP, SEMEL_DEAD_ANY, false), SEMEL_FIX_NONE, NULL);
}

static void behind_a_retry_the_copy_of_the_head_is_waited_for(void **state)
{
	(void)state;
	assert_fix(parked(SEMEL_HOLD_RETRY, SEMEL_DEAD_ANY, false), SEMEL_FIX_RESEND, "head");
}

static void behind_a_dead_head_its_letter_decides(void **state)
{
	(void)state;
	assert_fix(parked(SEMEL_HOLD_DEAD, SEMEL_DEAD_PENDING, false), SEMEL_FIX_NONE, NULL);
	assert_fix(parked(SEMEL_HOLD_DEAD, SEMEL_DEAD_REPLAYED, false), SEMEL_FIX_RESEND, "head");
	assert_fix(parked(SEMEL_HOLD_DEAD, SEMEL_DEAD_REPLAYED, true), SEMEL_FIX_RELEASE, NULL);
	assert_fix(parked(SEMEL_HOLD_DEAD, SEMEL_DEAD_DISCARDED, false), SEMEL_FIX_RELEASE, NULL);
	assert_fix(parked(SEMEL_HOLD_DEAD, SEMEL_DEAD_ANY, false), SEMEL_FIX_RELEASE, NULL);
}

static void a_claim_needs_a_copy_once_its_owner_is_gone(void **state)
{
	(void)state;
	struct semel_wait claim = { .kind = SEMEL_WAIT_CLAIM,
				    .event_id = SEMEL_TEXT("event"),
				    .owner = SEMEL_TEXT("elsewhere"),
				    .due_ms = NOW + 1 };
	assert_fix(claim, SEMEL_FIX_NONE, NULL);
	claim.due_ms = NOW;
	assert_fix(claim, SEMEL_FIX_RESEND, "event");
}

static void a_replay_waits_for_its_own_copy(void **state)
{
	(void)state;
	struct semel_wait replay = { .kind = SEMEL_WAIT_REPLAY, .event_id = SEMEL_TEXT("event") };
	assert_fix(replay, SEMEL_FIX_RESEND, "event");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_nothing_holds_is_to_be_released),
		cmocka_unit_test(what_a_consumer_moves_needs_nothing),
		cmocka_unit_test(behind_a_retry_the_copy_of_the_head_is_waited_for),
		cmocka_unit_test(behind_a_dead_head_its_letter_decides),
		cmocka_unit_test(a_claim_needs_a_copy_once_its_owner_is_gone),
		cmocka_unit_test(a_replay_waits_for_its_own_copy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
