/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL store as the seam sees it, and how an application lends its own connection. */
#include "store/postgres/postgres.h"

semel_tx semel_borrow_postgres(struct pg_conn *connection)
{
	return (semel_tx){ &semel_store_postgres, connection, NULL };
}

struct pg_conn *semel_tx_postgres(semel_tx tx)
{
	return tx.driver == &semel_store_postgres ? tx.native : NULL;
}

const struct semel_store_driver semel_store_postgres = {
	.scheme = "postgres",
	.open = semel_pg_store_open,
	.close = semel_pg_store_close,
	.init = semel_pg_store_init,
	.watch = semel_pg_watch,
	.begin = semel_pg_begin,
	.commit = semel_pg_commit,
	.rollback = semel_pg_rollback,
	.savepoint = semel_pg_savepoint,
	.release = semel_pg_release,
	.rollback_to = semel_pg_rollback_to,
	.tx = semel_pg_tx,
	.in_transaction = semel_pg_in_transaction,
	.execute = semel_pg_execute,
	.outbox_insert = semel_pg_outbox_insert,
	.lane_count = semel_pg_lane_count,
	.relay_join = semel_pg_relay_join,
	.relay_leave = semel_pg_relay_leave,
	.doze = semel_pg_doze,
	.rouse = semel_pg_rouse,
	.lease_list = semel_pg_lease_list,
	.lease_take = semel_pg_lease_take,
	.lease_renew = semel_pg_lease_renew,
	.lease_release = semel_pg_lease_release,
	.outbox_look = semel_pg_outbox_look,
	.outbox_fetch = semel_pg_outbox_fetch,
	.outbox_fetch_lanes = semel_pg_outbox_fetch_lanes,
	.outbox_fetch_due = semel_pg_outbox_fetch_due,
	.outbox_mark = semel_pg_outbox_mark,
	.outbox_mark_lanes = semel_pg_outbox_mark_lanes,
	.outbox_counts = semel_pg_outbox_counts,
	.outbox_select = semel_pg_outbox_select,
	.outbox_each = semel_pg_outbox_each,
	.outbox_pruned_until = semel_pg_outbox_pruned_until,
	.inbox_claim = semel_pg_inbox_claim,
	.inbox_change = semel_pg_inbox_change,
	.inbox_forget = semel_pg_inbox_forget,
	.inbox_renew = semel_pg_inbox_renew,
	.inbox_settled = semel_pg_inbox_settled,
	.inbox_each = semel_pg_inbox_each,
	.inbox_known_since = semel_pg_inbox_known_since,
	.effect_prepare = semel_pg_effect_prepare,
	.effect_run = semel_pg_effect_run,
	.evaluate = semel_pg_evaluate,
	.hold_any = semel_pg_hold_any,
	.hold_get = semel_pg_hold_get,
	.hold_put = semel_pg_hold_put,
	.hold_remove = semel_pg_hold_remove,
	.hold_ready = semel_pg_hold_ready,
	.hold_due = semel_pg_hold_due,
	.hold_counts = semel_pg_hold_counts,
	.dead_add = semel_pg_dead_add,
	.dead_get = semel_pg_dead_get,
	.dead_list = semel_pg_dead_list,
	.dead_count = semel_pg_dead_count,
	.dead_move = semel_pg_dead_move,
	.dead_settle = semel_pg_dead_settle,
	.dead_relay_return = semel_pg_dead_relay_return,
	.dead_each = semel_pg_dead_each,
	.parked_add = semel_pg_parked_add,
	.parked_first = semel_pg_parked_first,
	.parked_next = semel_pg_parked_next,
	.parked_has = semel_pg_parked_has,
	.parked_remove = semel_pg_parked_remove,
	.subscription_put = semel_pg_subscription_put,
	.subscription_list = semel_pg_subscription_list,
	.prune = semel_pg_prune,
	.trace = semel_pg_trace,
};
