/* SPDX-License-Identifier: MIT */
#include "spank_plugin/daemon_said.h"
#include "common/base/macros.h"
#include "spank_plugin/values.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024 /* what is longer is cut */
#define READS_MAX 32        /* of 4096 bytes: a pipe holds half of that, and more may come */
#define ROOM_MS 1000        /* srun may be slow, or stopped; once per node and step */
#define OWN_NAME "plrund: " /* the plugin writes its own */
#define MORE "more messages of plrund are not shown"

struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
};

/* Slurm waits for 5 s to write a line, and the task's end would wait for that. */
static bool has_room(int to)
{
    struct pollfd p = {.fd = to, .events = POLLOUT};

    return poll(&p, 1, ROOM_MS) > 0;
}

static void show_line(struct line *line, int to, unsigned *left, void (*show)(const char *line))
{
    char *text = line->text;

    text[line->len] = '\0';
    line->len = 0;
    if (strncmp(text, OWN_NAME, strlen(OWN_NAME)) == 0)
        text += strlen(OWN_NAME);
    if (!*text || !*left)
        return;
    if (!has_room(to)) {
        *left = 0;
        return;
    }
    pl_values_make_printable(text);
    show(--*left ? text : MORE);
}

int pl_daemon_said_open(int ret[2])
{
    return pipe2(ret, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;
}

void pl_daemon_said_read(int fd, int to, unsigned *left, void (*show)(const char *line))
{
    struct line line = {.len = 0};
    char data[4096];

    for (int reads = 0; fd >= 0 && reads < READS_MAX; reads++) {
        ssize_t n = read(fd, data, sizeof(data));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        for (ssize_t i = 0; i < n; i++) {
            if (data[i] == '\n')
                show_line(&line, to, left, show);
            else if (line.len + 1 < sizeof(line.text))
                line.text[line.len++] = data[i] ? data[i] : '?';
        }
    }
    show_line(&line, to, left, show);
}
