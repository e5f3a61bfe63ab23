/* SPDX-License-Identifier: Apache-2.0 */
/* Redaction: members of the payload (by JSON path) and headers that the admin server hides, and
 * free texts that may quote them. Only responses are changed: the stored event is not, and a replay
 * sends it whole.
 *
 * - A payload in which no path can be followed (not JSON, nested too deeply) is hidden completely;
 *   so are headers that are not a JSON object.
 * - A free text about an event (the reason of a failure or of a discard) is shown only if it
 *   repeats nothing that is hidden (overlap.h); otherwise all of it is hidden.
 * - A free text without its event (the last error of the outbox, the reason of an open breaker, the
 *   texts of a trace) is hidden whenever anything is hidden. */
#ifndef SEMEL_ADMIN_REDACT_H
#define SEMEL_ADMIN_REDACT_H

#include "deadletter/deadletter.h"

#include <stdbool.h>

struct semel_redaction;

/* "$.card.number", "$.items[*].price", "$['a b'][0]", "$..password" (at any depth), "$" (all of
 * it), "headers.NAME", "reasons" (every free text). */
bool semel_redaction_path_is_valid(const char *path);
/* paths: NULL-terminated, copied. *redaction_out NULL: there are none. CONFIG when one is not
 * valid. */
semel_status semel_redaction_new(const char *const *paths, struct semel_redaction **redaction_out,
				 semel_error *error);
/* redaction may be NULL. */
void semel_redaction_free(struct semel_redaction *redaction);

/* Writes the dead letter as JSON, without what is hidden. redaction NULL: nothing is hidden.
 * with_payload false: the payload is left out, but texts that quote it are still hidden. */
semel_status semel_redaction_write_json(const struct semel_redaction *redaction,
					const semel_dead_letter *letter, bool with_payload,
					struct semel_buffer *text);

/* A free text without its event: words, or "[hidden]". Both may be NULL. */
const char *semel_redaction_text(const struct semel_redaction *redaction, const char *words);
/* The same for the text of an error: a text of a handler or a broker about an event is hidden; a
 * text of Semel, or about a connection, is not. */
const char *semel_redaction_error(const struct semel_redaction *redaction, semel_status status,
				  const char *words);

#endif
