/* SPDX-License-Identifier: Apache-2.0 */
/* The events of the bench, and the databases with the baseline (store/baseline.h) in the sandbox.
 * The baseline's add_events writes the same texts. */
#include "cli/plays/bench/bench.h"

#include "base/error.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>

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
		return semel_error_set(bench->error, SEMEL_INTERNAL, "no memory");
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
