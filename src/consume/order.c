/* SPDX-License-Identifier: Apache-2.0 */
/* A scope whose order was changed, or differs between two of its consumers. What total order holds
 * stands under the key of its topic, everything else under that of its aggregate. One who looks
 * under one kind of key only would let events pass those that wait under the other, so he does not
 * begin before they are gone. */
#include "base/error.h"
#include "consume/consumer.h"
#include "fault/plant.h"

semel_status semel_order_check_mode(struct semel_consumer *consumer, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;
	bool total = consumer->options.order == SEMEL_ORDER_TOTAL, other = false;
	semel_status status = driver->holds->has_other_kind(driver->tx(consumer->store),
							    consumer->scope, total, &other, error);

	if (status != SEMEL_OK || !other || SEMEL_PLANTED("order-changed-unchecked"))
		return status;
	return semel_error_set(
		error, SEMEL_CONFIG,
		"%s holds %s of a time when it was consumed with another order (consume it with "
		"--order %s until a drain ends, replay or discard what semel dlq list --scope %s "
		"tells, then change the order)",
		semel_text_shown(consumer->scope), total ? "single aggregates" : "a whole topic",
		total ? "aggregate" : "total", semel_text_shown(consumer->scope));
}
