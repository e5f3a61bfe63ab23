/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics' text, and what is promised about labels. */
#include "observe/metrics.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct semel_buffer text;

static const char *render(void)
{
	semel_buffer_clear(&text);
	semel_metrics_render(&text);
	return text.data;
}

static void every_name_is_declared_also_without_samples(void **state)
{
	(void)state;
	static const char *const names[] = {
		"semel_outbox_unpublished gauge",
		"semel_outbox_unpublished_age_seconds gauge",
		"semel_outbox_publish_attempts_total counter",
		"semel_published_total counter",
		"semel_publish_confirm_seconds histogram",
		"semel_publish_nacked_total counter",
		"semel_publish_returned_total counter",
		"semel_publish_outstanding gauge",
		"semel_consumed_total counter",
		"semel_consume_ack_seconds histogram",
		"semel_redelivered_total counter",
		"semel_duplicates_total counter",
		"semel_claims_total counter",
		"semel_idempotency_checks_total counter",
		"semel_retries_total counter",
		"semel_ack_after_commit_failures_total counter",
		"semel_consumer_lag gauge",
		"semel_breaker_state gauge",
		"semel_dlq_entries_added_total counter",
		"semel_dlq_entries_replayed_total counter",
		"semel_dlq_entries_discarded_total counter",
		"semel_dlq_pending gauge",
		"semel_event_age_seconds histogram",
		"semel_slot_retained_bytes gauge",
		"semel_lease_held gauge",
		"semel_step_seconds_total counter",
		"semel_up gauge",
	};
	const char *shown = render();
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char line[128];
		snprintf(line, sizeof line, "\n# TYPE %s\n", names[i]);
		if (!strstr(shown, line))
			fail_msg("%s is not declared", names[i]);
	}
}

static void a_counter_without_labels_starts_at_zero(void **state)
{
	(void)state;
	assert_non_null(strstr(render(), "\nsemel_published_total 0\n"));
	semel_series_add(semel_series(SEMEL_METRIC_PUBLISHED, NULL, NULL), 3);
	assert_non_null(strstr(render(), "\nsemel_published_total 3\n"));
}

static void labels_are_escaped(void **state)
{
	(void)state;
	semel_series_add(semel_series(SEMEL_METRIC_CONSUMED, "a\"b\\c\nd", "done"), 1);
	assert_non_null(strstr(
		render(), "semel_consumed_total{scope=\"a\\\"b\\\\c\\nd\",outcome=\"done\"} 1\n"));
}

static void the_same_labels_are_the_same_series(void **state)
{
	(void)state;
	struct semel_series *series = semel_series(SEMEL_METRIC_CONSUMED, "billing", "done");
	assert_ptr_equal(series, semel_series(SEMEL_METRIC_CONSUMED, "billing", "done"));
	assert_ptr_not_equal(series, semel_series(SEMEL_METRIC_CONSUMED, "billing", "dead"));
}

static void a_gauge_that_was_cleared_is_shown_again_when_it_is_set(void **state)
{
	(void)state;
	struct semel_series *lag = semel_series(SEMEL_METRIC_CONSUMER_LAG, "billing", "t");
	assert_null(strstr(render(), "semel_consumer_lag{"));
	semel_series_set(lag, 7);
	assert_non_null(strstr(render(), "semel_consumer_lag{scope=\"billing\",topic=\"t\"} 7\n"));
	semel_metric_clear(SEMEL_METRIC_CONSUMER_LAG);
	assert_null(strstr(render(), "semel_consumer_lag{"));
}

static void a_time_is_in_every_bucket_above_it(void **state)
{
	(void)state;
	struct semel_series *age = semel_series(SEMEL_METRIC_EVENT_AGE, "billing", NULL);
	semel_series_observe(age, 4000);
	semel_series_observe(age, -5);
	semel_series_observe(age, INT64_C(9000000000));
	const char *shown = render();
	assert_non_null(strstr(shown, "_bucket{scope=\"billing\",le=\"0.0005\"} 1\n"));
	assert_non_null(strstr(shown, "_bucket{scope=\"billing\",le=\"0.0025\"} 1\n"));
	assert_non_null(strstr(shown, "_bucket{scope=\"billing\",le=\"0.005\"} 2\n"));
	assert_non_null(strstr(shown, "_bucket{scope=\"billing\",le=\"3600\"} 2\n"));
	assert_non_null(strstr(shown, "_bucket{scope=\"billing\",le=\"+Inf\"} 3\n"));
	assert_non_null(strstr(shown, "_sum{scope=\"billing\"} 9000.004000\n"));
	assert_non_null(strstr(shown, "_count{scope=\"billing\"} 3\n"));
}

static void past_the_bound_everything_is_counted_under_other(void **state)
{
	(void)state;
	for (int i = 0; i < SEMEL_SERIES_MAX * 3; i++) {
		char scope[32];
		snprintf(scope, sizeof scope, "scope-%d", i);
		semel_series_add(semel_series(SEMEL_METRIC_DUPLICATES, scope, NULL), 1);
	}
	char line[64];
	snprintf(line, sizeof line, "semel_duplicates_total{scope=\"other\"} %d\n",
		 SEMEL_SERIES_MAX * 2);
	assert_non_null(strstr(render(), line));
}

static void *count_much(void *unused)
{
	struct semel_series *series = semel_series(SEMEL_METRIC_REDELIVERED, "threads", NULL);
	for (int i = 0; i < 20000; i++)
		semel_series_add(series, 1);
	return unused;
}

static void several_threads_lose_no_count(void **state)
{
	(void)state;
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_much, NULL), 0);
	(void)render();
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_non_null(strstr(render(), "semel_redelivered_total{scope=\"threads\"} 80000\n"));
}

static int forget(void **state)
{
	(void)state;
	semel_buffer_free(&text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_is_declared_also_without_samples),
		cmocka_unit_test(a_counter_without_labels_starts_at_zero),
		cmocka_unit_test(labels_are_escaped),
		cmocka_unit_test(the_same_labels_are_the_same_series),
		cmocka_unit_test(a_gauge_that_was_cleared_is_shown_again_when_it_is_set),
		cmocka_unit_test(a_time_is_in_every_bucket_above_it),
		cmocka_unit_test(past_the_bound_everything_is_counted_under_other),
		cmocka_unit_test(several_threads_lose_no_count),
	};
	return cmocka_run_group_tests(tests, NULL, forget);
}
