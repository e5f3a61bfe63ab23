/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of pgoutput, PostgreSQL's own format of a change stream (protocol version 1). Pure:
 * bytes in, messages out. The bytes are not trusted: a length that does not fit is an error, never
 * a read beyond the end. */
#ifndef SEMEL_STORE_POSTGRES_PGOUTPUT_H
#define SEMEL_STORE_POSTGRES_PGOUTPUT_H

#include "store/store.h"

enum semel_pgoutput_kind {
	SEMEL_PGOUTPUT_OTHER,  /* nothing that concerns us */
	SEMEL_PGOUTPUT_BEGIN,  /* rows of one transaction follow */
	SEMEL_PGOUTPUT_COMMIT, /* there are no more of them; position is after the commit */
	SEMEL_PGOUTPUT_TABLE,  /* our table is described, for the first time or again */
	SEMEL_PGOUTPUT_ROW     /* row */
};

/* Maps the columns of the table to ours, by name: there may be others in between. */
#define SEMEL_PGOUTPUT_COLUMNS_MAX 64

struct semel_pgoutput {
	uint32_t table;    /* our outbox's oid: the publication may include other tables */
	uint32_t relation; /* 0: not described yet */
	uint16_t column_count;
	int8_t columns[SEMEL_PGOUTPUT_COLUMNS_MAX];
};

struct semel_pgoutput_message {
	enum semel_pgoutput_kind kind;
	uint64_t position;           /* BEGIN: where its commit is; COMMIT: the end of it */
	uint32_t xid;                /* BEGIN: the server's number of the transaction */
	struct semel_outbox_row row; /* ROW; its texts are in the bytes, and in the arena */
};

/* bytes are changed (each text gets its NUL) and must live as long as the row; there must be room
 * for one more byte after them. INTERNAL when they are not such a message. */
semel_status semel_pgoutput_read(struct semel_pgoutput *stream, char *bytes, size_t length,
				 struct semel_arena *arena,
				 struct semel_pgoutput_message *message_out, semel_error *error);

#endif
