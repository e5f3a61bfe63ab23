/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sqlite_memory.h"

#include <sqlite3.h>
#include <stddef.h>

void semel_sqlite_limit_memory(void)
{
	sqlite3_config(SQLITE_CONFIG_PAGECACHE, NULL, 0, 0);
}
