/* SPDX-License-Identifier: Apache-2.0 */
/* Writing events in the transaction of the business change. */
#ifndef SEMEL_OUTBOX_H
#define SEMEL_OUTBOX_H

#include <semel/event.h>
#include <semel/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the event to the outbox inside the caller's open transaction: it takes effect with the
 * caller's COMMIT, or not at all. No broker is called. Without an open transaction:
 * SEMEL_NO_TRANSACTION, and nothing is written. id_out may be NULL. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_outbox_publish(semel_tx tx,
							     const semel_event_input *input,
							     char id_out[SEMEL_ID_SIZE],
							     semel_error *error);

/* The same for many at once; all are checked before the first is written. ids_out may be NULL. */
SEMEL_API SEMEL_MUST_CHECK semel_status semel_outbox_publish_all(semel_tx tx,
								 const semel_event_input *inputs,
								 size_t count,
								 char (*ids_out)[SEMEL_ID_SIZE],
								 semel_error *error);

#ifdef __cplusplus
}
#endif
#endif
