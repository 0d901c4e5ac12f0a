/* SPDX-License-Identifier: MIT */
#include "tests/engine/held.h"
#include "common/base/fs.h"
#include "kernels/pool/pool.h"

#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_NS 2000000000ull /* between pthread_join() and the kernel's own end of a thread */

#ifdef __SANITIZE_THREAD__
#define THREADS 2 /* one is the sanitizer's */
#else
#define THREADS 1
#endif

static unsigned entries(const char *path)
{
    unsigned n = 0;
    DIR *dir = opendir(path);

    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

static unsigned maps(void)
{
    static const char *const words[] = {"/memfd:", "/dev/shm/", ".npy", ".ckpt"};
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned n = 0;

    while (f && fgets(line, sizeof(line), f))
        for (size_t i = 0; i < PL_COUNT(words); i++)
            n += strstr(line, words[i]) != NULL;
    if (f)
        fclose(f);
    return n;
}

/* Caches and arenas per thread would keep freed memory. */
static bool counts_heap(void)
{
    const char *tunables = getenv("GLIBC_TUNABLES");

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#endif
    return tunables && strstr(tunables, "malloc.tcache_count=0") &&
           strstr(tunables, "malloc.arena_max=1");
}

struct held held_now(void)
{
    uint64_t until = pl_now_ns() + JOIN_NS;
    unsigned threads = THREADS + (getenv("RANK") != NULL); /* a rank's watches its parent */
    struct held h = {0};

    pl_pool_resize(1);
    while ((h.threads = entries("/proc/self/task")) > 2 + threads && /* . and .. */
           pl_now_ns() < until)
        sched_yield();
    h.fds = entries("/proc/self/fd");
    h.maps = maps();
    if (counts_heap()) {
        struct mallinfo2 m = mallinfo2();

        h.heap = m.uordblks + m.hblkhd;
    }
    return h;
}

const char *held_grown(const struct held *before, const struct held *now)
{
    static char text[160];

    if (now->fds <= before->fds && now->threads <= before->threads && now->maps <= before->maps &&
        now->heap <= before->heap)
        return NULL;
    snprintf(text, sizeof(text),
             "not freed: %d descriptors, %d threads, %d mappings, %lld bytes of the heap",
             (int)(now->fds - before->fds), (int)(now->threads - before->threads),
             (int)(now->maps - before->maps), (long long)now->heap - (long long)before->heap);
    return text;
}
