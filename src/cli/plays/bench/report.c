/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a bench, as text and as JSON. A missed goal is shown as missed. */
#include "cli/plays/bench/bench.h"

#include "base/buffer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 40

static bool is_within(double ratio, double goal)
{
	return ratio <= goal && ratio >= 1 / goal;
}

bool semel_bench_is_met(const struct semel_bench_row *row)
{
	switch (row->kind) {
	case SEMEL_BENCH_AT_LEAST:
		return row->ratio >= row->goal;
	case SEMEL_BENCH_AT_MOST:
		return is_within(row->ratio, row->goal);
	case SEMEL_BENCH_BELOW:
		return row->left < row->goal && row->right < row->goal;
	case SEMEL_BENCH_NO_GOAL:
		break;
	}
	return true;
}

/* 1234567 → "1,234,567" */
static void with_commas(double value, char *text_out, size_t size)
{
	char digits[32];
	int length = snprintf(digits, sizeof digits, "%.0f", value);
	size_t at = 0;
	for (int i = 0; i < length && at + 2 < size; i++) {
		if (i > 0 && (length - i) % 3 == 0)
			text_out[at++] = ',';
		text_out[at++] = digits[i];
	}
	text_out[at] = '\0';
}

static void goal_text(const struct semel_bench_row *row, struct semel_buffer *buffer)
{
	const char *met = semel_bench_is_met(row) ? "met" : "MISSED";
	switch (row->kind) {
	case SEMEL_BENCH_AT_LEAST:
		semel_buffer_printf(buffer, "  at least %.2f   %s\n", row->goal, met);
		return;
	case SEMEL_BENCH_AT_MOST:
		semel_buffer_printf(buffer, "  within %.0f %%      %s\n", (row->goal - 1) * 100,
				    met);
		return;
	case SEMEL_BENCH_BELOW:
		semel_buffer_printf(buffer, "  below %.0f MB     %s\n", row->goal, met);
		return;
	case SEMEL_BENCH_NO_GOAL:
		break;
	}
	semel_buffer_string(buffer, "  (no goal)\n");
}

static void rate_text(const struct semel_bench_row *row, struct semel_buffer *buffer)
{
	char left[32], right[32];
	with_commas(row->left, left, sizeof left);
	with_commas(row->right, right, sizeof right);
	semel_buffer_printf(buffer, "%-*s %11s %11s %7.2f", NAME_WIDTH, row->name, left, right,
			    row->ratio);
	goal_text(row, buffer);
}

static void growth_text(const struct semel_bench_row *row, struct semel_buffer *buffer)
{
	char left[32], right[32];
	snprintf(left, sizeof left, "%.1f %s", row->left, row->unit);
	snprintf(right, sizeof right, "%.1f %s", row->right, row->unit);
	/* µ is one character in two bytes */
	int extra = strcmp(row->unit, "µs") == 0;
	semel_buffer_printf(buffer, "%-*s %*s %*s %7.2f", NAME_WIDTH, row->name, 11 + extra, left,
			    11 + extra, right, row->ratio);
	goal_text(row, buffer);
}

void semel_bench_text(const struct semel_bench *bench, struct semel_buffer *buffer)
{
	char small[32], big[32];
	semel_buffer_printf(buffer, "%-*s %11s %11s %7s  %s\n", NAME_WIDTH,
			    "the same durable work, events per second", "semel", "bare sqlite",
			    "ratio", "goal");
	for (size_t i = 0; i < bench->rate_count; i++)
		rate_text(&bench->rates[i], buffer);
	with_commas(SEMEL_BENCH_SMALL, small, sizeof small);
	with_commas((double)bench->backlog, big, sizeof big);
	semel_buffer_printf(buffer, "\n%-*s %11s %11s %7s  %s\n", NAME_WIDTH,
			    "by number of waiting events", small, big, "ratio", "goal");
	for (size_t i = 0; i < bench->growth_count; i++)
		growth_text(&bench->growth[i], buffer);
	semel_buffer_printf(
		buffer, "\nBoth sides took turns; a ratio is the median of %" PRIu32 " rounds.\n",
		bench->rounds);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void row_json(const struct semel_bench_row *row, const char *const names[2],
		     struct semel_buffer *buffer)
{
	static const char *const kinds[] = {
		[SEMEL_BENCH_NO_GOAL] = NULL,
		[SEMEL_BENCH_AT_LEAST] = "ratio at least",
		[SEMEL_BENCH_AT_MOST] = "ratio and its inverse at most",
		[SEMEL_BENCH_BELOW] = "both below",
	};
	semel_buffer_string(buffer, "{\"name\":");
	semel_buffer_json(buffer, semel_text_of(row->name));
	semel_buffer_string(buffer, ",\"unit\":");
	semel_buffer_json(buffer, semel_text_of(row->unit ? row->unit : "events/s"));
	semel_buffer_printf(buffer,
			    ",\"%s\":%.3f,\"%s\":%.3f,\"ratio\":%.4f,\"goalKind\":", names[0],
			    row->left, names[1], row->right, row->ratio);
	semel_buffer_json_or_null(buffer, semel_text_of(kinds[row->kind]));
	if (row->kind == SEMEL_BENCH_NO_GOAL)
		semel_buffer_string(buffer, ",\"goal\":null,\"met\":null}");
	else
		semel_buffer_printf(buffer, ",\"goal\":%.2f,\"met\":%s}", row->goal,
				    semel_bench_is_met(row) ? "true" : "false");
}

static void rows_json(const struct semel_bench_row *rows, size_t count, const char *const names[2],
		      struct semel_buffer *buffer)
{
	for (size_t i = 0; i < count; i++) {
		semel_buffer_string(buffer, i ? ",\n " : "\n ");
		row_json(&rows[i], names, buffer);
	}
}

void semel_bench_json(const struct semel_bench *bench, struct semel_buffer *buffer)
{
	static const char *const sides[] = { "semel", "bare" };
	static const char *const sizes[] = { "small", "big" };
	semel_buffer_printf(buffer,
			    "{\"rounds\":%" PRIu32 ",\"turns\":%" PRIu32
			    ",\"smallBacklog\":%d,\"bigBacklog\":%" PRIu64 ",\"rates\":[",
			    bench->rounds, bench->turns, SEMEL_BENCH_SMALL, bench->backlog);
	rows_json(bench->rates, bench->rate_count, sides, buffer);
	semel_buffer_string(buffer, "],\n\"growth\":[");
	rows_json(bench->growth, bench->growth_count, sizes, buffer);
	semel_buffer_string(buffer, "]}\n");
}
