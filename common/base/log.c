/* SPDX-License-Identifier: MIT */
#include "common/base/log.h"
#include "common/base/env.h"
#include "common/base/utf8.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#define LIMIT_N 5u
#define LIMIT_NS 60000000000ull

static const char *const level_names[] = {"error", "warning", "info", "debug"};
static const char *log_program = "plume";
static enum pl_log_level log_level = PL_LOG_WARN;
static const char *log_subsystems; /* comma list, borrowed from the environment; NULL = all */
static int log_json;

/* One process of many with the same environment: not a rank, a later task of a step, the job script
 * of a trial, whose plsubmit has told it, or a daemon, which nobody reads. */
static bool speaks_first(void)
{
    const char *task = pl_env(PL_ENV_SLURM_PROCID);

    return !pl_env(PL_ENV_RANK) && !pl_env(PL_ENV_PLUME_TRIAL) &&
           (!task || strcmp(task, "0") == 0) && strcmp(log_program, "plrund") != 0;
}

/* Returns false if the level has no such name. */
static bool set_level(const char *name, size_t len)
{
    if (len == 4 && strncmp(name, "warn", len) == 0) {
        log_level = PL_LOG_WARN;
        return true;
    }
    for (size_t i = 0; i < PL_COUNT(level_names); i++)
        if (strlen(level_names[i]) == len && strncmp(name, level_names[i], len) == 0) {
            log_level = (enum pl_log_level)i;
            return true;
        }
    return false;
}

void pl_log_init(const char *program)
{
    const char *spec = pl_env(PL_ENV_PLUME_LOG);
    const char *format = pl_env(PL_ENV_PLUME_LOG_FORMAT);
    const char *colon;
    size_t len;

    log_program = program;
    log_json = format && strcmp(format, "json") == 0;
    log_level = PL_LOG_WARN;
    log_subsystems = NULL;
    if (format && *format && !log_json && speaks_first())
        pl_log_write(PL_LOG_WARN, "log", "PLUME_LOG_FORMAT is '%.64s', not json: messages are text",
                     format);
    if (!spec || !*spec)
        return;
    colon = strchr(spec, ':');
    len = colon ? (size_t)(colon - spec) : strlen(spec);
    if (!set_level(spec, len) && speaks_first())
        pl_log_write(PL_LOG_WARN, "log",
                     "PLUME_LOG is '%.64s', not error, warn, info or debug: warn is used", spec);
    if (colon && colon[1])
        log_subsystems = colon + 1;
}

static int listed(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = list; p; p = strchr(p, ',')) {
        if (*p == ',')
            p++;
        if (strncmp(p, word, len) == 0 && (p[len] == ',' || p[len] == '\0'))
            return 1;
    }
    return 0;
}

int pl_log_enabled(enum pl_log_level level, const char *subsys)
{
    if (level > log_level)
        return 0;
    return level < PL_LOG_DEBUG || !log_subsystems || listed(log_subsystems, subsys);
}

/* Appends what stands for a character that could change more than its own place on a terminal. */
static size_t escape_hidden(char *dst, size_t size, uint32_t c, int json)
{
    if (!json)
        return (size_t)snprintf(dst, size, c <= 0xff ? "\\x%02x" : "\\u{%04x}", c);
    if (c > 0xffff)
        return (size_t)snprintf(dst, size, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10),
                                0xdc00 + (c & 0x3ff));
    return (size_t)snprintf(dst, size, "\\u%04x", c);
}

/* Copies src to dst. Escapes what is hidden, and bytes that are no UTF-8; for JSON quotes and
 * backslashes, too. */
static void escape(char *dst, size_t size, const char *src, int json)
{
    size_t n = 0, left = strlen(src);
    int width;

    for (; left && n + 13 < size; src += width, left -= (size_t)width) {
        uint32_t c;

        width = pl_utf8_decode(src, left, &c);
        if (width < 0) {
            width = 1;
            n += json ? (size_t)snprintf(dst + n, size - n, "\xef\xbf\xbd")
                      : (size_t)snprintf(dst + n, size - n, "\\x%02x", (unsigned char)*src);
        } else if (json && (c == '"' || c == '\\')) {
            dst[n++] = '\\';
            dst[n++] = (char)c;
        } else if (pl_utf8_hidden(c)) {
            n += escape_hidden(dst + n, size - n, c, json);
        } else {
            memcpy(dst + n, src, (size_t)width);
            n += (size_t)width;
        }
    }
    dst[n] = '\0';
}

void pl_log_write(enum pl_log_level level, const char *subsys, const char *fmt, ...)
{
    int saved = errno;
    char text[2048], safe[4096], line[6144];
    struct timespec now;
    va_list ap;
    int n;

    if (!pl_log_enabled(level, subsys))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    escape(safe, sizeof(safe), text, log_json);
    clock_gettime(CLOCK_REALTIME, &now);
    if (log_json)
        n = snprintf(line, sizeof(line),
                     "{\"time\":%lld.%06ld,\"program\":\"%s\",\"level\":\"%s\",\"subsys\":\"%s\","
                     "\"pid\":%d,\"text\":\"%s\"}\n",
                     (long long)now.tv_sec, now.tv_nsec / 1000, log_program, level_names[level],
                     subsys, (int)getpid(), safe);
    else if (level == PL_LOG_DEBUG)
        n = snprintf(line, sizeof(line), "%s[%d]: %s: %s\n", log_program, (int)getpid(), subsys,
                     safe);
    else if (level == PL_LOG_ERROR)
        n = snprintf(line, sizeof(line), "%s: %s\n", log_program, safe);
    else
        n = snprintf(line, sizeof(line), "%s: %s: %s\n", log_program, level_names[level], safe);
    if (n > 0) {
        ssize_t w = write(STDERR_FILENO, line, PL_MIN((size_t)n, sizeof(line) - 1));

        (void)w;
    }
    errno = saved;
}

bool pl_log_limit_pass(struct pl_log_limit *limit, uint64_t now_ns, unsigned *ret_left_out)
{
    *ret_left_out = 0;
    if (limit->n && now_ns - limit->start_ns >= LIMIT_NS) {
        *ret_left_out = limit->n > LIMIT_N ? limit->n - LIMIT_N : 0;
        limit->n = 0;
    }
    if (limit->n == 0)
        limit->start_ns = now_ns;
    if (limit->n < UINT32_MAX)
        limit->n++;
    return limit->n <= LIMIT_N;
}
