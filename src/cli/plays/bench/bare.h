/* SPDX-License-Identifier: Apache-2.0 */
/* The bare side of delivery: what one would write by hand with sqlite3 to carry events from an
 * outbox to a log in another file, and from there to an effect, each as durable as Semel does it.
 * It knows one relay, one consumer and no failures. */
#ifndef SEMEL_CLI_PLAYS_BENCH_BARE_H
#define SEMEL_CLI_PLAYS_BENCH_BARE_H

#include "cli/plays/bench/bench.h"

enum semel_bare_statement {
	SEMEL_BARE_OUTBOX_READ,
	SEMEL_BARE_OUTBOX_MARK,
	SEMEL_BARE_INBOX_ADD,
	SEMEL_BARE_EFFECT,
	SEMEL_BARE_STORE_BEGIN,
	SEMEL_BARE_STORE_COMMIT,
	SEMEL_BARE_LOG_ADD,
	SEMEL_BARE_LOG_READ,
	SEMEL_BARE_CURSOR_SET,
	SEMEL_BARE_LOG_BEGIN,
	SEMEL_BARE_LOG_COMMIT,
	SEMEL_BARE_STATEMENT_COUNT
};

struct semel_bare {
	struct semel_bench *bench;
	sqlite3 *store, *log;
	sqlite3_stmt *statements[SEMEL_BARE_STATEMENT_COUNT];
	int64_t relayed;  /* seq of the last event in the log */
	int64_t consumed; /* position of the last event that had its effect */
};

/* Close it also after a failure. */
semel_status semel_bare_open(struct semel_bench *bench, struct semel_bare *bare);
void semel_bare_close(struct semel_bare *bare);
/* Batch by batch until nothing is left. */
semel_status semel_bare_relay(struct semel_bare *bare);
semel_status semel_bare_consume(struct semel_bare *bare);

#endif
