/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/gpu_watch.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "runtime/node/nvml.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_MS 5000
#define EVENTS_MAX 16 /* a period: a broken GPU may raise one Xid after another */
#define GPUS_MAX 64
#define PROCESSES_MAX 128
#define WINDOW 12 /* samples: a minute, in which a validation or a checkpoint is no idleness */
#define CONTROL_DEVICE "/dev/nvidiactl"

struct gpu {
    void *device;   /* NULL: the driver does not hand it out, as one that is lost */
    unsigned index; /* the library's, which nvidia-smi shows too */
    char uuid[96], name[96];
    uint64_t throttled_ns;       /* start of throttling, 0 = full clocks */
    unsigned long long since_us; /* the newest sample that was read */
    unsigned n;                  /* samples of utilization so far; the last ones: */
    unsigned util[WINDOW];
    unsigned long long mem[WINDOW]; /* bytes in use */
};

struct watch {
    int fd;
    struct pl_nvml nvml;
    struct gpu gpus[GPUS_MAX];
    unsigned n, events;
    bool all;  /* of the node, for a sample */
    void *set; /* NULL: the driver reports no events */
};

/* ---- the GPUs to watch ---- */

static const char *library_for_tests(void)
{
#ifdef PL_TEST_BUILD
    return pl_env_text(PL_ENV_PLUME_NVML);
#else
    return NULL; /* no variable chooses the code that is loaded */
#endif
}

bool pl_gpu_watch_wanted(void)
{
    static const struct {
        enum pl_env_id id;
        const char *none[2];
    } table[] = {
        {PL_ENV_SLURM_STEP_GPUS, {NULL}},
        {PL_ENV_SLURM_JOB_GPUS, {NULL}},
        {PL_ENV_SLURM_GPUS_ON_NODE, {"0", NULL}},
        {PL_ENV_CUDA_VISIBLE_DEVICES, {"NoDevFiles", "-1"}},
    };

    for (size_t i = 0; i < PL_COUNT(table); i++) {
        const char *v = pl_env(table[i].id);
        bool some = v && *v;

        for (size_t k = 0; some && k < 2; k++)
            some = !table[i].none[k] || strcmp(v, table[i].none[k]) != 0;
        if (some)
            return library_for_tests() || access(CONTROL_DEVICE, F_OK) == 0;
    }
    return false;
}

/* True if Slurm's list ("0,2-3", numbers of the node's devices) has this one. */
static bool listed(const char *list, unsigned index)
{
    while (*list) {
        char *end;
        unsigned long low = strtoul(list, &end, 10), high = low;

        if (end == list)
            return false;
        if (*end == '-')
            high = strtoul(end + 1, &end, 10);
        if (index >= low && index <= high)
            return true;
        list = *end == ',' ? end + 1 : end;
        if (*end != ',')
            break;
    }
    return false;
}

/* If Slurm constrains devices, the driver shows the step's own only, with numbers from 0; else it
 * shows all of the node, and Slurm's list names ours. */
static void choose(struct watch *w)
{
    const char *list = pl_env(PL_ENV_SLURM_STEP_GPUS), *on_node = pl_env(PL_ENV_SLURM_GPUS_ON_NODE);
    unsigned kept = 0;
    int64_t ours;

    if (!list || !*list)
        list = pl_env(PL_ENV_SLURM_JOB_GPUS);
    if (!list || !*list ||
        (on_node && pl_parse_int(on_node, 1, GPUS_MAX, &ours, NULL) == 0 && (unsigned)ours >= w->n))
        return;
    for (unsigned i = 0; i < w->n; i++)
        kept += listed(list, w->gpus[i].index);
    if (kept == 0)
        return;
    kept = 0;
    for (unsigned i = 0; i < w->n; i++)
        if (listed(list, w->gpus[i].index))
            w->gpus[kept++] = w->gpus[i];
    w->n = kept;
}

