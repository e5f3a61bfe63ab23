/* SPDX-License-Identifier: Apache-2.0 */
/* The problems (RFC 9457) that responses report: one table of their types, HTTP statuses and
 * titles. docs/admin.md has a copy of it, made by scripts/check-docs --fix. */
#ifndef SEMEL_ADMIN_PROBLEM_H
#define SEMEL_ADMIN_PROBLEM_H

#include "admin/http.h"

#include <semel/status.h>

/* Also what a failed call becomes, by the name of its status. */
enum semel_problem {
	SEMEL_PROBLEM_MALFORMED,
	SEMEL_PROBLEM_USAGE,
	SEMEL_PROBLEM_NO_TOKEN,
	SEMEL_PROBLEM_ROLE,
	SEMEL_PROBLEM_HOST,
	SEMEL_PROBLEM_ORIGIN,
	SEMEL_PROBLEM_NOT_FOUND,
	SEMEL_PROBLEM_METHOD,
	SEMEL_PROBLEM_NOT_PENDING,
	SEMEL_PROBLEM_REPLAY_LIMIT,
	SEMEL_PROBLEM_TOO_LARGE,
	SEMEL_PROBLEM_INVALID,
	SEMEL_PROBLEM_HEAD,
	SEMEL_PROBLEM_INTERNAL,
	SEMEL_PROBLEM_BUSY,
	SEMEL_PROBLEM_OUTAGE,
	SEMEL_PROBLEM_STORAGE_FULL,
	SEMEL_PROBLEM_NO_SCHEMA,
	SEMEL_PROBLEM_SCHEMA_NEWER,
	SEMEL_PROBLEM_NOT_A_DATABASE,
	SEMEL_PROBLEM_COUNT
};

/* Makes the response this problem. */
void semel_response_problem(struct semel_http_response *response, enum semel_problem problem,
			    const char *detail);
/* Makes it the problem that a failed call becomes. */
void semel_response_failure(struct semel_http_response *response, semel_status status,
			    const char *detail);
/* The HTTP status of a failed call. */
unsigned semel_problem_status(semel_status status);

#endif
