/* SPDX-License-Identifier: Apache-2.0 */
#include "relay/transactions.h"

void semel_transactions_open(struct semel_transactions *transactions, bool requested)
{
	*transactions = (struct semel_transactions){
		.state = requested ? SEMEL_TRANSACTIONS_REQUESTED : SEMEL_TRANSACTIONS_OFF,
	};
}

void semel_transactions_reset(struct semel_transactions *transactions)
{
	semel_transactions_open(transactions, transactions->state != SEMEL_TRANSACTIONS_OFF);
}

semel_status semel_transactions_join(struct semel_transactions *transactions,
				     struct semel_source *source, struct semel_broker *broker,
				     semel_error *error)
{
	char name[SEMEL_SOURCE_LABEL_SIZE];

	if (transactions->state != SEMEL_TRANSACTIONS_REQUESTED)
		return SEMEL_OK;
	semel_status status = source->driver->label(source, name, error);
	if (status != SEMEL_OK)
		return status;
	status = broker->driver->init_transactions(broker, name, error);
	if (status != SEMEL_OK)
		return status;
	transactions->state = SEMEL_TRANSACTIONS_JOINED;
	return SEMEL_OK;
}

uint64_t semel_transactions_enter(struct semel_transactions *transactions,
				  const struct semel_outbox_row *row)
{
	uint64_t number = semel_transactions_are_joined(transactions) ? row->transaction : 0;

	if (number != transactions->number) {
		transactions->number = number;
		transactions->rejection = SEMEL_OK;
	}
	return number;
}

void semel_transactions_record_outcome(struct semel_transactions *transactions, uint64_t number,
				       semel_status outcome)
{
	if (number != 0 && number == transactions->number &&
	    semel_status_class(outcome) == SEMEL_CLASS_REJECT)
		transactions->rejection = outcome;
}

bool semel_transactions_in_transaction(const struct semel_transactions *transactions,
				       const struct semel_source *source)
{
	return semel_transactions_are_joined(transactions) && source->driver->in_transaction &&
	       source->driver->in_transaction(source);
}
