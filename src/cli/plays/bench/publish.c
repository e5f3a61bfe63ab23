/* SPDX-License-Identifier: Apache-2.0 */
/* A business row and its event in one transaction: the event by semel_outbox_publish on a borrowed
 * connection, or by hand into the same table of another file. */
#include "cli/plays/bench/bench.h"

#include <semel/outbox.h>
#include <stdio.h>

#define PER_TRANSACTION_MANY 1000
/* A commit waits for the disk, whose speed varies from moment to moment, so turns are short. */
#define TRANSACTIONS_PER_TURN 10

struct publishing {
	struct semel_bench *bench;
	struct semel_bench_database semel, bare;
	uint64_t transactions, per_transaction;
};

struct event {
	char order[32], payload[512];
	semel_event_input input;
};

/* Writes the business row, and prepares the event to write after it. */
static semel_status write_order(struct semel_bench *bench, struct semel_bench_database *database,
				struct event *event)
{
	uint64_t number = database->next++;
	semel_bench_aggregate_id(number, event->order, sizeof event->order);
	semel_bench_payload(number, event->payload, sizeof event->payload);
	event->input = (semel_event_input){ .type = SEMEL_BASELINE_TYPE,
					    .aggregate_type = "order",
					    .aggregate_id = event->order,
					    .headers = SEMEL_BASELINE_HEADERS,
					    .payload = event->payload };
	const struct semel_baseline_order order = { .id = event->order,
						    .customer = "customer",
						    .total = (int64_t)(number % 900 + 100) };
	return bench->baseline->insert_order(database->connection, &order, bench->error);
}

static semel_status publish(struct publishing *publishing)
{
	struct semel_bench *bench = publishing->bench;
	struct event event;
	semel_status status = write_order(bench, &publishing->semel, &event);
	if (status != SEMEL_OK)
		return status;
	return semel_outbox_publish(bench->baseline->tx(publishing->semel.connection), &event.input,
				    NULL, bench->error);
}

static semel_status insert(struct publishing *publishing)
{
	struct semel_bench *bench = publishing->bench;
	struct event event;
	semel_status status = write_order(bench, &publishing->bare, &event);
	if (status != SEMEL_OK)
		return status;
	return bench->baseline->insert_event(publishing->bare.connection, &event.input,
					     bench->error);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

typedef semel_status (*write_one)(struct publishing *publishing);

static semel_status transaction(struct publishing *publishing,
				struct semel_bench_database *database, write_one write)
{
	struct semel_bench *bench = publishing->bench;
	semel_status status = bench->baseline->begin(database->connection, bench->error);
	if (status != SEMEL_OK)
		return status;
	for (uint64_t i = 0; i < publishing->per_transaction; i++) {
		status = write(publishing);
		if (status != SEMEL_OK)
			return status;
	}
	return bench->baseline->commit(database->connection, bench->error);
}

static semel_status transactions(struct publishing *publishing,
				 struct semel_bench_database *database, write_one write)
{
	for (uint64_t i = 0; i < publishing->transactions; i++) {
		semel_status status = transaction(publishing, database, write);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status semel_side(void *user)
{
	struct publishing *publishing = user;
	return transactions(publishing, &publishing->semel, publish);
}

static semel_status bare_side(void *user)
{
	struct publishing *publishing = user;
	return transactions(publishing, &publishing->bare, insert);
}

static semel_status compare_sides(struct publishing *publishing, uint64_t turns,
				  const struct semel_bench_row *row)
{
	struct semel_bench *bench = publishing->bench;
	const struct semel_bench_comparison comparison = {
		.user = publishing,
		.turns = (uint32_t)turns,
		.events = publishing->transactions * publishing->per_transaction,
		.left = semel_side,
		.right = bare_side,
	};
	struct semel_bench_row *measured = &bench->rates[bench->rate_count];
	*measured = *row;
	semel_status status = semel_bench_compare(bench, &comparison, measured);
	bench->rate_count += status == SEMEL_OK;
	return status;
}

static semel_status compare_single(struct publishing *publishing)
{
	publishing->per_transaction = 1;
	publishing->transactions = TRANSACTIONS_PER_TURN;
	uint64_t turns = publishing->bench->transactions / TRANSACTIONS_PER_TURN + 1;
	return compare_sides(
		publishing, turns,
		&(struct semel_bench_row){ .name = "publish, one event in a transaction",
					   .kind = SEMEL_BENCH_AT_LEAST,
					   .goal = 0.9 });
}

static semel_status compare_bulk(struct publishing *publishing)
{
	publishing->per_transaction = PER_TRANSACTION_MANY;
	publishing->transactions = publishing->bench->events / PER_TRANSACTION_MANY + 1;
	return compare_sides(
		publishing, 0,
		&(struct semel_bench_row){ .name = "publish, 1,000 in a transaction" });
}

semel_status semel_bench_publish(struct semel_bench *bench)
{
	struct publishing publishing = { .bench = bench };
	semel_status status =
		semel_bench_open_database(bench, "publish-semel.db", &publishing.semel);
	if (status != SEMEL_OK)
		return status;
	status = semel_bench_open_database(bench, "publish-bare.db", &publishing.bare);
	if (status != SEMEL_OK)
		goto close_semel;
	status = compare_single(&publishing);
	if (status != SEMEL_OK)
		goto close_both;
	status = compare_bulk(&publishing);

close_both:
	semel_bench_close_database(bench, &publishing.bare);
close_semel:
	semel_bench_close_database(bench, &publishing.semel);
	return status;
}
