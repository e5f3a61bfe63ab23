/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `semel doctor`, and what they find. One table (finding.c) names every check; store
 * and broker drivers run the checks that apply to them in their function `examine`, and change
 * nothing.
 *
 * To change here: this room uses base only. It knows checks and how findings are reported;
 * what is wrong with a store or a broker is known by its driver. sqlite.h is for the drivers that
 * stand on SQLite. */
#ifndef SEMEL_DIAGNOSE_FINDING_H
#define SEMEL_DIAGNOSE_FINDING_H

#include "base/env.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

/* In the order in which they are shown. */
enum semel_check {
	SEMEL_CHECK_STORE_REACHED,
	SEMEL_CHECK_STORE_VERSION,
	SEMEL_CHECK_STORE_SCHEMA,
	SEMEL_CHECK_STORE_RIGHTS,
	SEMEL_CHECK_STORE_SCHEMA_RIGHTS,
	SEMEL_CHECK_STORE_FILES,
	SEMEL_CHECK_STORE_SETTINGS,
	SEMEL_CHECK_STORE_CLOCK,
	SEMEL_CHECK_STORE_TRANSACTIONS,
	SEMEL_CHECK_STORE_ORDER,
	SEMEL_CHECK_STORE_DISK,
	SEMEL_CHECK_SLOT,
	SEMEL_CHECK_SLOT_LIMIT,
	SEMEL_CHECK_RELAY,
	SEMEL_CHECK_REFUSED,
	SEMEL_CHECK_RETENTION,
	SEMEL_CHECK_BROKER_REACHED,
	SEMEL_CHECK_BROKER_VERSION,
	SEMEL_CHECK_BROKER_RIGHTS,
	SEMEL_CHECK_BROKER_FILES,
	SEMEL_CHECK_BROKER_ALARM,
	SEMEL_CHECK_BROKER_DISK,
	SEMEL_CHECK_TOPOLOGY,
	SEMEL_CHECK_BINDINGS,
	SEMEL_CHECK_LIMITS,
	SEMEL_CHECK_CONSUMERS,
	SEMEL_CHECK_STUCK,
	SEMEL_CHECK_TOPICS,
	SEMEL_CHECK_SECRET_FILES,
	SEMEL_CHECK_COUNT
};

enum semel_severity {
	SEMEL_SEVERITY_FINE,   /* nothing to do */
	SEMEL_SEVERITY_ADVICE, /* delivery is safe, but an operator should know */
	SEMEL_SEVERITY_PROBLEM /* something does not work, or can be lost */
};

/* The texts live until the call returns. */
struct semel_finding {
	enum semel_check check;
	enum semel_severity severity;
	const char *text;
	const char *remedy; /* what to do; NULL when it is fine */
};

typedef void (*semel_finding_fn)(const struct semel_finding *finding, void *user);

/* One run of the checks: where findings go, and the settings of the user. */
struct semel_examination {
	semel_finding_fn report;
	void *user;
	const struct semel_env *env;
	bool relays, consumes;  /* what this user runs */
	const char *slot;       /* the change stream's */
	bool slot_required;     /* a relay is configured to read it */
	uint64_t slot_budget;   /* bytes */
	int64_t open_max_ms;    /* a transaction that is open for longer is reported */
	const char *management; /* URL of a broker's management; NULL: where it usually is */
};

/* "store-schema" and "the tables match this program". */
const char *semel_check_name(enum semel_check check);
const char *semel_check_description(enum semel_check check);
/* "fine", "advice", "problem" */
const char *semel_severity_name(enum semel_severity severity);

void semel_examination_fine(const struct semel_examination *examination, enum semel_check check,
			    const char *format, ...) SEMEL_PRINTF(3, 4);
/* remedy: what to do; NULL when it is fine. */
void semel_examination_report(const struct semel_examination *examination, enum semel_check check,
			      enum semel_severity severity, const char *text, const char *remedy);
/* Reports a failed call as a problem: the remedy is the text in brackets at the end of its
 * message. */
void semel_examination_failed(const struct semel_examination *examination, enum semel_check check,
			      const semel_error *error);

/* Pure: the severity of having only this much free disk space. */
enum semel_severity semel_disk_space_severity(uint64_t free_bytes, uint64_t total_bytes);
void semel_examination_disk_space(const struct semel_examination *examination,
				  enum semel_check check, const char *where, uint64_t free_bytes,
				  uint64_t total_bytes);
/* Checks the disk that this path is on. */
void semel_examination_disk(const struct semel_examination *examination, enum semel_check check,
			    const char *path);
/* Pure: the severity of a clock that is this far ahead of ours (below zero: behind). */
enum semel_severity semel_clock_skew_severity(int64_t ahead_ms);

#endif
