/* SPDX-License-Identifier: Apache-2.0 */
/* The version that was linked, for programs that want to compare it with their headers. */
#include <semel/version.h>

const char *semel_version(void)
{
	return SEMEL_VERSION;
}
