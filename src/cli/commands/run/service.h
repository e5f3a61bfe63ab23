/* SPDX-License-Identifier: Apache-2.0 */
/* One part of `semel run`: a relay or a subscription on a thread of its own.
 *
 * - A part is a command line in a thread: it reads the same options, from the same places, as the
 *   command of its name would.
 * - What is wrong with its settings is said before it starts; what fails later is tried again, with
 *   longer and longer pauses, and is a reason not to be ready meanwhile.
 * - Stopping is asked for first and waited for later, so that all parts finish at the same time.
 */
#ifndef SEMEL_CLI_COMMANDS_RUN_SERVICE_H
#define SEMEL_CLI_COMMANDS_RUN_SERVICE_H

#include "cli/arguments/command.h"

#define SEMEL_PART_WORDS_MAX 12

struct semel_part;

/* words: of the command line after the program's name; NULL-ended, copied. name: for people.
 * CONFIG, or what else is wrong, when it cannot start; an outage is no reason. patient: nothing but
 * wrong settings is; it is opened on its own thread, and tried again, so that nobody waits here. */
semel_status semel_part_start(const char *name, const char *const *words, bool patient,
			      struct semel_part **part_out, semel_error *error);
const char *semel_part_name(const struct semel_part *part);
/* Everything that decides how it works, as one text: a part with another one is another part. */
const char *semel_part_fingerprint(const struct semel_part *part);
/* That of a part that is not there. The caller frees it; NULL: its settings cannot be right. */
char *semel_part_fingerprint_of(const char *name, const char *const *words);
/* Why it does not work now. False: it does. */
bool semel_part_trouble(struct semel_part *part, char *text_out, size_t size);
/* Asks; does not wait. */
void semel_part_stop(struct semel_part *part);
/* Was it asked to? */
bool semel_part_stopping(struct semel_part *part);
/* Waits for at most so long. True: it has ended, and semel_part_free does not wait. */
bool semel_part_wait(struct semel_part *part, int64_t wait_ms);
/* Waits for the end. part may be NULL. */
void semel_part_free(struct semel_part *part);

#endif
