/* SPDX-License-Identifier: Apache-2.0 */
/* Planted bugs, for testing the checker. In every build that is shipped SEMEL_PLANTED is the
 * constant false and the compiler drops what stands behind it; only the test program
 * `semel-planted` is compiled with SEMEL_PLANT_BUGS and asks the environment (SEMEL_PLANT=NAME). */
#ifndef SEMEL_FAULT_PLANT_H
#define SEMEL_FAULT_PLANT_H

#include <stdbool.h>

#ifdef SEMEL_PLANT_BUGS
bool semel_planted(const char *bug);
#define SEMEL_PLANTED(bug) semel_planted(bug)
#else
#define SEMEL_PLANTED(bug) false
#endif

#endif
