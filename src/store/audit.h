/* SPDX-License-Identifier: Apache-2.0 */
/* What people did, as the store keeps it. */
#ifndef SEMEL_STORE_AUDIT_H
#define SEMEL_STORE_AUDIT_H

#include "base/text.h"

#include <stdint.h>

/* Something that a person did. */
struct semel_audit_row {
	int64_t at_ms;
	struct semel_text who, what, target, detail; /* of the last two data NULL: none */
};

#endif
