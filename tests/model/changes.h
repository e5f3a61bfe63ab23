/* SPDX-License-Identifier: Apache-2.0 */
/* The steps change and drop; see changes.c. */
#ifndef SEMEL_TESTS_MODEL_CHANGES_H
#define SEMEL_TESTS_MODEL_CHANGES_H

#include "model/steps.h"

/* What STEP_CHANGE changes: its b. */
enum change {
	CHANGE_NUMBERS, /* attempts, delays, batch, prefetch, --from of an existing subscription */
	CHANGE_CLAIMS,  /* guarantee and claim mode */
	CHANGE_POISON,
	CHANGE_ORDER,
	CHANGE_TOPICS,
	CHANGE_RELAY, /* a: its poison policy, its window and attempts, or the broker's limits */
	CHANGES
};

/* What STEP_DROP drops: its b. */
enum object {
	OBJECT_SUBSCRIPTION, /* at the broker */
	OBJECT_RECORD,       /* of the subscription, in the store */
	OBJECT_BROKER,       /* its file */
	OBJECT_ROW,          /* of the outbox */
	OBJECT_NUMBERS,      /* all rows; the numbers start again */
	OBJECTS
};

void change(struct world *world, const struct step *step);
void drop(struct world *world, const struct step *step);
void change_print(const struct setting *setting, const struct step *step, FILE *out);
void drop_print(const struct setting *setting, const struct step *step, FILE *out);

#endif
