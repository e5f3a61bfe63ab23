/* SPDX-License-Identifier: Apache-2.0 */
#include "diagnose/finding.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define MIB                   (UINT64_C(1) << 20)
#define FREE_NEEDED           (256 * MIB)
#define FREE_ADVISED          (2048 * MIB)
#define CLOCK_SKEW_FINE_MS    1000
#define CLOCK_SKEW_PROBLEM_MS 60000
#define TEXT_SIZE             512

static const struct {
	const char *name, *description;
} checks[SEMEL_CHECK_COUNT] = {
	[SEMEL_CHECK_STORE_REACHED] = { "store-reached", "the store answers" },
	[SEMEL_CHECK_STORE_VERSION] = { "store-version", "the store's version is supported" },
	[SEMEL_CHECK_STORE_SCHEMA] = { "store-schema", "the tables match this program" },
	[SEMEL_CHECK_STORE_RIGHTS] = { "store-rights", "this user has the permissions that relay "
						       "and consumers need" },
	[SEMEL_CHECK_STORE_SCHEMA_RIGHTS] = { "store-schema-rights",
					      "other users have no permissions on the schema of "
					      "the tables" },
	[SEMEL_CHECK_STORE_FILES] = { "store-files", "other users cannot open the store's files" },
	[SEMEL_CHECK_STORE_SETTINGS] = { "store-settings", "commits survive a crash" },
	[SEMEL_CHECK_STORE_CLOCK] = { "store-clock",
				      "the clocks of the store and this machine agree" },
	[SEMEL_CHECK_STORE_TRANSACTIONS] = { "store-transactions", "no long-running transaction" },
	[SEMEL_CHECK_STORE_ORDER] = { "store-order",
				      "events of an aggregate are published in commit order" },
	[SEMEL_CHECK_STORE_DISK] = { "store-disk", "the store's disk has free space" },
	[SEMEL_CHECK_SLOT] = { "slot", "the replication slot can be read, and retains WAL within "
				       "its budget" },
	[SEMEL_CHECK_SLOT_LIMIT] = { "slot-limit", "a slot without a reader cannot fill the disk" },
	[SEMEL_CHECK_RELAY] = { "relay", "a relay publishes waiting events" },
	[SEMEL_CHECK_REFUSED] = { "refused", "the broker accepts what is published" },
	[SEMEL_CHECK_RETENTION] = { "retention",
				    "the inbox retention covers every event that can be replayed" },
	[SEMEL_CHECK_BROKER_REACHED] = { "broker-reached", "the broker answers" },
	[SEMEL_CHECK_BROKER_VERSION] = { "broker-version", "the broker's version is supported" },
	[SEMEL_CHECK_BROKER_RIGHTS] = { "broker-rights",
					"this user has the permissions that it needs" },
	[SEMEL_CHECK_BROKER_FILES] = { "broker-files",
				       "other users cannot open the broker's files" },
	[SEMEL_CHECK_BROKER_ALARM] = { "broker-alarm", "the broker accepts events" },
	[SEMEL_CHECK_BROKER_DISK] = { "broker-disk", "the broker's disk has free space" },
	[SEMEL_CHECK_TOPOLOGY] = { "topology", "queues and topics exist, are durable, and have the "
					       "right type" },
	[SEMEL_CHECK_BINDINGS] = { "bindings", "every queue gets the events of its topic" },
	[SEMEL_CHECK_LIMITS] = { "limits", "no queue drops events" },
	[SEMEL_CHECK_CONSUMERS] = { "consumers", "every subscription has a running consumer" },
	[SEMEL_CHECK_STUCK] = { "stuck", "no waiting event is stuck" },
	[SEMEL_CHECK_TOPICS] = { "topics", "every published topic has a subscription, and every "
					   "subscribed topic has events" },
	[SEMEL_CHECK_SECRET_FILES] = { "secret-files", "other users cannot read passwords, tokens "
						       "and keys" },
};

static const char *const severity_names[] = { "fine", "advice", "problem" };

const char *semel_check_name(enum semel_check check)
{
	assert(check < SEMEL_CHECK_COUNT);
	return checks[check].name;
}

const char *semel_check_description(enum semel_check check)
{
	assert(check < SEMEL_CHECK_COUNT);
	return checks[check].description;
}

const char *semel_severity_name(enum semel_severity severity)
{
	assert(severity <= SEMEL_SEVERITY_PROBLEM);
	return severity_names[severity];
}

void semel_examination_report(const struct semel_examination *examination, enum semel_check check,
			      enum semel_severity severity, const char *text, const char *remedy)
{
	const struct semel_finding finding = { check, severity, text, remedy };

	assert(severity == SEMEL_SEVERITY_FINE || remedy != NULL);
	examination->report(&finding, examination->user);
}

void semel_examination_fine(const struct semel_examination *examination, enum semel_check check,
			    const char *format, ...)
{
	char text[TEXT_SIZE];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	semel_examination_report(examination, check, SEMEL_SEVERITY_FINE, text, NULL);
}

void semel_examination_failed(const struct semel_examination *examination, enum semel_check check,
			      const semel_error *error)
{
	char text[SEMEL_ERROR_TEXT_MAX];
	const char *remedy = "fix the reported error, then run semel doctor again";

	snprintf(text, sizeof text, "%s", error->text);
	size_t length = strlen(text);
	char *bracket = strstr(text, " (");
	for (char *next = bracket; next != NULL; next = strstr(next + 1, " ("))
		bracket = next;
	if (bracket != NULL && text[length - 1] == ')') {
		text[length - 1] = '\0';
		*bracket = '\0';
		remedy = bracket + 2;
	}
	semel_examination_report(examination, check, SEMEL_SEVERITY_PROBLEM, text, remedy);
}

/* ---- disk and clock -------------------------------------------------------------------------- */

enum semel_severity semel_disk_space_severity(uint64_t free_bytes, uint64_t total_bytes)
{
	if (free_bytes < FREE_NEEDED)
		return SEMEL_SEVERITY_PROBLEM;
	return free_bytes < FREE_ADVISED && free_bytes < total_bytes / 10 ? SEMEL_SEVERITY_ADVICE
									  : SEMEL_SEVERITY_FINE;
}

void semel_examination_disk_space(const struct semel_examination *examination,
				  enum semel_check check, const char *where, uint64_t free_bytes,
				  uint64_t total_bytes)
{
	enum semel_severity severity = semel_disk_space_severity(free_bytes, total_bytes);
	char text[TEXT_SIZE];

	snprintf(text, sizeof text, "%.300s: %llu MB free", where,
		 (unsigned long long)(free_bytes / MIB));
	semel_examination_report(examination, check, severity, text,
				 severity == SEMEL_SEVERITY_FINE
					 ? NULL
					 : "free disk space, or remove old rows: semel prune");
}

void semel_examination_disk(const struct semel_examination *examination, enum semel_check check,
			    const char *path)
{
	struct statvfs disk;

	if (statvfs(path, &disk) == 0)
		semel_examination_disk_space(examination, check, path,
					     (uint64_t)disk.f_bavail * disk.f_frsize,
					     (uint64_t)disk.f_blocks * disk.f_frsize);
}

enum semel_severity semel_clock_skew_severity(int64_t ahead_ms)
{
	if (llabs(ahead_ms) <= CLOCK_SKEW_FINE_MS)
		return SEMEL_SEVERITY_FINE;
	return llabs(ahead_ms) < CLOCK_SKEW_PROBLEM_MS ? SEMEL_SEVERITY_ADVICE
						       : SEMEL_SEVERITY_PROBLEM;
}
