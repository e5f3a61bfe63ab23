/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SEMEL_VERSION_H
#define SEMEL_VERSION_H

#include <semel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SEMEL_VERSION "0.1.0"

/* The version of the linked library; SEMEL_VERSION is that of the headers. */
SEMEL_API const char *semel_version(void);

#ifdef __cplusplus
}
#endif
#endif
