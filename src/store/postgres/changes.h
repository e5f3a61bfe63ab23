/* SPDX-License-Identifier: Apache-2.0 */
/* PostgreSQL's change stream: two connections, one for statements (slot, marks) and one for the
 * stream. */
#ifndef SEMEL_STORE_POSTGRES_CHANGES_H
#define SEMEL_STORE_POSTGRES_CHANGES_H

#include "base/buffer.h"
#include "store/changes.h"
#include "store/postgres/pgoutput.h"
#include "store/postgres/postgres.h"

#define SEMEL_PG_PUBLICATION "semel"

enum semel_pg_publication_problem {
	SEMEL_PG_PUBLICATION_OK,
	SEMEL_PG_PUBLICATION_MISSING,
	SEMEL_PG_PUBLICATION_WITHOUT_OUTBOX,  /* it does not include the outbox */
	SEMEL_PG_PUBLICATION_FILTERED,        /* it filters rows or columns */
	SEMEL_PG_PUBLICATION_WITHOUT_INSERTS, /* it leaves out inserts */
	SEMEL_PG_PUBLICATION_UNLOGGED,        /* the table itself is unlogged */
	SEMEL_PG_PUBLICATION_OF_PARTITIONS,   /* it publishes the table's partitions, and not the
						 table */
	SEMEL_PG_PUBLICATION_PROBLEMS
};

/* One row: the problem, and the identity of the publication. */
extern const char semel_pg_publication_sql[];

/* A message with the next step; NULL: no problem. */
const char *semel_pg_publication_problem(int64_t problem);

struct semel_pg_changes {
	struct semel_changes base;
	char *url, *slot;
	char publication[96];         /* at the last inspection */
	semel_store *statement_store; /* for statements; NULL: to be connected again */
	PGconn *creating;             /* creates the slot; NULL: no creation is pending */
	struct {
		PGconn *connection; /* NULL: stopped */
		struct semel_wake *wake;
		struct semel_pgoutput decoder;
		struct semel_pg_previous *previous;
		bool previous_loaded; /* previous has what was published before this stream */
		int64_t keepalive_timeout_ms;
		uint64_t confirmed;
		bool delay_read; /* much arrived: let more of it arrive before the next read */
		bool in_transaction;
		bool awaits_row;           /* in a transaction without a row so far */
		int row_bytes, wake_bytes; /* the usual wake threshold; the current one */
		uint64_t transaction;      /* counts them, over all streams */
		uint32_t xid;              /* of the transaction being read */
		int64_t commit_order;      /* where its commit is in the server's WAL */
	} stream;
	struct {
		bool required;  /* commits wait for a synchronous standby */
		bool waiting;   /* the transaction that comes next is not visible yet */
		bool refreshed; /* the snapshot was taken in this read */
		bool logged;    /* this wait was logged */
		char *snapshot; /* the last snapshot; NULL: none */
		int64_t since_ms, check_at_ms, pause_ms; /* steady */
	} visible;
	struct {
		struct semel_buffer lanes, epochs, lows, row_lanes, row_seqs;
		bool sent, answered;
		semel_status status; /* of the answer */
		semel_error error;
		size_t lease_count, row_count;
		bool all_visible; /* so a row that cannot be marked was deleted */
	} flush;
};

static inline struct semel_pg_changes *semel_pg_changes_of(struct semel_changes *changes)
{
	return (struct semel_pg_changes *)changes; /* base is its first member */
}

/* The connection for statements, with no answer pending. */
semel_status semel_pg_changes_statement_tx(struct semel_pg_changes *changes, semel_tx *tx_out,
					   semel_error *error);
/* After a failure: closes a lost connection, which is reopened when it is needed. */
semel_status semel_pg_changes_failed(struct semel_pg_changes *changes, semel_status status);
/* Called when the stream describes the table, as it does again after every change of its
 * definition. OUTAGE if the publication was changed: it may have left out rows, so none of the rows
 * that follow is returned. */
semel_status semel_pg_changes_check_publication(struct semel_pg_changes *changes,
						semel_error *error);
/* Terminates the reader of the slot, where that is permitted. */
void semel_pg_changes_terminate_reader(struct semel_pg_changes *changes);
/* "16/B374D848" */
void semel_pg_lsn_format(uint64_t position, char text_out[24]);

/* stream.c */
semel_status semel_pg_stream_start(struct semel_changes *changes, uint64_t position,
				   struct semel_wake *wake, bool ends, semel_error *error);
semel_status semel_pg_stream_read(struct semel_changes *changes, struct semel_outbox_batch *batch,
				  uint64_t *position_out, semel_error *error);
semel_status semel_pg_stream_confirm(struct semel_changes *changes, uint64_t position, bool ask,
				     semel_error *error);
bool semel_pg_stream_is_in_transaction(const struct semel_changes *changes);
int64_t semel_pg_stream_visibility_wait_ms(const struct semel_changes *changes);
int64_t semel_pg_stream_keepalive_timeout_ms(struct semel_changes *changes);
void semel_pg_stream_stop(struct semel_changes *changes);

/* visible.c: whether the commits that the stream delivers are visible. */
/* Pure. Had this transaction ended when the snapshot was taken? snapshot: as the server writes it,
 * "xmin:xmax:xid,xid,…", in 64 bits. xid: the lower 32 bits, as the change stream has them; of all
 * transactions with these bits it is the one nearest to the snapshot, since the server keeps all of
 * them within 2^31 of each other. A text that cannot be parsed sees nothing. */
bool semel_pg_snapshot_sees(const char *snapshot, uint32_t xid);
/* Takes a snapshot and stores it. */
semel_status semel_pg_visible_refresh(struct semel_pg_changes *changes, semel_error *error);
/* Is this transaction visible to the snapshot that was taken last? */
bool semel_pg_visible_includes(const struct semel_pg_changes *changes, uint32_t xid);
/* A transaction begins that may not be visible yet: its rows wait until it is. */
semel_status semel_pg_visible_begin(struct semel_pg_changes *changes, uint32_t xid,
				    semel_error *error);
/* Before a read: does the next transaction still have to wait? */
semel_status semel_pg_visible_read(struct semel_pg_changes *changes, bool *waiting_out,
				   semel_error *error);
void semel_pg_visible_reset(struct semel_pg_changes *changes);

/* flush.c */
semel_status semel_pg_flush_send(struct semel_changes *changes, const struct semel_flush *flush,
				 semel_error *error);
semel_status semel_pg_flush_poll(struct semel_changes *changes, int64_t wait_ms, bool *done_out,
				 semel_error *error);
/* Waits for a pending answer, whose outcome semel_pg_flush_poll returns. */
void semel_pg_flush_await(struct semel_pg_changes *changes);
void semel_pg_flush_free(struct semel_pg_changes *changes);

#endif
