/* SPDX-License-Identifier: Apache-2.0 */
/* What the measurements are made of: the events and the databases of the baseline
 * (store/baseline.h), whose add_events writes the same texts, and the comparison of two sides. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "cli/process/progress.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS_MAX 100

/* ---- events ---------------------------------------------------------------------------------- */

void semel_bench_aggregate_id(uint64_t number, char *text_out, size_t size)
{
	const uint64_t active = SEMEL_BASELINE_ACTIVE_ORDERS;
	uint64_t order =
		number / (active * SEMEL_BASELINE_EVENTS_PER_ORDER) * active + number % active;
	snprintf(text_out, size, "ord-%08" PRIu64, order);
}

void semel_bench_payload(uint64_t number, char *text_out, size_t size)
{
	char order[32];
	semel_bench_aggregate_id(number, order, sizeof order);
	snprintf(text_out, size,
		 "{\"orderId\":\"%s\",\"customer\":\"customer-%05" PRIu64
		 "\",\"currency\":\"EUR\",\"total\":%" PRIu64
		 ",\"lines\":[{\"product\":\"tea\",\"quantity\":2,\"price\":450},"
		 "{\"product\":\"cup\",\"quantity\":1,\"price\":1290}]}",
		 order, number % 5000, number % 900 + 100);
}

semel_status semel_bench_find_baseline(struct semel_bench *bench)
{
	const struct semel_store_driver *driver = NULL;
	semel_status status = semel_store_driver_find("sqlite", &driver, bench->error);
	if (status != SEMEL_OK)
		return status;
	bench->baseline = driver->baseline;
	return SEMEL_OK;
}

semel_status semel_bench_open_database(struct semel_bench *bench, const char *name,
				       struct semel_bench_database *database_out)
{
	*database_out = (struct semel_bench_database){ 0 };
	const char *url = semel_sandbox_path(bench->sandbox, "sqlite:", name);
	if (!url)
		return semel_error_set(bench->error, SEMEL_INTERNAL, "out of memory");
	return bench->baseline->open(url, &database_out->connection, bench->error);
}

void semel_bench_close_database(struct semel_bench *bench, struct semel_bench_database *database)
{
	bench->baseline->close(database->connection);
	database->connection = NULL;
}

semel_status semel_bench_fill(struct semel_bench *bench, struct semel_bench_database *database,
			      uint64_t count)
{
	semel_status status = bench->baseline->add_events(database->connection, database->next,
							  count, bench->error);
	database->next += count;
	return status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Times two sides in turns, several of them in a round, so that a slow moment of the disk affects
 * both. The first side alternates from turn to turn, since it leaves a warm disk or a full log to
 * the second. */
static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int by_size(const void *left, const void *right)
{
	double difference = *(const double *)left - *(const double *)right;
	return (difference > 0) - (difference < 0);
}

static double median(double *values, size_t count)
{
	qsort(values, count, sizeof *values, by_size);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static semel_status time_side(semel_status (*side)(void *user), void *user, double *seconds)
{
	double start = now_s();
	semel_status status = side(user);
	*seconds += now_s() - start;
	return status;
}

static semel_status take_turn(const struct semel_bench_comparison *comparison, bool left_first,
			      double *left, double *right)
{
	void *user = comparison->user;
	semel_status status = comparison->prepare ? comparison->prepare(user) : SEMEL_OK;
	if (status != SEMEL_OK)
		return status;
	if (left_first)
		status = time_side(comparison->left, user, left);
	if (status != SEMEL_OK)
		return status;
	status = time_side(comparison->right, user, right);
	if (status != SEMEL_OK || left_first)
		return status;
	return time_side(comparison->left, user, left);
}

static uint32_t turns_of(const struct semel_bench *bench,
			 const struct semel_bench_comparison *comparison)
{
	return comparison->turns > 0 ? comparison->turns : bench->turns;
}

static semel_status run_round(struct semel_bench *bench,
			      const struct semel_bench_comparison *comparison, size_t number,
			      struct semel_bench_row *round_out)
{
	double left = 0, right = 0;
	for (uint32_t i = 0; i < turns_of(bench, comparison); i++) {
		semel_status status = semel_sandbox_check(bench->sandbox, bench->error);
		if (status != SEMEL_OK)
			return status;
		status = take_turn(comparison, (number + i) % 2 == 0, &left, &right);
		if (status != SEMEL_OK)
			return status;
	}
	*round_out = (struct semel_bench_row){ .left = left, .right = right };
	return SEMEL_OK;
}

/* Called between the rounds, so that it is not timed. */
static void show(const struct semel_bench_row *row, size_t done, size_t count)
{
	char what[96];
	snprintf(what, sizeof what, "rounds: %s", row->name);
	semel_progress_show_of(what, done, count);
}

semel_status semel_bench_compare(struct semel_bench *bench,
				 const struct semel_bench_comparison *comparison,
				 struct semel_bench_row *row)
{
	double left_times[ROUNDS_MAX], right_times[ROUNDS_MAX], ratios[ROUNDS_MAX];
	size_t count = bench->rounds < ROUNDS_MAX ? bench->rounds : ROUNDS_MAX;
	double events = (double)(comparison->events * turns_of(bench, comparison));
	struct semel_bench_row round;
	show(row, 0, count);
	/* The first round warms up both sides, and is not counted. */
	semel_status status = run_round(bench, comparison, 0, &round);
	for (size_t i = 0; i < count && status == SEMEL_OK; i++) {
		status = run_round(bench, comparison, i, &round);
		left_times[i] = round.left;
		right_times[i] = round.right;
		ratios[i] = round.right / round.left;
		show(row, i + 1, count);
	}
	if (status != SEMEL_OK)
		return status;
	row->left = events / median(left_times, count);
	row->right = events / median(right_times, count);
	row->ratio = median(ratios, count);
	return SEMEL_OK;
}
