/* SPDX-License-Identifier: Apache-2.0 */
/* An order service. It writes an order and its event in one transaction: after the COMMIT both
 * are there, after a ROLLBACK neither is. No broker is needed, or called, while orders come in.
 *
 *   producer shop.db ord-1 4200     place an order of 42.00
 *   producer shop.db ord-2 0        is refused by the shop's own rule, and there is no event
 */
#include <semel/semel.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sysexits.h>

static const char shop_tables[] = "CREATE TABLE IF NOT EXISTS orders("
				  " id TEXT PRIMARY KEY,"
				  " total_cents INTEGER NOT NULL CHECK(total_cents > 0))";

static int run_sql(sqlite3 *db, const char *sql)
{
	char *message = NULL;
	int code = sqlite3_exec(db, sql, NULL, NULL, &message);

	if (code != SQLITE_OK)
		fprintf(stderr, "shop: %s\n", message ? message : sqlite3_errstr(code));
	sqlite3_free(message);
	return code;
}

static int insert_order(sqlite3 *db, const char *order_id, long long total_cents)
{
	sqlite3_stmt *insert = NULL;

	sqlite3_prepare_v2(db, "INSERT INTO orders(id, total_cents) VALUES (?, ?)", -1, &insert,
			   NULL);
	sqlite3_bind_text(insert, 1, order_id, -1, SQLITE_STATIC);
	sqlite3_bind_int64(insert, 2, total_cents);
	sqlite3_step(insert);
	int code = sqlite3_finalize(insert);
	if (code != SQLITE_OK)
		fprintf(stderr, "shop: order %s was not taken: %s\n", order_id, sqlite3_errmsg(db));
	return code;
}

/* Publishes the event, in the transaction that is open on db. */
static semel_status publish_order(sqlite3 *db, const char *order_id, long long total_cents)
{
	char payload[128], event_id[SEMEL_ID_SIZE];
	semel_error error;
	const semel_event_input created = {
		.type = "order.created.v1",
		.aggregate_type = "order",
		.aggregate_id = order_id,
		.payload = payload,
		.headers = "{\"producer\":\"shop\"}",
	};

	snprintf(payload, sizeof payload, "{\"total_cents\":%lld}", total_cents);
	semel_status status =
		semel_outbox_publish(semel_borrow_sqlite(db), &created, event_id, &error);
	if (status != SEMEL_OK)
		fprintf(stderr, "shop: %s\n", error.text);
	else
		printf("order %s, event %s\n", order_id, event_id);
	return status;
}

static int place_order(sqlite3 *db, const char *order_id, long long total_cents)
{
	if (run_sql(db, "BEGIN IMMEDIATE") != SQLITE_OK)
		return EX_TEMPFAIL;
	/* The event first, to show that the order of the two does not matter. */
	if (publish_order(db, order_id, total_cents) != SEMEL_OK)
		goto roll_back;
	if (insert_order(db, order_id, total_cents) != SQLITE_OK)
		goto roll_back;
	if (run_sql(db, "COMMIT") != SQLITE_OK)
		goto roll_back;
	return EX_OK;

roll_back:
	run_sql(db, "ROLLBACK"); /* the event goes with the order */
	return EX_DATAERR;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: %s DATABASE ORDER-ID TOTAL-CENTS\n", argv[0]);
		return EX_USAGE;
	}

	/* The tables of Semel are beside the shop's own. Doing this at every start is fine. */
	char url[512];
	semel_error error;
	snprintf(url, sizeof url, "sqlite:%s", argv[1]);
	semel_status status = semel_store_init(url, &error);
	if (status != SEMEL_OK) {
		fprintf(stderr, "shop: %s\n", error.text);
		return semel_status_exit_code(status);
	}

	sqlite3 *db = NULL;
	int code = EX_UNAVAILABLE;
	if (sqlite3_open(argv[1], &db) == SQLITE_OK) {
		sqlite3_busy_timeout(db, 5000);
		if (run_sql(db, shop_tables) == SQLITE_OK)
			code = place_order(db, argv[2], strtoll(argv[3], NULL, 10));
	}
	sqlite3_close(db);
	return code;
}
