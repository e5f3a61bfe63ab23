/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `semel doctor` for a SQLite file, the store's or the local broker's. */
#ifndef SEMEL_DIAGNOSE_SQLITE_H
#define SEMEL_DIAGNOSE_SQLITE_H

#include "base/url.h"
#include "diagnose/finding.h"

#include <sqlite3.h>

/* Under which checks the findings are reported. */
struct semel_sqlite_checks {
	enum semel_check rights, files, lock, disk;
};

/* Takes the write lock for a moment, and changes nothing. */
void semel_sqlite_examine(sqlite3 *db, const struct semel_url *url,
			  const struct semel_sqlite_checks *checks,
			  const struct semel_examination *examination);

#endif
