/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot sees, as the server writes it down: "xmin:xmax:xid,xid,…", each with its epoch.
 * Pure. */
#ifndef SEMEL_STORE_POSTGRES_SNAPSHOT_H
#define SEMEL_STORE_POSTGRES_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

/* Has this transaction ended before the snapshot was taken? xid: its lower half, as the change
 * stream has it; it is the nearest one to the snapshot of all that end so, for the server lets no
 * two be further apart than half of them. A text that cannot be read sees nothing. */
bool semel_pg_snapshot_sees(const char *snapshot, uint32_t xid);

#endif
