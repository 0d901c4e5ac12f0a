/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/daemon.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/run/output_ranks.h"
#include "common/run/run_folder.h"
#include "runtime/node/net.h"

#include <string.h>
#include <sys/resource.h>

#define FILES_OF_DAEMON 28           /* with the hub 22 were counted */
#define FILES_OF_RANK 9              /* 8, and its program's connection */
#define LATE_TICK_NS 3000000000ull   /* between two ticks: the job was suspended */
#define HELLO_LIMIT_NS 2000000000ull /* from a connection to its hello */
#define BUSY_AFTER_MS 50             /* slurmstepd waits for 2 s */
#define BUSY_WAITS 30                /* of so long: the decision may need Slurm's word */
#define OUTPUT_MS 3000               /* for output that srun does not read */
#define FILES_MS 1000                /* between two looks at files that are not written */
#define FILES_FIRST_NS 500000000ull  /* for files to be written before our bye */
#define LATE_MS 4000u                /* after the grace, for ranks that have not come yet */

static void finish(struct pl_daemon *d);
static void settle(struct pl_daemon *d);
static bool verdicts_sent(const struct pl_daemon *d);

static unsigned leave_ms(void)
{
    return pl_env_ms(PL_ENV_PLUME_LEAVE_LIMIT);
}

/* ---- messages ---- */

/* The step has failed, and no rank gives its code; those of its ranks that ended well may have left
 * with their verdict. The first node's daemon is the last one, and its owner waits for it. */
static void send_last_code(const struct pl_daemon *d)
{
    if (!d->step.plugin && d->step.node_id == 0 && d->code_of_ended)
        pl_daemon_tell_owner(d, &(struct pl_msg){.type = PL_MSG_OWNER_VERDICT,
                                                 .owner_verdict.code = d->code_of_ended});
}

void pl_daemon_on_hub_lost(struct pl_daemon *d, const char *text)
{
    unsigned grace_ms = pl_env_ms(PL_ENV_PLUME_KILL_GRACE);
    int64_t fail_rank = d->decided ? -1 : PL_DAEMON_FAIL_ANY;

    /* A node that has left may still wait for the decision. */
    if ((d->bye_ok && verdicts_sent(d)) || d->finished)
        return;
    pl_log_error("net", "%s", text);
    d->state = PL_DAEMON_FAILED;
    if (!d->refusal)
        d->refusal = pl_buf_dup_text(text); /* it travels as JSON and may hold any path */
    if (!d->decided)                        /* perhaps nobody else gives a code that is not 0 */
        d->code_of_ended = PL_EXIT_FAILED;
    d->decided = true; /* no hub will */
    d->bye_ok = true;
    pl_daemon_refuse_all(d);
    if (d->n_present < d->step.local_ntasks) /* to refuse the ranks that have not come yet, too */
        pl_limit_start(&d->leave_limit, leave_ms() + grace_ms);
    pl_daemon_end_ranks_alone(d, fail_rank);
    pl_daemon_send_verdicts(d);
    settle(d);
}

static void on_world(struct pl_daemon *d, json_t *world)
{
    if (d->world)
        return;
    d->world = json_incref(world);
    d->state = PL_DAEMON_RUNNING;
    if (d->step.plugin)
        pl_daemon_lifeline_start(d);
    pl_daemon_send_world(d);
    pl_daemon_watch_env(d);
    pl_daemon_gpu_start(d);
}

/* A rank that has not come may never come, if its plrun was killed on its way: those who are late
 * are refused for a while. */
static void end_ranks(struct pl_daemon *d, const struct pl_msg *m)
{
    unsigned grace_ms = (unsigned)m->hub_end_ranks.grace_ms;

    if (!d->step.plugin && d->n_present < d->step.local_ntasks && !pl_limit_runs(&d->leave_limit))
        pl_limit_start(&d->leave_limit, grace_ms + PL_MIN(leave_ms(), LATE_MS));
    pl_daemon_end_ranks(d, grace_ms, PL_MAX(m->hub_end_ranks.kill, (int64_t)-1));
}

