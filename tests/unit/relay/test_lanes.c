/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes over a store whose answers the test sets. */
#include "relay/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct semel_lease stored;
static bool asked_streamed;

static int32_t one_lane(semel_store *store)
{
	(void)store;
	return 1;
}

static semel_status join(semel_store *store, const char *owner, int64_t now_ms,
			 int64_t expires_at_ms, struct semel_relay_group *group_out,
			 semel_error *error)
{
	(void)store, (void)owner, (void)now_ms, (void)expires_at_ms, (void)error;
	*group_out = (struct semel_relay_group){ .members = 1 };
	return SEMEL_OK;
}

static semel_status list(semel_store *store, struct semel_lease *leases_out, semel_error *error)
{
	(void)store, (void)error;
	*leases_out = stored;
	return SEMEL_OK;
}

static semel_status take(semel_store *store, struct semel_lease *lease, const char *owner,
			 int64_t expires_at_ms, semel_error *error)
{
	(void)store, (void)error;
	asked_streamed = lease->streamed;
	stored.epoch++;
	stored.expires_at_ms = expires_at_ms;
	strcpy(stored.owner, owner);
	*lease = stored;
	return SEMEL_OK;
}

static semel_status renew(semel_store *store, struct semel_lease *lease, int64_t expires_at_ms,
			  semel_error *error)
{
	(void)store, (void)error;
	asked_streamed = lease->streamed;
	stored.expires_at_ms = expires_at_ms;
	*lease = stored;
	return SEMEL_OK;
}

static const struct semel_store_driver driver = { .scheme = "test",
						  .outbox = &(const struct semel_outbox_functions){
							  .lane_count = one_lane,
							  .relay_join = join,
							  .lease_list = list,
							  .lease_acquire = take,
							  .lease_renew = renew } };

/* As after a fail-over to a standby that had not seen the last marks: numbers above its own low
 * mark will be given out again. */
static void a_relay_that_connects_anew_reads_from_the_low_mark_of_the_store(void **state)
{
	(void)state;
	semel_store store = { .driver = &driver };
	struct semel_lanes lanes;
	stored = (struct semel_lease){ .low_seq = 1000 };
	assert_int_equal(semel_lanes_open(&lanes, &store, semel_env_system(), 5000, NULL),
			 SEMEL_OK);
	assert_int_equal(semel_lanes_maintain(&lanes, &store, NULL), SEMEL_OK);
	assert_true(lanes.lanes[0].mine);
	assert_int_equal(lanes.lanes[0].cursor, 1000);

	stored.low_seq = 900;
	semel_lanes_rewind(&lanes);
	assert_int_equal(semel_lanes_maintain(&lanes, &store, NULL), SEMEL_OK);
	assert_true(lanes.lanes[0].mine);
	assert_int_equal(lanes.lanes[0].cursor, 900);
	assert_int_equal(lanes.lanes[0].read_to, 900);
	semel_lanes_close(&lanes, NULL);
}

static void a_lane_that_goes_back_while_it_is_only_renewed_is_read_from_there(void **state)
{
	(void)state;
	semel_store store = { .driver = &driver };
	struct semel_lanes lanes;
	stored = (struct semel_lease){ .low_seq = 1000 };
	assert_int_equal(semel_lanes_open(&lanes, &store, semel_env_system(), 5000, NULL),
			 SEMEL_OK);
	assert_int_equal(semel_lanes_maintain(&lanes, &store, NULL), SEMEL_OK);
	int64_t generation = lanes.generation;
	lanes.lanes[0].in_flight = 1;
	stored.low_seq = 900;
	stored.epoch++;
	lanes.renew_at_ms = 0;
	assert_int_equal(semel_lanes_renew(&lanes, &store, NULL), SEMEL_OK);
	assert_true(lanes.lanes[0].mine);
	assert_int_equal(lanes.lanes[0].cursor, 900);
	assert_int_equal(lanes.lanes[0].read_to, 900);
	assert_true(lanes.generation > generation);
	semel_lanes_close(&lanes, NULL);
}

static void a_lease_carries_whether_rows_come_through_the_change_stream(void **state)
{
	(void)state;
	semel_store store = { .driver = &driver };
	for (int whole = 0; whole < 2; whole++) {
		struct semel_lanes lanes;
		stored = (struct semel_lease){ 0 };
		assert_int_equal(semel_lanes_open(&lanes, &store, semel_env_system(), 5000, NULL),
				 SEMEL_OK);
		lanes.all_or_none = whole == 1;
		asked_streamed = !lanes.all_or_none;
		assert_int_equal(semel_lanes_maintain(&lanes, &store, NULL), SEMEL_OK);
		assert_int_equal(asked_streamed, lanes.all_or_none);
		asked_streamed = !lanes.all_or_none;
		lanes.maintain_at_ms = 0;
		assert_int_equal(semel_lanes_maintain(&lanes, &store, NULL), SEMEL_OK);
		assert_int_equal(asked_streamed, lanes.all_or_none);
		asked_streamed = !lanes.all_or_none;
		lanes.renew_at_ms = 0;
		assert_int_equal(semel_lanes_renew(&lanes, &store, NULL), SEMEL_OK);
		assert_int_equal(asked_streamed, lanes.all_or_none);
		semel_lanes_close(&lanes, NULL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_relay_that_connects_anew_reads_from_the_low_mark_of_the_store),
		cmocka_unit_test(a_lane_that_goes_back_while_it_is_only_renewed_is_read_from_there),
		cmocka_unit_test(a_lease_carries_whether_rows_come_through_the_change_stream),
	};
	return cmocka_run_group_tests_name("relay: lanes", tests, NULL, NULL);
}
