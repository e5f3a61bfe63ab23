/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/process/notify.h"

#include "base/text.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void semel_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = path ? strlen(path) : 0;

	if (length < 2 || length >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(address.sun_path, path, length);
	if (path[0] == '@') /* an abstract socket, outside the file system */
		address.sun_path[0] = '\0';
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	(void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
	close(fd);
}

int64_t semel_notify_watchdog_ms(void)
{
	const char *text = getenv("WATCHDOG_USEC");
	const char *whose = getenv("WATCHDOG_PID");
	long long micros = 0, pid = 0;

	if (whose && (!semel_text_to_int64(whose, 1, INT32_MAX, &pid) || pid != getpid()))
		return 0;
	if (!text || !semel_text_to_int64(text, 2000, INT64_MAX, &micros))
		return 0;
	return micros / 2000;
}
