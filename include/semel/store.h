/* SPDX-License-Identifier: Apache-2.0 */
/* Where Semel keeps its tables: beside the application's own, in the application's database.
 *
 * semel_tx borrows the caller's connection, in whose open transaction the call takes part. It is a
 * small value, made on the spot and not freed. Semel never begins, commits or rolls back on it.
 * semel_store owns a connection of its own. One store belongs to one thread at a time.
 */
#ifndef SEMEL_STORE_H
#define SEMEL_STORE_H

#include <semel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sqlite3;
struct pg_conn; /* libpq's PGconn */
struct semel_store_driver;

typedef struct semel_store semel_store;

typedef struct semel_tx {
	const struct semel_store_driver *driver;
	void *native;
	semel_store *store; /* NULL: the connection is the caller's */
} semel_tx;

/* Cheap. The handle stays the caller's; statements that Semel keeps prepared on it go with
 * sqlite3_close. */
SEMEL_API semel_tx semel_borrow_sqlite(struct sqlite3 *db);
SEMEL_API semel_tx semel_borrow_postgres(struct pg_conn *connection);
/* The native handle of a transaction, or NULL when the store is of another kind. */
SEMEL_API struct sqlite3 *semel_tx_sqlite(semel_tx tx);
SEMEL_API struct pg_conn *semel_tx_postgres(semel_tx tx);

/* url: "sqlite:PATH", or "postgres://…" (any libpq URI). The tables must exist
 * (semel_store_init, or the program's init). */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_store_open(const char *url, semel_store **store_out,
							 semel_error *error);
/* Creates or upgrades the tables; safe to call twice, and from two processes at once. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_store_init(const char *url, semel_error *error);
/* Used by claims that name no scope of their own. Copied. NULL or blank: none. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_store_set_default_scope(semel_store *store,
								      const char *scope,
								      semel_error *error);
SEMEL_API void semel_store_close(semel_store *store);

#ifdef __cplusplus
}
#endif
#endif
