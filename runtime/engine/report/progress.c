/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/progress.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>

#define INTERVAL_NS 100000000u
#define BAR_MAX 24
#define BAR_MIN 6
#define LINE_MAX_BYTES 512

void pl_progress_init(struct pl_progress *progress, FILE *out, bool utf8)
{
    const char *term = pl_env(PL_ENV_TERM);
    bool usable = out && isatty(fileno(out)) && term && strcmp(term, "dumb") != 0;

    *progress = (struct pl_progress){.out = usable ? out : NULL, .utf8 = utf8};
}

/* 950 -> "950", 12400 -> "12.4k". */
static void short_number(double x, char buf[16])
{
    static const char units[] = {' ', 'k', 'M', 'G', 'T'};
    size_t unit = 0;

    while (x >= 999.5 && unit + 1 < sizeof(units)) {
        x /= 1000;
        unit++;
    }
    if (unit == 0)
        snprintf(buf, 16, "%.0f", x);
    else
        snprintf(buf, 16, "%.3g%c", x, units[unit]);
}

/* "0:07", "1:02:03"; "-" if unknown. */
static void duration(double seconds, char buf[24])
{
    unsigned long s;

    if (!(seconds >= 0 && seconds < 1e8)) {
        snprintf(buf, 24, "-");
        return;
    }
    s = (unsigned long)(seconds + 0.5);
    if (s < 3600)
        snprintf(buf, 24, "%lu:%02lu", s / 60, s % 60);
    else
        snprintf(buf, 24, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
}

/* Draws a bar of `cells` cells, `full` of them filled. Returns the bytes written. */
static size_t bar(char *buf, size_t size, unsigned cells, double share, bool utf8)
{
    unsigned full = (unsigned)(share * cells + 0.5);
    size_t at = 0;

    for (unsigned i = 0; i < cells && at + 4 < size; i++) {
        const char *cell = i >= full ? " " : utf8 ? "━" : "=";

        memcpy(buf + at, cell, strlen(cell));
        at += strlen(cell);
    }
    buf[at] = '\0';
    return at;
}

const char *pl_progress_line(
    const struct pl_progress_state *state, unsigned width, bool utf8, char *buf, size_t size)
{
    double share = state->total ? (double)state->done / (double)state->total : 0;
    double left = state->done ? state->seconds / share * (1 - share) : NAN;
    char head[80], count[64], loss[40] = "", rate[40] = "", time[24], cells[4 * BAR_MAX + 8] = "";
    size_t used, room = width > 1 ? width - 1 : 0;

    share = PL_MIN(share, 1.0);
    if (state->epochs)
        snprintf(head, sizeof(head), "epoch %llu/%llu %3.0f%%", (unsigned long long)state->epoch,
                 (unsigned long long)state->epochs, share * 100);
    else
        snprintf(head, sizeof(head), "epoch %llu %3.0f%%", (unsigned long long)state->epoch,
                 share * 100);
    snprintf(count, sizeof(count), " %llu/%llu", (unsigned long long)state->done,
             (unsigned long long)state->total);
    if (!isnan(state->loss))
        snprintf(loss, sizeof(loss), "  loss %.4g", state->loss);
    if (state->seconds > 0 && state->samples > 0) {
        char number[16];

        short_number(state->samples / state->seconds, number);
        snprintf(rate, sizeof(rate), "  %s samples/s", number);
    }
    duration(left, time);
    used = strlen(head) + strlen(count) + strlen(loss) + strlen(rate) + 2 + strlen(time);
    if (used + 1 + BAR_MIN <= room) {
        unsigned n = (unsigned)PL_MIN(room - used - 1, (size_t)BAR_MAX);

        cells[0] = ' ';
        bar(cells + 1, sizeof(cells) - 1, n, share, utf8);
    }
    if (used > room) {
        used -= strlen(rate);
        rate[0] = '\0';
    }
    if (used > room)
        loss[0] = '\0';
    snprintf(buf, size, "%s%s%s%s%s  %s", head, cells, count, loss, rate, time);
    if (!cells[0] && strlen(buf) > room && room < size) /* all ASCII here: bytes are columns */
        buf[room] = '\0';
    return buf;
}

void pl_progress_show(struct pl_progress *progress, const struct pl_progress_state *state)
{
    uint64_t now;
    struct winsize size = {0};
    char line[LINE_MAX_BYTES];

    if (!progress->out)
        return;
    now = pl_now_ns();
    if (progress->drawn && now < progress->drawn_ns + INTERVAL_NS && state->done < state->total)
        return;
    if (ioctl(fileno(progress->out), TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        size.ws_col = 80;
    pl_progress_line(state, size.ws_col, progress->utf8, line, sizeof(line));
    fprintf(progress->out, "\r%s\033[K", line);
    fflush(progress->out);
    progress->drawn = true;
    progress->drawn_ns = now;
}

void pl_progress_clear(struct pl_progress *progress)
{
    if (!progress->out || !progress->drawn)
        return;
    fputs("\r\033[K", progress->out);
    fflush(progress->out);
    progress->drawn = false;
}
