/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secret_file.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUPS_MAX 256

/* Many a service reads a file of root's through its group. */
static bool is_our_group(gid_t group)
{
	gid_t groups[GROUPS_MAX];
	int count = getgroups(GROUPS_MAX, groups);
	if (group == 0 || group == getegid())
		return true;
	for (int i = 0; i < count; i++)
		if (groups[i] == group)
			return true;
	return false;
}

bool semel_secret_file_is_safe(const char *path, struct semel_secret_fault *fault_out)
{
	struct stat file;
	const char *fault = NULL;
	char repair[32] = "chmod 600";
	if (stat(path, &file) != 0 || !S_ISREG(file.st_mode))
		return true;
	if (file.st_uid != 0 && file.st_uid != geteuid()) {
		fault = "belongs to another user, who can change it";
		snprintf(repair, sizeof repair, "chown %u", (unsigned)geteuid());
	} else if (file.st_mode & S_IWOTH) {
		fault = "can be changed by every user";
	} else if (file.st_mode & S_IROTH) {
		fault = "can be read by every user";
	} else if (file.st_mode & S_IWGRP) {
		fault = "can be changed by its group";
		snprintf(repair, sizeof repair, "chmod g-w");
	} else if ((file.st_mode & S_IRGRP) && !is_our_group(file.st_gid)) {
		fault = "can be read by a group that this process is not in";
	}
	if (!fault)
		return true;
	if (repair[2] == 'm' /* not chown */ && (file.st_mode & S_IRGRP) &&
	    file.st_uid != geteuid() && is_our_group(file.st_gid))
		snprintf(repair, sizeof repair, "chmod 640"); /* we read it through the group */
	snprintf(fault_out->text, sizeof fault_out->text, "%.300s %s", path, fault);
	snprintf(fault_out->remedy, sizeof fault_out->remedy, "%s %.300s", repair, path);
	return false;
}
