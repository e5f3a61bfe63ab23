/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker: a log in one SQLite file, for several processes on one machine.
 *
 *   local:PATH[?partitions=N&max-message=BYTES&max-length=N&busy-timeout=MS&mode=0660]
 */
#ifndef SEMEL_BROKER_LOCAL_DRIVER_H
#define SEMEL_BROKER_LOCAL_DRIVER_H

#include "broker/broker.h"

extern const struct semel_broker_driver semel_local_driver;

#endif
