/* SPDX-License-Identifier: Apache-2.0 */
/* Who does what a person does at the command line, for the audit. */
#ifndef SEMEL_CLI_PROCESS_OPERATOR_H
#define SEMEL_CLI_PROCESS_OPERATOR_H

/* "cli:NAME" of the user who runs the program; lives as long as the process. */
const char *semel_operator_name(void);

#endif
