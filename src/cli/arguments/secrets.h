/* SPDX-License-Identifier: Apache-2.0 */
/* Hides secrets from the list of processes and from core files, and warns of files with secrets
 * that other users can read. */
#ifndef SEMEL_CLI_ARGUMENTS_SECRETS_H
#define SEMEL_CLI_ARGUMENTS_SECRETS_H

#include "cli/arguments/command.h"
#include "diagnose/finding.h"

/* Call this before anything else. Overwrites URLs with secrets in argv, where the list of processes
 * shows them. Returns a copy that still has them and lives as long as the process; if there is no
 * memory, returns argv, unchanged. */
char **semel_secrets_hide(int argc, char **argv);
/* Disables core files for this process, and for its children unless they enable them. With
 * SEMEL_CORE=1 it changes nothing. */
void semel_secrets_disable_core(void);
/* For long-running commands: logs a warning for each file with a secret that other users can
 * access. */
void semel_secrets_warn(const struct semel_invocation *invocation);
void semel_secrets_examine(const struct semel_invocation *invocation,
			   const struct semel_examination *examination);

#endif
