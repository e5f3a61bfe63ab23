/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `relay` and `consume`, which are also the keys of the sections relay and
 * subscriptions in the config file. */
#ifndef SEMEL_CLI_ARGUMENTS_DELIVERY_OPTIONS_H
#define SEMEL_CLI_ARGUMENTS_DELIVERY_OPTIONS_H

#include "cli/arguments/options.h"

#define SEMEL_DEDUP_HEADER "header:" /* prefix of a --dedup-by value */

extern const struct semel_option semel_relay_rows[], semel_consume_rows[];

#endif
