/* SPDX-License-Identifier: MIT */
/* The daemon's children that are this program with another option. */
#include "common/base/trace.h"
#include "runtime/plrund/daemon/daemon.h"

#include <unistd.h>

int pl_daemon_spawn(struct pl_daemon *d,
                    uv_process_t *process,
                    const char *option,
                    bool with_stderr,
                    int fd,
                    uv_exit_cb on_exit)
{
    char path[4096], *argv[] = {(char *)(uintptr_t) "plrund", (char *)(uintptr_t)option,
                                (char *)(uintptr_t) "3", NULL};
    uv_stdio_container_t io[4] = {{.flags = UV_IGNORE},
                                  {.flags = UV_IGNORE},
                                  {.flags = with_stderr ? UV_INHERIT_FD : UV_IGNORE, .data.fd = 2},
                                  {.flags = UV_INHERIT_FD, .data.fd = fd}};
    uv_process_options_t options = {.exit_cb = on_exit,
                                    .file = path,
                                    .args = argv,
                                    .flags = UV_PROCESS_DETACHED,
                                    .stdio = io,
                                    .stdio_count = 4};
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    void *data = process->data;
    int r;

    path[len > 0 ? len : 0] = '\0'; /* "" cannot be run */
    r = uv_spawn(d->loop, process, &options);
    process->data = data;
    uv_unref((uv_handle_t *)process);
    close(fd);
    if (r == 0)
        pl_trace("fork", option + 2, NULL, process->pid);
    return r;
}