static int find_gpus(struct watch *w, struct pl_error *err)
{
    unsigned count = 0;
    int r = w->nvml.count(&count);

    if (r != PL_NVML_SUCCESS)
        return pl_error_set(err, -EIO, "cannot count the GPUs: %s", w->nvml.error_string(r));
    for (unsigned i = 0; i < count && w->n < GPUS_MAX; i++) {
        struct gpu gpu = {.index = i};

        r = w->nvml.handle(i, &gpu.device);
        if (r == PL_NVML_NO_PERMISSION || (r != PL_NVML_SUCCESS && !w->all))
            continue;
        if (r != PL_NVML_SUCCESS)
            gpu.device = NULL;
        else if (w->nvml.uuid)
            w->nvml.uuid(gpu.device, gpu.uuid, sizeof(gpu.uuid));
        if (gpu.device && w->nvml.name)
            w->nvml.name(gpu.device, gpu.name, sizeof(gpu.name));
        w->gpus[w->n++] = gpu;
    }
    if (!w->all)
        choose(w);
    return w->n ? 0 : pl_error_set(err, -ENODEV, "the driver shows no GPU");
}

static void watch_events(struct watch *w)
{
    const struct pl_nvml *nvml = &w->nvml;
    const unsigned long long wanted = PL_NVML_EVENT_XID | PL_NVML_EVENT_DOUBLE_BIT_ECC;
    unsigned registered = 0;

    if (!nvml->set_create || !nvml->register_events || !nvml->wait || !nvml->set_free ||
        !nvml->event_types || nvml->set_create(&w->set) != PL_NVML_SUCCESS) {
        w->set = NULL;
        return;
    }
    for (unsigned i = 0; i < w->n; i++) {
        unsigned long long types = 0;

        if (nvml->event_types(w->gpus[i].device, &types) == PL_NVML_SUCCESS && (types & wanted) &&
            nvml->register_events(w->gpus[i].device, types & wanted, w->set) == PL_NVML_SUCCESS)
            registered++;
    }
    if (!registered) {
        nvml->set_free(w->set);
        w->set = NULL;
    }
}

/* ---- writing ---- */

static int say(const struct watch *w, json_t *message)
{
    _cleanup_(json_decrefp) json_t *m = message;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = m ? pl_json_dump_line(m, &line) : -ENOMEM;

    return r < 0 ? r : pl_write_all(w->fd, line.data, line.len);
}

