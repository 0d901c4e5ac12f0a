/* SPDX-License-Identifier: MIT */
/* All-gather of short strings: each rank gives a value for a name; after the last one all ranks get
 * all values. */
#include "common/proto/json.h"
#include "common/proto/rank/rank_line.h"
#include "runtime/plrund/hub/hub_private.h"

#include <string.h>

#define EXCHANGES_MAX 1024

struct pl_exchange {
    struct pl_exchange *next;
    char *name;
    json_t *values; /* by rank; null = not yet */
    unsigned n_given;
};

static void free_exchange(struct pl_exchange *x)
{
    json_decref(x->values);
    free(x->name);
    free(x);
}

static struct pl_exchange *find_or_add(struct pl_hub *hub, const char *name)
{
    struct pl_exchange *x;
    size_t n = 0;

    for (x = hub->exchanges; x; x = x->next, n++)
        if (strcmp(x->name, name) == 0)
            return x;
    x = n < EXCHANGES_MAX ? calloc(1, sizeof(*x)) : NULL;
    if (!x)
        return NULL;
    x->name = strdup(name);
    x->values = json_array();
    for (unsigned i = 0; x->values && i < hub->step->ntasks; i++)
        json_array_append_new(x->values, json_null());
    if (!x->name || json_array_size(x->values) != hub->step->ntasks) {
        free_exchange(x);
        return NULL;
    }
    x->next = hub->exchanges;
    hub->exchanges = x;
    return x;
}

void pl_hub_exchange(struct pl_hub *hub, const struct pl_msg_node_exchange *given)
{
    struct pl_exchange **p, *x;

    if (strlen(given->name) > PL_RANK_EXCHANGE_MAX || strlen(given->value) > PL_RANK_EXCHANGE_MAX ||
        given->rank < 0 || given->rank >= hub->step->ntasks) /* the daemon has told the rank */
        return;
    x = find_or_add(hub, given->name);
    if (!x)
        return;
    if (json_is_null(json_array_get(x->values, (size_t)given->rank)))
        x->n_given++;
    json_array_set_new(x->values, (size_t)given->rank, json_string(given->value));
    if (x->n_given < hub->step->ntasks)
        return;
    pl_hub_send_log(hub); /* what ranks have said before is in it */
    pl_hub_broadcast(
        hub, &(struct pl_msg){.type = PL_MSG_HUB_EXCHANGED, .hub_exchanged = {x->name, x->values}});
    for (p = &hub->exchanges; *p != x; p = &(*p)->next)
        ;
    *p = x->next;
    free_exchange(x);
}

void pl_hub_free_exchanges(struct pl_hub *hub)
{
    while (hub->exchanges) {
        struct pl_exchange *x = hub->exchanges;

        hub->exchanges = x->next;
        free_exchange(x);
    }
}
