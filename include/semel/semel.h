/* SPDX-License-Identifier: Apache-2.0 */
/* Semel: effectively-once event delivery between a database and a message broker.
 *
 * The public API, one header per noun; this one includes them all. docs/c-api.md shows how they
 * work together.
 *
 * To change here: functions, types and members are added, with a line in docs/c-api.md;
 * what has been released keeps its name, its meaning and its number. Options are plain structs
 * whose zero is the default; every other type is opaque. These headers include only the standard
 * library and each other, and a library of a database only by a declared name: nothing of src/. */
#ifndef SEMEL_SEMEL_H
#define SEMEL_SEMEL_H

#include <semel/consumer.h>
#include <semel/deadletter.h>
#include <semel/event.h>
#include <semel/inbox.h>
#include <semel/outbox.h>
#include <semel/relay.h>
#include <semel/status.h>
#include <semel/store.h>
#include <semel/version.h>

#endif
