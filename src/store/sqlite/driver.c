/* SPDX-License-Identifier: Apache-2.0 */
/* The SQLite store as the seam sees it, and how an application lends its own connection. */
#include "store/sqlite/sqlite.h"

semel_tx semel_borrow_sqlite(struct sqlite3 *db)
{
	return (semel_tx){ &semel_store_sqlite, db, NULL };
}

struct sqlite3 *semel_tx_sqlite(semel_tx tx)
{
	return tx.driver == &semel_store_sqlite ? tx.native : NULL;
}

const struct semel_store_driver semel_store_sqlite = {
	.scheme = "sqlite",
	.open = semel_sqlite_store_open,
	.close = semel_sqlite_store_close,
	.init = semel_sqlite_store_init,
	.watch = semel_sqlite_store_watch,
	.begin = semel_sqlite_begin,
	.commit = semel_sqlite_commit,
	.rollback = semel_sqlite_rollback,
	.savepoint = semel_sqlite_savepoint,
	.release = semel_sqlite_release,
	.rollback_to = semel_sqlite_rollback_to,
	.tx = semel_sqlite_tx,
	.in_transaction = semel_sqlite_in_transaction,
	.execute = semel_sqlite_execute,
	.outbox_insert = semel_sqlite_outbox_insert,
	.lane_count = semel_sqlite_lane_count,
	.relay_join = semel_sqlite_relay_join,
	.relay_leave = semel_sqlite_relay_leave,
	.doze = semel_sqlite_doze,
	.rouse = semel_sqlite_rouse,
	.lease_list = semel_sqlite_lease_list,
	.lease_take = semel_sqlite_lease_take,
	.lease_renew = semel_sqlite_lease_renew,
	.lease_release = semel_sqlite_lease_release,
	.outbox_look = semel_sqlite_outbox_look,
	.outbox_fetch = semel_sqlite_outbox_fetch,
	.outbox_fetch_due = semel_sqlite_outbox_fetch_due,
	.outbox_mark = semel_sqlite_outbox_mark,
	.outbox_counts = semel_sqlite_outbox_counts,
	.outbox_select = semel_sqlite_outbox_select,
	.outbox_each = semel_sqlite_outbox_each,
	.outbox_pruned_until = semel_sqlite_outbox_pruned_until,
	.inbox_claim = semel_sqlite_inbox_claim,
	.inbox_change = semel_sqlite_inbox_change,
	.inbox_forget = semel_sqlite_inbox_forget,
	.inbox_renew = semel_sqlite_inbox_renew,
	.inbox_settled = semel_sqlite_inbox_settled,
	.inbox_each = semel_sqlite_inbox_each,
	.inbox_known_since = semel_sqlite_inbox_known_since,
	.effect_prepare = semel_sqlite_effect_prepare,
	.effect_run = semel_sqlite_effect_run,
	.evaluate = semel_sqlite_evaluate,
	.hold_any = semel_sqlite_hold_any,
	.hold_get = semel_sqlite_hold_get,
	.hold_put = semel_sqlite_hold_put,
	.hold_remove = semel_sqlite_hold_remove,
	.hold_ready = semel_sqlite_hold_ready,
	.hold_due = semel_sqlite_hold_due,
	.hold_counts = semel_sqlite_hold_counts,
	.dead_add = semel_sqlite_dead_add,
	.dead_get = semel_sqlite_dead_get,
	.dead_list = semel_sqlite_dead_list,
	.dead_count = semel_sqlite_dead_count,
	.dead_move = semel_sqlite_dead_move,
	.dead_settle = semel_sqlite_dead_settle,
	.dead_relay_return = semel_sqlite_dead_relay_return,
	.dead_each = semel_sqlite_dead_each,
	.parked_add = semel_sqlite_parked_add,
	.parked_first = semel_sqlite_parked_first,
	.parked_next = semel_sqlite_parked_next,
	.parked_has = semel_sqlite_parked_has,
	.parked_remove = semel_sqlite_parked_remove,
	.subscription_put = semel_sqlite_subscription_put,
	.subscription_list = semel_sqlite_subscription_list,
	.prune = semel_sqlite_prune,
	.trace = semel_sqlite_trace,
};
