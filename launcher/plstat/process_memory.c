/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/process_memory.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define ENVIRON_MAX ((size_t)4 * 1024 * 1024)
#define LOOK_MS 2000    /* a look takes some microseconds */
#define KILLED_MS 100   /* a child that a file system holds outlives SIGKILL: it is left */
#define SILENT_MAX 3    /* processes of a user that are waited for */
#define SILENT_USERS 64 /* who are remembered */

static struct {
    int fd; /* our end of the child's socket; -EBADF: there is no child */
    pid_t pid;
    struct {
        uid_t uid;
        unsigned n;
    } silent[SILENT_USERS];
    size_t n_silent;
    pid_t left[SILENT_MAX * SILENT_USERS]; /* children that outlive SIGKILL; not waited for */
    size_t n_left;
} self = {.fd = -EBADF};

int pl_process_file_read(pid_t pid, const char *name, size_t max, struct pl_buf *ret)
{
    _cleanup_free_ char *path = pl_strf("/proc/%d/%s", (int)pid, name);
    _cleanup_close_ int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -EBADF;
    char chunk[8192];
    ssize_t n = 0;
    int r = 0;

    if (fd < 0)
        return path ? -errno : -ENOMEM;
    while (r == 0 && ret->len < max && (n = read(fd, chunk, sizeof(chunk))) > 0)
        r = pl_buf_add(ret, chunk, (size_t)n);
    return r < 0 ? r : n < 0 ? -errno : 0;
}

/* -- The child. -- */

/* The value of a variable, as much as there is room for. */
static bool value_of(const char *environment, size_t len, const char *name, char *ret, size_t size)
{
    size_t n = strlen(name);

    for (const char *p = environment; p < environment + len; p += strlen(p) + 1)
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            snprintf(ret, size, "%.*s", (int)size - 1, p + n + 1);
            return true;
        }
    return false;
}

static void read_environment(pid_t thread, struct pl_process_memory *ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    char job[32];

    if (pl_process_file_read(thread, "environ", ENVIRON_MAX, &text) < 0)
        return;
    ret->seen = true;
    ret->has_run_dir =
        value_of(pl_buf_str(&text), text.len, "PLUME_RUN_DIR", ret->run_dir, sizeof(ret->run_dir));
    ret->has_slurm_conf = value_of(pl_buf_str(&text), text.len, "SLURM_CONF", ret->slurm_conf,
                                   sizeof(ret->slurm_conf));
    if (value_of(pl_buf_str(&text), text.len, "SLURM_JOB_ID", job, sizeof(job)))
        pl_parse_int(job, 1, UINT32_MAX, &ret->job, NULL);
    value_of(pl_buf_str(&text), text.len, "SLURM_JOB_SLUID", ret->sluid, sizeof(ret->sluid));
}

static void read_command(pid_t thread, struct pl_process_memory *ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    pl_process_file_read(thread, "cmdline", PL_PROCESS_COMMAND_MAX, &text);
    text.len = PL_MIN(text.len, (size_t)PL_PROCESS_COMMAND_MAX);
    while (text.len && text.data[text.len - 1] == '\0')
        text.len--;
    for (size_t i = 0; i < text.len; i++)
        ret->command[i] = text.data[i] ? text.data[i] : ' ';
}

/* It may outlive its parent by far: it must hold nothing of its. */
__attribute__((noreturn)) static void run_child(int fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t thread;

    setpgid(0, 0);
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3 && null >= 0; i++)
        dup2(null, i);
    pl_close_from(STDERR_FILENO + 1, &fd, 1);
    while (recv(fd, &thread, sizeof(thread), 0) == sizeof(thread)) {
        struct pl_process_memory memory = {.job = -1};

        read_environment(thread, &memory);
        read_command(thread, &memory);
        if (send(fd, &memory, sizeof(memory), MSG_NOSIGNAL) != sizeof(memory))
            break;
    }
    _exit(0);
}

/* -- The parent. -- */

static int start_child(void)
{
    int pair[2], code;

    if (self.fd >= 0)
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    fflush(NULL);
    self.pid = fork();
    code = errno;
    if (self.pid == 0)
        run_child(pair[1]);
    close(pair[1]);
    if (self.pid < 0) {
        close(pair[0]);
        return -code;
    }
    self.fd = pair[0];
    return 0;
}

void pl_process_memory_finish(void)
{
    pid_t ended = 0;

    if (self.fd < 0)
        return;
    kill(self.pid, SIGKILL);
    for (int ms = 0; ms < KILLED_MS && (ended = waitpid(self.pid, NULL, WNOHANG)) == 0; ms++)
        poll(NULL, 0, 1);
    if (ended == 0 && self.n_left < PL_COUNT(self.left))
        self.left[self.n_left++] = self.pid;
    close(self.fd);
    self.fd = -EBADF;
}

bool pl_process_memory_is_child(pid_t pid)
{
    for (size_t i = 0; i < self.n_left; i++)
        if (self.left[i] == pid)
            return true;
    return self.fd >= 0 && self.pid == pid;
}

/* A user's number of silent processes; NULL: too many users have some. */
static unsigned *silent_of(uid_t uid)
{
    for (size_t i = 0; i < self.n_silent; i++)
        if (self.silent[i].uid == uid)
            return &self.silent[i].n;
    if (self.n_silent == SILENT_USERS)
        return NULL;
    self.silent[self.n_silent].uid = uid;
    self.silent[self.n_silent].n = 0;
    return &self.silent[self.n_silent++].n;
}

static bool is_silent_user(uid_t uid)
{
    for (size_t i = 0; i < self.n_silent; i++)
        if (self.silent[i].uid == uid)
            return self.silent[i].n >= SILENT_MAX;
    return self.n_silent == SILENT_USERS;
}

static int ask(pid_t thread, struct pl_process_memory *ret)
{
    struct pollfd p = {.fd = self.fd, .events = POLLIN};
    uint64_t limit_ns = pl_now_ns() + LOOK_MS * (uint64_t)1000000;
    int ready;

    if (send(self.fd, &thread, sizeof(thread), MSG_NOSIGNAL) != sizeof(thread))
        return -EPIPE;
    do
        ready = poll(&p, 1, pl_left_ms(limit_ns));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return -ETIMEDOUT;
    return recv(self.fd, ret, sizeof(*ret), 0) == sizeof(*ret) ? 0 : -EPIPE;
}

int pl_process_memory_read(pid_t thread, uid_t uid, struct pl_process_memory *ret)
{
    unsigned *silent;
    int r = -ETIMEDOUT;

    if (!is_silent_user(uid)) {
        r = start_child();
        if (r == 0)
            r = ask(thread, ret);
        if (r < 0)
            pl_process_memory_finish();
        if (r == -ETIMEDOUT && (silent = silent_of(uid)))
            (*silent)++;
    }
    if (r < 0)
        *ret = (struct pl_process_memory){.job = -1};
    return r;
}
