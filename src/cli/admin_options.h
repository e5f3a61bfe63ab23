/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `serve`, which are also the keys of the section admin in the config file. */
#ifndef SEMEL_CLI_ADMIN_OPTIONS_H
#define SEMEL_CLI_ADMIN_OPTIONS_H

#include "admin/admin.h"
#include "cli/command.h"

extern const struct semel_option semel_admin_rows[];

/* What the arguments say; points into the invocation. */
struct semel_admin_options semel_admin_options_read(const struct semel_invocation *invocation);

#endif