static void on_hub_message(void *ctx, json_t *message)
{
    struct pl_daemon *d = ctx;
    struct pl_msg m;

    if (pl_msg_read(message, PL_WIRE_HUB_TO_NODE, &m) < 0)
        return;
    switch (m.type) {
    case PL_MSG_HUB_WORLD:
        on_world(d, message);
        break;
    case PL_MSG_HUB_REFUSED:
        pl_daemon_on_hub_lost(d, m.hub_refused.text ? m.hub_refused.text
                                                    : "the hub refused this node");
        break;
    case PL_MSG_HUB_EXCHANGED:
        pl_daemon_forward_exchange(d, message);
        break;
    case PL_MSG_HUB_END_RANKS:
        end_ranks(d, &m);
        break;
    case PL_MSG_HUB_DECIDED:
        if (m.hub_decided.root != PL_MSG_ABSENT)
            d->root = m.hub_decided.root;
        if (m.hub_decided.code > 0 && m.hub_decided.code < 256)
            d->code_of_ended = (int)m.hub_decided.code;
        d->decided = true;
        pl_daemon_send_verdicts(d);
        break;
    case PL_MSG_HUB_PING:
        pl_uplink_send(d->uplink, &(struct pl_msg){
                                      .type = PL_MSG_NODE_PONG,
                                      .node_pong = {m.hub_ping.t, (int64_t)pl_now_ns()},
                                  });
        break;
    case PL_MSG_HUB_PROBE:
        pl_daemon_probe(d);
        break;
    case PL_MSG_HUB_STACK:
        pl_daemon_take_stack(d, m.hub_stack.rank);
        break;
    case PL_MSG_HUB_BYE_OK:
        d->bye_ok = true;
        if (m.hub_bye_ok.text && d->step.plugin)
            pl_log_error("run", "%s", m.hub_bye_ok.text);
        break;
    default:
        break;
    }
    settle(d);
}

/* ---- the end ---- */

static bool output_written(const struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (!pl_capture_is_done(d->ranks[i].out) || !pl_capture_is_done(d->ranks[i].err))
            return false;
    return true;
}

static bool verdicts_sent(const struct pl_daemon *d)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].verdict_due && d->ranks[i].starter)
            return false;
    return true;
}

/* True if no rank runs and none is waited for. */
static bool all_ended(const struct pl_daemon *d)
{
    if (d->n_ended < d->n_present)
        return false;
    return d->n_present == d->step.local_ntasks || d->waited ||
           (d->owner_gone && (d->step.plugin || d->state != PL_DAEMON_FAILED));
}

/* A file system that does not answer: the hub's limit is the same, and begins with our bye. */
static bool may_wait_for_files(const struct pl_daemon *d)
{
    return d->bye_sent && pl_daemon_files_wait(d) &&
           pl_now_ns() - d->bye_ns < pl_env_ms(PL_ENV_PLUME_DISK_LIMIT) * 1000000ull;
}

static void on_leave_limit(void *ctx)
{
    struct pl_daemon *d = ctx;

    pl_log_debug("daemon", "leaving after the limit");
    d->waited = true;
    if (d->held || (!d->bye_sent && !d->bye_ok)) { /* ranks that still run are waited for */
        settle(d);
    } else if (may_wait_for_files(d)) {
        pl_daemon_end_output(d); /* or what is left behind would fill the files for ever */
        pl_limit_start(&d->leave_limit, FILES_MS);
    } else {
        finish(d);
    }
}

/* A user who sees the trial's result reads the ranks' files at once. So this waits for them before
 * the bye, but not for a slow file system. The wait covers files that pl_disk_tell() adds. */
static void await_files(struct pl_daemon *d)
{
    uint64_t until = pl_now_ns() + FILES_FIRST_NS, now;

    while (pl_daemon_files_wait(d) && (now = pl_now_ns()) < until) {
        pl_disk_wait(d->disk, (unsigned)((until - now) / 1000000) + 1);
        pl_disk_tell(d->disk);
    }
}

/* Takes the next step towards the end, if there is nothing left to wait for. */
static void settle(struct pl_daemon *d)
{
    if (d->finished || !all_ended(d))
        return;
    if (d->state != PL_DAEMON_LEAVING && d->state != PL_DAEMON_FAILED)
        d->state = PL_DAEMON_LEAVING;
    if (!d->bye_sent) {
        d->bye_sent = true;
        d->bye_ns = pl_now_ns();
        if (d->step.plugin)
            pl_daemon_kill_orphans(d, UINT_MAX, 0);
        if (!d->bye_ok)
            await_files(d);
        pl_daemon_tell_cut(d);
        pl_daemon_send_metrics(d);
        pl_uplink_send(d->uplink, &(struct pl_msg){.type = PL_MSG_NODE_BYE});
    }
    if (d->held)
        return; /* the hub stays for the other nodes, for hours perhaps */
    if (!pl_limit_runs(&d->leave_limit))
        pl_limit_start(&d->leave_limit, leave_ms());
    if (!d->bye_ok || !verdicts_sent(d))
        return;
    /* The starters of refused ranks read the reason and close their connections. */
    if (d->state == PL_DAEMON_FAILED && d->conns && !d->owner_gone)
        return;
    if (!output_written(d)) {
        if (pl_limit_left_ms(&d->leave_limit) > OUTPUT_MS)
            pl_limit_start(&d->leave_limit, OUTPUT_MS);
        return;
    }
    finish(d);
}

