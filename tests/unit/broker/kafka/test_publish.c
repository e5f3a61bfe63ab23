/* SPDX-License-Identifier: Apache-2.0 */
/* How large batches may be after some were refused for their size. */
#include "broker/kafka/kafka.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void assert_shrinks(uint64_t from, uint64_t refused, uint64_t to)
{
	struct semel_kafka kafka = { .batch_bytes = from, .window.refused_bytes = refused };
	semel_kafka_shrink_batches(&kafka);
	assert_int_equal(kafka.batch_bytes, to);
}

static void they_are_half_of_what_they_were(void **state)
{
	(void)state;
	assert_shrinks(0, 5000000, 500000);
	assert_shrinks(500000, 5000000, 250000);
}

static void they_are_half_of_what_was_refused(void **state)
{
	(void)state;
	assert_shrinks(0, 10000, 5000);
	assert_shrinks(8000, 6000, 3000);
}

static void they_do_not_vanish(void **state)
{
	(void)state;
	assert_shrinks(1000, 900, 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(they_are_half_of_what_they_were),
		cmocka_unit_test(they_are_half_of_what_was_refused),
		cmocka_unit_test(they_do_not_vanish),
	};
	return cmocka_run_group_tests_name("the size of batches", tests, NULL, NULL);
}
