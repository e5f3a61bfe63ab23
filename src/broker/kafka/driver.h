/* SPDX-License-Identifier: Apache-2.0 */
/* The Kafka broker, for the registry. */
#ifndef SEMEL_BROKER_KAFKA_DRIVER_H
#define SEMEL_BROKER_KAFKA_DRIVER_H

#include "broker/broker.h"

extern const struct semel_broker_driver semel_kafka_driver;

#endif
