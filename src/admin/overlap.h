/* SPDX-License-Identifier: Apache-2.0 */
/* Does a text, such as a failure's reason, repeat something of a value that is hidden?
 *
 * Letters and digits are compared, in lower case and without what stands between them, so that
 * "4111-1111" and "4111 1111" are one value. The text is also read with its escapes undone
 * (\u0041, \x41, %41, &#65;), and as base64 and as hexadecimal digits; a value, with its escapes
 * undone, and decoded when all of it is base64 or hexadecimal. In doubt the answer is yes:
 *
 * - four characters in a row are enough, so that what is left of a value at the end of a cut text
 *   counts;
 * - a value of fewer than four characters counts as a word;
 * - a value without letters and digits, such as "#!$%", and a text above 64 KiB are not compared,
 *   nor more than 4096 numbers with a point or an exponent;
 * - characters beyond ASCII in both, whichever, are enough; in what is read as base64, a whole word
 *   of text that has two of them, or four in a row, for all words have some by accident.
 *
 * What was computed from a value (a sum, a hash, a translation) is not recognised.
 *
 * The work is linear in the text and the values, and nothing is kept of a value. */
#ifndef SEMEL_ADMIN_OVERLAP_H
#define SEMEL_ADMIN_OVERLAP_H

#include "base/text.h"

struct semel_overlap;

/* The text is read now, and not kept. NULL: no memory. */
struct semel_overlap *semel_overlap_new(struct semel_text text);
/* overlap may be NULL. */
void semel_overlap_free(struct semel_overlap *overlap);

/* Another value that is hidden: a text without its JSON escapes, or "true", "false", "null". */
void semel_overlap_compare(struct semel_overlap *overlap, struct semel_text value);
/* A JSON number, in whatever notation. */
void semel_overlap_compare_number(struct semel_overlap *overlap, struct semel_text number);
/* Something is hidden that cannot be compared. */
void semel_overlap_doubt(struct semel_overlap *overlap);

/* The text repeats something of a value, or may do so. */
bool semel_overlap_is_found(const struct semel_overlap *overlap);

#endif
