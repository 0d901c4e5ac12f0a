/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/shape.h"
#include "common/base/fs.h"
#include "launcher/plsubmit/count.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

/* GPUs of one resource, "gpu[:TYPE][:COUNT]" of len bytes. */
static unsigned count_resource(const char *item, size_t len)
{
    const char *end = item + len, *colon;
    unsigned n;

    if (strncmp(item, "gres/", 5) == 0 || strncmp(item, "gres:", 5) == 0)
        item += 5;
    if (strncmp(item, "gpu", 3) != 0 || (item + 3 < end && item[3] != ':' && item[3] != '='))
        return 0;
    colon = memrchr(item, ':', (size_t)(end - item));
    if (!colon)
        colon = memchr(item, '=', (size_t)(end - item));
    if (!colon)
        return 1;
    n = pl_count(colon + 1, (size_t)(end - colon - 1));
    return n ? n : colon[1] == '0' ? 0 : 1; /* "gpu:a100" */
}

unsigned pl_shape_count_gres(const char *value)
{
    unsigned sum = 0;

    for (const char *item = value; item; item = strchr(item, ','), item += item ? 1 : 0)
        sum += count_resource(item, strcspn(item, ","));
    return sum;
}

static const char *text(const struct pl_spec *spec, enum pl_spec_key key)
{
    return spec->values[key].text;
}

static unsigned count(const struct pl_spec *spec, enum pl_spec_key key)
{
    const char *value = text(spec, key);

    return value ? pl_count(value, strlen(value)) : 0;
}

static unsigned gpus(const struct pl_spec *spec, enum pl_spec_key key)
{
    return text(spec, key) ? pl_count_gpus(text(spec, key)) : 0;
}

static unsigned listed_count(const struct pl_spec *spec, const char *key)
{
    const char *value = pl_spec_of_sbatch(spec, key);

    return value ? pl_count(value, strlen(value)) : 0;
}

static unsigned listed_gpus(const struct pl_spec *spec, const char *key)
{
    const char *value = pl_spec_of_sbatch(spec, key);

    return value ? pl_shape_count_gres(value) : 0;
}

/* The numbers that the user's options ask for; 0 = not given. */
struct wish {
    unsigned gpus, gpus_per_node, gpus_per_rank;
    unsigned ranks, ranks_per_node, ranks_per_gpu;
};

static struct wish wish_of(const struct pl_spec *spec)
{
    struct wish w = {
        .gpus = gpus(spec, PL_SPEC_GPUS),
        .gpus_per_node = gpus(spec, PL_SPEC_GPUS_PER_NODE),
        .gpus_per_rank = gpus(spec, PL_SPEC_GPUS_PER_TASK),
        .ranks = count(spec, PL_SPEC_NTASKS),
        .ranks_per_node = count(spec, PL_SPEC_NTASKS_PER_NODE),
        .ranks_per_gpu = listed_count(spec, "ntasks-per-gpu"),
    };

    if (!w.gpus_per_node && text(spec, PL_SPEC_GRES))
        w.gpus_per_node = pl_shape_count_gres(text(spec, PL_SPEC_GRES));
    if (!w.gpus_per_node)
        w.gpus_per_node = listed_gpus(spec, "tres-per-node");
    if (!w.gpus_per_rank)
        w.gpus_per_rank = listed_gpus(spec, "tres-per-task");
    if (!w.gpus)
        w.gpus = listed_gpus(spec, "tres-per-job");
    return w;
}

static int set_count(struct pl_spec *spec, enum pl_spec_key key, unsigned n)
{
    _cleanup_free_ char *value = pl_strf("%u", n);

    if (spec->values[key].origin != PL_ORIGIN_NONE)
        return 0;
    return value ? pl_spec_put(spec, key, value, PL_ORIGIN_BUILTIN) : -ENOMEM;
}

/* One rank per GPU, or per group of GPUs with --gpus-per-task. */
static unsigned ranks_for(const struct wish *w, unsigned n_gpus)
{
    return w->gpus_per_rank ? PL_MAX(n_gpus / w->gpus_per_rank, 1u) : n_gpus;
}

/* --ntasks=8 --gpus-per-node=4: two nodes of four ranks. */
static int split_ranks(struct pl_spec *spec, const struct wish *w)
{
    unsigned per_node = w->gpus_per_node ? ranks_for(w, w->gpus_per_node) : 0;
    int r;

    if (!per_node || w->ranks % per_node != 0 || w->ranks_per_node || text(spec, PL_SPEC_NODES) ||
        text(spec, PL_SPEC_NODELIST))
        return 0;
    r = set_count(spec, PL_SPEC_NTASKS_PER_NODE, per_node);
    return r == 0 ? set_count(spec, PL_SPEC_NODES, w->ranks / per_node) : r;
}

int pl_shape_defaults(struct pl_spec *spec)
{
    const struct wish w = wish_of(spec);
    /* Slurm chooses how many nodes they need. */
    bool total = text(spec, PL_SPEC_NTASKS) || text(spec, PL_SPEC_GPUS) || w.gpus;
    bool ranks_given = text(spec, PL_SPEC_NTASKS) || w.ranks_per_gpu ||
                       spec->values[PL_SPEC_NTASKS_PER_NODE].origin != PL_ORIGIN_NONE;
    int r = 0;

    if (w.ranks)
        return split_ranks(spec, &w);
    if (!total && !text(spec, PL_SPEC_NODELIST))
        r = set_count(spec, PL_SPEC_NODES, 1);
    if (r < 0 || ranks_given)
        return r;
    if (w.gpus)
        return set_count(spec, PL_SPEC_NTASKS, ranks_for(&w, w.gpus));
    return set_count(spec, PL_SPEC_NTASKS_PER_NODE,
                     w.gpus_per_node ? ranks_for(&w, w.gpus_per_node) : 1);
}

