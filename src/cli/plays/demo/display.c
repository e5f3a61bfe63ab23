/* SPDX-License-Identifier: Apache-2.0 */
/* What the demo prints: short lines, two columns, colour on a terminal only. */
#include "cli/plays/demo/demo.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FACT_WIDTH 35

static const char *const codes[] = {
	[SEMEL_DEMO_PLAIN] = "",         [SEMEL_DEMO_BOLD] = "\033[1m",
	[SEMEL_DEMO_DIM] = "\033[2m",    [SEMEL_DEMO_GOOD] = "\033[32m",
	[SEMEL_DEMO_BAD] = "\033[1;31m",
};

bool semel_demo_has_colour(void)
{
	const char *term = getenv("TERM"), *none = getenv("NO_COLOR");
	return isatty(STDOUT_FILENO) && !(none && none[0]) && term && strcmp(term, "dumb") != 0;
}

/* One line, flushed: the next one may take a moment. */
SEMEL_PRINTF(4, 0)
static void print_styled(const struct semel_demo *demo, enum semel_demo_style style,
			 const char *before, const char *format, va_list list)
{
	bool styled = demo->colour && style != SEMEL_DEMO_PLAIN;
	fputs(styled ? codes[style] : "", stdout);
	fputs(before, stdout);
	vprintf(format, list);
	fputs(styled ? "\033[0m\n" : "\n", stdout);
	fflush(stdout);
}

void semel_demo_print(const struct semel_demo *demo, enum semel_demo_style style,
		      const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, style, "   ", format, list);
	va_end(list);
}

void semel_demo_command(const struct semel_demo *demo, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_DIM, "   $ ", format, list);
	va_end(list);
}

static void heading(const struct semel_demo *demo, const char *format, ...) SEMEL_PRINTF(2, 3);
static void heading(const struct semel_demo *demo, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_BOLD, "", format, list);
	va_end(list);
}

void semel_demo_print_overview(const struct semel_demo *demo)
{
	static const char *const lines[] = {
		"shop ──► outbox ──► relay ──► broker ──┬──► billing      writes invoices",
		"                                       ├──► fulfillment  reserves, ships",
		"                                       └──► audit        keeps a trail",
	};
	heading(demo, "Semel: a shop, three services, and a series of failures\n");
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
		semel_demo_print(demo, SEMEL_DEMO_PLAIN, "%s", lines[i]);
}

void semel_demo_step(const struct semel_demo *demo, int number, const char *what)
{
	printf("\n");
	heading(demo, "%d. %s", number, what);
}

void semel_demo_fact(const char *done, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf("   %-*s ", FACT_WIDTH, done);
	vprintf(format, list);
	printf("\n");
	fflush(stdout);
	va_end(list);
}

void semel_demo_expect(struct semel_demo *demo, bool holds, const char *format, ...)
{
	if (holds)
		return;
	demo->failed = true;
	va_list list;
	va_start(list, format);
	print_styled(demo, SEMEL_DEMO_BAD, "   DOES NOT ADD UP: ", format, list);
	va_end(list);
}
