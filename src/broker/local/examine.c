/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` checks of the local broker: its file. A missing file is not created. */
#include "base/error.h"
#include "broker/local/local.h"
#include "diagnose/sqlite.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool exists(const char *path)
{
	struct stat found;
	return stat(path, &found) == 0 || errno != ENOENT;
}

/* A file is created when it is needed, a folder is not. */
static void report_missing(const char *path, const struct semel_examination *examination)
{
	char text[512], folder[400];
	const char *slash = strrchr(path, '/');
	snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		 slash ? path : ".");
	bool can_be_created = exists(folder);
	snprintf(text, sizeof(text), "%.400s does not exist%s", path,
		 can_be_created ? "" : ", nor does its folder");
	semel_examination_report(
		examination, SEMEL_CHECK_BROKER_REACHED,
		can_be_created ? SEMEL_SEVERITY_ADVICE : SEMEL_SEVERITY_PROBLEM, text,
		can_be_created
			? "nothing: the first relay or consumer creates it; or is the path wrong?"
			: "create the folder, or correct the path in the broker's URL");
}

semel_status semel_local_examine(const struct semel_url *url,
				 const struct semel_examination *examination)
{
	static const struct semel_sqlite_checks checks = { SEMEL_CHECK_BROKER_RIGHTS,
							   SEMEL_CHECK_BROKER_FILES,
							   SEMEL_CHECK_BROKER_ALARM,
							   SEMEL_CHECK_BROKER_DISK };
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	if (url->path[0] != '\0' && !exists(url->path)) {
		report_missing(url->path, examination);
		return SEMEL_NOT_FOUND;
	}
	semel_status status = semel_local_driver.open(url, examination->env, 1, &broker, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return status;
	}
	struct semel_local *local = semel_local_of(broker);
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s", local->path);
	semel_sqlite_examine(local->db, url, &checks, examination);
	semel_local_write_queue_examine(local, examination);
	broker->driver->close(broker);
	return SEMEL_OK;
}
