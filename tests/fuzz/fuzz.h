/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz programs share. A broken promise ends the program, so that libFuzzer keeps the
 * input; it must not vanish with NDEBUG as assert does. */
#ifndef SEMEL_FUZZ_FUZZ_H
#define SEMEL_FUZZ_FUZZ_H

#include "base/text.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__,         \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy with a NUL behind, as the texts of the program have one; free it. */
static inline char *fuzz_copy(const uint8_t *data, size_t size)
{
	char *copy = malloc(size + 1);
	PROMISE(copy);
	if (size > 0)
		memcpy(copy, data, size);
	copy[size] = '\0';
	return copy;
}

#endif
