/* SPDX-License-Identifier: Apache-2.0 */
/* Which answers of a broker are about one event. */
#include "broker/broker.h"

bool semel_outcome_is_about_event(semel_status status)
{
	switch (status) {
	case SEMEL_FULL:
	case SEMEL_NOT_FINISHED:
	case SEMEL_STOPPED:
	case SEMEL_CONFIG:
	case SEMEL_NO_SCHEMA:
	case SEMEL_SCHEMA_NEWER:
	case SEMEL_NOT_A_DATABASE:
	case SEMEL_PROBLEM_FOUND:
		return false;
	default:
		return semel_status_class(status) == SEMEL_CLASS_REJECT ||
		       semel_status_class(status) == SEMEL_CLASS_RETRY;
	}
}
