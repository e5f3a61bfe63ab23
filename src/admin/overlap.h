/* SPDX-License-Identifier: Apache-2.0 */
/* Does a text, such as the reason of a failure, repeat some part of a hidden value?
 *
 * Letters and digits are compared, in lower case and without the characters between them, so that
 * "4111-1111" and "4111 1111" are the same value. The text is also read with its escapes undone
 * (\u0041, \x41, %41, &#65;), as base64 and as hexadecimal digits; a value also with its escapes
 * undone, and decoded if all of it is base64 or hexadecimal. In doubt the answer is yes:
 *
 * - four characters in a row are enough, so that the rest of a value at the end of a cut text
 *   counts;
 * - a value of fewer than four characters counts as a word;
 * - a value without letters and digits, such as "#!$%", a text above 64 KiB, and numbers with a
 *   point or an exponent beyond the first 4096 are not compared: the answer is yes;
 * - characters beyond ASCII in both are enough, whichever they are; in text decoded from base64,
 *   only a whole word of text with two of them, or four in a row, because any word decodes to some
 *   by accident.
 *
 * What was computed from a value (a sum, a hash, a translation) is not recognised.
 *
 * The work is linear in the text and the values, and no value is kept. */
#ifndef SEMEL_ADMIN_OVERLAP_H
#define SEMEL_ADMIN_OVERLAP_H

#include "base/text.h"

struct semel_overlap;

/* Reads the text, and does not keep it. NULL: out of memory. */
struct semel_overlap *semel_overlap_new(struct semel_text text);
/* overlap may be NULL. */
void semel_overlap_free(struct semel_overlap *overlap);

/* Compares a hidden value: a string without its JSON escapes, or "true", "false", "null". */
void semel_overlap_compare(struct semel_overlap *overlap, struct semel_text value);
/* Compares a hidden JSON number, in any notation. */
void semel_overlap_compare_number(struct semel_overlap *overlap, struct semel_text number);
/* Something is hidden that cannot be compared: the answer is yes. */
void semel_overlap_doubt(struct semel_overlap *overlap);

/* Does the text repeat some part of a value, or may it do so? */
bool semel_overlap_is_found(const struct semel_overlap *overlap);

#endif
