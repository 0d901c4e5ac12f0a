/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/tail.h"
#include "common/proto/json.h"
#include "common/run/cause.h"
#include "common/run/run_state.h"
#include "runtime/node/net.h"
#include "runtime/plrun/trial_private.h"

#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SAID_MAX (1 << 20) /* the end of the output that is searched for Slurm's words */
#define HUB_WRITES_S 5 /* a log as young as this may have a hub that has not written its result */
#define HUB_POLL_MS 50
#define CONNECT_MS 1000 /* for the hub on this host to take a connection */

int64_t pl_trial_stderr_start(const char *attempt_dir)
{
    _cleanup_free_ char *path = pl_strf("%s/claim", attempt_dir);
    _cleanup_(json_decrefp) json_t *claim = NULL;
    int64_t inode, bytes;
    struct stat st;

    if (!path || pl_json_load_file(path, PL_RUN_CLAIM_MAX, &claim, NULL) < 0 || fstat(2, &st) < 0 ||
        pl_json_int(json_object_get(claim, "stderr"), "inode", &inode) < 0 ||
        pl_json_int(json_object_get(claim, "stderr"), "bytes", &bytes) < 0)
        return -1;
    return inode == (int64_t)st.st_ino ? bytes : -1;
}

/* Sets the path of our stderr. False where it has none. */
static bool stderr_path(char path[static PATH_MAX])
{
    ssize_t n = readlink("/proc/self/fd/2", path, PATH_MAX - 1);

    path[PL_MAX(n, (ssize_t)0)] = '\0';
    return n > 0;
}

char *pl_trial_stderr_tail(int64_t from)
{
    char path[PATH_MAX];

    return stderr_path(path) ? pl_tail_file(path, from, 0) : NULL;
}

char *pl_trial_stderr_said(int64_t from)
{
    _cleanup_close_ int fd = -EBADF;
    char path[PATH_MAX], *text;
    struct stat st;
    ssize_t n;

    if (from < 0 || !stderr_path(path))
        return NULL;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    from = from <= st.st_size ? from : 0; /* cut off since: all of it is newer */
    text = malloc(SAID_MAX + 1);
    n = text ? pread(fd, text, SAID_MAX, PL_MAX(from, (int64_t)st.st_size - SAID_MAX)) : 0;
    if (text)
        text[PL_MAX(n, (ssize_t)0)] = '\0';
    for (ssize_t i = 0; i < n; i++)
        if (!text[i])
            text[i] = ' ';
    return text;
}

/* The text after "this attempt is " of plrund, plain or with PLUME_LOG_FORMAT=json; NULL: none. */
static const char *find_verdict(const char *said)
{
    static const char *const begins[] = {"plrund: this attempt is ", "\"text\":\"this attempt is "};

    for (size_t i = 0; said && i < PL_COUNT(begins); i++) {
        const char *line = strstr(said, begins[i]);

        if (line)
            return line + strlen(begins[i]);
    }
    return NULL;
}

bool pl_trial_hub_said(const char *said, int code, json_t **ret_cause)
{
    const char *line = find_verdict(said);
    char state[16], kind[24], node[256];
    enum pl_cause_kind parsed;
    long long rank = -1;
    json_t *cause;
    int n, exit_code;

    if (line && code == 0 && (strncmp(line, "done\n", 5) == 0 || strncmp(line, "done\"", 5) == 0)) {
        *ret_cause = NULL;
        return true;
    }
    n = line ? sscanf(line,
                      "%15[a-z-], by its cause '%23[a-z]': rank %lld on %255[^,\n], exit code %d",
                      state, kind, &rank, node, &exit_code)
             : 0;
    parsed = n < 2 ? PL_CAUSE_NONE : pl_cause_parse(kind);
    /* With 0 a program has stopped at a signal before its work was done. */
    if ((code == 0 && parsed != PL_CAUSE_CANCELLED) || parsed == PL_CAUSE_NONE)
        return false;
    cause = json_pack("{s:s}", "kind", kind);
    if (cause && n == 5) {
        json_object_set_new(cause, "rank", json_integer(rank));
        json_object_set_new(cause, "node", json_string(node));
        if (parsed == PL_CAUSE_SIGNAL && exit_code > 128 && exit_code < 256)
            pl_run_state_set_status(cause, exit_code - 128);
        else if (parsed == PL_CAUSE_EXIT && exit_code > 0 && exit_code < 256)
            pl_run_state_set_status(cause, exit_code << 8);
    }
    pl_run_state_set_confidence(cause, PL_CONFIDENCE_INFERRED);
    *ret_cause = cause;
    return cause != NULL;
}

json_t *pl_trial_result_of(const struct pl_run *run, unsigned trial, unsigned attempt)
{
    json_t *result = NULL;
    int64_t n;

    if (pl_run_result_read(run, trial, &result, NULL, NULL) == 0 &&
        pl_json_int(result, "attempt", &n) == 0 && n == (int64_t)attempt)
        return result;
    json_decref(result);
    return NULL;
}

enum pl_trial_state pl_trial_result_state(const json_t *result)
{
    const char *name = pl_json_string(result, "state");
    enum pl_trial_state state;

    return name && pl_trial_state_parse(name, &state) == 0 ? state : PL_TRIAL_DONE;
}

void pl_trial_write_changed(const struct pl_run *run,
                            unsigned trial,
                            enum pl_trial_state state,
                            const json_t *result)
{
    struct pl_error err = {0};

    if (pl_run_result_write(run, trial, state, result, &err) < 0)
        pl_log_warn("run", "the trial is %s, but its result could not be changed: %s",
                    pl_trial_state_name(state), pl_error_text(&err));
}

