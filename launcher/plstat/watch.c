/* SPDX-License-Identifier: MIT */
/* plstat -w: repeats the report. A terminal shows it on the alternate screen, which is left before
 * plstat exits; elsewhere reports are appended. */
#include "common/base/fs.h"
#include "common/base/term.h"
#include "launcher/plstat/plstat.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>

struct watch {
    struct pl_plstat *ps;
    bool screen; /* stdout is a terminal and shows text */
    bool keys;   /* stdin is a terminal too */
    int signals;
    struct termios before;
};

static void write_out(const char *s, size_t len)
{
    if (pl_plstat_write(s, len) < 0)
        return; /* wait_for_next_report() notices a closed stdout */
}

static void screen_enter(struct watch *w)
{
    struct termios t;

    if (!w->screen)
        return;
    w->keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &w->before) == 0;
    if (w->keys) {
        t = w->before;
        t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        tcsetattr(STDIN_FILENO, TCSANOW, &t);
    }
    write_out("\033[?1049h\033[?25l", 14);
}

static void screen_leave(struct watch *w)
{
    if (!w->screen)
        return;
    write_out("\033[?25h\033[?1049l", 14);
    if (w->keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &w->before);
}

/* Draws a line with the time and the first lines of the report that fit. */
static void draw(struct watch *w, size_t rows)
{
    struct pl_plstat *ps = w->ps;
    _cleanup_(pl_buf_finish) struct pl_buf frame = {0};
    const char *text = pl_buf_str(&ps->text);
    time_t now = time(NULL);
    struct tm tm;
    char clock[16];
    size_t row = 1;

    localtime_r(&now, &tm);
    strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    if (pl_buf_addf(&frame, "\033[Hplstat %s  every %g s  (q quits)\033[K\r\n", clock,
                    ps->interval_s) < 0)
        return;
    while (*text && row + 1 < rows) {
        size_t len = strcspn(text, "\n");

        if (pl_buf_add(&frame, text, len) < 0 || pl_buf_adds(&frame, "\033[K\r\n") < 0)
            return;
        text += len + (text[len] == '\n');
        row++;
    }
    if (*text && pl_buf_adds(&frame, "...\033[K\r\n") < 0)
        return;
    if (pl_buf_adds(&frame, "\033[J") == 0)
        write_out(frame.data, frame.len);
}

static size_t screen_rows(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 4 ? size.ws_row : 24;
}

/* Waits for the next report. -1: continue; else the exit code. */
static int wait_for_next_report(struct watch *w, double seconds)
{
    uint64_t limit = pl_now_ns() + (uint64_t)(seconds * 1e9);

    for (;;) {
        struct pollfd p[3] = {
            {.fd = w->signals, .events = POLLIN},
            {.fd = w->keys ? STDIN_FILENO : -1, .events = POLLIN},
            {.fd = STDOUT_FILENO, .events = 0}, /* reports a reader that closed the pipe */
        };
        struct signalfd_siginfo info;
        uint64_t now = pl_now_ns();
        char key;

        if (now >= limit)
            return -1;
        if (poll(p, PL_COUNT(p), (int)PL_MIN((limit - now) / 1000000u + 1, 3600000u)) < 0)
            continue;
        if ((p[0].revents & POLLIN) && read(w->signals, &info, sizeof(info)) == sizeof(info)) {
            if (info.ssi_signo == SIGWINCH)
                return -1;
            return 128 + (int)info.ssi_signo;
        }
        if (p[1].revents) {
            if (read(STDIN_FILENO, &key, 1) != 1 || key == 'q')
                return PL_EXIT_OK;
            if (key == ' ')
                return -1;
        }
        if (p[2].revents) /* a socket and a terminal report POLLHUP */
            return PL_EXIT_OK;
    }
}

int pl_plstat_watch(struct pl_plstat *ps, int (*report)(struct pl_plstat *ps))
{
    struct watch w = {.ps = ps, .screen = !ps->json && isatty(STDOUT_FILENO)};
    sigset_t set, before;
    int r, exit_code;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGWINCH);
    sigprocmask(SIG_BLOCK, &set, &before);
    w.signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (w.signals < 0)
        return PL_EXIT_FAILED;
    /* An error of the first report, for instance an unknown job, ends the watch. */
    exit_code = report(ps);
    r = ps->text.len || ps->doc ? -1 : exit_code;
    if (r < 0)
        screen_enter(&w);
    while (r < 0) {
        if (w.screen)
            draw(&w, screen_rows());
        else
            write_out(pl_buf_str(&ps->text), ps->text.len);
        r = wait_for_next_report(&w, ps->interval_s);
        if (r == PL_EXIT_OK)
            r = exit_code;
        else if (r < 0)
            exit_code = report(ps);
    }
    screen_leave(&w);
    close(w.signals);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return r;
}
