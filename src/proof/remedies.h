/* SPDX-License-Identifier: Apache-2.0 */
/* What heals each thing that verify finds. */
#ifndef SEMEL_PROOF_REMEDIES_H
#define SEMEL_PROOF_REMEDIES_H

#include "proof/verify.h"

/* One problem. The texts live until the call returns. */
struct semel_verify_remedy {
	const char *problem; /* "stuck", "missing", … */
	const char *scope;   /* NULL: it is not of one scope */
	const char *text;    /* what is the matter, and what to do */
	const char
		*command; /* the one command that heals it; NULL: there is none to type as it is */
};

typedef void (*semel_verify_remedy_callback)(const struct semel_verify_remedy *advice, void *user);

/* In the order of the report. Nothing for a clean one. */
void semel_verify_list_remedies(const struct semel_verify_report *report, int64_t now_ms,
				semel_verify_remedy_callback seen, void *user);

#endif