static void close_handle(uv_handle_t *handle)
{
    if (handle->data && !uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void finish(struct pl_daemon *d)
{
    if (d->finished)
        return;
    d->finished = true;
    pl_daemon_send_verdicts(d);
    send_last_code(d);
    pl_daemon_say_unwritten(d);
    pl_daemon_close_ranks(d);
    pl_disk_close(PL_TAKE(d->disk));
    pl_daemon_gpu_close(d);
    pl_daemon_lifeline_close(d);
    pl_daemon_helper_close(d);
    pl_daemon_probe_close(d);
    pl_uplink_close(d->uplink);
    pl_daemon_net_close(d);
    close_handle((uv_handle_t *)&d->control);
    close_handle((uv_handle_t *)&d->tick);
    close_handle((uv_handle_t *)&d->grace.timer);
    close_handle((uv_handle_t *)&d->leave_limit.timer);
    close_handle((uv_handle_t *)&d->busy_timer);
    close_handle((uv_handle_t *)&d->env_timer);
    close_handle((uv_handle_t *)&d->changed);
    if (d->on_finished)
        d->on_finished(d->ctx);
}

void pl_daemon_release(struct pl_daemon *d)
{
    d->held = false;
    settle(d);
}

/* ---- the owner ---- */

/* The hub of a step of several nodes stays for the others: slurmstepd does not wait for it then. */
static void on_busy_due(uv_timer_t *timer)
{
    struct pl_daemon *d = timer->data;

    if (!(d->held || pl_daemon_files_wait(d)) || d->finished)
        return;
    if ((!d->bye_ok || !d->held) &&
        d->busy_waits++ < BUSY_WAITS) /* no other node runs: the hub is about to end */
        uv_timer_start(timer, on_busy_due, BUSY_AFTER_MS, 0);
    else
        /* Our own tasks have ended, others have not: slurmstepd must leave us alone. */
        pl_daemon_tell_owner(d, &(struct pl_msg){.type = PL_MSG_OWNER_BUSY});
}

static void owner_gone(struct pl_daemon *d)
{
    if (d->owner_gone)
        return;
    d->owner_gone = true;
    uv_poll_stop(&d->control);
    for (unsigned i = 0; i < d->n_present; i++)
        if (!d->ranks[i].ended && (d->step.plugin || !d->ranks[i].starter))
            pl_rank_starter_gone(&d->ranks[i]);
    if (!d->step.plugin && d->n_ended < d->n_present) /* plrun of local rank 0 was killed */
        pl_daemon_end_ranks_alone(d, -1);
    settle(d);
    if (d->step.plugin && !d->finished && (d->held || pl_daemon_files_wait(d)))
        /* the hub may finish on the bye that settle() sent */
        uv_timer_start(&d->busy_timer, on_busy_due, BUSY_AFTER_MS, 0);
}

static void on_control(uv_poll_t *poll, int status, int events)
{
    struct pl_daemon *d = poll->data;
    char data[4096], *newline;
    ssize_t n = recv(d->control_fd, data, sizeof(data), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || pl_buf_add(&d->control_in, data, (size_t)n) < 0) {
        owner_gone(d);
        return;
    }
    while ((newline = memchr(d->control_in.data, '\n', d->control_in.len))) {
        _cleanup_(json_decrefp) json_t *message = NULL;
        size_t len = (size_t)(newline - d->control_in.data);

        if (pl_json_parse(d->control_in.data, len, 4096, &message, NULL) == 0)
            pl_daemon_control_message(d, message);
        pl_buf_consume(&d->control_in, len + 1);
    }
    if (d->control_in.len > 65536)
        owner_gone(d);
}

static void on_tick(uv_timer_t *timer)
{
    struct pl_daemon *d = timer->data;
    uint64_t now = pl_now_ns();

    /* Before anything is sent: sending looks at the silence, too. */
    if (now - d->tick_ns > LATE_TICK_NS) {
        pl_uplink_reset_silence(d->uplink);
        for (struct pl_rank_conn *c = d->conns; c; c = c->next)
            c->born_ns = now;
    }
    d->tick_ns = now;
    pl_daemon_accept(d);
    pl_daemon_send_metrics(d);
    pl_daemon_tick_output(d);
    pl_daemon_beat(d);
    pl_daemon_wake_guards(d);
    pl_daemon_lifeline_beat(d);
    pl_uplink_beat(d->uplink); /* also before the world: it finds a hub whose host is gone */
    for (struct pl_rank_conn *c = d->conns; c; c = c->next)
        if (!c->rank && now - c->born_ns > HELLO_LIMIT_NS)
            shutdown(c->fd, SHUT_RDWR);
}

/* ---- start ---- */

/* Checks again what srun, plrun and plsubmit check: a step may come without them. */
static int add_rule(struct pl_daemon *d, const char *spec, struct pl_error *err)
{
    int r;

    if (!spec)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_metric_rule_init(&d->rules[d->n_rules], spec, err);
    if (r < 0)
        return pl_error_wrap(err, r, "metric");
    d->n_rules++;
    return 0;
}

/* The objective "min:loss.best" asks for the best value of loss. */
static int find_best(struct pl_daemon *d, const struct pl_run *run)
{
    const char *name = NULL;
    enum pl_objective objective = pl_run_objective(run, &name);
    size_t len = name ? strlen(name) : 0, suffix = strlen(PL_RUN_BEST);

    if (objective == PL_OBJECTIVE_NONE || len <= suffix ||
        strcmp(name + len - suffix, PL_RUN_BEST) != 0)
        return 0;
    d->best_is_max = objective == PL_OBJECTIVE_MAX;
    d->best_of = strndup(name, len - suffix);
    return d->best_of ? 0 : -ENOMEM;
}

static int load_rules(struct pl_daemon *d, struct pl_error *err)
{
    const char *list = pl_env(PL_ENV_PLUME_METRIC); /* NAME=REGEX, one a line */
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    size_t n = 0, from_run = 0;
    int r = 0;

    if (d->step.run_dir) {
        r = pl_run_open_own(d->step.run_dir, &run, err);
        if (r < 0)
            return r;
        from_run = pl_run_n_metrics(run);
        if (find_best(d, run) < 0)
            return pl_error_nomem(err);
    }
    for (const char *p = list; p && *p; p += strcspn(p, "\n"), p += *p == '\n')
        n++;
    if (n + from_run == 0)
        return 0;
    d->rules = calloc(n + from_run, sizeof(*d->rules));
    if (!d->rules)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < from_run && r == 0; i++) {
        const char *name, *regex;
        _cleanup_free_ char *spec = NULL;

        pl_run_metric(run, i, &name, &regex);
        spec = pl_strf("%s=%s", name, regex);
        r = add_rule(d, spec, err);
    }
    for (const char *p = list; p && *p && r == 0; p += strcspn(p, "\n"), p += *p == '\n') {
        _cleanup_free_ char *spec = strndup(p, strcspn(p, "\n"));

        r = add_rule(d, spec, err);
    }
    return r;
}

static void on_changed(uv_async_t *changed)
{
    settle(changed->data);
}

/* The step may have been started without plrun's and the plugin's checks. */
static int check_nccl_level(struct pl_error *err)
{
    const char *given = pl_env_text(PL_ENV_PLUME_NCCL_DEBUG), *level;
    int r = given ? pl_parse_nccl_level(given, &level, err) : 0;

    return r < 0 ? pl_error_wrap(err, r, "PLUME_NCCL_DEBUG") : 0;
}

static int choose_output(struct pl_daemon *d, struct pl_error *err)
{
    const char *given = pl_env_text(PL_ENV_PLUME_OUTPUT_RANKS);
    int r = given ? pl_output_ranks_check(given, 0, err) : 0;

    d->output_ranks = d->step.run_dir ? PL_OUTPUT_RANKS_OF_TRIAL : PL_OUTPUT_RANKS_ALL;
    if (given)
        d->output_ranks = given;
    return r < 0 ? pl_error_wrap(err, r, "PLUME_OUTPUT_RANKS") : 0;
}

static void start_timer(struct pl_daemon *d, uv_timer_t *timer)
{
    uv_timer_init(d->loop, timer);
    timer->data = d;
}

/* A daemon without a descriptor for a rank's connection would let that rank wait for ever. */
static int check_file_limit(const struct pl_slurm_step *step, struct pl_error *err)
{
    unsigned long long need =
        FILES_OF_DAEMON + FILES_OF_RANK * (unsigned long long)step->local_ntasks;
    struct rlimit limit;

    if (step->node_id == 0)
        need += step->nnodes; /* their connections to the hub */
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= need)
        return 0;
    return pl_error_set(err, -EMFILE,
                        "at most %llu files may be open on this node, but %u ranks and the runtime "
                        "need %llu: raise the hard limit (ulimit -Hn)",
                        (unsigned long long)limit.rlim_cur, step->local_ntasks, need);
}

