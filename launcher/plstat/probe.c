/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/probe.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/options.h"
#include "common/base/strv.h"
#include "common/base/versions.h"
#include "common/proto/json.h"

#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ASK_MS 5000u
#define NAMES_MAX 64u /* each may wait for the resolver */
#define FILE_MAX 4096u

static int set_text(json_t *o, const char *key, const char *text, size_t len)
{
    _cleanup_free_ char *copy = strndup(text, len);
    _cleanup_free_ char *clean = copy ? pl_buf_dup_text(copy) : NULL; /* valid UTF-8 */

    if (!clean)
        return -ENOMEM;
    return *clean ? json_object_set_new(o, key, json_string(clean)) : 0;
}

/* Sets the first line that a program prints. */
static int set_output(json_t *o, const char *key, const char *const *argv)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *text;

    if (pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0 || child.status != 0)
        return 0;
    text = pl_buf_str(&child.out);
    return set_text(o, key, text, strcspn(text, "\n"));
}

/* Sets the first line of a file. */
static int set_line(json_t *o, const char *key, const char *path)
{
    _cleanup_free_ char *text = NULL;

    if (pl_file_read(path, FILE_MAX, &text, NULL, NULL) < 0)
        return 0;
    return set_text(o, key, text, strcspn(text, "\n"));
}

static int set_versions(json_t *o)
{
    struct pl_versions v;
    int r;

    pl_versions_read("", pl_env_named("LD_LIBRARY_PATH"), &v);
    r = set_text(o, "driver", v.driver, strlen(v.driver));
    return r == 0 ? set_text(o, "nccl", v.nccl, strlen(v.nccl)) : r;
}

/* ---- network ---- */

/* Those of containers and virtual machines lead to no other node. */
static bool is_virtual(const char *name)
{
    static const char *const prefixes[] = {"docker",  "virbr", "veth",   "br-", "cni",
                                           "flannel", "cali",  "podman", "tun", "tap"};

    for (size_t i = 0; i < PL_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static int64_t speed_of(const char *name)
{
    _cleanup_free_ char *path = pl_strf("/sys/class/net/%s/speed", name), *text = NULL;

    if (!path || pl_file_read(path, 64, &text, NULL, NULL) < 0)
        return -1;
    return strtoll(text, NULL, 10);
}

static int add_interface(json_t *list, const struct ifaddrs *i)
{
    int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    char text[NI_MAXHOST];
    int64_t speed;
    json_t *o;

    if (family != AF_INET || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK) ||
        is_virtual(i->ifa_name) ||
        getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), text, sizeof(text), NULL, 0,
                    NI_NUMERICHOST) != 0)
        return 0;
    o = json_pack("{s:s, s:s}", "name", i->ifa_name, "address", text);
    speed = speed_of(i->ifa_name);
    if (o && speed > 0)
        json_object_set_new(o, "speed", json_integer(speed));
    return json_array_append_new(list, o);
}

static int set_interfaces(json_t *o)
{
    json_t *list = json_array();
    struct ifaddrs *all = NULL;
    int r = list ? 0 : -ENOMEM;

    if (r == 0 && getifaddrs(&all) == 0)
        for (struct ifaddrs *i = all; i && r == 0; i = i->ifa_next)
            r = add_interface(list, i);
    freeifaddrs(all);
    return json_object_set_new(o, "interfaces", list) < 0 ? -ENOMEM : r;
}

/* Resolves a name, and the address back. */
static json_t *name_json(const char *name)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    json_t *o = json_pack("{s:s}", "name", name);
    char text[NI_MAXHOST];

    if (!o || getaddrinfo(name, NULL, &hints, &found) != 0)
        return o;
    if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), NULL, 0,
                    NI_NUMERICHOST) == 0)
        set_text(o, "address", text, sizeof(text));
    if (getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof(text), NULL, 0, NI_NAMEREQD) ==
        0)
        set_text(o, "back", text, sizeof(text));
    freeaddrinfo(found);
    return o;
}

static int set_names(json_t *o)
{
    const char *nodes = pl_env(PL_ENV_SLURM_STEP_NODELIST);
    const char *const argv[] = {"scontrol", "show", "hostnames", nodes, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    json_t *list = json_array();
    char *line, *rest;

    if (!list || json_object_set_new(o, "names", list) < 0)
        return -ENOMEM;
    if (!nodes || pl_child_run(argv, NULL, ASK_MS, &child, NULL) < 0 || child.out.len == 0)
        return 0;
    rest = child.out.data;
    while ((line = strsep(&rest, "\n")) && json_array_size(list) < NAMES_MAX)
        if (*line && json_array_append_new(list, name_json(line)) < 0)
            return -ENOMEM;
    return 0;
}

json_t *pl_probe(const char *file)
{
    static const char *const slurm[] = {"scontrol", "--version", NULL};
    static const char *const mpi[] = {"mpirun", "--version", NULL};
    static const char *const apptainer[] = {"apptainer", "--version", NULL};
    static const char *const singularity[] = {"singularity", "--version", NULL};
    static const char *const munge[] = {"munge", "--version", NULL};
    const char *node = pl_env(PL_ENV_SLURMD_NODENAME), *runtime = pl_env(PL_ENV_PLUME_RUNTIME);
    const char *link = pl_env_text(PL_ENV_PLUME_SOCKET);
    char host[HOST_NAME_MAX + 1] = "?";
    json_t *o;
    int r;

    if (gethostname(host, sizeof(host) - 1) < 0)
        snprintf(host, sizeof(host), "?");
    o = json_pack("{s:s, s:s, s:f, s:s, s:b}", "node", node ? node : host, "host", host, "time",
                  pl_wall_s(), "version", pl_version(), "plugin",
                  runtime && strcmp(runtime, "plugin") == 0);
    r = o ? 0 : -ENOMEM;
    if (r == 0 && link)
        r = json_object_set_new(o, "socket", json_boolean(access(link, F_OK) == 0));
    if (r == 0 && file)
        r = set_line(o, "token", file);
    if (r == 0)
        r = set_output(o, "slurm", slurm);
    if (r == 0)
        r = set_interfaces(o);
    if (r == 0)
        r = set_names(o);
    if (r == 0)
        r = set_versions(o);
    if (r == 0)
        r = set_output(o, "mpi", mpi);
    if (r == 0)
        r = set_output(o, "container", apptainer);
    if (r == 0 && !json_object_get(o, "container"))
        r = set_output(o, "container", singularity);
    if (r == 0)
        r = set_output(o, "munge", munge);
    if (r == 0)
        return o;
    json_decref(o);
    return NULL;
}
