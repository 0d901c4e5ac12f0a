/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/hub/strangers.h"

#include <netinet/in.h>
#include <sodium.h>

#define FEW 4 /* connections of one address */

void pl_strangers_init(struct pl_strangers *s)
{
    *s = (struct pl_strangers){0};
    randombytes_buf(s->seed, sizeof(s->seed));
}

unsigned pl_strangers_crowd(const struct pl_strangers *s, const struct sockaddr_storage *address)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    unsigned char hash[crypto_shorthash_BYTES];
    const void *data = "";
    size_t len = 0;

    if (address->ss_family == AF_INET) {
        data = &((const struct sockaddr_in *)address)->sin_addr;
        len = 4;
    } else if (address->ss_family == AF_INET6) {
        data = IN6_IS_ADDR_V4MAPPED(six) ? &six->s6_addr[12] : six->s6_addr;
        len = IN6_IS_ADDR_V4MAPPED(six) ? 4 : 8; /* a host may use a whole /64 */
    }
    if (len == 4 && *(const unsigned char *)data == 127)
        len = 1; /* each user of this host may use all of 127.x.x.x */
    crypto_shorthash(hash, data, len, s->seed);
    return hash[0] % PL_CROWDS;
}

void pl_strangers_enter(struct pl_strangers *s, unsigned crowd)
{
    s->n++;
    s->crowds[crowd]++;
}

void pl_strangers_leave(struct pl_strangers *s, unsigned crowd)
{
    s->n--;
    s->crowds[crowd]--;
}

static unsigned places(unsigned missing)
{
    return PL_STRANGERS_MAX + 2 * missing;
}

int pl_strangers_largest(const struct pl_strangers *s)
{
    int largest = -1;

    for (int i = 0; i < PL_CROWDS; i++)
        if (s->crowds[i] && (largest < 0 || s->crowds[i] > s->crowds[largest]))
            largest = i;
    return largest;
}

int pl_strangers_make_room(const struct pl_strangers *s, unsigned crowd, unsigned missing)
{
    if (s->crowds[crowd] >= places(missing) / 2)
        return (int)crowd;
    return s->n >= places(missing) ? pl_strangers_largest(s) : -1;
}

bool pl_strangers_press(const struct pl_strangers *s, unsigned missing)
{
    return s->n >= places(missing) / 2;
}

bool pl_strangers_crowded(const struct pl_strangers *s, unsigned crowd)
{
    return s->crowds[crowd] > FEW;
}
