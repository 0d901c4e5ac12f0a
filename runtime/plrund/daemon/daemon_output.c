/* SPDX-License-Identifier: MIT */
/* The output of the ranks: each rank's files have all of it. Slurm's own file, or srun, gets that
 * of the ranks of PLUME_OUTPUT_RANKS, the last lines of the rank that failed first, and what a file
 * could not take. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/run/output_ranks.h"
#include "runtime/plrund/daemon/daemon.h"

#include <string.h>

#define SENDS_MAX 1000 /* ranks of the job whose files go to the server of NFS in a second */

bool pl_rank_output_take(struct pl_rank *rank,
                         struct pl_rank_conn *c,
                         const struct pl_capture_ops *ops)
{
    struct pl_daemon *d = rank->daemon;
    int r, s;

    if (c->n_fds != 4)
        return true;
    c->n_fds = 0;
    r = pl_capture_create(d->loop, d->disk, c->fds[0], c->fds[1], d->rules, d->n_rules, ops, rank,
                          &rank->out);
    s = pl_capture_create(d->loop, d->disk, c->fds[2], c->fds[3], d->rules, d->n_rules, ops, rank,
                          &rank->err);
    return r == 0 && s == 0;
}

void pl_rank_output_open(struct pl_rank *rank, const char *dir)
{
    struct pl_capture *streams[] = {rank->out, rank->err};
    static const char *const ends[] = {"out", "err"};
    bool shown = pl_output_ranks_contain(rank->daemon->output_ranks, rank->rank);

    for (int i = 0; dir && i < 2; i++) {
        _cleanup_free_ char *name = pl_strf("rank-%u.%s", rank->rank, ends[i]);

        if (!streams[i])
            continue;
        if (!name) {
            pl_log_warn("child", "out of memory: a file of rank %u is missing", rank->rank);
            continue;
        }
        pl_capture_open_file(streams[i], dir, name);
        if (!shown)
            pl_capture_mute(streams[i]);
    }
}

bool pl_daemon_files_wait(const struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (pl_capture_file_waits(d->ranks[i].out) || pl_capture_file_waits(d->ranks[i].err))
            return true;
    return false;
}

void pl_daemon_end_output(struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++) {
        pl_capture_end(d->ranks[i].out);
        pl_capture_end(d->ranks[i].err);
    }
}

void pl_daemon_tick_output(struct pl_daemon *d)
{
    bool send = d->n_ticks++ % (1 + d->step.ntasks / SENDS_MAX) == 0;

    for (unsigned i = 0; i < d->n_present; i++) {
        pl_capture_tick(d->ranks[i].out, send);
        pl_capture_tick(d->ranks[i].err, send);
    }
    pl_daemon_tell_cut(d);
}

struct cut {
    const char *name; /* the first file; of Slurm's files the stream's name */
    int error;        /* its */
    unsigned rank;    /* its */
    unsigned n_files;
    size_t bytes; /* of all */
};

static void add_cut(struct cut *cut, const char *name, int error, unsigned rank, size_t bytes)
{
    if (bytes && cut->n_files++ == 0) {
        cut->name = name;
        cut->error = error;
        cut->rank = rank;
    }
    cut->bytes += bytes;
}

/* own: the ranks' files; else Slurm's. */
static struct cut find_cut(const struct pl_daemon *d, bool own)
{
    static const char *const names[] = {"stdout", "stderr"};
    struct cut cut = {.n_files = 0};

    for (unsigned i = 0; i < d->n_present; i++) {
        const struct pl_capture *streams[] = {d->ranks[i].out, d->ranks[i].err};

        for (int k = 0; k < 2; k++) {
            const char *name = names[k];
            int error = 0;
            size_t bytes = own ? pl_capture_cut(streams[k], &name, &error)
                               : pl_capture_real_cut(streams[k], &error);

            add_cut(&cut, name, error, d->ranks[i].rank, bytes);
        }
    }
    return cut;
}