static void put_int(json_t *o, const char *key, unsigned long long value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void put_text(json_t *o, const char *key, const char *text)
{
    if (*text)
        json_object_set_new(o, key, json_string(text));
}

static void add_clocks(struct watch *w, struct gpu *gpu, json_t *o)
{
    const char *names[8];
    unsigned long long bits;
    unsigned value, n;
    json_t *list;

    if (w->nvml.clock && w->nvml.clock(gpu->device, PL_NVML_CLOCK_SM, &value) == PL_NVML_SUCCESS)
        put_int(o, "clock_mhz", value);
    if (w->nvml.max_clock &&
        w->nvml.max_clock(gpu->device, PL_NVML_CLOCK_SM, &value) == PL_NVML_SUCCESS)
        put_int(o, "clock_max_mhz", value);
    if (!w->nvml.throttle || w->nvml.throttle(gpu->device, &bits) != PL_NVML_SUCCESS)
        return;
    n = pl_nvml_throttle_names(bits, names, PL_COUNT(names));
    if (n == 0) {
        gpu->throttled_ns = 0;
        return;
    }
    if (!gpu->throttled_ns)
        gpu->throttled_ns = pl_now_ns();
    list = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(list, json_string(names[i]));
    json_object_set_new(o, "throttle", list);
    put_int(o, "throttled_s", (pl_now_ns() - gpu->throttled_ns) / 1000000000u);
}

static void add_ecc(const struct watch *w, const struct gpu *gpu, json_t *o)
{
    unsigned long long count;

    if (!w->nvml.ecc)
        return;
    if (w->nvml.ecc(gpu->device, PL_NVML_ECC_CORRECTED, PL_NVML_ECC_VOLATILE, &count) ==
        PL_NVML_SUCCESS)
        put_int(o, "ecc_corrected", count);
    if (w->nvml.ecc(gpu->device, PL_NVML_ECC_UNCORRECTED, PL_NVML_ECC_VOLATILE, &count) ==
        PL_NVML_SUCCESS)
        put_int(o, "ecc_uncorrected", count);
}

static void add_processes(struct watch *w, struct gpu *gpu, json_t *o)
{
    struct pl_nvml_process processes[PROCESSES_MAX];
    struct pl_nvml_process_sample samples[PROCESSES_MAX];
    unsigned n = PROCESSES_MAX, n_samples = PROCESSES_MAX;
    json_t *list;

    if (!w->nvml.processes || w->nvml.processes(gpu->device, &n, processes) != PL_NVML_SUCCESS) {
        if (w->all)
            json_object_set_new(o, "processes_unread", json_true());
        return;
    }
    if (n == 0)
        return;
    if (!w->nvml.process_samples ||
        w->nvml.process_samples(gpu->device, samples, &n_samples, gpu->since_us) != PL_NVML_SUCCESS)
        n_samples = 0;
    list = json_array();
    for (unsigned i = 0; i < PL_MIN(n, (unsigned)PROCESSES_MAX); i++) {
        json_t *p = json_pack("{s:I}", "pid", (json_int_t)processes[i].pid);
        unsigned long long newest = 0;

        if (processes[i].used_memory != ~0ull)
            put_int(p, "mem", processes[i].used_memory);
        for (unsigned k = 0; k < PL_MIN(n_samples, (unsigned)PROCESSES_MAX); k++)
            if (samples[k].pid == processes[i].pid && samples[k].time_us >= newest) {
                newest = samples[k].time_us;
                put_int(p, "util", samples[k].sm);
            }
        gpu->since_us = PL_MAX(gpu->since_us, newest);
        json_array_append_new(list, p);
    }
    json_object_set_new(o, "processes", list);
}

/* The mean utilization and the most memory of the last samples, once these are a whole window. */
static void
add_window(struct gpu *gpu, unsigned util, const struct pl_nvml_memory *memory, json_t *o)
{
    unsigned long long most = 0;
    unsigned sum = 0;

    gpu->util[gpu->n % WINDOW] = util;
    gpu->mem[gpu->n % WINDOW] = memory->used;
    if (++gpu->n < WINDOW)
        return;
    for (unsigned i = 0; i < WINDOW; i++) {
        sum += gpu->util[i];
        most = PL_MAX(most, gpu->mem[i]);
    }
    put_int(o, "util_mean", (sum + WINDOW / 2) / WINDOW);
    if (most)
        put_int(o, "mem_most", most);
}

static json_t *sample(struct watch *w, struct gpu *gpu)
{
    json_t *o = json_pack("{s:i}", "gpu", (int)gpu->index);
    struct pl_nvml_utilization utilization;
    struct pl_nvml_memory memory = {0};
    bool utilized = false;
    unsigned value;

    if (!o)
        return NULL;
    if (!gpu->device) {
        json_object_set_new(o, "processes_unread", json_true());
        return o;
    }
    put_text(o, "uuid", gpu->uuid);
    put_text(o, "name", gpu->name);
    if (w->nvml.utilization && w->nvml.utilization(gpu->device, &utilization) == PL_NVML_SUCCESS) {
        utilized = true;
        put_int(o, "util", utilization.gpu);
        put_int(o, "mem_util", utilization.memory);
    }
    if (w->nvml.power && w->nvml.power(gpu->device, &value) == PL_NVML_SUCCESS)
        json_object_set_new(o, "power_w", json_real(value / 1000.0));
    if (w->nvml.power_limit && w->nvml.power_limit(gpu->device, &value) == PL_NVML_SUCCESS)
        json_object_set_new(o, "power_limit_w", json_real(value / 1000.0));
    add_clocks(w, gpu, o);
    if (w->nvml.memory && w->nvml.memory(gpu->device, &memory) == PL_NVML_SUCCESS) {
        put_int(o, "mem_used", memory.used);
        put_int(o, "mem_total", memory.total);
    }
    if (utilized)
        add_window(gpu, utilization.gpu, &memory, o);
    if (w->nvml.temperature &&
        w->nvml.temperature(gpu->device, PL_NVML_TEMPERATURE_GPU, &value) == PL_NVML_SUCCESS)
        put_int(o, "temp_c", value);
    add_ecc(w, gpu, o);
    add_processes(w, gpu, o);
    return o;
}

static int say_samples(struct watch *w)
{
    _cleanup_(json_decrefp) json_t *list = json_array();

    for (unsigned i = 0; i < w->n; i++) {
        json_t *o = sample(w, &w->gpus[i]);

        if (o)
            json_array_append_new(list, o);
    }
    w->events = 0;
    return say(w, pl_msg_new(&(struct pl_msg){.type = PL_MSG_NODE_GPUS, .node_gpus.gpus = list}));
}

static int say_event(struct watch *w, const struct pl_nvml_event *event)
{
    bool xid = event->type & PL_NVML_EVENT_XID;
    const char *text = xid ? pl_nvml_xid_text(event->data) : "double bit ECC error";
    const struct gpu *gpu = NULL;

    for (unsigned i = 0; i < w->n; i++)
        if (w->gpus[i].device == event->device)
            gpu = &w->gpus[i];
    if (!gpu || w->events++ >= EVENTS_MAX)
        return 0;
    return say(w, pl_msg_new(&(struct pl_msg){
                      .type = PL_MSG_NODE_GPU,
                      .node_gpu = {.gpu = gpu->index,
                                   .event = xid ? "xid" : "ecc",
                                   .at_ns = (int64_t)pl_now_ns(),
                                   .uuid = *gpu->uuid ? gpu->uuid : NULL,
                                   .xid = xid ? (int64_t)event->data : PL_MSG_ABSENT,
                                   .text = text},
                  }));
}

/* Waits for the next sample's time. 0, 1 for an event, -EPIPE if nobody reads any more. */
static int wait_for_event(struct watch *w, uint64_t due_ns, struct pl_nvml_event *ret)
{
    uint64_t now = pl_now_ns();
    int left_ms = now < due_ns ? (int)((due_ns - now) / 1000000) + 1 : 0, r;
    struct pollfd p = {.fd = w->fd};

    if (w->set && left_ms) {
        *ret = (struct pl_nvml_event){0};
        r = w->nvml.wait(w->set, ret, (unsigned)left_ms);
        if (r == PL_NVML_SUCCESS || r == PL_NVML_TIMEOUT)
            return r == PL_NVML_SUCCESS;
        w->set = NULL; /* a lost GPU ends every wait: only the clock is left */
    }
    return poll(&p, 1, left_ms) > 0 ? -EPIPE : 0;
}

static int open_gpus(struct watch *w, struct pl_error *err)
{
    const char *path = library_for_tests();
    int r = pl_nvml_open(&w->nvml, path ? path : PL_NVML_LIBRARY, err);

    if (r == 0)
        r = find_gpus(w, err);
    if (r < 0)
        pl_nvml_close(&w->nvml);
    return r;
}

int pl_gpu_watch_sample(int fd, struct pl_error *err)
{
    struct watch w = {.fd = fd, .all = true};
    int r = open_gpus(&w, err);

    if (r < 0)
        return r;
    r = say_samples(&w);
    pl_nvml_close(&w.nvml);
    return r < 0 ? pl_error_errno(err, -r, "cannot write the sample") : 0;
}

int pl_gpu_watch_run(int fd, struct pl_error *err)
{
    struct watch w = {.fd = fd};
    struct pl_nvml_event event;
    uint64_t due_ns;
    int r = open_gpus(&w, err);

    if (r < 0)
        return r;
    watch_events(&w);
    while (r >= 0) {
        r = say_samples(&w);
        due_ns = pl_now_ns() + PERIOD_MS * 1000000ull;
        while (r >= 0 && (r = wait_for_event(&w, due_ns, &event)) == 1)
            r = say_event(&w, &event);
    }
    pl_nvml_close(&w.nvml);
    return 0; /* the daemon is gone */
}