int pl_daemon_init(struct pl_daemon *d, uv_loop_t *loop, int control_fd, struct pl_error *err)
{
    enum pl_encrypt encrypt;
    int r;

    *d = (struct pl_daemon){
        .loop = loop, .control_fd = control_fd, .listen_fd = -EBADF, .ras_fd = -EBADF, .root = -1};
    r = pl_slurm_step_from_env(&d->step, false, err);
    if (r == 0)
        r = check_file_limit(&d->step, err);
    if (r == 0)
        r = pl_key_load(d->step.run_dir, d->secret, err);
    if (r < 0)
        return r;
    d->oom_kills = pl_daemon_oom_kills();
    start_timer(d, &d->tick);
    pl_limit_init(&d->grace, loop, pl_daemon_on_grace_over, d);
    pl_limit_init(&d->leave_limit, loop, on_leave_limit, d);
    start_timer(d, &d->busy_timer);
    start_timer(d, &d->env_timer);
    r = uv_async_init(loop, &d->changed, on_changed);
    if (r < 0)
        return pl_error_set(err, r, "cannot make a wake-up: %s", uv_strerror(r));
    d->changed.data = d;
    r = check_nccl_level(err);
    if (r == 0)
        r = choose_output(d, err);
    if (r == 0)
        r = pl_encrypt_read(&encrypt, err);
    if (r == 0)
        r = load_rules(d, err);
    if (r == 0)
        r = pl_daemon_listen(d, err);
    if (r < 0)
        return r;
    pl_daemon_gpu_prepare(d);
    pl_daemon_probe_prepare(d);
    r = pl_daemon_confine(d, err);
    if (r < 0)
        return r;
    if (pl_disk_create(d->loop, &d->disk) < 0) /* after that: it holds for new threads only */
        pl_log_debug("daemon", "no thread for the ranks' files");
    r = uv_poll_init(d->loop, &d->control, control_fd);
    if (r < 0)
        return pl_error_set(err, r, "cannot watch the control socket: %s", uv_strerror(r));
    d->control.data = d;
    uv_poll_start(&d->control, UV_READABLE, on_control);
    pl_port_reserve(0, &d->ras_fd, &d->ras_port, NULL);
    pl_daemon_net_start(d);
    d->tick_ns = pl_now_ns();
    uv_timer_start(&d->tick, on_tick, 1000, 1000);
    return 0;
}

