/* SPDX-License-Identifier: Apache-2.0 */
/* The user at the command line, for the audit log. */
#ifndef SEMEL_CLI_PROCESS_OPERATOR_H
#define SEMEL_CLI_PROCESS_OPERATOR_H

/* "cli:NAME" of the user who runs the program; lives as long as the process. */
const char *semel_operator_name(void);

#endif
