/* SPDX-License-Identifier: Apache-2.0 */
/* What to do about each discrepancy that verify finds. */
#ifndef SEMEL_PROOF_REMEDIES_H
#define SEMEL_PROOF_REMEDIES_H

#include "proof/verify.h"

/* The texts live until the call returns. */
struct semel_verify_remedy {
	const char *problem; /* "stuck", "missing", … */
	const char *scope;   /* NULL: not of one scope */
	const char *text;    /* the problem, and what to do */
	const char
		*command; /* the command that resolves it; NULL: none that can be typed as it is */
};

typedef void (*semel_verify_remedy_callback)(const struct semel_verify_remedy *remedy, void *user);

/* In the order of the report; none for a clean one. */
void semel_verify_list_remedies(const struct semel_verify_report *report, int64_t now_ms,
				semel_verify_remedy_callback callback, void *user);

#endif