/* True if the last "*** JOB 7 ON n1 CANCELLED AT TIME DUE TO NODE FAILURE, ..." of this job is of a
 * lost node. Other jobs may write into the same file. */
static bool says_node_failure(const char *text)
{
    const char *job = pl_env(PL_ENV_SLURM_JOB_ID), *line = NULL, *due;
    _cleanup_free_ char *begin = pl_strf("*** JOB %s ON ", job ? job : "");

    for (const char *s = text; begin && s && (s = strstr(s, begin)); s++)
        line = s;
    due = line ? strstr(line, " DUE TO ") : NULL;
    return due && due < line + strcspn(line, "\n") && strncmp(due, " DUE TO NODE FAILURE", 20) == 0;
}

bool pl_trial_settle_requeue(const struct pl_run *run,
                             unsigned trial,
                             json_t *result,
                             enum pl_trial_state *state)
{
    static const char lost[] = "srun: error: Node failure on ";
    _cleanup_free_ char *dir = NULL, *text = NULL;
    int64_t attempt;
    const char *name = NULL;
    json_t *cause;

    if (*state != PL_TRIAL_PREEMPTED || pl_json_int(result, "attempt", &attempt) < 0)
        return false;
    dir = pl_run_attempt_path(run, trial, (unsigned)attempt, NULL);
    text = dir ? pl_trial_stderr_said(pl_trial_stderr_start(dir)) : NULL;
    if (!says_node_failure(text))
        return false;
    for (const char *s = text; (s = strstr(s, lost)); s++)
        name = s + strlen(lost);
    cause = json_pack("{s:s, s:s}", "kind", pl_cause_name(PL_CAUSE_NODE), "confidence",
                      pl_confidence_name(PL_CONFIDENCE_ASKED));
    if (cause && name)
        json_object_set_new(cause, "node", json_stringn(name, strcspn(name, " \n,")));
    if (!cause || json_object_set_new(result, "cause", cause) < 0)
        return false;
    *state = PL_TRIAL_NODE_FAILED;
    pl_trial_write_changed(run, trial, *state, result);
    return true;
}

/* ---- the hub's result, which may be late ---- */

/* Seconds by which our clock is ahead of that of the folder's file system, perhaps another host's.
 */
static double ahead_of_folder(const struct pl_run *run, unsigned trial)
{
    _cleanup_free_ char *path = pl_run_trial_path(run, trial, NULL);
    _cleanup_free_ char *temp = pl_temp_name("status.json"); /* the hub's tidying knows it */
    _cleanup_close_ int dir_fd = -EBADF, fd = -EBADF;
    struct stat st;
    double ahead_s = 0;

    if (path && temp && pl_own_folder_open(AT_FDCWD, path, &dir_fd, NULL) == 0)
        fd = openat(dir_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && fstat(fd, &st) == 0)
        ahead_s = pl_wall_s() - (double)st.st_mtime;
    if (fd >= 0)
        unlinkat(dir_fd, temp, 0);
    return ahead_s;
}

/* True if a hub listens at $PLUME_HUB: the job script's holder of that port does not. */
static bool hub_listens(void)
{
    const char *hub = pl_env_text(PL_ENV_PLUME_HUB);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    char host[256], port[8];
    bool listens = false;
    uint16_t number;

    if (!hub || pl_net_split(hub, host, sizeof(host), &number) < 0)
        return false;
    snprintf(port, sizeof(port), "%u", (unsigned)number);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return false;
    for (const struct addrinfo *a = found; a && !listens; a = a->ai_next) {
        _cleanup_close_ int fd = -EBADF;
        struct pollfd p = {.events = POLLOUT};
        socklen_t len = sizeof(int);
        int error = 0;

        if (pl_net_connect(a->ai_addr, a->ai_addrlen, &fd) < 0)
            continue;
        p.fd = fd;
        listens = poll(&p, 1, CONNECT_MS) == 1 &&
                  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0;
    }
    freeaddrinfo(found);
    return listens;
}

json_t *pl_trial_await_result(const struct pl_run *run,
                              unsigned trial,
                              unsigned attempt,
                              const char *attempt_dir,
                              int code,
                              bool *ret_left)
{
    uint64_t until = pl_now_ns() + pl_env_ms(PL_ENV_PLUME_DISK_LIMIT) * 1000000ull;
    _cleanup_free_ char *log = pl_strf("%s/events.jsonl", attempt_dir);
    json_t *result = pl_trial_result_of(run, trial, attempt);
    double ahead_s = result ? 0 : ahead_of_folder(run, trial);
    bool asked = false;

    *ret_left = false;
    for (int turn = 0; !result && log; turn++) {
        struct stat st;
        bool there = lstat(log, &st) == 0;
        bool young = there && turn < 2 * HUB_WRITES_S * 1000 / HUB_POLL_MS &&
                     (double)st.st_mtime + HUB_WRITES_S >= pl_wall_s() - ahead_s;
        bool wait;

        if (there && !young && code == 128 + SIGKILL && !asked) {
            asked = true;
            *ret_left = pl_trial_end_left_step(attempt_dir);
        }
        wait = young || (there && pl_now_ns() < until && hub_listens());
        /* a file on another node's side of the file system has no event to wait for */
        if (young)
            nanosleep(&(struct timespec){.tv_nsec = HUB_POLL_MS * 1000000l}, NULL);
        else if (wait)
            nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        result = pl_trial_result_of(run, trial, attempt); /* also if it has just ended */
        if (!wait)
            break;
    }
    return result;
}
