/* SPDX-License-Identifier: Apache-2.0 */
/* The id of the event before this one in its aggregate (semel-previous). Most are found in a small
 * memory of what was relayed last; the others are asked of the store. */
#ifndef SEMEL_RELAY_PREVIOUS_H
#define SEMEL_RELAY_PREVIOUS_H

#include "store/store.h"

struct semel_previous;

struct semel_previous *semel_previous_new(void);
/* Fills id_out (data NULL: there is none) and remembers the row's own id. Rows of an aggregate are
 * asked about in order. The text lives in the arena. */
semel_status semel_previous_of(struct semel_previous *previous, semel_store *store,
			       const struct semel_outbox_row *row, struct semel_arena *arena,
			       struct semel_text *id_out, semel_error *error);
/* Forget everything: rows will be read again from an earlier place. */
void semel_previous_clear(struct semel_previous *previous);
void semel_previous_free(struct semel_previous *previous);

#endif
