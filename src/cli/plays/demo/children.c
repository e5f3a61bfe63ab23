/* SPDX-License-Identifier: Apache-2.0 */
/* The relay and the subscriptions of the demo, each a process of this very program. */
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

struct semel_text semel_demo_run(struct semel_demo *demo, const char *const *words,
				 const char *failpoint)
{
	struct semel_sandbox_exit end = { 0 };
	int expected = failpoint ? KILLED : 0;
	if (demo->status != SEMEL_OK)
		return (struct semel_text){ NULL, 0 };
	demo->status = semel_sandbox_run(&demo->sandbox, words, failpoint, &end, demo->error);
	if (demo->status != SEMEL_OK)
		return (struct semel_text){ NULL, 0 };
	demo->crashes += end.exit_code == KILLED;
	semel_demo_expect(demo, end.exit_code == expected,
			  "semel %s exited with %d, expected %d: %s", words[0], end.exit_code,
			  expected, end.error_output);
	return end.output;
}

void semel_demo_relay(struct semel_demo *demo, const char *failpoint)
{
	const char *const words[] = { "relay", "--drain", "--window", WINDOW, NULL };
	(void)semel_demo_run(demo, words, failpoint);
}

int64_t semel_demo_json_number(struct semel_text object, const char *name)
{
	json_t *root = json_loadb(semel_text_chars(object), object.length, 0, NULL);
	int64_t number = json_integer_value(json_object_get(root, name));
	json_decref(root);
	return number;
}

struct semel_demo_counts semel_demo_consume(struct semel_demo *demo,
					    const struct semel_shop_subscription *subscription,
					    const char *failpoint)
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
	struct semel_text output = semel_demo_run(demo, words, failpoint);
	if (demo->status != SEMEL_OK || failpoint) /* a killed child prints nothing */
		return (struct semel_demo_counts){ 0 };
	struct semel_demo_counts counts = {
		.done = semel_demo_json_number(output, "done"),
		.duplicate = semel_demo_json_number(output, "duplicate"),
		.dead = semel_demo_json_number(output, "dead"),
	};
	demo->duplicates += counts.duplicate;
	return counts;
}
