/* SPDX-License-Identifier: Apache-2.0 */
/* Is there a pooler in between that gives every transaction another session?
 *
 * - A pooler that passes sessions on answers with a cancel key of its own; so where the backend has
 *   another number than the connection believes, there is one. Without a pooler this costs one
 * round trip, and nothing more is queried.
 * - A second connection distinguishes the two kinds. Where sessions are kept, two connections never
 * see one backend, and each always sees the same one. A connection that has to wait for a session
 * while the first one is answered shows that sessions are kept.
 * - Nothing is set or prepared before this is known: it would stay behind for the next user of that
 *   session.
 */
#include "store/postgres/postgres.h"

#include "base/error.h"

#include <errno.h>
#include <poll.h>

#define ROUNDS         2
#define SECOND_WAIT_MS 200

static const char which_backend[] = "SELECT pg_backend_pid()";

/* 0: there is no answer yet, or another one. */
static int read_backend(PGconn *connection, int wait_ms)
{
	struct pollfd answer = { .fd = semel_libpq.socket(connection), .events = POLLIN };
	int number = 0;
	while (semel_libpq.isBusy(connection)) {
		int heard = poll(&answer, 1, wait_ms);
		bool interrupted = heard < 0 && errno == EINTR;
		if (!interrupted && (heard <= 0 || semel_libpq.consumeInput(connection) == 0))
			return 0;
	}
	for (PGresult *result = NULL; (result = semel_libpq.getResult(connection)) != NULL;) {
		if (semel_libpq.resultStatus(result) == PGRES_TUPLES_OK)
			number = (int)semel_pg_int(result, 0, 0);
		semel_pg_clear(result);
	}
	return number;
}

static int query_backend(PGconn *connection, int wait_ms)
{
	return semel_libpq.sendQuery(connection, which_backend) == 0
		       ? 0
		       : read_backend(connection, wait_ms);
}

semel_status semel_pg_find_pooler(PGconn *connection, int wait_ms, bool *found_out,
				  semel_error *error)
{
	int backend = query_backend(connection, wait_ms);
	*found_out = backend != semel_libpq.backendPID(connection);
	if (backend != 0)
		return SEMEL_OK;
	if (semel_libpq.status(connection) != CONNECTION_OK || !semel_libpq.isBusy(connection))
		return semel_pg_error(connection, NULL, "connect", error);
	return semel_error_set(error, SEMEL_OUTAGE,
			       "PostgreSQL does not answer within %d s (has a pooler no session "
			       "left? a relay needs two of them, every other part one)",
			       wait_ms / 1000);
}

/* Both are known, and not the same. */
static bool differ(int one, int other)
{
	return one != 0 && other != 0 && one != other;
}

bool semel_pg_is_swapped(PGconn *first, PGconn *second, int wait_ms)
{
	int ours = query_backend(first, wait_ms);
	for (int round = 0; ours != 0 && round < ROUNDS; round++) {
		int others = query_backend(second, SECOND_WAIT_MS);
		if (others == ours ||
		    (others != 0 && differ(others, query_backend(second, SECOND_WAIT_MS))))
			return true;
		if (differ(ours, query_backend(first, wait_ms)))
			return true;
		if (others == 0)
			return read_backend(second, SECOND_WAIT_MS) == ours;
	}
	return false;
}

semel_status semel_pg_refuse_pooler(semel_error *error)
{
	return semel_error_set(error, SEMEL_CONFIG,
			       "a pooler before PostgreSQL gives every transaction another "
			       "session, and semel needs one of its own (let PgBouncer have "
			       "pool_mode = session for this database, or connect to PostgreSQL "
			       "directly)");
}
