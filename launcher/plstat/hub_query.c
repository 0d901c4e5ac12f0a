/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/hub_query.h"
#include "common/base/fs.h"
#include "common/proto/hub_ask.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define THREADS_MAX 16
#define ONE_LIMIT_MS 1500u

struct query_pool {
    struct pl_hub_query **queries;
    size_t n;
    const unsigned char *secret;
    uint64_t limit_ns;
    atomic_size_t next;
};

static int copy_text(const json_t *o, const char *key, char *to, size_t size)
{
    const char *s = pl_json_string(o, key);
    int64_t v;
    int n;

    if (s)
        n = snprintf(to, size, "%s", s);
    else if (pl_json_int(o, key, &v) == 0)
        n = snprintf(to, size, "%lld", (long long)v);
    else
        return -EINVAL;
    return n <= 0 || (size_t)n >= size ? -EINVAL : 0;
}

int pl_hub_query_init(struct pl_hub_query *q, const json_t *hub)
{
    int64_t port, attempt = 0;

    *q = (struct pl_hub_query){0};
    if (copy_text(hub, "host", q->host, sizeof(q->host)) < 0 ||
        copy_text(hub, "job", q->id.job, sizeof(q->id.job)) < 0 ||
        copy_text(hub, "step", q->id.step, sizeof(q->id.step)) < 0 ||
        pl_json_int(hub, "port", &port) < 0 || port < 1 || port > 65535)
        return -EINVAL;
    if (pl_json_int(hub, "attempt", &attempt) == -EINVAL || attempt < 0 || attempt > UINT32_MAX)
        return -EINVAL;
    q->port = (uint16_t)port;
    q->id.attempt = (unsigned)attempt;
    return 0;
}

static void ask(struct pl_hub_query *q, const unsigned char *secret, uint64_t limit_ns)
{
    _cleanup_(json_decrefp) json_t *answer = NULL;
    struct pl_msg m;
    uint64_t now = pl_now_ns();
    unsigned left_ms = now < limit_ns ? (unsigned)((limit_ns - now) / 1000000u) : 0;

    if (left_ms == 0) {
        pl_error_set(&q->err, -ETIMEDOUT, "not asked: other hubs used up the time limit");
        return;
    }
    if (pl_hub_ask(q->host, q->port, &q->id, secret, PL_MSG_ASK_SNAPSHOT, PL_MSG_SNAPSHOT,
                   PL_MIN(left_ms, ONE_LIMIT_MS), &answer, &q->err) < 0)
        return;
    if (pl_msg_read_as(answer, PL_MSG_SNAPSHOT, &m) == 0)
        q->state = json_incref(m.snapshot.state);
    else
        pl_error_set(&q->err, -EPROTO,
                     "the hub's answer has no state: it may be of another release");
}

static void *work(void *arg)
{
    struct query_pool *c = arg;
    size_t i;

    while ((i = atomic_fetch_add(&c->next, 1)) < c->n)
        ask(c->queries[i], c->secret, c->limit_ns);
    return NULL;
}

void pl_hub_query_all(struct pl_hub_query **queries,
                      size_t n,
                      const unsigned char secret[PL_KEY_SIZE],
                      unsigned limit_ms)
{
    struct query_pool c = {queries, n, secret, pl_now_ns() + (uint64_t)limit_ms * 1000000u, 0};
    pthread_t threads[THREADS_MAX] = {0};
    size_t started = 0;

    if (n == 0)
        return;
    json_object_seed(0); /* before the first thread: seeding is not thread-safe */
    while (started < PL_MIN(n - 1, (size_t)THREADS_MAX) &&
           pthread_create(&threads[started], NULL, work, &c) == 0)
        started++;
    work(&c);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}
