/* SPDX-License-Identifier: Apache-2.0 */
/* Semel: effectively-once event delivery between a database and a message broker. */
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
