/* SPDX-License-Identifier: Apache-2.0 */
/* One service of `semel run`: a relay, a subscription or the pruner, on a thread of its own.
 *
 * - A service is a command line on a thread: it reads the same options, from the same sources, as
 *   the command of its name.
 * - Invalid settings are reported before it starts. What fails later is retried with growing
 *   delays, and is a reason for /readyz meanwhile.
 * - Stopping is requested first and awaited later, so that all services stop at the same time.
 */
#ifndef SEMEL_CLI_COMMANDS_RUN_SERVICE_H
#define SEMEL_CLI_COMMANDS_RUN_SERVICE_H

#include "cli/arguments/command.h"

#define SEMEL_SERVICE_WORDS_MAX 12

struct semel_service;

/* words: the command line without the program's name; NULL-terminated, copied. name: for logs and
 * errors. CONFIG or another error if the service cannot start; an outage is not an error. later:
 * the service is opened, and retried, on its own thread, so that only invalid settings are an
 * error. */
semel_status semel_service_start(const char *name, const char *const *words, bool later,
				 struct semel_service **service_out, semel_error *error);
const char *semel_service_name(const struct semel_service *service);
/* All settings of the service as one text: if the text changes, the service has to be restarted. */
const char *semel_service_fingerprint(const struct semel_service *service);
/* The fingerprint of a service that is not running. The caller frees it; NULL: its settings are
 * invalid. */
char *semel_service_fingerprint_of(const char *name, const char *const *words);
/* Why the service is failing now. False: it is not failing. */
bool semel_service_failure(struct semel_service *service, char *text_out, size_t size);
/* Requests the stop; does not wait. */
void semel_service_stop(struct semel_service *service);
bool semel_service_is_stopping(struct semel_service *service);
/* Waits at most wait_ms. True: the service has ended, and semel_service_free does not wait. */
bool semel_service_wait(struct semel_service *service, int64_t wait_ms);
/* Waits for the end. service may be NULL. */
void semel_service_free(struct semel_service *service);

#endif