static void on_hub_lost(void *ctx, const char *text)
{
    pl_daemon_on_hub_lost(ctx, text);
}

int pl_daemon_start(struct pl_daemon *d, struct pl_hub_conn *own_hub, struct pl_error *err)
{
    static const struct pl_uplink_ops ops = {.message = on_hub_message, .lost = on_hub_lost};
    int r = pl_uplink_create(d->loop, &d->step, d->secret, &ops, d, &d->uplink);

    if (r < 0) {
        pl_hub_conn_close(own_hub);
        return pl_error_set(err, r, "out of memory");
    }
    if (!own_hub)
        return pl_uplink_search(d->uplink, err);
    d->held = true;
    pl_uplink_use(d->uplink, own_hub);
    return 0;
}

void pl_daemon_finish(struct pl_daemon *d)
{
    pl_uplink_destroy(PL_TAKE(d->uplink));
    json_decref(d->world);
    json_decref(d->early);
    free(d->best_of);
    for (size_t i = 0; i < d->n_rules; i++)
        pl_metric_rule_finish(&d->rules[i]);
    for (unsigned i = 0; i < d->n_present; i++) {
        json_decref(d->ranks[i].metrics);
        free(d->ranks[i].phase);
        if (d->ranks[i].pidfd >= 0)
            close(d->ranks[i].pidfd);
        pl_process_close(&d->ranks[i].guard);
    }
    if (d->ras_fd >= 0)
        close(d->ras_fd);
    if (d->listen_fd >= 0)
        close(d->listen_fd);
    if (d->own_addresses)
        freeaddrinfo(d->own_addresses);
    pl_buf_finish(&d->control_in);
    free(d->rules);
    free(d->ranks);
    free(d->refusal);
    free(d->socket_path);
}
