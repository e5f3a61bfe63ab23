/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/process/operator.h"

#include <pwd.h>
#include <stdio.h>
#include <unistd.h>

const char *semel_operator_name(void)
{
	static char who[128];
	const struct passwd *user = getpwuid(getuid());

	if (user)
		snprintf(who, sizeof who, "cli:%s", user->pw_name);
	else
		snprintf(who, sizeof who, "cli:%u", (unsigned)getuid());
	return who;
}
