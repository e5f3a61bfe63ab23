/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SEMEL_BASE_BASE64_H
#define SEMEL_BASE_BASE64_H

/* What a character of Base64 (RFC 4648, section 4) stands for; -1: it is none. */
static inline int semel_base64_digit(unsigned char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

#endif
