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

static const struct semel_outbox_functions outbox = {
	.insert = semel_sqlite_outbox_insert,
	.lane_count = semel_sqlite_lane_count,
	.relay_join = semel_sqlite_relay_join,
	.relay_leave = semel_sqlite_relay_leave,
	.arm_wakeup = semel_sqlite_arm_wakeup,
	.check_wakeup = semel_sqlite_check_wakeup,
	.lease_list = semel_sqlite_lease_list,
	.lease_acquire = semel_sqlite_lease_acquire,
	.lease_renew = semel_sqlite_lease_renew,
	.lease_release = semel_sqlite_lease_release,
	.probe = semel_sqlite_outbox_probe,
	.fetch = semel_sqlite_outbox_fetch,
	.fetch_due = semel_sqlite_outbox_fetch_due,
	.mark = semel_sqlite_outbox_mark,
	.count = semel_sql_outbox_count,
	.select = semel_sqlite_outbox_select,
	.each = semel_sql_outbox_each,
	.topics_each = semel_sql_outbox_topics_each,
	.routing_each = semel_sql_outbox_routing_each,
	.pruned_until = semel_sql_outbox_pruned_until,
};

static const struct semel_inbox_functions inbox = {
	.claim = semel_sqlite_inbox_claim,
	.change = semel_sqlite_inbox_change,
	.forget = semel_sqlite_inbox_forget,
	.renew = semel_sqlite_inbox_renew,
	.is_settled = semel_sqlite_inbox_is_settled,
	.each = semel_sql_inbox_each,
	.has_topic = semel_sql_inbox_has_topic,
	.known_since = semel_sql_inbox_known_since,
	.effect_prepare = semel_sqlite_effect_prepare,
	.effect_run = semel_sqlite_effect_run,
	.evaluate = semel_sqlite_evaluate,
	.position_get = semel_sql_position_get,
	.position_acquire = semel_sql_position_acquire,
	.position_put = semel_sql_position_put,
	.position_release = semel_sql_position_release,
};

static const struct semel_hold_functions holds = {
	.states_exist = semel_sql_states_exist,
	.states_read = semel_sql_states_read,
	.has_any = semel_sql_hold_has_any,
	.has_other_kind = semel_sql_hold_has_other_kind,
	.get = semel_sql_hold_get,
	.put = semel_sql_hold_put,
	.remove = semel_sql_hold_remove,
	.add = semel_sql_hold_add,
	.list_ready = semel_sql_hold_list_ready,
	.next_due = semel_sql_hold_next_due,
	.count = semel_sql_hold_count,
	.waits_each = semel_sql_waits_each,
};

static const struct semel_dead_letter_functions dead_letters = {
	.add = semel_sql_dead_add,
	.get = semel_sql_dead_get,
	.list = semel_sql_dead_list,
	.count = semel_sql_dead_count,
	.move = semel_sql_dead_move,
	.settle = semel_sql_dead_settle,
	.authorize = semel_sql_dead_authorize,
	.return_to_outbox = semel_sqlite_dead_return_to_outbox,
	.each = semel_sql_dead_each,
	.parked_add = semel_sql_parked_add,
	.parked_first = semel_sql_parked_first,
	.parked_next = semel_sql_parked_next,
	.parked_exists = semel_sql_parked_exists,
	.parked_remove = semel_sql_parked_remove,
};

static const struct semel_upkeep_functions upkeep = {
	.presence_put = semel_sql_presence_put,
	.presence_remove = semel_sql_presence_remove,
	.presence_each = semel_sql_presence_each,
	.running_begin = semel_sql_running_begin,
	.running_end = semel_sql_running_end,
	.subscription_put = semel_sql_subscription_put,
	.subscription_list = semel_sql_subscription_list,
	.subscription_topics = semel_sql_subscription_topics,
	.subscription_pause = semel_sql_subscription_pause,
	.subscription_is_paused = semel_sql_subscription_is_paused,
	.audit_add = semel_sql_audit_add,
	.audit_finish = semel_sql_audit_finish,
	.audit_list = semel_sql_audit_list,
	.prune = semel_sqlite_prune,
	.trace = semel_sql_trace,
};

const struct semel_store_driver semel_store_sqlite = {
	.scheme = "sqlite",
	.form = "sqlite:PATH",
	.sql = &semel_sqlite_engine,
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
	.check_schema = semel_sqlite_check_schema,
	.examine = semel_sqlite_store_examine,
	.baseline = &semel_sqlite_baseline,
	.outbox = &outbox,
	.inbox = &inbox,
	.holds = &holds,
	.dead_letters = &dead_letters,
	.upkeep = &upkeep,
};