/* ---- the whole shape ---- */

/* "2" or "2-4". */
static void read_nodes(const struct pl_spec *spec, struct pl_shape *s)
{
    const char *value = text(spec, PL_SPEC_NODES);
    size_t len = value ? strcspn(value, "-") : 0;

    if (!value)
        return;
    s->nodes = pl_count(value, len);
    s->nodes_max = value[len] ? pl_count(value + len + 1, strlen(value + len + 1)) : s->nodes;
}

static void read_ranks(const struct pl_spec *spec, const struct wish *w, struct pl_shape *s)
{
    bool fixed;

    if (w->ranks && !text(spec, PL_SPEC_LOCAL)) { /* sbatch takes no node without a task */
        s->nodes = PL_MIN(s->nodes, w->ranks);
        s->nodes_max = PL_MIN(s->nodes_max, w->ranks);
    }
    fixed = s->nodes && s->nodes == s->nodes_max;
    s->ranks_per_node = w->ranks_per_node;
    s->ranks = w->ranks;
    if (w->ranks_per_gpu && !s->ranks)
        s->ranks = w->gpus * w->ranks_per_gpu;
    if (w->ranks_per_gpu && !s->ranks_per_node)
        s->ranks_per_node = w->gpus_per_node * w->ranks_per_gpu;
    if (s->ranks && s->ranks_per_node && !s->nodes && !text(spec, PL_SPEC_NODELIST))
        s->nodes = s->nodes_max = (s->ranks + s->ranks_per_node - 1) / s->ranks_per_node;
    else if (!s->ranks && s->ranks_per_node && fixed)
        s->ranks = s->ranks_per_node * s->nodes;
    else if (s->ranks && fixed && s->ranks % s->nodes == 0)
        s->ranks_per_node = s->ranks / s->nodes;
}

static void read_gpus(const struct wish *w, struct pl_shape *s)
{
    s->gpus = w->gpus;
    s->gpus_per_node = w->gpus_per_node;
    s->gpus_per_rank = w->gpus_per_rank;
    if (s->gpus_per_rank)
        return;
    if (s->gpus_per_node && s->ranks_per_node && s->gpus_per_node % s->ranks_per_node == 0)
        s->gpus_per_rank = s->gpus_per_node / s->ranks_per_node;
    else if (s->gpus && s->ranks && s->gpus % s->ranks == 0)
        s->gpus_per_rank = s->gpus / s->ranks;
}

struct pl_shape pl_shape_of(const struct pl_spec *spec)
{
    const struct wish w = wish_of(spec);
    struct pl_shape s = {0};

    read_nodes(spec, &s);
    read_ranks(spec, &w, &s);
    read_gpus(&w, &s);
    s.cpus_per_rank = count(spec, PL_SPEC_CPUS_PER_TASK);
    if (!s.cpus_per_rank)
        s.cpus_per_rank = count(spec, PL_SPEC_CPUS_PER_GPU) * s.gpus_per_rank;
    /* Slurm's default, but a site may have one for each GPU (DefCpuPerGPU). */
    if (!s.cpus_per_rank && !s.gpus && !s.gpus_per_node && !s.gpus_per_rank &&
        !pl_spec_of_sbatch(spec, "exclusive"))
        s.cpus_per_rank = 1;
    return s;
}

static int add_count(struct pl_buf *out, unsigned n, const char *what)
{
    return pl_buf_addf(out, "%s%u %s%s", out->len ? " x " : "", n, what, n == 1 ? "" : "s");
}

static int add_gpus(const struct pl_shape *s, struct pl_buf *out)
{
    if (s->gpus_per_rank)
        return add_count(out, s->gpus_per_rank, "GPU");
    if (s->gpus_per_node)
        return pl_buf_addf(out, " (%u GPUs per node)", s->gpus_per_node);
    return s->gpus ? pl_buf_addf(out, " (%u GPUs)", s->gpus) : 0;
}

int pl_shape_format(const struct pl_shape *s, struct pl_buf *ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    int r = 0;

    if (s->nodes && s->nodes == s->nodes_max)
        r = add_count(&out, s->nodes, "node");
    else if (s->nodes)
        r = pl_buf_addf(&out, "%u to %u nodes", s->nodes, s->nodes_max);
    if (r == 0 && s->ranks_per_node)
        r = out.len ? add_count(&out, s->ranks_per_node, "rank")
                    : pl_buf_addf(&out, "%u rank%s per node", s->ranks_per_node,
                                  s->ranks_per_node == 1 ? "" : "s");
    else if (r == 0 && s->ranks)
        r = out.len ? pl_buf_addf(&out, ", %u rank%s in all", s->ranks, s->ranks == 1 ? "" : "s")
                    : add_count(&out, s->ranks, "rank");
    if (r == 0)
        r = add_gpus(s, &out);
    if (r == 0 && s->cpus_per_rank)
        r = add_count(&out, s->cpus_per_rank, "CPU");
    if (r == 0 && !s->nodes && !s->ranks && !s->ranks_per_node)
        r = pl_buf_adds(&out, out.len ? ", ranks as Slurm decides" : "ranks as Slurm decides");
    return r == 0 ? pl_buf_adds(ret, pl_buf_str(&out)) : r;
}
