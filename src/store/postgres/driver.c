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

static const struct semel_outbox_functions outbox = {
	.adopt = semel_pg_adopt,
	.check_adoption = semel_pg_check_adoption,
	.insert = semel_pg_outbox_insert,
	.lane_count = semel_pg_lane_count,
	.relay_join = semel_pg_relay_join,
	.relay_leave = semel_pg_relay_leave,
	.arm_wakeup = semel_pg_arm_wakeup,
	.check_wakeup = semel_pg_check_wakeup,
	.disarm_wakeup = semel_pg_disarm_wakeup,
	.lease_list = semel_pg_lease_list,
	.lease_acquire = semel_pg_lease_acquire,
	.lease_renew = semel_pg_lease_renew,
	.lease_release = semel_pg_lease_release,
	.probe = semel_pg_outbox_probe,
	.fetch = semel_pg_outbox_fetch,
	.fetch_lanes = semel_pg_outbox_fetch_lanes,
	.fetch_due = semel_pg_outbox_fetch_due,
	.mark = semel_pg_outbox_mark,
	.mark_lanes = semel_pg_outbox_mark_lanes,
	.check = semel_pg_outbox_check,
	.exceptions_each = semel_pg_outbox_exceptions_each,
	.count = semel_sql_outbox_count,
	.select = semel_pg_outbox_select,
	.each = semel_sql_outbox_each,
	.topics_each = semel_sql_outbox_topics_each,
	.routing_each = semel_sql_outbox_routing_each,
	.pruned_until = semel_sql_outbox_pruned_until,
};

static const struct semel_inbox_functions inbox = {
	.claim = semel_pg_inbox_claim,
	.change = semel_pg_inbox_change,
	.forget = semel_pg_inbox_forget,
	.renew = semel_pg_inbox_renew,
	.is_settled = semel_pg_inbox_is_settled,
	.each = semel_sql_inbox_each,
	.has_topic = semel_sql_inbox_has_topic,
	.known_since = semel_sql_inbox_known_since,
	.effect_prepare = semel_pg_effect_prepare,
	.effect_run = semel_pg_effect_run,
	.evaluate = semel_pg_evaluate,
	.position_get = semel_sql_position_get,
	.position_acquire = semel_sql_position_acquire,
	.position_put = semel_sql_position_put,
	.position_release = semel_sql_position_release,
};

static const struct semel_hold_functions holds = {
	.states_exist = semel_sql_states_exist,
	.states_read = semel_pg_states_read,
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
	.move = semel_pg_dead_move,
	.settle = semel_sql_dead_settle,
	.authorize = semel_sql_dead_authorize,
	.return_to_outbox = semel_pg_dead_return_to_outbox,
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
	.subscription_put = semel_pg_subscription_put,
	.subscription_list = semel_sql_subscription_list,
	.subscription_topics = semel_sql_subscription_topics,
	.subscription_pause = semel_sql_subscription_pause,
	.subscription_is_paused = semel_sql_subscription_is_paused,
	.audit_add = semel_sql_audit_add,
	.audit_finish = semel_sql_audit_finish,
	.audit_list = semel_sql_audit_list,
	.prune = semel_pg_prune,
	.trace = semel_sql_trace,
	.slot_read = semel_pg_slot_read,
};

const struct semel_store_driver semel_store_postgres = {
	.scheme = "postgres",
	.form = "postgres://user@host/database",
	.changes = &semel_pg_changes_driver,
	.sql = &semel_pg_engine,
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
	.check_schema = semel_pg_check_schema,
	.examine = semel_pg_store_examine,
	.outbox = &outbox,
	.inbox = &inbox,
	.trial = &semel_pg_trial,
	.holds = &holds,
	.dead_letters = &dead_letters,
	.upkeep = &upkeep,
};
