/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a shorter sequence that still breaks the promise in the same way. */
#include "model/explore.h"

#include <string.h>
#include <time.h>

#define PATIENCE_S 30

static void without(const struct sequence *from, int first, int count, struct sequence *out)
{
	*out = *from;
	memmove(&out->steps[first], &from->steps[first + count],
		(size_t)(from->count - first - count) * sizeof out->steps[0]);
	out->count = from->count - count;
}

static bool drop_steps(struct sequence *sequence, bool (*breaks)(const struct sequence *),
		       time_t until)
{
	struct sequence shorter;
	bool dropped = false;

	for (int size = sequence->count / 2; size >= 1; size /= 2)
		for (int at = 0; at + size <= sequence->count && time(NULL) < until;) {
			without(sequence, at, size, &shorter);
			if (breaks(&shorter)) {
				*sequence = shorter;
				dropped = true;
			} else {
				at += size;
			}
		}
	return dropped;
}

static bool simplify(struct sequence *sequence, bool (*breaks)(const struct sequence *),
		     time_t until)
{
	bool simpler = false;

	for (int i = 0; i < sequence->count; i++)
		for (int field = 0; field < 5 && time(NULL) < until; field++) {
			struct sequence other = *sequence;
			struct step *step = &other.steps[i];
			uint8_t *fields[] = { &step->fault, &step->at, &step->b, &step->c,
					      &step->a };
			if (*fields[field] == 0)
				continue;
			*fields[field] = 0;
			if (breaks(&other)) {
				*sequence = other;
				simpler = true;
			}
		}
	return simpler;
}

void sequence_shorten(struct sequence *sequence, bool (*breaks)(const struct sequence *sequence))
{
	time_t until = time(NULL) + PATIENCE_S;

	while ((drop_steps(sequence, breaks, until) || simplify(sequence, breaks, until)) &&
	       time(NULL) < until)
		;
}

void sequence_write(const struct sequence *sequence, FILE *out)
{
	fprintf(out, "%d.%llu.%d", sequence->setting, (unsigned long long)sequence->seed,
		sequence->discards);
	for (int i = 0; i < sequence->count; i++) {
		const struct step *step = &sequence->steps[i];
		fprintf(out, "/%d.%d.%d.%d.%d.%d", step->action, step->a, step->b, step->c,
			step->fault, step->at);
	}
}

bool sequence_read(const char *text, struct sequence *sequence_out)
{
	unsigned long long seed;
	unsigned numbers[6];
	int setting, discards, length;

	*sequence_out = (struct sequence){ 0 };
	if (sscanf(text, "%d.%llu.%d%n", &setting, &seed, &discards, &length) != 3)
		return false;
	*sequence_out = (struct sequence){ .setting = setting, .seed = seed, .discards = discards };
	for (text += length; *text == '/'; text += length) {
		if (sequence_out->count == SEQUENCE_MAX ||
		    sscanf(text, "/%u.%u.%u.%u.%u.%u%n", &numbers[0], &numbers[1], &numbers[2],
			   &numbers[3], &numbers[4], &numbers[5], &length) != 6)
			return false;
		sequence_out->steps[sequence_out->count++] =
			(struct step){ (uint8_t)numbers[0], (uint8_t)numbers[1],
				       (uint8_t)numbers[2], (uint8_t)numbers[3],
				       (uint8_t)numbers[4], (uint8_t)numbers[5] };
	}
	return *text == '\0' && setting >= 0 && setting < setting_count;
}

void sequence_print(const struct sequence *sequence, FILE *out)
{
	const struct setting *setting = &settings[sequence->setting];

	fprintf(out, "# setting %s; at rest what is dead is %s\n", setting->name,
		sequence->discards ? "discarded" : "replayed, with mended handlers");
	for (int i = 0; i < sequence->count; i++) {
		fprintf(out, "#   ");
		step_print(setting, &sequence->steps[i], out);
	}
}
