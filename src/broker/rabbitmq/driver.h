/* SPDX-License-Identifier: Apache-2.0 */
/* The RabbitMQ broker, for the registry. */
#ifndef SEMEL_BROKER_RABBITMQ_DRIVER_H
#define SEMEL_BROKER_RABBITMQ_DRIVER_H

#include "broker/broker.h"

extern const struct semel_broker_driver semel_rabbit_driver, semel_rabbit_tls_driver;

#endif
