/* SPDX-License-Identifier: Apache-2.0 */
/* The publication of the outbox: what is wrong with it, and whether it was changed since.
 *
 * - What a publication leaves out at a moment is missing in the stream permanently, however it is
 *   repaired afterwards. So it is identified by its rows in the catalogues, oid and xmin: any
 * change of it makes another row, also one that was undone.
 * - A publication of the whole schema is none for us: what becomes of it cannot be seen in the
 *   catalogues of all servers.
 */
#include "store/postgres/publication.h"

#include <stddef.h>

#define RUN_INIT " (run: semel --store URL init --cdc)"

/* Columns of PostgreSQL 15 are asked for in a way that older servers understand. Where all tables
 * are published, one that was unlogged for a while is recognised by its file. */
const char semel_pg_publication_sql[] =
	"SELECT CASE WHEN p.oid IS NULL THEN 1"
	" WHEN NOT p.puballtables AND r.oid IS NULL THEN 2"
	" WHEN coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL THEN 3"
	" WHEN NOT p.pubinsert THEN 4 WHEN c.relpersistence <> 'p' THEN 5"
	" WHEN c.relkind = 'p' AND NOT p.pubviaroot THEN 6 ELSE 0 END,"
	" concat_ws('/', c.oid, p.oid, p.xmin, r.oid, r.xmin,"
	" CASE WHEN p.puballtables THEN c.relfilenode END)"
	" FROM pg_class c LEFT JOIN pg_publication p ON p.pubname = '" SEMEL_PG_PUBLICATION "'"
	" LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid"
	" WHERE c.oid = 'semel_outbox'::regclass";

static const struct {
	const char *text, *remedy;
} problems[SEMEL_PG_PUBLICATION_PROBLEMS] = {
	[SEMEL_PG_PUBLICATION_MISSING] = { "there is no publication " SEMEL_PG_PUBLICATION
					   " of the outbox" RUN_INIT,
					   "CREATE PUBLICATION " SEMEL_PG_PUBLICATION
					   " FOR TABLE semel_outbox WITH (publish = 'insert')" },
	/* It may be there for the outbox of another schema. */
	[SEMEL_PG_PUBLICATION_WITHOUT_OUTBOX] = { "there is no publication " SEMEL_PG_PUBLICATION
						  " of the outbox: the one of this name does not "
						  "list it" RUN_INIT,
						  "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						  " ADD TABLE semel_outbox" },
	[SEMEL_PG_PUBLICATION_FILTERED] = { "the publication " SEMEL_PG_PUBLICATION
					    " has a row filter or a column list, and leaves out "
					    "events" RUN_INIT,
					    "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
					    " DROP TABLE semel_outbox; ALTER "
					    "PUBLICATION " SEMEL_PG_PUBLICATION
					    " ADD TABLE semel_outbox" },
	[SEMEL_PG_PUBLICATION_WITHOUT_INSERTS] = { "the publication " SEMEL_PG_PUBLICATION
						   " does not publish inserts" RUN_INIT,
						   "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						   " SET (publish = 'insert')" },
	[SEMEL_PG_PUBLICATION_UNLOGGED] = { "the outbox is not logged: a crash empties it, and no "
					    "change stream delivers its rows (run: ALTER TABLE "
					    "semel_outbox SET "
					    "LOGGED)",
					    NULL },
	[SEMEL_PG_PUBLICATION_OF_PARTITIONS] = { "the publication " SEMEL_PG_PUBLICATION
						 " publishes the partitions of the outbox, not "
						 "the outbox itself" RUN_INIT,
						 "ALTER PUBLICATION " SEMEL_PG_PUBLICATION
						 " SET (publish_via_partition_root = true)" },
};

const char *semel_pg_publication_problem(int64_t problem)
{
	return problem > 0 && problem < SEMEL_PG_PUBLICATION_PROBLEMS ? problems[problem].text
								      : NULL;
}

const char *semel_pg_publication_remedy(int64_t problem)
{
	return problem > 0 && problem < SEMEL_PG_PUBLICATION_PROBLEMS ? problems[problem].remedy
								      : NULL;
}
