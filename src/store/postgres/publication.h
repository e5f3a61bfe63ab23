/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the publication of the outbox, and what mends it. */
#ifndef SEMEL_STORE_POSTGRES_PUBLICATION_H
#define SEMEL_STORE_POSTGRES_PUBLICATION_H

#include <stdint.h>

#define SEMEL_PG_PUBLICATION "semel"

enum semel_pg_flaw {
	SEMEL_PG_SOUND,
	SEMEL_PG_ABSENT,
	SEMEL_PG_APART,    /* it does not have the outbox */
	SEMEL_PG_FILTERED, /* rows, or columns */
	SEMEL_PG_MUTE,     /* it leaves out inserts */
	SEMEL_PG_UNLOGGED, /* of the table itself */
	SEMEL_PG_SPLIT,    /* it tells of the table's partitions, and not of the table */
	SEMEL_PG_FLAWS
};

/* One row: the flaw, and what the publication is known by. */
extern const char semel_pg_publication_sql[];

/* For people, with what to do; NULL: it is sound. */
const char *semel_pg_publication_flaw(int64_t flaw);
/* The statements that mend it; NULL: nothing does, or a person has to. */
const char *semel_pg_publication_cure(int64_t flaw);

#endif