static void send_fact(struct pl_daemon *d, const char *key, const char *text, unsigned rank)
{
    if (text)
        pl_uplink_send(d->uplink,
                       &(struct pl_msg){.type = PL_MSG_NODE_FACT, .node_fact = {key, text, rank}});
}

static void tell_real_cut(struct pl_daemon *d)
{
    struct cut cut = find_cut(d, false);
    _cleanup_free_ char *text = NULL;

    if (d->real_cut_told || !cut.bytes)
        return;
    d->real_cut_told = true;
    text = pl_strf("Slurm's file of rank %u's %s lacks output: %s", cut.rank, cut.name,
                   strerror(cut.error));
    pl_log_warn("child", "%s; the run goes on", text ? text : "out of memory");
    send_fact(d, "slurm_file_cut", text, cut.rank);
}

/* Once: on a full disk all ranks' files are alike. */
void pl_daemon_tell_cut(struct pl_daemon *d)
{
    struct cut cut = find_cut(d, true);
    _cleanup_free_ char *text = NULL;

    tell_real_cut(d);
    if (d->cut_told || !cut.bytes)
        return;
    d->cut_told = true;
    pl_log_warn("child", "cannot write '%s': %s; the run goes on", cut.name, strerror(cut.error));
    text = pl_strf("%s lacks output: %s", cut.name, strerror(cut.error));
    send_fact(d, "output_cut", text, cut.rank);
}

static void say_real_cut(const struct pl_daemon *d)
{
    struct cut cut = find_cut(d, false);

    if (cut.n_files == 1)
        pl_log_error("child", "Slurm's file of rank %u's %s lacks %zu bytes: %s", cut.rank,
                     cut.name, cut.bytes, strerror(cut.error));
    else if (cut.n_files)
        pl_log_error("child",
                     "%u of Slurm's files of this node's ranks, such as that of rank %u's %s, "
                     "lack %zu bytes: %s",
                     cut.n_files, cut.rank, cut.name, cut.bytes, strerror(cut.error));
}

static void say_cut(const struct pl_daemon *d)
{
    struct cut cut = find_cut(d, true);
    const char *whole = find_cut(d, false).n_files ? "" : ", which Slurm's output has";

    if (cut.n_files == 1)
        pl_log_error("child", "'%s' lacks %zu bytes of its rank's output%s: %s", cut.name,
                     cut.bytes, whole, strerror(cut.error));
    else if (cut.n_files)
        pl_log_error("child",
                     "%u files of this node's ranks, such as '%s', lack %zu bytes of output%s: %s",
                     cut.n_files, cut.name, cut.bytes, whole, strerror(cut.error));
}

void pl_daemon_say_unwritten(const struct pl_daemon *d)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < d->n_present; i++)
        bytes += pl_capture_unwritten(d->ranks[i].out) + pl_capture_unwritten(d->ranks[i].err);
    if (bytes)
        pl_log_error("child",
                     "the run folder does not answer: %zu bytes of the output of this node's ranks "
                     "are not in their files",
                     bytes);
    say_cut(d);
    say_real_cut(d);
}

/* The lines about the rank that failed first, for Slurm's output file. */
static char *last_lines(const struct pl_rank *rank)
{
    _cleanup_free_ char *text = pl_capture_tail(rank->err, rank->rank);
    bool is_err = text && *text;

    if (!is_err && rank->out) {
        free(text);
        text = pl_capture_tail(rank->out, rank->rank);
    }
    if (!text || !*text)
        return NULL;
    return pl_strf("[plrund: rank %u failed first; the last lines of its rank-%u.%s:]\n%s\n",
                   rank->rank, rank->rank, is_err ? "err" : "out", text);
}

void pl_rank_output_settle(struct pl_rank *rank)
{
    const struct pl_daemon *d = rank->daemon;
    _cleanup_free_ char *text = NULL;

    if (!rank->ended || rank->output_settled || (rank->status != 0 && !d->decided))
        return;
    rank->output_settled = true;
    if (rank->err && rank->status != 0 && d->root == (int64_t)rank->rank)
        text = last_lines(rank);
    pl_capture_let_go(rank->out, NULL);
    pl_capture_let_go(rank->err, text);
}
