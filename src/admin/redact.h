/* SPDX-License-Identifier: Apache-2.0 */
/* What of an event the admin server does not show: members of the payload, by JSON path, and
 * headers. Only what is shown is changed: the stored event is not, and a replay sends it whole.
 *
 * - A payload that no path can be followed in (no JSON, a name there twice, a number beyond all
 *   bounds) is hidden whole.
 * - What was hidden is also taken out of the failure's reason, where a handler may have said it.
 */
#ifndef SEMEL_ADMIN_REDACT_H
#define SEMEL_ADMIN_REDACT_H

#include "deadletter/deadletter.h"

#include <stdbool.h>

struct semel_redaction;

/* "$.card.number", "$.items[*].price", "$['a b'][0]", "$..password" (at any depth), "$" (all of
 * it), "headers.NAME". */
bool semel_redaction_fits(const char *path);
/* Paths are NULL-ended and copied. redaction_out NULL: there are none. CONFIG when one does not
 * fit.
 */
semel_status semel_redaction_make(const char *const *paths, struct semel_redaction **redaction_out,
				  semel_error *error);
/* redaction may be NULL. */
void semel_redaction_free(struct semel_redaction *redaction);

/* The dead letter as it may be shown, as JSON. redaction may be NULL: all of it. */
semel_status semel_redaction_show(const struct semel_redaction *redaction,
				  const semel_dead_letter *letter, struct semel_arena *arena,
				  struct semel_buffer *text);

#endif
