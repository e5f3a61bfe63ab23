/* SPDX-License-Identifier: Apache-2.0 */
/* Options in which zero (NULL, false) means the default. */
#ifndef SEMEL_BASE_DEFAULTS_H
#define SEMEL_BASE_DEFAULTS_H

#define SEMEL_OR_DEFAULT(options, defaults, field)                                                 \
	((options)->field = (options)->field ? (options)->field : (defaults).field)

#endif
