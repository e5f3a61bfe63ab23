/* SPDX-License-Identifier: Apache-2.0 */
/* A billing service. For every order it writes one invoice, and publishes an event about it.
 *
 * The handler runs inside the transaction in which Semel claims the event. The invoice is written
 * through that transaction's own connection, so claim, invoice and follow-up are committed at once:
 * however often the event is delivered, and wherever this program dies, there is one invoice.
 *
 *   consumer shop.db broker.db      works until SIGTERM
 *   consumer shop.db broker.db 30   works until nothing is left, for at most 30 seconds
 */
#include <inttypes.h>
#include <semel/semel.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

static semel_consumer *running;

static void stop(int signal_number)
{
	(void)signal_number;
	semel_consumer_stop(running);
}

/* One invoice over the total in the order's event. */
static int write_invoice(sqlite3 *db, const semel_event *event)
{
	size_t size;
	const char *payload = semel_event_payload(event, &size);
	sqlite3_stmt *insert = NULL;

	sqlite3_prepare_v2(db,
			   "INSERT INTO invoice(order_id, total_cents)"
			   " VALUES (?1, json_extract(?2, '$.total_cents'))",
			   -1, &insert, NULL);
	sqlite3_bind_text(insert, 1, semel_event_aggregate_id(event), -1, SQLITE_STATIC);
	sqlite3_bind_text(insert, 2, payload, (int)size, SQLITE_STATIC);
	sqlite3_step(insert);
	return sqlite3_finalize(insert);
}

static semel_verdict bill(const semel_event *event, semel_context *context, void *user)
{
	(void)user; /* what semel_consumer_handle was given */
	sqlite3 *db = semel_tx_sqlite(semel_context_tx(context));
	int code = write_invoice(db, event);

	if ((code & 0xff) == SQLITE_CONSTRAINT) { /* no total: no retry would help */
		semel_context_explain(context, "cannot bill order %s: %s",
				      semel_event_aggregate_id(event), sqlite3_errmsg(db));
		return SEMEL_REJECT;
	}
	if (code != SQLITE_OK) {
		semel_context_explain(context, "no invoice this time: %s", sqlite3_errmsg(db));
		return SEMEL_RETRY;
	}

	semel_error error;
	const semel_event_input written = {
		.type = "invoice.written.v1",
		.aggregate_type = "invoice",
		.aggregate_id = semel_event_aggregate_id(event),
		.payload = "{}",
	};
	if (semel_context_publish(context, &written, NULL, &error) != SEMEL_OK) {
		semel_context_explain(context, "%s", error.text);
		return SEMEL_RETRY;
	}
	return SEMEL_DONE;
}

/* The service's own tables, beside those of Semel. */
static int prepare(const char *path)
{
	sqlite3 *db = NULL;
	int code = sqlite3_open(path, &db);

	if (code == SQLITE_OK) {
		sqlite3_busy_timeout(db, 5000);
		code = sqlite3_exec(db,
				    "CREATE TABLE IF NOT EXISTS invoice("
				    " number INTEGER PRIMARY KEY,"
				    " order_id TEXT NOT NULL,"
				    " total_cents INTEGER NOT NULL)",
				    NULL, NULL, NULL);
	}
	if (code != SQLITE_OK)
		fprintf(stderr, "billing: %s: %s\n", path, sqlite3_errmsg(db));
	sqlite3_close(db);
	return code;
}

static semel_status work(const semel_consumer_options *options, const char *seconds,
			 semel_error *error)
{
	semel_status status = semel_consumer_open(options, &running, error);
	if (status != SEMEL_OK)
		return status;

	signal(SIGTERM, stop);
	signal(SIGINT, stop);
	status = semel_consumer_handle(running, bill, NULL, error);
	if (status == SEMEL_OK)
		status = seconds ? semel_consumer_drain(running, 1000 * strtoll(seconds, NULL, 10),
							0, error)
				 : semel_consumer_run(running, 0, error);

	semel_consumer_counts counts = semel_consumer_count(running);
	printf("%" PRIu64 " invoices, %" PRIu64 " duplicates skipped, %" PRIu64 " dead letters\n",
	       counts.done, counts.duplicate, counts.dead);
	semel_consumer_close(running);
	return status;
}

int main(int argc, char **argv)
{
	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: %s DATABASE BROKER-FILE [SECONDS]\n", argv[0]);
		return EX_USAGE;
	}
	char store[512], broker[512];
	snprintf(store, sizeof store, "sqlite:%s", argv[1]);
	snprintf(broker, sizeof broker, "local:%s", argv[2]);

	semel_error error;
	semel_status status = semel_store_init(store, &error);
	if (status == SEMEL_OK && prepare(argv[1]) != SQLITE_OK)
		return EX_UNAVAILABLE;
	if (status == SEMEL_OK) {
		const char *const topics[] = { "order.events", NULL };
		const semel_consumer_options options = {
			.store = store, .broker = broker, .scope = "billing", .topics = topics
		};
		status = work(&options, argv[3], &error);
	}
	if (status != SEMEL_OK && status != SEMEL_STOPPED) {
		fprintf(stderr, "billing: %s\n", error.text);
		return semel_status_exit_code(status);
	}
	return EX_OK;
}
