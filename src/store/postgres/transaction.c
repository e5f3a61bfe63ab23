/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions and the one savepoint in them. The server's own state is the truth: a COMMIT of a
 * transaction that was aborted answers ROLLBACK without an error, and is recognised by that. */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <string.h>

semel_tx semel_pg_tx(semel_store *store)
{
	return (semel_tx){ store->driver, semel_pg_of(store)->connection, store };
}

static bool has_state(semel_tx tx, PGTransactionStatusType state)
{
	return tx.native != NULL && semel_libpq_load(NULL) == SEMEL_OK &&
	       semel_libpq.transactionStatus(tx.native) == state;
}

/* A transaction is open, and nothing has failed in it so far. */
static bool is_usable(semel_tx tx)
{
	return (tx.store != NULL && semel_pg_of(tx.store)->unread_effects > 0) ||
	       has_state(tx, PQTRANS_INTRANS);
}

bool semel_pg_in_transaction(semel_tx tx)
{
	return is_usable(tx) || has_state(tx, PQTRANS_INERROR);
}

/* Texts are sent as UTF-8, and must not be read in another encoding. */
static semel_status require_encoding(semel_tx tx, const char *what, semel_error *error)
{
	const char *encoding =
		tx.store != NULL ? NULL : semel_libpq.parameterStatus(tx.native, "client_encoding");
	if (encoding == NULL || strcmp(encoding, "UTF8") == 0 || strcmp(encoding, "SQL_ASCII") == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "cannot %s: events are UTF-8, and the connection's client_encoding "
			       "is %s (PQsetClientEncoding(connection, \"UTF8\") first)",
			       what, encoding);
}

semel_status semel_pg_require_transaction(semel_tx tx, const char *what, semel_error *error)
{
	semel_status status = semel_libpq_load(error);
	if (status != SEMEL_OK)
		return status;
	if (is_usable(tx))
		return require_encoding(tx, what, error);
	if (semel_libpq.status(tx.native) != CONNECTION_OK)
		return semel_pg_error(tx.native, NULL, what, error);
	if (semel_libpq.transactionStatus(tx.native) == PQTRANS_INERROR)
		return semel_error_set(error, SEMEL_NO_TRANSACTION,
				       "cannot %s: the transaction is aborted (ROLLBACK first, or "
				       "ROLLBACK TO a savepoint)",
				       what);
	return semel_error_set(error, SEMEL_NO_TRANSACTION,
			       "cannot %s: no transaction is open on this connection (BEGIN first, "
			       "so that it commits with the business change)",
			       what);
}

static const struct semel_pg_statement begin_now = { "begin a transaction", "BEGIN" };
static const struct semel_pg_statement commit_all = { "commit", "COMMIT" };
static const struct semel_pg_statement set_savepoint = { "set a savepoint", "SAVEPOINT semel_one" };
static const struct semel_pg_statement release_savepoint = { "release a savepoint",
							     "RELEASE SAVEPOINT semel_one" };
static const struct semel_pg_statement back_to_savepoint = { "roll back to a savepoint",
							     "ROLLBACK TO SAVEPOINT semel_one" };

semel_status semel_pg_begin(semel_store *store, semel_error *error)
{
	semel_pg_of(store)->savepoint_open = false;
	return semel_pg_run(semel_pg_tx(store), &begin_now, NULL, NULL, error);
}

static semel_status run_inside(semel_store *store, const struct semel_pg_statement *statement,
			       semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	semel_status status = semel_pg_require_transaction(tx, statement->what, error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_run(tx, statement, NULL, NULL, error);
}

/* The error of a constraint that is checked only at the commit; a trigger of that kind may raise
 * any error. */
static semel_status error_of_commit(semel_status status, semel_error *error)
{
	if (status != SEMEL_INVALID && status != SEMEL_INTERNAL)
		return status;
	status = status == SEMEL_INVALID ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY;
	if (error != NULL)
		error->status = status;
	return status;
}

semel_status semel_pg_commit(semel_store *store, semel_error *error)
{
	semel_tx tx = semel_pg_tx(store);
	PGresult *result = NULL;
	semel_status status = semel_pg_require_transaction(tx, commit_all.what, error);
	if (status != SEMEL_OK) {
		semel_pg_rollback(store);
		return status;
	}
	status = semel_pg_effects_collect(semel_pg_of(store), error);
	if (status != SEMEL_OK) {
		semel_pg_rollback(store);
		return status;
	}
	status = semel_pg_run(tx, &commit_all, NULL, &result, error);
	if (status != SEMEL_OK)
		return error_of_commit(status, error);
	if (strcmp(semel_libpq.cmdStatus(result), "COMMIT") != 0)
		status = semel_error_set(error, SEMEL_OUTAGE,
					 "cannot commit: the transaction was aborted");
	semel_pg_clear(result);
	return status;
}

void semel_pg_rollback(semel_store *store)
{
	PGconn *connection = semel_pg_of(store)->connection;
	semel_pg_of(store)->savepoint_open = false;
	(void)semel_pg_effects_collect(semel_pg_of(store), NULL);
	if (semel_libpq.transactionStatus(connection) != PQTRANS_IDLE)
		(void)semel_pg_execute_plain(connection, "ROLLBACK", "roll back", NULL);
}

semel_status semel_pg_savepoint(semel_store *store, semel_error *error)
{
	semel_status status = run_inside(store, &set_savepoint, error);
	semel_pg_of(store)->savepoint_open = status == SEMEL_OK;
	return status;
}

semel_status semel_pg_release(semel_store *store, semel_error *error)
{
	if (!semel_pg_of(store)->savepoint_open)
		return semel_pg_require_transaction(semel_pg_tx(store), release_savepoint.what,
						    error);
	semel_pg_of(store)->savepoint_open = false;
	return run_inside(store, &release_savepoint, error);
}

/* Also closes the savepoint: nothing stays open for the next event. */
semel_status semel_pg_rollback_to(semel_store *store, semel_error *error)
{
	semel_status status =
		semel_pg_run(semel_pg_tx(store), &back_to_savepoint, NULL, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return semel_pg_release(store, error);
}
