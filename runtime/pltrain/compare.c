/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/compare.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "runtime/pltrain/auto_gpu.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>

#define WARM 4   /* steps: memory is planned, graphs are captured and replayed once */
#define STEPS 30 /* measured at least, and for LEAST_S, */
#define LEAST_S 0.3
#define SECONDS 4.0             /* unless this is over */
#define LIMIT_MS 180000         /* of a device, with the start */
#define WORTH 1.1               /* times as fast as the CPU is what a GPU should be */
#define EPOCHS "epochs=1000000" /* the steps end the run */

#define LIBTPU "libtpu.so"

static const char *const kinds[] = {
    [PL_COMPARE_CPU] = "cpu", [PL_COMPARE_GPU] = "gpu", [PL_COMPARE_TPU] = "tpu"};

/* A training that is measured, in the child. */
struct measured {
    struct pl_compare_row row;
    uint64_t begin_ns, warm_ns, seen;
};

static bool is_enough(uint64_t seen, double seconds)
{
    return seen > WARM && (seconds >= SECONDS || (seen >= WARM + STEPS && seconds >= LEAST_S));
}

/* The device works behind the calls: it is waited for where a time is taken. */
static int on_step(void *ctx, struct pl_device *dev, struct pl_error *err)
{
    struct measured *m = ctx;
    struct pl_device_memory memory = {0};
    double seconds = (double)(pl_now_ns() - m->warm_ns) * 1e-9;
    int r;

    m->seen++;
    if (m->seen != 1 && m->seen != WARM && !is_enough(m->seen, seconds))
        return 0;
    r = pl_device_sync(dev, err);
    if (r < 0)
        return r;
    if (m->seen == 1)
        m->row.first_s = (double)(pl_now_ns() - m->begin_ns) * 1e-9;
    if (m->seen == WARM)
        m->warm_ns = pl_now_ns();
    if (m->seen <= WARM)
        return 0;
    m->row.steps = m->seen - WARM;
    m->row.seconds = (double)(pl_now_ns() - m->warm_ns) * 1e-9;
    dev->ops->memory(dev, &memory);
    m->row.peak_bytes = (double)memory.peak;
    snprintf(m->row.device, sizeof(m->row.device), "%s", dev->name);
    return pl_error_set(err, -ECANCELED, "measured");
}

struct task {
    struct pl_pltrain *p;
    struct pl_hparams *hparams;
    int (*train)(void *ctx, struct pl_error *err);
    void *ctx;
    enum pl_compare_kind kind;
};

static int find_plugin(const char *plugin, bool *ret_there, struct pl_error *err)
{
    void *library = dlopen(plugin, RTLD_LAZY | RTLD_LOCAL); /* stays open for the training */

    *ret_there = library != NULL;
    return library ? 0 : pl_error_set(err, -ENOENT, "%s", dlerror());
}

static int find_device(const struct task *task, bool *ret_there, struct pl_error *err)
{
    struct pl_pltrain *p = task->p;

    *ret_there = true;
    p->auto_gpu = false;
    p->gpu = task->kind == PL_COMPARE_GPU;
    p->tpu = task->kind == PL_COMPARE_TPU;
    if (p->gpu)
        return pl_auto_gpu_check(ret_there, err);
    return p->tpu ? find_plugin(p->plugin ? p->plugin : LIBTPU, ret_there, err) : 0;
}

static void set_options(struct pl_train_options *options, struct measured *m)
{
    options->out = NULL;
    options->sanity_steps = 0;
    options->max_steps = UINT64_MAX;
    options->limit[PLUME_VALIDATE] = options->limit[PLUME_TEST] = (struct pl_limit){0};
    options->on_step = on_step;
    options->on_step_ctx = m;
}

static int measure(const struct task *task, struct measured *m, struct pl_error *err)
{
    struct pl_compare_row *row = &m->row;
    int r = find_device(task, &row->there, err);

    if (r == 0)
        r = pl_hparams_set(task->hparams, EPOCHS, err);
    if (r < 0)
        return r;
    set_options(&task->p->train, m);
    m->begin_ns = pl_now_ns();
    r = task->train(task->ctx, err);
    row->samples = pl_hparams_value(task->hparams, "batch_size") *
                   (double)pl_accumulate_at(&task->p->train, 0);
    if (row->steps && task->kind == PL_COMPARE_TPU) { /* the engine's own device is the host */
        row->peak_bytes = 0;
        snprintf(row->device, sizeof(row->device), "%.100s",
                 task->p->plugin ? task->p->plugin : LIBTPU);
    }
    if (row->steps)
        return 0;
    return r < 0 ? r
                 : pl_error_set(err, -ENODATA, "it ended after %llu steps",
                                (unsigned long long)m->seen);
}

/* The child's: CUDA does not survive a fork, and what a device breaks is the child's alone. */
static int answer(void *ctx, int fd)
{
    struct measured m = {.row = {.there = false}};
    struct pl_error err = {0};

    if (measure(ctx, &m, &err) < 0)
        snprintf(m.row.why, sizeof(m.row.why), "%s", pl_error_text(&err));
    return pl_write_all(fd, &m.row, sizeof(m.row)) < 0;
}

