/* SPDX-License-Identifier: Apache-2.0 */
/* Files that hold a secret: who may read them. */
#ifndef SEMEL_BASE_SECRET_FILE_H
#define SEMEL_BASE_SECRET_FILE_H

#include <stdbool.h>

#define SEMEL_SECRET_TEXT_MAX 512

struct semel_secret_fault {
	char text[SEMEL_SECRET_TEXT_MAX];   /* "/etc/semel/token can be read by every user" */
	char remedy[SEMEL_SECRET_TEXT_MAX]; /* the command that repairs it */
};

/* True, also where there is no such file: no user can read it but we, root, and those of a group
 * that we are in; and none but we and root can change it. */
bool semel_secret_file_is_safe(const char *path, struct semel_secret_fault *fault_out);

#endif
