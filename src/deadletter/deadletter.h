/* SPDX-License-Identifier: Apache-2.0 */
/* src/deadletter: dead letters beyond the public API: many replays over one connection, and the
 * record that the program and the admin server both show. replay.h sends retained events again.
 *
 * To change here: this room changes the rows of events that were given up, always by the
 * moves of src/state, and sends copies; it runs no handler. A copy has authority only by the row
 * that was committed with it. */
#ifndef SEMEL_DEADLETTER_DEADLETTER_H
#define SEMEL_DEADLETTER_DEADLETTER_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "store/rules.h"

#include <semel/deadletter.h>

#define SEMEL_DEAD_LIST_DEFAULT 20 /* entries, of a filter without a limit */

/* Replays through one broker, which is opened when the first event needs it: dead letters of the
 * relay need none. */
struct semel_dead_replayer {
	semel_store *store;
	const char *broker_url;
	const struct semel_env *env;
	struct semel_broker *broker; /* NULL: not opened yet */
};

/* As semel_dead_letter_replay. */
semel_status semel_dead_replayer_replay(struct semel_dead_replayer *replayer, const char *entry_id,
					semel_error *error);
void semel_dead_replayer_close(struct semel_dead_replayer *replayer);

/* As semel_dead_letter_list, in brief (SEMEL_DEAD_BRIEF): without payloads. */
semel_status semel_dead_letter_list_brief(semel_store *store,
					  const semel_dead_letter_filter *filter,
					  semel_dead_letter_visitor visit, void *user,
					  semel_error *error);

/* One JSON object with every member; unknown ones are null. */
void semel_dead_letter_to_json(const semel_dead_letter *letter, struct semel_buffer *buffer);

#endif
