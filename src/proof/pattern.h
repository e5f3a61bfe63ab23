/* SPDX-License-Identifier: Apache-2.0 */
/* Binding patterns as AMQP's topic exchanges understand them. */
#ifndef SEMEL_PROOF_PATTERN_H
#define SEMEL_PROOF_PATTERN_H

#include "base/text.h"

#include <stdbool.h>

/* Words are separated by dots; * is one word, # any number of them. Pure. */
bool semel_pattern_matches(struct semel_text pattern, struct semel_text key);

#endif
