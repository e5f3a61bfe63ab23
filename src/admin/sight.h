/* SPDX-License-Identifier: Apache-2.0 */
/* What the page shows, once a second: one look at store and broker for all who watch. */
#ifndef SEMEL_ADMIN_SIGHT_H
#define SEMEL_ADMIN_SIGHT_H

#include "admin/desk.h"

struct semel_sights *semel_sights_new(struct semel_desk *desk);
/* sights may be NULL. */
void semel_sights_free(struct semel_sights *sights);
/* One JSON object, at most a second old. */
void semel_sights_tell(struct semel_sights *sights, struct semel_buffer *text);

#endif
