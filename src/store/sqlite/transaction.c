/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions and the one savepoint in them. SQLite may roll back on its own (full disk, failing
 * disk, a statement's ON CONFLICT ROLLBACK): its autocommit flag is the truth, not our memory. */
#include "store/sqlite/sqlite.h"

#include "base/error.h"

semel_tx semel_sqlite_tx(semel_store *store)
{
	return (semel_tx){ store->driver, semel_sqlite_of(store)->db, store };
}

bool semel_sqlite_in_transaction(semel_tx tx)
{
	return tx.native != NULL && sqlite3_get_autocommit(tx.native) == 0;
}

semel_status semel_sqlite_require_transaction(semel_tx tx, const char *what, semel_error *error)
{
	if (semel_sqlite_in_transaction(tx))
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_NO_TRANSACTION,
			       "cannot %s: no transaction is open on this connection (BEGIN "
			       "IMMEDIATE first, so that it commits with the business change; a "
			       "statement with ON CONFLICT ROLLBACK ends one, too)",
			       what);
}

static const struct semel_sqlite_statement begin_now = { SEMEL_SQLITE_BEGIN, "begin a transaction",
							 "BEGIN IMMEDIATE" };
static const struct semel_sqlite_statement commit_all = { SEMEL_SQLITE_COMMIT, "commit", "COMMIT" };
static const struct semel_sqlite_statement set_savepoint = { SEMEL_SQLITE_SAVEPOINT,
							     "set a savepoint",
							     "SAVEPOINT semel_one" };
static const struct semel_sqlite_statement release_savepoint = { SEMEL_SQLITE_RELEASE,
								 "release a savepoint",
								 "RELEASE semel_one" };
static const struct semel_sqlite_statement back_to_savepoint = { SEMEL_SQLITE_ROLLBACK_TO,
								 "roll back to a savepoint",
								 "ROLLBACK TO semel_one" };

static semel_status run(semel_store *store, const struct semel_sqlite_statement *statement,
			semel_error *error)
{
	semel_tx tx = semel_sqlite_tx(store);
	sqlite3_stmt *prepared = NULL;
	semel_status status = semel_sqlite_borrow_statement(tx, statement, &prepared, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_run(tx, statement, prepared, error);
	semel_sqlite_return_statement(tx, statement, prepared);
	return status;
}

static semel_status run_inside(semel_store *store, const struct semel_sqlite_statement *statement,
			       semel_error *error)
{
	semel_status status =
		semel_sqlite_require_transaction(semel_sqlite_tx(store), statement->what, error);
	if (status != SEMEL_OK)
		return status;
	return run(store, statement, error);
}

semel_status semel_sqlite_begin(semel_store *store, semel_error *error)
{
	semel_sqlite_of(store)->savepoint_open = false;
	return run(store, &begin_now, error);
}

/* A foreign key that is checked only at the commit. */
static bool is_broken_constraint(semel_store *store)
{
	return (sqlite3_errcode(semel_sqlite_of(store)->db) & 0xff) == SQLITE_CONSTRAINT;
}

semel_status semel_sqlite_commit(semel_store *store, semel_error *error)
{
	semel_status status = run_inside(store, &commit_all, error);
	if (status != SEMEL_OK)
		goto roll_back;
	return semel_sqlite_check_moved(semel_sqlite_of(store)->db, error);

roll_back:
	if (status != SEMEL_NO_TRANSACTION && is_broken_constraint(store))
		status = semel_error_set(error, SEMEL_HANDLER_REJECT, "cannot commit: %s",
					 sqlite3_errmsg(semel_sqlite_of(store)->db));
	semel_sqlite_rollback(store);
	return status;
}

void semel_sqlite_rollback(semel_store *store)
{
	if (semel_sqlite_in_transaction(semel_sqlite_tx(store)))
		sqlite3_exec(semel_sqlite_of(store)->db, "ROLLBACK", NULL, NULL, NULL);
}

semel_status semel_sqlite_savepoint(semel_store *store, semel_error *error)
{
	semel_status status = run_inside(store, &set_savepoint, error);
	semel_sqlite_of(store)->savepoint_open = status == SEMEL_OK;
	return status;
}

semel_status semel_sqlite_release(semel_store *store, semel_error *error)
{
	if (!semel_sqlite_of(store)->savepoint_open)
		return semel_sqlite_require_transaction(semel_sqlite_tx(store),
							release_savepoint.what, error);
	semel_sqlite_of(store)->savepoint_open = false;
	return run_inside(store, &release_savepoint, error);
}

/* Also closes the savepoint: nothing stays open for the next event. */
semel_status semel_sqlite_rollback_to(semel_store *store, semel_error *error)
{
	semel_status status = run_inside(store, &back_to_savepoint, error);
	if (status != SEMEL_OK)
		return status;
	return semel_sqlite_release(store, error);
}
