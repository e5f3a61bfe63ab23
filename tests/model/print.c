/* SPDX-License-Identifier: Apache-2.0 */
/* Steps as commands for a person, and as input for a program. */
#include "model/steps.h"

#include "fault/failpoint.h"
#include "model/changes.h"

static const char *const behaviour_names[BEHAVIOURS] = { "well", "rejected", "retried" };

static void print_fault(const struct step *step, FILE *out)
{
	switch ((enum fault)step->fault) {
	case FAULT_KILL:
		fprintf(out, "   # killed before its commit no. %d", step->at + 1);
		break;
	case FAULT_POINT:
		fprintf(out, "   # SEMEL_FAILPOINT=%s:kill",
			semel_failpoint_rows()[step->at % SEMEL_FP_COUNT].name);
		break;
	case FAULT_OUTAGE:
		fprintf(out, "   # the disk fails from its commit no. %d on, for this command",
			step->at + 1);
		break;
	case FAULT_MEANWHILE:
		fprintf(out, "   # at %s it is paused, and the next one runs meanwhile",
			semel_failpoint_rows()[step->at % SEMEL_FP_COUNT].name);
		break;
	case FAULT_NONE:
	case FAULT_COUNT:
		break;
	}
	fputc('\n', out);
}

static void print_replay(const struct setting *setting, const struct step *step, FILE *out)
{
	int aggregate = step->b % (AGGREGATES + 1), to = step->a % (SCOPES + 1);

	fprintf(out, "semel replay");
	if (aggregate > 0)
		fprintf(out, " --aggregate order:o-%d", aggregate);
	if (step->action == STEP_REPROCESS)
		fprintf(out, " --scope %s --reprocess", setting->scopes[step->a % SCOPES].scope);
	else if (to > 0)
		fprintf(out, " --scope %s", setting->scopes[to - 1].scope);
	if (step->c % 2 == 1)
		fprintf(out, " --max 1");
	if (step->action == STEP_REPROCESS && step->c / 2 % 2 == 1)
		fprintf(out, " --force");
}

static void print_force(const struct step *step, FILE *out)
{
	const char *copy = step->a % 2 == 0 ? "delayed copy" : "record, from the end,";

	if (step->action == STEP_LOSE)
		fprintf(out, "# the broker loses %s no. %d", copy, step->b + 1);
	else if (step->action == STEP_REPEAT)
		fprintf(out, "# the broker repeats %s no. %d", copy, step->b + 1);
	else if (step->action == STEP_POSTPONE)
		fprintf(out, "# the broker delays delayed copy no. %d by 30 s more", step->b + 1);
	else if (step->action == STEP_SAVE)
		fprintf(out, "cp store.db* broker.db* backup/");
	else
		fprintf(out, "cp backup/%s .   # with everything stopped",
			step->a % 3 == 0   ? "store.db*"
			: step->a % 3 == 1 ? "broker.db*"
					   : "*");
}

static void print_operator(const struct setting *setting, const struct step *step, FILE *out)
{
	switch ((enum action)step->action) {
	case STEP_DLQ_REPLAY:
		fprintf(out, "semel dlq replay   # no. %d of the pending ones", step->a + 1);
		break;
	case STEP_DLQ_DISCARD:
		fprintf(out, "semel dlq discard   # no. %d of the pending ones", step->a + 1);
		break;
	case STEP_REPLAY:
	case STEP_REPROCESS:
		print_replay(setting, step, out);
		break;
	case STEP_PRUNE:
		fprintf(out, "%ssemel prune   # dead-letters: 1h%s",
			step->a % 3 > 0 ? "sleep 2h; " : "", step->c == 3 ? ", outbox: 1h" : "");
		break;
	case STEP_PAUSE:
		fprintf(out, "semel pause/resume %s", setting->scopes[step->a % SCOPES].scope);
		break;
	case STEP_CHANGE:
		change_print(setting, step, out);
		break;
	case STEP_DROP:
		drop_print(setting, step, out);
		break;
	default:
		print_force(step, out);
		break;
	}
}

void step_print(const struct setting *setting, const struct step *step, FILE *out)
{
	int party = step->a % (2 + SCOPES * CONSUMERS);

	switch ((enum action)step->action) {
	case STEP_PUBLISH:
		fprintf(out,
			"semel publish --aggregate order:o-%d%s   # %sverdict of its handlers: %s",
			step_aggregate(step) + 1,
			step_aggregate(step) == AGGREGATES - 1 ? " --topic extra.events" : "",
			step->c == 3 ? "large; " : "", behaviour_names[step->b % BEHAVIOURS]);
		break;
	case STEP_RELAY:
		fprintf(out, "semel relay   # %d turns", step->a + 1);
		break;
	case STEP_CONSUME:
		fprintf(out, "semel consume --scope %s   # consumer %d, %d turns",
			setting->scopes[step->a % SCOPES].scope, step->b % CONSUMERS + 1,
			step->c + 1);
		break;
	case STEP_PASS:
		fprintf(out, "sleep %.1f", (double)step_span_ms(step) / 1000);
		break;
	case STEP_STOP:
		if (party == 0)
			fprintf(out, "# stop the relay");
		else if (party == STOP_ALL)
			fprintf(out, "# stop all");
		else
			fprintf(out, "# stop consumer %d of %s", (party - 1) / SCOPES + 1,
				setting->scopes[(party - 1) % SCOPES].scope);
		break;
	case STEP_VERDICT:
		fprintf(out, "# from now on event %d (modulo their number) is %s", step->a + 1,
			behaviour_names[step->b % BEHAVIOURS]);
		break;
	default:
		print_operator(setting, step, out);
		break;
	}
	print_fault(step, out);
}

void step_print_json(const struct step *step, FILE *out)
{
	static const char *const faults[FAULT_COUNT] = { "none", "kill", "point", "outage",
							 "meanwhile" };
	bool named = step->fault == FAULT_POINT || step->fault == FAULT_MEANWHILE;

	fprintf(out,
		"{\"step\":\"%s\",\"a\":%d,\"b\":%d,\"c\":%d,\"fault\":\"%s\",\"at\":\"%s\","
		"\"number\":%d}\n",
		step_name(step->action), step->a, step->b, step->c, faults[step->fault],
		named ? semel_failpoint_rows()[step->at % SEMEL_FP_COUNT].name : "", step->at);
}
