/* SPDX-License-Identifier: Apache-2.0 */
/* Explores the real library by sequences of steps, and shortens those that break the promise.
 *
 *   semel_model [--kind chance|short|one|print] [--seconds N] [--seed N] [--steps N]
 *               [--setting NAME] [--without STEP] [--plant BUG] [--verbose]
 *               [--often STEP[:B]] [--sequence NUMBERS]
 *
 * Exits with 0 if nothing is broken; with --plant, if something is. */
#include "model/explore.h"

#include "observe/log.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

static const struct option long_options[] = {
	{ "seconds", required_argument, NULL, 's' },
	{ "seed", required_argument, NULL, 'r' },
	{ "steps", required_argument, NULL, 'n' },
	{ "setting", required_argument, NULL, 'c' },
	{ "plant", required_argument, NULL, 'p' },
	{ "kind", required_argument, NULL, 'k' },
	{ "without", required_argument, NULL, 'w' },
	{ "often", required_argument, NULL, 'o' },
	{ "sequence", required_argument, NULL, 'q' },
	{ "verbose", no_argument, NULL, 'v' },
	{ 0 },
};

int main(int count, char **words)
{
	struct exploration exploration = {
		.seconds = 60, .seed = 1, .steps = 40, .setting = -1, .kind = "chance"
	};
	bool verbose = false;
	int option;

	while ((option = getopt_long(count, words, "", long_options, NULL)) != -1) {
		switch (option) {
		case 's':
			exploration.seconds = atof(optarg);
			break;
		case 'r':
			exploration.seed = strtoull(optarg, NULL, 10);
			break;
		case 'n':
			exploration.steps = atoi(optarg);
			break;
		case 'c':
			for (int i = 0; i < setting_count; i++)
				if (strcmp(settings[i].name, optarg) == 0)
					exploration.setting = i;
			break;
		case 'p':
			setenv("SEMEL_PLANT", optarg, 1);
			exploration.plant = optarg;
			break;
		case 'k':
			exploration.kind = optarg;
			break;
		case 'o':
			if (!step_favour(optarg))
				return 64;
			break;
		case 'q':
			exploration.steps_given = optarg;
			break;
		case 'w':
			if (!step_forbid(optarg))
				return 64;
			break;
		case 'v':
			verbose = true;
			break;
		default:
			return 64;
		}
	}
	if (semel_log_setup(verbose ? SEMEL_LOG_DEBUG : SEMEL_LOG_ERROR, NULL) != SEMEL_OK)
		return 70;
	return explore(&exploration);
}
