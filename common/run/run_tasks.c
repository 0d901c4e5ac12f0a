/* SPDX-License-Identifier: MIT */
#include "common/run/run_tasks.h"

#include <stdlib.h>
#include <string.h>

#define BISECT_BYTES 64 /* shorter texts are read through */

/* sorted: no task follows one that is higher */
static bool contains(const char *tasks, int64_t task, bool sorted)
{
    while (*tasks && *tasks != '%') {
        char *end;
        long long first = strtoll(tasks, &end, 10), last = first, step = 1;

        if (end == tasks || (sorted && first > task))
            return false;
        if (*end == '-')
            last = strtoll(end + 1, &end, 10);
        if (*end == ':')
            step = strtoll(end + 1, &end, 10);
        if (task >= first && task <= last && step > 0 && (task - first) % step == 0)
            return true;
        tasks = *end == ',' ? end + 1 : end;
        if (*end != ',')
            return false;
    }
    return false;
}

bool pl_tasks_contain(const char *tasks, int64_t task)
{
    return contains(tasks, task, false);
}

bool pl_tasks_contain_sorted(const char *tasks, int64_t task)
{
    size_t low = 0, high = strlen(tasks); /* an item begins at `low`; the task's before `high` */

    while (high - low > BISECT_BYTES) {
        size_t middle = low + (high - low) / 2;
        const char *comma = memchr(tasks + middle, ',', high - middle);

        if (comma && strtoll(comma + 1, NULL, 10) <= task)
            low = (size_t)(comma - tasks) + 1;
        else
            high = middle + 1;
    }
    return contains(tasks + low, task, true);
}

/* Reads a number of at most nine digits and moves *s to the byte after it; -1: none. */
static int64_t read_number(const char **s)
{
    size_t digits = strspn(*s, "0123456789");
    int64_t n = 0;

    if (digits == 0 || digits > 9)
        return -1;
    for (size_t i = 0; i < digits; i++)
        n = n * 10 + (*(*s)++ - '0');
    return n;
}

int pl_tasks_check(const char *tasks, int64_t end, struct pl_error *err)
{
    const char *s = tasks;

    for (;;) {
        int64_t first = read_number(&s), last = first;

        if (first >= 0 && *s == '-') {
            s++;
            last = read_number(&s);
        }
        if (first < 0 || last < first || (*s && *s != ','))
            return pl_error_set(err, -EINVAL, "'%s' is not a list of trials like 3-8,10", tasks);
        if (last >= end)
            return pl_error_set(err, -EINVAL, "there is no trial %lld: the trials are 0 to %lld",
                                (long long)last, (long long)end - 1);
        if (!*s++)
            return 0;
    }
}

int pl_tasks_format(const int64_t *tasks, size_t n, struct pl_buf *ret)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        int r;

        for (end = i; end + 1 < n && tasks[end + 1] == tasks[end] + 1;)
            end++;
        r = end == i ? pl_buf_addf(ret, "%s%lld", i ? "," : "", (long long)tasks[i])
                     : pl_buf_addf(ret, "%s%lld-%lld", i ? "," : "", (long long)tasks[i],
                                   (long long)tasks[end]);
        if (r < 0)
            return r;
    }
    return 0;
}
