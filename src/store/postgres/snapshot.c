/* SPDX-License-Identifier: Apache-2.0 */
#include "store/postgres/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>

/* The number at the text, which goes on behind it; false: there is none. */
static bool take_number(const char **text, uint64_t *number_out)
{
	char *end = NULL;
	if (**text < '0' || **text > '9')
		return false;
	*number_out = strtoumax(*text, &end, 10);
	*text = end;
	return true;
}

static bool take(const char **text, char expected)
{
	if (**text != expected)
		return false;
	++*text;
	return true;
}

/* Modulo 2^32 it may be before or behind. */
static uint64_t nearest(uint64_t reference, uint32_t xid)
{
	int32_t distance = (int32_t)(xid - (uint32_t)reference);
	return reference + (uint64_t)(int64_t)distance;
}

bool semel_pg_snapshot_sees(const char *snapshot, uint32_t xid)
{
	uint64_t xmin = 0, xmax = 0, open = 0;
	if (!take_number(&snapshot, &xmin) || !take(&snapshot, ':') ||
	    !take_number(&snapshot, &xmax) || !take(&snapshot, ':'))
		return false;
	uint64_t whole = nearest(xmax, xid);
	if (whole < xmin)
		return true;
	if (whole >= xmax)
		return false;
	while (take_number(&snapshot, &open)) {
		if (open == whole)
			return false;
		(void)take(&snapshot, ',');
	}
	return *snapshot == '\0';
}
