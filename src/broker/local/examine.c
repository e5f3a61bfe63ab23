/* SPDX-License-Identifier: Apache-2.0 */
/* What `semel doctor` sees of the local broker: its file. One that is not there yet is not made. */
#include "base/error.h"
#include "base/sqlite_look.h"
#include "broker/local/driver.h"
#include "broker/local/local.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

semel_status semel_local_examine(const struct semel_url *url,
				 const struct semel_examination *examination)
{
	static const struct semel_sqlite_checks checks = { SEMEL_CHECK_BROKER_RIGHTS,
							   SEMEL_CHECK_BROKER_ALARM,
							   SEMEL_CHECK_BROKER_DISK };
	struct stat file;
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	char text[512];
	if (url->path[0] != '\0' && stat(url->path, &file) != 0 && errno == ENOENT) {
		snprintf(text, sizeof(text), "%.400s is not there yet", url->path);
		semel_examination_tell(examination, SEMEL_CHECK_BROKER_REACHED,
				       SEMEL_GRAVITY_ADVICE, text,
				       "nothing: the first relay or consumer makes it; or is the "
				       "path wrong?");
		return SEMEL_NOT_FOUND;
	}
	semel_status status = semel_local_driver.open(url, examination->env, 1, &broker, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return status;
	}
	struct semel_local *local = semel_local_of(broker);
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s", local->path);
	semel_sqlite_look(local->db, local->path, &checks, examination);
	broker->driver->close(broker);
	return SEMEL_OK;
}
