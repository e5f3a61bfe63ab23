/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4), for names that are derived from a secret and must not reveal it. */
#ifndef SEMEL_BASE_SHA256_H
#define SEMEL_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SEMEL_SHA256_SIZE 32

void semel_sha256(const void *data, size_t length, uint8_t digest_out[SEMEL_SHA256_SIZE]);

#endif
