/* SPDX-License-Identifier: Apache-2.0 */
/* The examples of the standard, and lengths around the end of a block. */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static void digests(const char *text, size_t length, const char *wanted)
{
	uint8_t digest[SEMEL_SHA256_SIZE];
	char shown[2 * SEMEL_SHA256_SIZE + 1];

	semel_sha256(text, length, digest);
	for (size_t i = 0; i < sizeof digest; i++)
		snprintf(shown + 2 * i, 3, "%02x", digest[i]);
	assert_string_equal(shown, wanted);
}

static void the_examples_of_the_standard_hold(void **state)
{
	(void)state;
	const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
	digests("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
	digests("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	digests(two, strlen(two),
		"248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void every_length_around_a_block_is_padded(void **state)
{
	(void)state;
	char text[65];
	memset(text, 'a', sizeof text);
	digests(text, 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
	digests(text, 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
	digests(text, 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
	digests(text, 65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_examples_of_the_standard_hold),
		cmocka_unit_test(every_length_around_a_block_is_padded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
