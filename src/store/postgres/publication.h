/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the publication of the outbox, and how to repair it. */
#ifndef SEMEL_STORE_POSTGRES_PUBLICATION_H
#define SEMEL_STORE_POSTGRES_PUBLICATION_H

#include <stdint.h>

#define SEMEL_PG_PUBLICATION "semel"

enum semel_pg_publication_problem {
	SEMEL_PG_PUBLICATION_OK,
	SEMEL_PG_PUBLICATION_MISSING,
	SEMEL_PG_PUBLICATION_WITHOUT_OUTBOX,  /* it does not have the outbox */
	SEMEL_PG_PUBLICATION_FILTERED,        /* rows, or columns */
	SEMEL_PG_PUBLICATION_WITHOUT_INSERTS, /* it leaves out inserts */
	SEMEL_PG_PUBLICATION_UNLOGGED,        /* of the table itself */
	SEMEL_PG_PUBLICATION_OF_PARTITIONS,   /* it publishes the table's partitions, and not the
						 table */
	SEMEL_PG_PUBLICATION_PROBLEMS
};

/* One row: the problem, and what the publication is known by. */
extern const char semel_pg_publication_sql[];

/* A message with the next step; NULL: no problem. */
const char *semel_pg_publication_problem(int64_t problem);
/* The statements that repair it; NULL: none do, or an operator has to. */
const char *semel_pg_publication_remedy(int64_t problem);

#endif
