/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/advice.h"
#include "common/base/fs.h"
#include "launcher/plsubmit/asked.h"

#include <ifaddrs.h>
#include <limits.h>
#include <linux/magic.h>
#include <netdb.h>
#include <string.h>
#include <sys/vfs.h>

#define ASK_MS 5000
#define ACCOUNTING_POLICY "Job violates accounting/QOS policy" /* ESLURM_ACCOUNTING_POLICY */

/* ---- can Slurm start it ---- */

/* Copies the rest of the line that begins after `prefix`. */
static char *line_after(const char *text, const char *prefix)
{
    const char *s = strstr(text, prefix);

    return s ? strndup(s + strlen(prefix), strcspn(s + strlen(prefix), "\n")) : NULL;
}

static bool
ask_start(const struct pl_run *run, const struct pl_chunk *chunk, struct pl_child_job *ret)
{
    _cleanup_(pl_strv_freep) char **argv = NULL, **env = NULL;
    _cleanup_free_ char *option = strdup("--test-only");

    if (!option || pl_submit_env(environ, &env) < 0 ||
        pl_submit_argv(pl_run_dir(run), pl_run_sbatch_args(run), chunk, 0, NULL, &argv) < 0)
        return false;
    free(argv[1]); /* --parsable */
    argv[1] = PL_TAKE(option);
    if (pl_child_start((const char *const *)argv, env, ret, NULL) < 0)
        return false;
    ret->name = "sbatch"; /* argv ends here */
    return true;
}

/* False: the controller takes no question. *ret is NULL without a warning. */
static bool answer_start(const struct pl_run *run, struct pl_child_job *asked, char **ret)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *why = NULL;

    *ret = NULL;
    if (pl_child_wait(asked, ASK_MS, &child, NULL) < 0)
        return true;
    if (child.status == 0) {
        pl_asked_keep_start(run);
        return true;
    }
    if (pl_submit_is_no_answer(pl_buf_str(&child.err)) ||
        strstr(pl_buf_str(&child.err), "Resource temporarily unavailable"))
        return false; /* away, or its queue is full: sbatch tries again, and so does the caller */
    why = line_after(pl_buf_str(&child.err), "allocation failure: ");
    /* Slurm has taken the same job: what it now has too many of is that one, or what came since. */
    if (why && strncmp(why, ACCOUNTING_POLICY, strlen(ACCOUNTING_POLICY)) != 0)
        *ret = pl_strf("Slurm cannot start the trials now: %s; they wait until it can. The reason: "
                       "plstat sweep %s",
                       why, pl_run_sweep(run));
    return true;
}

/* ---- do the nodes see the folder ---- */

/* The name of a file system that other machines do not see; NULL: they may. */
static const char *local_file_system(const char *dir)
{
    static const struct {
        unsigned type;
        const char *name;
    } known[] = {
        {EXT4_SUPER_MAGIC, "ext4"},         {XFS_SUPER_MAGIC, "xfs"}, {BTRFS_SUPER_MAGIC, "btrfs"},
        {F2FS_SUPER_MAGIC, "f2fs"},         {TMPFS_MAGIC, "tmpfs"},   {RAMFS_MAGIC, "ramfs"},
        {OVERLAYFS_SUPER_MAGIC, "overlay"},
    };
    struct statfs fs;

    if (statfs(dir, &fs) < 0)
        return NULL;
    for (size_t i = 0; i < PL_COUNT(known); i++)
        if (known[i].type == (unsigned)fs.f_type)
            return known[i].name;
    return NULL;
}

static bool is_own_name(const char *address)
{
    char host[HOST_NAME_MAX + 1] = "";
    size_t len;

    if (strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0 ||
        strcmp(address, "::1") == 0)
        return true;
    if (gethostname(host, sizeof(host) - 1) < 0)
        return false;
    len = strcspn(host, ".");
    return strcmp(address, host) == 0 || (strlen(address) == len && !strncmp(address, host, len));
}

/* True if the node's address, a name or a number, is one of this machine. */
static bool is_own_address(const char *address)
{
    struct ifaddrs *list, *i;
    bool own = is_own_name(address);

    if (own || getifaddrs(&list) < 0)
        return own;
    for (i = list; i && !own; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
        socklen_t len =
            family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        char text[NI_MAXHOST];

        own = (family == AF_INET || family == AF_INET6) &&
              getnameinfo(i->ifa_addr, len, text, sizeof(text), NULL, 0, NI_NUMERICHOST) == 0 &&
              strcmp(text, address) == 0;
    }
    freeifaddrs(list);
    return own;
}

