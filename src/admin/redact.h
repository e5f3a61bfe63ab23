/* SPDX-License-Identifier: Apache-2.0 */
/* What of an event the admin server does not show: members of the payload, by JSON path, headers,
 * and free texts that may repeat them. Only what is shown is changed: the stored event is not, and
 * a replay sends it whole.
 *
 * - A payload in which no path can be followed (no JSON, nested too deeply) is hidden whole; so are
 *   headers that are no JSON object.
 * - A free text about an event (a failure's reason, why it was discarded) is shown only if it
 *   repeats nothing of what is hidden (overlap.h); otherwise all of it is hidden.
 * - A free text whose event is not at hand (an outbox' last error, why a breaker is open, the words
 *   in a trace) is hidden whenever anything is to be hidden. */
#ifndef SEMEL_ADMIN_REDACT_H
#define SEMEL_ADMIN_REDACT_H

#include "deadletter/deadletter.h"

#include <stdbool.h>

struct semel_redaction;

/* "$.card.number", "$.items[*].price", "$['a b'][0]", "$..password" (at any depth), "$" (all of
 * it), "headers.NAME", "reasons" (every free text). */
bool semel_redaction_fits(const char *path);
/* Paths are NULL-ended and copied. redaction_out NULL: there are none. CONFIG when one does not
 * fit.
 */
semel_status semel_redaction_make(const char *const *paths, struct semel_redaction **redaction_out,
				  semel_error *error);
/* redaction may be NULL. */
void semel_redaction_free(struct semel_redaction *redaction);

/* The dead letter as it may be shown, as JSON. redaction may be NULL: all of it. with_payload
 * false: the payload counts for what else is hidden, but it is not shown itself.
 */
semel_status semel_redaction_show(const struct semel_redaction *redaction,
				  const semel_dead_letter *letter, bool with_payload,
				  struct semel_buffer *text);

/* A free text whose event is not at hand, as it may be shown. Both may be NULL. */
const char *semel_redaction_text(const struct semel_redaction *redaction, const char *words);
/* The same for the text of an error: what a handler or a broker says of an event is hidden, and
 * what Semel says of itself, and of connections, is not. */
const char *semel_redaction_error(const struct semel_redaction *redaction, semel_status status,
				  const char *words);

#endif
