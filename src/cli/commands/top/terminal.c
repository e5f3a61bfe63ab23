/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal, by escape sequences that every terminal understands. */
#include "cli/commands/top/top.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

static struct termios before;
static bool keys; /* the keyboard was switched too */

bool semel_top_enter(void)
{
	struct termios ours;

	if (!isatty(STDOUT_FILENO))
		return false;
	keys = tcgetattr(STDIN_FILENO, &before) == 0;
	if (keys) {
		ours = before;
		ours.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
		ours.c_cc[VMIN] = 0;
		ours.c_cc[VTIME] = 0;
		ours.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped program would leave the shell on
						       the alternate screen */
		keys = tcsetattr(STDIN_FILENO, TCSANOW, &ours) == 0;
	}
	fputs(ENTER, stdout);
	fflush(stdout);
	return true;
}

void semel_top_leave(void)
{
	fputs(LEAVE, stdout);
	fflush(stdout);
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

struct semel_top_size semel_top_size(void)
{
	struct winsize size = { 0 };

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
		return (struct semel_top_size){ .columns = 80, .rows = 24 };
	return (struct semel_top_size){ .columns = size.ws_col, .rows = size.ws_row };
}

/* How many bytes of the line fit the width: continuation bytes take no column. */
static size_t bytes_within(const char *line, size_t length, int columns)
{
	size_t at = 0;
	int used = 0;

	for (; at < length; at++) {
		if (((unsigned char)line[at] & 0xC0) == 0x80)
			continue;
		if (used == columns)
			break;
		used++;
	}
	return at;
}

void semel_top_show(const char *lines, struct semel_top_size size)
{
	fputs("\033[H", stdout);
	for (int row = 0; row < size.rows && *lines; row++) {
		size_t length = strcspn(lines, "\n");
		size_t shown = bytes_within(lines, length, size.columns);
		printf("%s%.*s\033[K", row > 0 ? "\r\n" : "", (int)shown, lines);
		lines += length + (lines[length] == '\n');
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

bool semel_top_is_left(void)
{
	char pressed[64];
	bool left = false;

	while (keys) {
		ssize_t count = read(STDIN_FILENO, pressed, sizeof pressed);
		if (count <= 0)
			break;
		left = left || memchr(pressed, 'q', (size_t)count) ||
		       memchr(pressed, 'Q', (size_t)count);
	}
	return left;
}
