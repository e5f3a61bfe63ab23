/* SPDX-License-Identifier: Apache-2.0 */
/* Hides secrets from the list of processes and from core files, and warns of files with secrets
 * that other users can read. */
#ifndef SEMEL_CLI_ARGUMENTS_SECRETS_H
#define SEMEL_CLI_ARGUMENTS_SECRETS_H

#include "cli/arguments/command.h"
#include "diagnose/finding.h"

/* First of all. URLs with secrets are overwritten where the list of processes has them; what is
 * given back has them, and lives as long as the process. On no memory it is argv as it was. */
char **semel_secrets_hide(int argc, char **argv);
/* This process leaves no core file, nor do its children unless they ask for one; SEMEL_CORE=1: it
 * may, as before. */
void semel_secrets_disable_core(void);
/* For long-running commands: logs a warning for each such file. */
void semel_secrets_warn(const struct semel_invocation *invocation);
void semel_secrets_examine(const struct semel_invocation *invocation,
			   const struct semel_examination *examination);

#endif
