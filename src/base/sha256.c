/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sha256.h"

#include <string.h>

#define BLOCK 64

/* The fractional parts of the cube roots of the first 64 primes. */
static const uint32_t rounds[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2
};

static uint32_t turned(uint32_t word, unsigned by)
{
	return word >> by | word << (32 - by);
}

static void spread(const uint8_t block[BLOCK], uint32_t words[64])
{
	for (size_t i = 0; i < 16; i++)
		words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
			   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
	for (size_t i = 16; i < 64; i++) {
		uint32_t early = words[i - 15], late = words[i - 2];
		uint32_t first = turned(early, 7) ^ turned(early, 18) ^ early >> 3;
		uint32_t second = turned(late, 17) ^ turned(late, 19) ^ late >> 10;
		words[i] = words[i - 16] + first + words[i - 7] + second;
	}
}

static void mix(uint32_t state[8], const uint8_t block[BLOCK])
{
	uint32_t words[64], now[8];

	spread(block, words);
	memcpy(now, state, sizeof now);
	for (size_t i = 0; i < 64; i++) {
		uint32_t high = turned(now[4], 6) ^ turned(now[4], 11) ^ turned(now[4], 25);
		uint32_t choice = (now[4] & now[5]) ^ (~now[4] & now[6]);
		uint32_t one = now[7] + high + choice + rounds[i] + words[i];
		uint32_t low = turned(now[0], 2) ^ turned(now[0], 13) ^ turned(now[0], 22);
		uint32_t most = (now[0] & now[1]) ^ (now[0] & now[2]) ^ (now[1] & now[2]);
		memmove(now + 1, now, 7 * sizeof *now);
		now[4] += one;
		now[0] = one + low + most;
	}
	for (size_t i = 0; i < 8; i++)
		state[i] += now[i];
}

void semel_sha256(const void *data, size_t length, uint8_t digest_out[SEMEL_SHA256_SIZE])
{
	/* The fractional parts of the square roots of the first eight primes. */
	uint32_t state[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
			      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
	const uint8_t *at = data;
	size_t left = length;
	uint8_t last[2 * BLOCK] = { 0 };

	for (; left >= BLOCK; at += BLOCK, left -= BLOCK)
		mix(state, at);
	size_t end = left < BLOCK - 8 ? BLOCK : (size_t)2 * BLOCK;
	if (left > 0)
		memcpy(last, at, left);
	last[left] = 0x80;
	for (size_t i = 0; i < 8; i++)
		last[end - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
	for (size_t i = 0; i < end; i += BLOCK)
		mix(state, last + i);
	for (size_t i = 0; i < SEMEL_SHA256_SIZE; i++)
		digest_out[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
}
