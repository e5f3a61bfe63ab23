/* SPDX-License-Identifier: Apache-2.0 */
/* A store keeps Semel's tables in the application's database. This header has what belongs to the
 * connection: opening, transactions, the driver. What is in the tables is in five headers by noun:
 * outbox.h, inbox.h, holds.h, dead_letters.h, upkeep.h.
 *
 * There are no rules of delivery here: a driver knows its own engine, does what a function
 * specifies, in one transaction if the function says so, and reports the result. It never decides
 * about retries or verdicts.
 *
 * Threads: one store belongs to one thread. Time is passed in as now_ms. Ownership: rows are read
 * into the caller's arena. Errors: every function may return OUTAGE (the database is unreachable),
 * BUSY (lock not acquired in time), STORAGE_FULL, NO_SCHEMA, SCHEMA_NEWER, INTERNAL. After OUTAGE
 * the caller closes and reopens; an open transaction is gone then. Batches: arrays, so that a
 * remote store can send them in one round trip. Every driver passes tests/contract/store_suite.c.
 */
#ifndef SEMEL_STORE_STORE_H
#define SEMEL_STORE_STORE_H

#include "base/arena.h"
#include "base/env.h"
#include "base/owner.h"
#include "base/url.h"
#include "base/wake.h"
#include "diagnose/finding.h"
#include "event/event.h"
#include "store/dead_letters.h"
#include "store/holds.h"
#include "store/inbox.h"
#include "store/outbox.h"
#include "store/upkeep.h"

#include <semel/store.h>

#include <stdbool.h>
#include <stdint.h>

struct semel_changes_driver;     /* changes.h */
struct semel_sql_engine;         /* sql/sql.h */
struct semel_trial_functions;    /* trial.h */
struct semel_baseline_functions; /* baseline.h */

struct semel_store {
	const struct semel_store_driver *driver;
	char *default_scope;         /* owned; NULL: none */
	const struct semel_env *env; /* NULL while it is being opened: the machine's */
};

/* ---- connections and transactions ------------------------------------------------------------ */

/* Opens a connection and checks the schema's version. CONFIG when the URL cannot be right. */
typedef semel_status semel_store_open_fn(const struct semel_url *url, semel_store **store_out,
					 semel_error *error);
typedef void semel_store_close_fn(semel_store *store);
/* Creates or upgrades the tables, in one transaction. */
typedef semel_status semel_store_init_fn(const struct semel_url *url, semel_error *error);
/* Are the tables (still) those of this program? NO_SCHEMA, SCHEMA_NEWER, as open returns. */
typedef semel_status semel_store_check_schema_fn(semel_store *store, semel_error *error);
/* Reports as findings all that can be read about the database, from the connection to its disk;
 * changes nothing. Another result than OK means that the store cannot be opened, which is reported
 * too. */
typedef semel_status semel_store_examine_fn(const struct semel_url *url,
					    const struct semel_examination *examination);
/* Adds to wake what is notified when a commit may have happened. The wake outlives the store. */
typedef void semel_store_watch_fn(semel_store *store, struct semel_wake *wake);

/* Takes the write lock at once, where the engine has one. */
typedef semel_status semel_store_begin_fn(semel_store *store, semel_error *error);
/* OUTAGE: the outcome is in doubt. HANDLER_REJECT, HANDLER_RETRY: it was refused because of what
 * was written (a constraint that is checked at the end), and is rolled back. */
typedef semel_status semel_store_commit_fn(semel_store *store, semel_error *error);
typedef void semel_store_rollback_fn(semel_store *store);
/* Savepoints are not nested: one is open at most. */
typedef semel_status semel_store_savepoint_fn(semel_store *store, semel_error *error);
typedef semel_status semel_store_release_fn(semel_store *store, semel_error *error);
typedef semel_status semel_store_rollback_to_fn(semel_store *store, semel_error *error);
typedef semel_tx semel_store_tx_fn(semel_store *store);
typedef bool semel_store_in_transaction_fn(semel_tx tx);
/* Runs any statements (the business change of `publish --sql`) in the open transaction. INVALID
 * with the engine's message when one is wrong. */
typedef semel_status semel_store_execute_fn(semel_store *store, const char *sql,
					    semel_error *error);

/* ---- the driver ------------------------------------------------------------------------------ */

struct semel_store_driver {
	const char *scheme; /* "sqlite" */
	const char *form;   /* of its URLs, for messages: "sqlite:PATH" */

	/* NULL: the store has no change stream. */
	const struct semel_changes_driver *changes;

	/* What the statement layer needs (sql/sql.h); NULL: the driver does without it. */
	const struct semel_sql_engine *sql;

	/* NULL: the database is a file, and a trial creates its own. */
	const struct semel_trial_functions *trial;

	/* Optional: what `semel bench` compares the library with. */
	const struct semel_baseline_functions *baseline;

	/* All functions are required. */
	semel_store_open_fn *open;
	semel_store_close_fn *close;
	semel_store_init_fn *init;
	semel_store_check_schema_fn *check_schema;
	semel_store_examine_fn *examine;
	semel_store_watch_fn *watch;

	semel_store_begin_fn *begin;
	semel_store_commit_fn *commit;
	semel_store_rollback_fn *rollback;
	semel_store_savepoint_fn *savepoint;
	semel_store_release_fn *release;
	semel_store_rollback_to_fn *rollback_to;
	semel_store_tx_fn *tx;
	semel_store_in_transaction_fn *in_transaction;
	semel_store_execute_fn *execute;

	/* A table per noun; each header says what may be changed there. */
	const struct semel_outbox_functions *outbox;
	const struct semel_inbox_functions *inbox;
	const struct semel_hold_functions *holds;
	const struct semel_dead_letter_functions *dead_letters;
	const struct semel_upkeep_functions *upkeep;
};

/* ---- callers use these ----------------------------------------------------------------------- */

/* The registry: one line per driver in registry.c. CONFIG, with the known schemes, when none
 * matches. */
semel_status semel_store_driver_find(const char *scheme,
				     const struct semel_store_driver **driver_out,
				     semel_error *error);
/* The driver's examine. CONFIG, reported as a finding too, when no driver has the URL's scheme. */
semel_status semel_store_examine(const char *url, const struct semel_examination *examination);

/* How many lanes there are, and how many of them no relay owns at this moment. */
struct semel_lanes_state {
	int32_t count, unheld;
	int64_t low_sum; /* of their low marks: it grows when events are published */
};
semel_status semel_store_lanes(semel_store *store, int64_t now_ms,
			       struct semel_lanes_state *state_out, semel_error *error);

/* As semel_store_open, in an environment that outlives the store. */
semel_status semel_store_open_in(const struct semel_env *env, const char *url,
				 semel_store **store_out, semel_error *error);
/* The environment of a store, and that of its transactions; the machine's for a connection of the
 * caller's own. */
const struct semel_env *semel_store_env(const semel_store *store);
const struct semel_env *semel_tx_env(semel_tx tx);

#endif
