/* SPDX-License-Identifier: Apache-2.0 */
/* Who plays: relay and services, each a process of this very program. */
#include "cli/plays/demo/demo.h"

#include "base/error.h"

#include <jansson.h>
#include <signal.h>

#define KILLED (128 + SIGKILL)
#define BATCH  "10" /* small, so that a kill comes in the middle */
#define WINDOW "20"

const struct semel_demo_crash semel_demo_crashes[SEMEL_SHOP_SUBSCRIPTIONS] = {
	[SEMEL_SHOP_BILLING] = { "consume.after-commit:kill@3", "after commit, before ack" },
	[SEMEL_SHOP_FULFILLMENT] = { "consume.after-effect:kill@26",
				     "after effect, before commit" },
	[SEMEL_SHOP_AUDIT] = { "consume.after-claim:kill@4", "after claim, before effect" },
};

semel_status semel_demo_run(struct semel_demo *demo, const char *const *words,
			    const char *failpoint, struct semel_text *answer_out)
{
	struct semel_sandbox_exit end;
	semel_status status =
		semel_sandbox_run(&demo->sandbox, words, failpoint, &end, demo->error);
	if (status != SEMEL_OK)
		return status;
	demo->crashes += end.exit_code == KILLED;
	int wanted = failpoint ? KILLED : 0;
	semel_demo_expect(demo, end.exit_code == wanted, "semel %s ended with %d, not %d: %s",
			  words[0], end.exit_code, wanted, end.error_output);
	if (answer_out)
		*answer_out = end.output;
	return SEMEL_OK;
}

semel_status semel_demo_relay(struct semel_demo *demo, const char *failpoint)
{
	const char *const words[] = { "relay", "--drain", "--window", WINDOW, NULL };
	return semel_demo_run(demo, words, failpoint, NULL);
}

int64_t semel_demo_json_number(struct semel_text object, const char *name)
{
	json_t *root = json_loadb(semel_text_chars(object), object.length, 0, NULL);
	int64_t number = json_integer_value(json_object_get(root, name));
	json_decref(root);
	return number;
}

semel_status semel_demo_consume(struct semel_demo *demo,
				const struct semel_shop_subscription *subscription,
				const char *failpoint, struct semel_demo_counts *answer_out)
{
	const char *second = subscription->effects[1];
	const char *const words[] = { "consume",
				      "--drain",
				      "--json",
				      "--scope",
				      subscription->scope,
				      "--topic",
				      "order.events",
				      "--batch",
				      BATCH,
				      "--sql",
				      subscription->effects[0],
				      second ? "--sql" : NULL,
				      second,
				      NULL };
	struct semel_text answer;
	semel_status status = semel_demo_run(demo, words, failpoint, &answer);
	if (status != SEMEL_OK || !answer_out)
		return status;
	*answer_out = (struct semel_demo_counts){
		.done = semel_demo_json_number(answer, "done"),
		.duplicate = semel_demo_json_number(answer, "duplicate"),
		.dead = semel_demo_json_number(answer, "dead"),
	};
	demo->duplicates += answer_out->duplicate;
	return SEMEL_OK;
}
