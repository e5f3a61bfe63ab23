/* SPDX-License-Identifier: Apache-2.0 */
/* The shop on PostgreSQL: a connection of its own, through libpq as it was loaded. */
#include "base/error.h"
#include "cli/plays/shop/shop.h"
#include "store/postgres/postgres.h"

#include <stdlib.h>
#include <string.h>

/* Used up. The first line of what the server said is enough. */
static semel_status finish(PGconn *connection, PGresult *result, int64_t *number_out,
			   semel_error *error)
{
	ExecStatusType state = semel_libpq.resultStatus(result);
	semel_status status = SEMEL_OK;
	if (state == PGRES_TUPLES_OK && number_out && semel_libpq.ntuples(result) > 0)
		*number_out = strtoll(semel_libpq.getvalue(result, 0, 0), NULL, 10);
	if (state != PGRES_TUPLES_OK && state != PGRES_COMMAND_OK) {
		const char *said = semel_libpq.errorMessage(connection);
		status = semel_error_set(error, SEMEL_INTERNAL, "the shop's database says: %.*s",
					 (int)strcspn(said, "\n"), said);
	}
	semel_libpq.clear(result);
	return status;
}

static semel_status open_connection(const char *store, void **connection_out, semel_error *error)
{
	PGconn *connection = NULL;
	semel_status status = semel_libpq_load(error);
	if (status == SEMEL_OK)
		status = semel_pg_connect(store, &connection, error);
	*connection_out = connection;
	return status;
}

static void close_connection(void *connection)
{
	semel_libpq.finish(connection);
}

static PGresult *send(PGconn *connection, const char *sql, const char *const *parameters)
{
	int count = 0;
	while (parameters && parameters[count])
		count++;
	return parameters ? semel_libpq.execParams(connection, sql, count, NULL, parameters, NULL,
						   NULL, 0)
			  : semel_libpq.exec(connection, sql);
}

static semel_status execute(void *connection, const char *sql, const char *const *parameters,
			    semel_error *error)
{
	return finish(connection, send(connection, sql, parameters), NULL, error);
}

static semel_status ask(void *connection, const char *sql, const char *const *parameters,
			int64_t *number_out, semel_error *error)
{
	*number_out = 0;
	return finish(connection, send(connection, sql, parameters), number_out, error);
}

static semel_tx borrow(void *connection)
{
	return semel_borrow_postgres(connection);
}

const struct semel_shop_engine semel_shop_postgres = {
	/* The services' SQL is the same on both. */
	.preparation = "CREATE FUNCTION json_extract(document text, path text) RETURNS text"
		       " IMMUTABLE LANGUAGE sql AS"
		       " $$ SELECT document::jsonb #>> ARRAY[substr(path, 3)] $$;"
		       "CREATE FUNCTION fail_when(failing boolean) RETURNS void LANGUAGE plpgsql AS"
		       " $$ BEGIN IF failing THEN RAISE EXCEPTION 'not yet'; END IF; END $$",
	.fail_first = "SELECT fail_when(:attempt = 1)",
	.open = open_connection,
	.close = close_connection,
	.execute = execute,
	.ask = ask,
	.borrow = borrow,
};
