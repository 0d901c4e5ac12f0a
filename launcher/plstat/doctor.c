/* SPDX-License-Identifier: MIT */
/* Findings; those from the answers of nodes: what differs, and what is wrong on one. */
#include "launcher/plstat/doctor.h"
#include "common/base/options.h"
#include "common/proto/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLOCK_S 2.0 /* a larger difference is wrong: make(1), tokens and logs depend on clocks */

void pl_doctor_add(struct pl_doctor *d, const char *verdict, const char *fmt, ...)
{
    bool wrong = strcmp(verdict, "wrong") == 0;
    _cleanup_free_ char *clean = NULL;
    char line[1200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    clean = pl_buf_dup_text(line); /* valid UTF-8 */
    d->ps->any_failure |= wrong;
    if (!clean || json_array_append_new(
                      d->checks, json_pack("{s:s, s:s}", "verdict", verdict, "text", clean)) < 0)
        d->r = -ENOMEM;
}

static void add_of_node(struct pl_doctor *d, const char *node, const char *fmt, ...)
    PL_PRINTF(3, 4);

/* Keeps what is wrong on a node: the nodes with the same text share a line. */
static void add_of_node(struct pl_doctor *d, const char *node, const char *fmt, ...)
{
    char text[1024];
    json_t *nodes;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    nodes = json_object_get(d->of_nodes, text);
    if (!nodes) {
        nodes = json_array();
        if (json_object_set_new(d->of_nodes, text, nodes) < 0)
            nodes = NULL;
    }
    if (!nodes || json_array_append_new(nodes, json_string(node)) < 0)
        d->r = -ENOMEM;
}

static void add_what_nodes_have(struct pl_doctor *d)
{
    const char *text;
    json_t *nodes;

    json_object_foreach (d->of_nodes, text, nodes) {
        const char *first = json_string_value(json_array_get(nodes, 0));
        size_t n = json_array_size(nodes);

        if (n == 1)
            pl_doctor_add(d, "wrong", "on node %s: %s", first, text);
        else
            pl_doctor_add(d, "wrong", "on %zu nodes, such as %s: %s", n, first, text);
    }
    json_object_clear(d->of_nodes);
}

/* The names of all nodes, as one node resolves them. */
static void check_names(struct pl_doctor *d, const json_t *node)
{
    const json_t *names = json_object_get(node, "names"), *entry;
    const char *of = pl_json_string(node, "node"), *no_address = NULL, *no_name = NULL;
    size_t i, n_address = 0, n_name = 0;

    json_array_foreach (names, i, entry) {
        const char *name = pl_json_string(entry, "name");

        if (!pl_json_string(entry, "address")) {
            no_address = no_address ? no_address : name;
            n_address++;
        } else if (!pl_json_string(entry, "back")) {
            no_name = no_name ? no_name : name;
            n_name++;
        }
    }
    if (n_address)
        add_of_node(d, of,
                    "%zu of %zu nodes' names have no address, such as %s: Plume uses Slurm's "
                    "addresses, programs that look names up fail",
                    n_address, json_array_size(names), no_address);
    if (n_name)
        add_of_node(d, of,
                    "the addresses of %zu of %zu nodes lead to no name, such as that of %s: "
                    "some programs wait for one",
                    n_name, json_array_size(names), no_name);
}

static void check_node(
    struct pl_doctor *d, const json_t *node, const char *token, double before_s, double after_s)
{
    const char *name = pl_json_string(node, "node"), *read = pl_json_string(node, "token");
    const char *version = pl_json_string(node, "version");
    double time_s = json_number_value(json_object_get(node, "time"));
    double off_s = fmax(before_s - time_s, time_s - after_s);

    if (token && (!read || strcmp(read, token) != 0))
        add_of_node(d, name, "the folder of runs is not there: choose one that all nodes share");
    if (off_s > CLOCK_S)
        add_of_node(d, name, "the clock differs by %.0f s from this host's", off_s);
    if (version && strcmp(version, pl_version()) != 0)
        add_of_node(d, name, "Plume is %s, on this host %s", version, pl_version());
    if (d->plugin_here && !json_is_true(json_object_get(node, "plugin")))
        add_of_node(d, name, "srun does not load the plugin: see plugstack.conf there");
    check_names(d, node);
}

/* Compares a fact of the nodes: a difference is wrong, except that nobody has it. */
static void compare(struct pl_doctor *d, const char *key, const char *what)
{
    const json_t *first = json_array_get(d->nodes, 0), *node;
    const char *a = pl_json_string(first, key);
    bool same = true;
    size_t i;

    json_array_foreach (d->nodes, i, node) {
        const char *b = pl_json_string(node, key);

        if ((!a) == (!b) && (!a || strcmp(a, b) == 0))
            continue;
        same = false;
        pl_doctor_add(d, "wrong", "%s differs: %s on node %s, %s on node %s", what, a ? a : "none",
                      pl_json_string(first, "node"), b ? b : "none", pl_json_string(node, "node"));
        break;
    }
    if (same && a)
        pl_doctor_add(d, "ok", "%s: %s", what, a);
}

/* Releases before 0.5.18 hand the key to local users (CVE-2026-25506), unless the distribution has
 * mended its package under the old number: a thing to look at, and no proof. */
static void check_munge(struct pl_doctor *d)
{
    const json_t *node;
    size_t i;

    json_array_foreach (d->nodes, i, node) {
        const char *text = pl_json_string(node, "munge");
        unsigned major, minor, patch;

        if (!text || sscanf(text, "munge-%u.%u.%u", &major, &minor, &patch) != 3 || major > 0 ||
            minor > 5 || (minor == 5 && patch >= 18))
            continue;
        pl_doctor_add(
            d, "check",
            "munge %u.%u.%u on node %s: releases before 0.5.18 give local users the key of all "
            "credentials (CVE-2026-25506), unless the distribution has mended its package",
            major, minor, patch, pl_json_string(node, "node"));
        return; /* the same on the others, or compare() names the difference */
    }
}

/* The interface with this name on a node. NULL: none. */
static const json_t *find_interface(const json_t *node, const char *name)
{
    const json_t *entry;
    size_t i;

    json_array_foreach (json_object_get(node, "interfaces"), i, entry) {
        const char *of = pl_json_string(entry, "name");

        if (of && strcmp(of, name) == 0)
            return entry;
    }
    return NULL;
}

/* Proposes the fastest interface that all nodes have. */
static void propose(struct pl_doctor *d)
{
    const json_t *entry, *node;
    const char *best = NULL;
    int64_t best_speed = -1;
    size_t i, k;

    json_array_foreach (json_object_get(json_array_get(d->nodes, 0), "interfaces"), i, entry) {
        const char *name = pl_json_string(entry, "name");
        int64_t speed = 0, slowest = INT64_MAX;
        bool everywhere = name != NULL;

        json_array_foreach (d->nodes, k, node) {
            const json_t *there = name ? find_interface(node, name) : NULL;

            everywhere &= there != NULL;
            speed = 0;
            pl_json_int(there, "speed", &speed);
            slowest = PL_MIN(slowest, speed);
        }
        if (everywhere && slowest > best_speed) {
            best = name;
            best_speed = slowest;
        }
    }
    if (best)
        pl_doctor_add(d, "ok",
                      "all nodes have interface %s: NCCL_SOCKET_IFNAME=%s GLOO_SOCKET_IFNAME=%s",
                      best, best, best);
    else if (json_array_size(d->nodes) > 1)
        pl_doctor_add(d, "wrong",
                      "no network interface has the same name on all nodes: set "
                      "NCCL_SOCKET_IFNAME by prefix, such as NCCL_SOCKET_IFNAME=ib,eth");
}

void pl_doctor_look_at_answers(struct pl_doctor *d,
                               const char *token,
                               double before_s,
                               double after_s)
{
    size_t i, n = json_array_size(d->nodes);
    const json_t *node;

    json_array_foreach (d->nodes, i, node)
        check_node(d, node, token, before_s, after_s);
    add_what_nodes_have(d);
    pl_doctor_add(d, "ok", "looked at %zu node%s", n, n == 1 ? "" : "s");
    compare(d, "slurm", "Slurm on the nodes");
    compare(d, "driver", "NVIDIA driver");
    compare(d, "nccl", "NCCL of the system");
    compare(d, "mpi", "MPI");
    compare(d, "container", "container run-time");
    if (d->munge) {
        compare(d, "munge", "munge");
        check_munge(d);
    }
    propose(d);
}

void pl_doctor_check_socket(struct pl_doctor *d)
{
    const char *hidden = NULL;
    const json_t *node;
    size_t i, n = 0;

    if (!d->plugin_here)
        return;
    json_array_foreach (d->nodes, i, node) {
        const json_t *socket = json_object_get(node, "socket");

        n += socket != NULL;
        if (json_is_false(socket) && !hidden)
            hidden = pl_json_string(node, "node");
    }
    if (hidden)
        pl_doctor_add(
            d, "wrong",
            "on node %s tasks of srun --plume do not see the socket of plrund%s%s%s: set "
            "runtime_dir or mount_namespace, see spank_plume(8); plsubmit and srun plrun work",
            hidden, *d->namespace ? ", as jobs have a /tmp of their own (" : "", d->namespace,
            *d->namespace ? ")" : "");
    else if (*d->namespace && n == 0)
        pl_doctor_add(
            d, "check",
            "jobs have a /tmp of their own (%s): the plugin needs runtime_dir or mount_namespace, "
            "see spank_plume(8)",
            d->namespace);
    else if (*d->namespace)
        pl_doctor_add(d, "ok",
                      "jobs have a /tmp of their own (%s), and tasks see the socket of plrund",
                      d->namespace);
}
