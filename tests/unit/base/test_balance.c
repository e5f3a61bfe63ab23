/* SPDX-License-Identifier: Apache-2.0 */
/* Sharing partitions: the pure rule. */
#include "base/balance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define F                                                                                          \
	{                                                                                          \
		.holder = SEMEL_BALANCE_FREE                                                       \
	}
#define M                                                                                          \
	{                                                                                          \
		.holder = SEMEL_BALANCE_MINE                                                       \
	}
#define B                                                                                          \
	{                                                                                          \
		.holder = SEMEL_BALANCE_MINE, .in_flight = true                                    \
	}
#define O                                                                                          \
	{                                                                                          \
		.holder = SEMEL_BALANCE_OTHER                                                      \
	}

static void quotas_add_up_and_differ_by_one_at_most(void **state)
{
	(void)state;
	for (uint32_t partitions = 1; partitions <= 64; partitions++)
		for (uint32_t members = 1; members <= 70; members++) {
			uint32_t sum = 0;
			for (uint32_t rank = 0; rank < members; rank++) {
				uint32_t fair = semel_balance_quota(partitions, members, rank);
				assert_in_range(fair, partitions / members,
						partitions / members + 1);
				sum += fair;
			}
			assert_int_equal(sum, partitions);
		}
}

static void a_lone_consumer_takes_all_that_is_free(void **state)
{
	(void)state;
	const struct semel_balance_part views[] = { F, O, F, M };
	enum semel_balance_move moves[4];
	semel_balance_decide(views, 4, 4, moves);
	assert_int_equal(moves[0], SEMEL_BALANCE_TAKE);
	assert_int_equal(moves[1], SEMEL_BALANCE_KEEP); /* its owner lives */
	assert_int_equal(moves[2], SEMEL_BALANCE_TAKE);
	assert_int_equal(moves[3], SEMEL_BALANCE_KEEP);
}

static void no_more_than_the_fair_number_is_taken(void **state)
{
	(void)state;
	const struct semel_balance_part views[] = { M, F, F, F };
	enum semel_balance_move moves[4];
	semel_balance_decide(views, 4, 2, moves);
	assert_int_equal(moves[1], SEMEL_BALANCE_TAKE);
	assert_int_equal(moves[2], SEMEL_BALANCE_KEEP);
	assert_int_equal(moves[3], SEMEL_BALANCE_KEEP);
}

static void idle_surplus_is_given_up_first(void **state)
{
	(void)state;
	const struct semel_balance_part views[] = { M, B, M, B };
	enum semel_balance_move moves[4];
	semel_balance_decide(views, 4, 2, moves);
	assert_int_equal(moves[0], SEMEL_BALANCE_RELEASE);
	assert_int_equal(moves[1], SEMEL_BALANCE_KEEP);
	assert_int_equal(moves[2], SEMEL_BALANCE_RELEASE);
	assert_int_equal(moves[3], SEMEL_BALANCE_KEEP);
}

static void surplus_in_flight_is_left_to_run_dry_and_never_given(void **state)
{
	(void)state;
	const struct semel_balance_part views[] = { B, B, B, M };
	enum semel_balance_move moves[4];
	semel_balance_decide(views, 4, 1, moves);
	assert_int_equal(moves[0], SEMEL_BALANCE_KEEP);
	assert_int_equal(moves[1], SEMEL_BALANCE_DRAIN);
	assert_int_equal(moves[2], SEMEL_BALANCE_DRAIN);
	assert_int_equal(moves[3], SEMEL_BALANCE_RELEASE);
}

#define PARTITIONS 8
#define NO_OWNER   UINT32_MAX

static enum semel_balance_holder holder_of(uint32_t owner, uint32_t me)
{
	if (owner == NO_OWNER)
		return SEMEL_BALANCE_FREE;
	return owner == me ? SEMEL_BALANCE_MINE : SEMEL_BALANCE_OTHER;
}

/* True: it has taken or given something. */
static bool let_decide(uint32_t owners[PARTITIONS], uint32_t members, uint32_t me)
{
	struct semel_balance_part views[PARTITIONS] = { 0 };
	enum semel_balance_move moves[PARTITIONS];
	bool moved = false;
	for (uint32_t p = 0; p < PARTITIONS; p++)
		views[p].holder = holder_of(owners[p], me);
	semel_balance_decide(views, PARTITIONS, semel_balance_quota(PARTITIONS, members, me),
			     moves);
	for (uint32_t p = 0; p < PARTITIONS; p++) {
		moved = moved || moves[p] != SEMEL_BALANCE_KEEP;
		if (moves[p] == SEMEL_BALANCE_TAKE)
			owners[p] = me;
		if (moves[p] == SEMEL_BALANCE_RELEASE)
			owners[p] = NO_OWNER;
	}
	return moved;
}

/* Members decide one after the other, each by what is true then. */
static void members_come_to_rest_with_every_partition_held(void **state)
{
	(void)state;
	for (uint32_t members = 1; members <= 10; members++) {
		uint32_t owners[PARTITIONS] = { 0 }; /* the first one had them all */
		bool moved = true;
		for (int round = 0; round < 3; round++) {
			moved = false;
			for (uint32_t me = 0; me < members; me++)
				moved = let_decide(owners, members, me) || moved;
		}
		assert_false(moved);
		for (uint32_t p = 0; p < PARTITIONS; p++)
			assert_int_not_equal(owners[p], NO_OWNER);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quotas_add_up_and_differ_by_one_at_most),
		cmocka_unit_test(a_lone_consumer_takes_all_that_is_free),
		cmocka_unit_test(no_more_than_the_fair_number_is_taken),
		cmocka_unit_test(idle_surplus_is_given_up_first),
		cmocka_unit_test(surplus_in_flight_is_left_to_run_dry_and_never_given),
		cmocka_unit_test(members_come_to_rest_with_every_partition_held),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
