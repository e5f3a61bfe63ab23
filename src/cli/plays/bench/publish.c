/* SPDX-License-Identifier: Apache-2.0 */
/* A business row and its event in one transaction: the event by semel_outbox_publish on a borrowed
 * connection, or by a prepared INSERT into the same table of another file. */
#include "cli/plays/bench/bench.h"

#include "base/env.h"
#include "base/error.h"
#include "base/sqlite_file.h"
#include "base/time.h"
#include "base/uuid.h"

#include <semel/outbox.h>
#include <stdio.h>
#include <string.h>

#define PER_TRANSACTION_MANY 1000
/* A commit waits for the disk, whose mood changes from moment to moment: so turns are short. */
#define TRANSACTIONS_PER_TURN 10

enum statement { BEGIN, BUSINESS, OUTBOX, COMMIT, STATEMENT_COUNT };

static const char *const statements_sql[STATEMENT_COUNT] = {
	[BEGIN] = "BEGIN IMMEDIATE",
	[BUSINESS] = "INSERT INTO bench_order (id, customer, total) VALUES (?1, ?2, ?3)",
	[OUTBOX] = "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic,"
		   " routing_key, content_type, headers, created_at, payload)"
		   " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
	[COMMIT] = "COMMIT",
};

struct side {
	sqlite3 *db;
	sqlite3_stmt *statements[STATEMENT_COUNT];
	uint64_t number; /* of the next event */
};

struct publishing {
	struct semel_bench *bench;
	struct side semel, bare;
	uint64_t transactions, per_transaction;
};

struct event {
	char order[32], payload[512];
};

static semel_status open_side(struct semel_bench *bench, const char *name, struct side *side)
{
	semel_status status = semel_bench_open_application(bench, name, &side->db);
	for (int i = 0; i < STATEMENT_COUNT && status == SEMEL_OK; i++)
		status = semel_bench_prepare(bench, side->db, statements_sql[i],
					     &side->statements[i]);
	return status;
}

static void close_side(struct side *side)
{
	for (int i = 0; i < STATEMENT_COUNT; i++)
		sqlite3_finalize(side->statements[i]);
	sqlite3_close(side->db);
}

static semel_status write_business(struct semel_bench *bench, struct side *side,
				   struct event *event)
{
	sqlite3_stmt *business = side->statements[BUSINESS];
	uint64_t number = side->number++;
	semel_bench_aggregate_id(number, event->order, sizeof event->order);
	semel_bench_payload(number, event->payload, sizeof event->payload);
	sqlite3_bind_text(business, 1, event->order, -1, SQLITE_STATIC);
	sqlite3_bind_text(business, 2, "customer", -1, SQLITE_STATIC);
	sqlite3_bind_int64(business, 3, (sqlite3_int64)(number % 900 + 100));
	return semel_bench_run(bench, business);
}

/* ---- by the library -------------------------------------------------------------------------- */

static semel_status publish(struct publishing *publishing)
{
	struct side *side = &publishing->semel;
	struct event event;
	semel_status status = write_business(publishing->bench, side, &event);
	if (status != SEMEL_OK)
		return status;
	const semel_event_input input = { .type = SEMEL_BENCH_TYPE,
					  .aggregate_type = "order",
					  .aggregate_id = event.order,
					  .headers = SEMEL_BENCH_HEADERS,
					  .payload = event.payload };
	return semel_outbox_publish(semel_borrow_sqlite(side->db), &input, NULL,
				    publishing->bench->error);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static semel_status insert(struct publishing *publishing)
{
	struct side *side = &publishing->bare;
	sqlite3_stmt *outbox = side->statements[OUTBOX];
	struct event event;
	char id[SEMEL_UUID_SIZE], time[SEMEL_TIME_SIZE];
	semel_status status = write_business(publishing->bench, side, &event);
	if (status != SEMEL_OK)
		return status;
	semel_uuid_make(semel_env_system(), id);
	semel_time_format(semel_now_ms(semel_env_system()), time);
	const char *const values[] = { id,
				       "order",
				       event.order,
				       SEMEL_BENCH_TYPE,
				       SEMEL_BENCH_TOPIC,
				       SEMEL_BENCH_TYPE,
				       "application/json",
				       SEMEL_BENCH_HEADERS,
				       time,
				       event.payload };
	for (int i = 0; i < (int)(sizeof values / sizeof *values); i++)
		sqlite3_bind_text(outbox, i + 1, values[i], -1, SQLITE_STATIC);
	return semel_bench_run(publishing->bench, outbox);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static semel_status transactions(struct publishing *publishing, struct side *side,
				 semel_status (*write)(struct publishing *publishing))
{
	semel_status status = SEMEL_OK;
	for (uint64_t i = 0; i < publishing->transactions && status == SEMEL_OK; i++) {
		status = semel_bench_run(publishing->bench, side->statements[BEGIN]);
		for (uint64_t j = 0; j < publishing->per_transaction && status == SEMEL_OK; j++)
			status = write(publishing);
		if (status == SEMEL_OK)
			status = semel_bench_run(publishing->bench, side->statements[COMMIT]);
	}
	return status;
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
	semel_status status = open_side(bench, "publish-semel.db", &publishing.semel);
	if (status == SEMEL_OK)
		status = open_side(bench, "publish-bare.db", &publishing.bare);
	if (status == SEMEL_OK)
		status = compare_single(&publishing);
	if (status == SEMEL_OK)
		status = compare_bulk(&publishing);
	close_side(&publishing.semel);
	close_side(&publishing.bare);
	return status;
}
