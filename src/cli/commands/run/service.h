/* SPDX-License-Identifier: Apache-2.0 */
/* One service of `semel run`: a relay or a subscription on a thread of its own.
 *
 * - A service is a command line in a thread: it reads the same options, from the same places, as
 * the command of its name would.
 * - What is wrong with its settings is said before it starts; what fails later is tried again, with
 *   longer and longer pauses, and is a reason not to be ready meanwhile.
 * - Stopping is asked for first and waited for later, so that all services finish at the same time.
 */
#ifndef SEMEL_CLI_COMMANDS_RUN_SERVICE_H
#define SEMEL_CLI_COMMANDS_RUN_SERVICE_H

#include "cli/arguments/command.h"

#define SEMEL_SERVICE_WORDS_MAX 12

struct semel_service;

/* words: of the command line after the program's name; NULL-ended, copied. name: for people.
 * CONFIG, or what else is wrong, when it cannot start; an outage is no reason. later: nothing but
 * wrong settings is; it is opened on its own thread, and tried again, so that nobody waits here. */
semel_status semel_service_start(const char *name, const char *const *words, bool later,
				 struct semel_service **service_out, semel_error *error);
const char *semel_service_name(const struct semel_service *service);
/* Everything that decides how it works, as one text: a service with another one is another service.
 */
const char *semel_service_fingerprint(const struct semel_service *service);
/* That of a service that is not there. The caller frees it; NULL: its settings cannot be right. */
char *semel_service_fingerprint_of(const char *name, const char *const *words);
/* Why it does not work now. False: it does. */
bool semel_service_failure(struct semel_service *service, char *text_out, size_t size);
/* Asks; does not wait. */
void semel_service_stop(struct semel_service *service);
/* Was it asked to? */
bool semel_service_is_stopping(struct semel_service *service);
/* Waits for at most so long. True: it has ended, and semel_service_free does not wait. */
bool semel_service_wait(struct semel_service *service, int64_t wait_ms);
/* Waits for the end. service may be NULL. */
void semel_service_free(struct semel_service *service);

#endif
