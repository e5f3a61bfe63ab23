/* SPDX-License-Identifier: Apache-2.0 */
/* Moving a dead letter of the relay takes the lock of its lane first, as everything does that has
 * to do with both: lane, then letter. */
#include "store/postgres/postgres.h"

#include "store/rules.h"

semel_status semel_pg_dead_move(semel_tx tx, const struct semel_dead_entry *entry,
				enum semel_dead_status status, const char *reason, int64_t now_ms,
				semel_error *error)
{
	if (!semel_text_equals_string(entry->scope, SEMEL_SCOPE_RELAY))
		return semel_sql_dead_move(tx, entry, status, reason, now_ms, error);
	semel_status locked = semel_pg_demand_transaction(tx, "move a dead letter", error);
	if (locked != SEMEL_OK)
		return locked;
	locked = semel_pg_lane_lock_by_event(tx, entry->event.id, error);
	if (locked != SEMEL_OK)
		return locked;
	return semel_sql_dead_move(tx, entry, status, reason, now_ms, error);
}
