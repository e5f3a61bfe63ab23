/* SPDX-License-Identifier: Apache-2.0 */
/* A setting of SQLite for the whole process. */
#ifndef SEMEL_BASE_SQLITE_MEMORY_H
#define SEMEL_BASE_SQLITE_MEMORY_H

/* SQLite allocates 20 pages at once for each internal table of a statement (every claim has one,
 * for its CHECK): memory that is mapped, zeroed and unmapped for each event. This call prevents
 * that. Call it before the first database is opened. */
void semel_sqlite_limit_memory(void);

#endif