static void run_kind(struct task *task, struct pl_compare_row *ret)
{
    struct pl_child child = {0};
    struct pl_error err = {0};
    int r = pl_child_call(answer, task, LIMIT_MS, &child, &err);

    if (r == 0 && child.out.len == sizeof(*ret)) {
        memcpy(ret, child.out.data, sizeof(*ret));
        ret->why[sizeof(ret->why) - 1] = ret->device[sizeof(ret->device) - 1] = '\0';
    } else {
        *ret = (struct pl_compare_row){.there = true};
        if (r == -ETIMEDOUT)
            snprintf(ret->why, sizeof(ret->why), "%d steps did not end within %d s", WARM + 1,
                     LIMIT_MS / 1000);
        else if (r < 0)
            snprintf(ret->why, sizeof(ret->why), "%s", pl_error_text(&err));
        else if (WIFSIGNALED(child.status))
            snprintf(ret->why, sizeof(ret->why), "it died by signal %d", WTERMSIG(child.status));
        else
            snprintf(ret->why, sizeof(ret->why), "it ended with status %d",
                     WEXITSTATUS(child.status));
    }
    pl_child_finish(&child);
}

/* ---- the report ---- */

static double per_s(const struct pl_compare_row *row)
{
    return row->why[0] || !(row->seconds > 0) ? 0 : (double)row->steps / row->seconds;
}

/* The fastest but `other`; PL_COMPARE_KINDS: none has numbers. */
static unsigned fastest(const struct pl_compare_row *rows, unsigned other)
{
    unsigned best = PL_COMPARE_KINDS;

    for (unsigned i = 0; i < PL_COMPARE_KINDS; i++)
        if (i != other && per_s(&rows[i]) > 0 &&
            (best == PL_COMPARE_KINDS || per_s(&rows[i]) > per_s(&rows[best])))
            best = i;
    return best;
}

static void recommend(const struct pl_compare_row *rows, unsigned best, FILE *out)
{
    double cpu = per_s(&rows[PL_COMPARE_CPU]);
    unsigned next = fastest(rows, PL_COMPARE_CPU);

    if (best != PL_COMPARE_CPU && !(cpu > 0))
        fprintf(out, "recommended: --accelerator %s\n", kinds[best]);
    else if (best != PL_COMPARE_CPU && per_s(&rows[best]) >= WORTH * cpu)
        fprintf(out, "recommended: --accelerator %s, %.3g times as fast as the CPU\n", kinds[best],
                per_s(&rows[best]) / cpu);
    else if (best != PL_COMPARE_CPU)
        fprintf(out, "recommended: --accelerator cpu: the %s is only %.3g times as fast\n",
                kinds[best], per_s(&rows[best]) / cpu);
    else if (next != PL_COMPARE_KINDS)
        fprintf(out, "recommended: --accelerator cpu, %.3g times as fast as the %s\n",
                cpu / per_s(&rows[next]), kinds[next]);
    else if (!rows[PL_COMPARE_GPU].there && !rows[PL_COMPARE_TPU].there)
        fputs("recommended: --accelerator cpu, the only device here\n", out);
    else
        fputs("recommended: --accelerator cpu\n", out);
}

int pl_compare_print(const struct pl_compare_row rows[PL_COMPARE_KINDS], FILE *out)
{
    unsigned best = fastest(rows, PL_COMPARE_KINDS);

    fprintf(out, "%-6s %10s %11s %11s %9s\n", "DEVICE", "MS/STEP", "SAMPLES/S", "FIRST STEP",
            "PEAK MIB");
    for (unsigned i = 0; i < PL_COMPARE_KINDS; i++) {
        const struct pl_compare_row *row = &rows[i];
        char peak[32] = "-";

        if (row->why[0]) {
            fprintf(out, "%-6s %s: %s\n", kinds[i], row->there ? "failed" : "not here", row->why);
            continue;
        }
        if (row->peak_bytes > 0)
            snprintf(peak, sizeof(peak), "%.1f", row->peak_bytes / (1 << 20));
        fprintf(out, "%-6s %10.3f %11.1f %9.2f s %9s  %s\n", kinds[i], 1e3 / per_s(row),
                row->samples * per_s(row), row->first_s, peak, row->device);
    }
    if (best == PL_COMPARE_KINDS)
        return 1;
    recommend(rows, best, out);
    return 0;
}

int pl_compare_devices(struct pl_pltrain *p,
                       struct pl_hparams *hparams,
                       int (*train)(void *ctx, struct pl_error *err),
                       void *ctx,
                       FILE *out)
{
    struct task task = {.p = p, .hparams = hparams, .train = train, .ctx = ctx};
    struct pl_compare_row rows[PL_COMPARE_KINDS];

    for (unsigned kind = 0; kind < PL_COMPARE_KINDS; kind++) {
        task.kind = (enum pl_compare_kind)kind;
        run_kind(&task, &rows[kind]);
    }
    return pl_compare_print(rows, out);
}