/* The first node on another machine, in lines "NAME ADDRESS"; NULL: none. The caller frees it. */
static char *other_node(const char *lines)
{
    while (*lines) {
        size_t len = strcspn(lines, "\n"), name = strcspn(lines, " \n");
        _cleanup_free_ char *address =
            name < len ? strndup(lines + name + 1, len - name - 1) : NULL;

        if (address && *address && !is_own_address(address))
            return strndup(lines, name);
        lines += len + (lines[len] == '\n');
    }
    return NULL;
}

static bool ask_folder(const char *dir, struct pl_child_job *ret)
{
    static const char *const argv[] = {"sinfo", "--noheader", "--Node", "--format=%N %o", NULL};

    return local_file_system(dir) && pl_child_start(argv, NULL, ret, NULL) == 0;
}

/* NULL: all nodes are this machine, or the folder may be shared. */
static char *folder_warning(const char *dir, const char *folder, const char *node)
{
    const char *type = local_file_system(dir);

    if (!node || !type)
        return NULL;
    return pl_strf("run folder '%s' is on a local file system (%s), and node %s is another "
                   "machine: if the nodes do not see the folder, choose another with --runs",
                   folder, type, node);
}

/* As answer_start(). */
static bool
answer_folder(const char *dir, const char *folder, struct pl_child_job *asked, char **ret)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *node = NULL;

    *ret = NULL;
    if (pl_child_wait(asked, ASK_MS, &child, NULL) < 0)
        return true;
    if (child.status != 0)
        return !pl_submit_is_no_answer(pl_buf_str(&child.err));
    node = other_node(pl_buf_str(&child.out));
    pl_asked_keep_place(node);
    *ret = folder_warning(dir, folder, node);
    return true;
}

char *pl_advice_folder(const char *dir, const char *folder)
{
    struct pl_child_job asked;
    char *warning = NULL;

    if (ask_folder(dir, &asked))
        answer_folder(dir, folder, &asked, &warning);
    return warning;
}

/* ---- both ---- */

void pl_advice_ask(const struct pl_run *run, const struct pl_chunk *chunk, struct pl_advice *ret)
{
    ret->chunk = *chunk;
    ret->asked = true;
    pl_asked_read(run, &ret->known);
    ret->asks_start = !ret->known.start && ask_start(run, chunk, &ret->start);
    ret->asks_place = !ret->known.place && ask_folder(pl_run_dir(run), &ret->place);
}

static void drop_one(bool asked, struct pl_child_job *job)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    if (asked)
        pl_child_wait(job, 0, &child, NULL);
}

void pl_advice_drop(struct pl_advice *advice)
{
    drop_one(advice->asks_start, &advice->start);
    drop_one(advice->asks_place, &advice->place);
    free(advice->known.node);
    *advice = (struct pl_advice){0};
}

static bool is_about(const struct pl_advice *advice, const struct pl_chunk *chunk)
{
    return advice->asked && advice->chunk.first == chunk->first && advice->chunk.n == chunk->n &&
           !chunk->tasks && advice->chunk.retry == chunk->retry;
}

void pl_advice_answer(struct pl_advice *advice,
                      const struct pl_run *run,
                      const struct pl_chunk *chunk,
                      const char *folder,
                      char **start,
                      char **place)
{
    const char *dir = pl_run_dir(run);

    *start = *place = NULL;
    if (!is_about(advice, chunk)) {
        pl_advice_drop(advice);
        pl_advice_ask(run, chunk, advice);
    }
    /* sbatch may have waited for a controller that was away when the questions came. */
    if (advice->asks_start && !answer_start(run, &advice->start, start) &&
        ask_start(run, chunk, &advice->start))
        answer_start(run, &advice->start, start);
    if (advice->asks_place && !answer_folder(dir, folder, &advice->place, place) &&
        ask_folder(dir, &advice->place))
        answer_folder(dir, folder, &advice->place, place);
    if (advice->known.place)
        *place = folder_warning(dir, folder, advice->known.node);
    free(advice->known.node);
    *advice = (struct pl_advice){0};
}
