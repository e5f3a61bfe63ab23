/* SPDX-License-Identifier: Apache-2.0 */
/* A store keeps Semel's tables in the application's database. This header has what belongs to the
 * connection: opening, transactions, the driver. What is in the tables is in five headers by noun:
 * outbox.h, inbox.h, holds.h, dead_letters.h, upkeep.h.
 *
 * Rules of delivery are not here: a driver knows its own engine, does what one function says, in
 * one transaction where the function says so, and reports. It never decides about retries or
 * verdicts.
 *
 * Threads: one store belongs to one thread. Time comes in as now_ms.
 * Ownership: rows are read into the caller's arena.
 * Errors: every function may return OUTAGE (the database is unreachable), BUSY (locked for long),
 * STORAGE_FULL, NO_SCHEMA, SCHEMA_NEWER, INTERNAL. After OUTAGE the caller closes and reopens; an
 * open transaction is gone then.
 * Batches: arrays, so that a remote store can send them in one round trip.
 * Every driver passes tests/contract/store_suite.c.
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

struct semel_changes_driver;  /* changes.h */
struct semel_trial_functions; /* trial.h */

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
/* Adds to wake what rings when a commit may have happened. The wake outlives the store. */
typedef void semel_store_watch_fn(semel_store *store, struct semel_wake *wake);

/* Takes the write lock at once, where the engine has one. */
typedef semel_status semel_store_begin_fn(semel_store *store, semel_error *error);
/* OUTAGE: it is in doubt. HANDLER_REJECT, HANDLER_RETRY: it was refused because of what was written
 * (a constraint that is checked at the end), and is rolled back. */
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

	/* NULL: the store has no change stream. */
	const struct semel_changes_driver *changes;

	/* NULL: the database is a file, and a trial makes one of its own. */
	const struct semel_trial_functions *trial;

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

	/* A table per noun; each header says what may be touched there. */
	const struct semel_outbox_functions *outbox;
	const struct semel_inbox_functions *inbox;
	const struct semel_hold_functions *holds;
	const struct semel_dead_letter_functions *dead_letters;
	const struct semel_upkeep_functions *upkeep;

	semel_outbox_adopt_fn *adopt;
	semel_outbox_check_adoption_fn *adopted;
	semel_outbox_insert_fn *outbox_insert;
	semel_lane_count_fn *lane_count;
	semel_relay_join_fn *relay_join;
	semel_relay_leave_fn *relay_leave;
	semel_outbox_arm_wakeup_fn *arm_wakeup;
	semel_outbox_check_wakeup_fn *check_wakeup;
	semel_outbox_disarm_wakeup_fn *disarm_wakeup;
	semel_lease_list_fn *lease_list;
	semel_lease_take_fn *lease_take;
	semel_lease_renew_fn *lease_renew;
	semel_lease_release_fn *lease_release;
	semel_outbox_probe_fn *outbox_look;
	semel_outbox_fetch_fn *outbox_fetch;
	semel_outbox_fetch_lanes_fn *outbox_fetch_lanes;
	semel_outbox_fetch_due_fn *outbox_fetch_due;
	semel_outbox_mark_fn *outbox_mark;
	semel_outbox_mark_lanes_fn *outbox_mark_lanes;
	semel_outbox_check_fn *outbox_check;
	semel_outbox_exceptions_each_fn *outbox_exceptions;
	semel_outbox_count_fn *outbox_counts;
	semel_outbox_select_fn *outbox_select;
	semel_outbox_each_fn *outbox_each;
	semel_outbox_topics_each_fn *outbox_topics;
	semel_outbox_routing_each_fn *outbox_routing_each;
	semel_outbox_pruned_until_fn *outbox_pruned_until;
	semel_inbox_claim_fn *inbox_claim;
	semel_inbox_change_fn *inbox_change;
	semel_inbox_forget_fn *inbox_forget;
	semel_inbox_renew_fn *inbox_renew;
	semel_inbox_is_settled_fn *inbox_settled;
	semel_inbox_each_fn *inbox_each;
	semel_inbox_has_topic_fn *inbox_has_topic;
	semel_inbox_known_since_fn *inbox_known_since;
	semel_effect_prepare_fn *effect_prepare;
	semel_effect_run_fn *effect_run;
	semel_inbox_evaluate_fn *evaluate;
	semel_position_get_fn *position_get;
	semel_position_take_fn *position_take;
	semel_position_put_fn *position_put;
	semel_position_release_fn *position_release;
	semel_states_exist_fn *states_any;
	semel_states_read_fn *states_look;
	semel_hold_has_any_fn *hold_any;
	semel_hold_has_other_kind_fn *hold_other;
	semel_hold_get_fn *hold_get;
	semel_hold_put_fn *hold_put;
	semel_hold_remove_fn *hold_remove;
	semel_hold_add_fn *hold_add;
	semel_hold_list_ready_fn *hold_ready;
	semel_hold_next_due_fn *hold_due;
	semel_hold_count_fn *hold_counts;
	semel_parked_add_fn *parked_add;
	semel_parked_first_fn *parked_first;
	semel_parked_next_fn *parked_next;
	semel_parked_exists_fn *parked_has;
	semel_parked_remove_fn *parked_remove;
	semel_waits_each_fn *waits_each;
	semel_dead_add_fn *dead_add;
	semel_dead_get_fn *dead_get;
	semel_dead_list_fn *dead_list;
	semel_dead_count_fn *dead_count;
	semel_dead_move_fn *dead_move;
	semel_dead_settle_fn *dead_settle;
	semel_dead_authorize_fn *dead_authorize;
	semel_dead_return_to_outbox_fn *dead_relay_return;
	semel_dead_each_fn *dead_each;
	semel_presence_put_fn *presence_put;
	semel_presence_remove_fn *presence_remove;
	semel_presence_each_fn *presence_each;
	semel_running_begin_fn *running_begin;
	semel_running_end_fn *running_end;
	semel_subscription_put_fn *subscription_put;
	semel_subscription_list_fn *subscription_list;
	semel_subscription_topics_fn *subscription_topics;
	semel_subscription_pause_fn *subscription_pause;
	semel_subscription_is_paused_fn *subscription_paused;
	semel_audit_add_fn *audit_add;
	semel_audit_finish_fn *audit_finish;
	semel_audit_list_fn *audit_list;
	semel_store_prune_fn *prune;
	semel_store_trace_fn *trace;
	semel_slot_read_fn *slot_look;
};

/* ---- callers use these ----------------------------------------------------------------------- */

/* The registry: one line per driver in registry.c. CONFIG, with the known schemes, when none fits.
 */
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
/* Like semel_store_open_in, tried again while the result is an outage: with backoff, until wake
 * rings or wait_ms passed. */
semel_status semel_store_reopen(const char *url, const struct semel_env *env,
				struct semel_wake *wake, int64_t wait_ms, semel_store **store_out,
				semel_error *error);
/* The environment of a store, and that of its transactions; the machine's for a connection of the
 * caller's own. */
const struct semel_env *semel_store_env(const semel_store *store);
const struct semel_env *semel_tx_env(semel_tx tx);

#endif
