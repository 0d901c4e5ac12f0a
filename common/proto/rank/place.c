/* SPDX-License-Identifier: MIT */
#include "common/proto/rank/place.h"
#include "common/base/macros.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x326c706cu
#define FDS_MAX 4096 /* that are looked at */

/* The contents of the memfd. Only this file knows them: writer and reader are of one release. */
struct page {
    uint32_t magic;
    _Atomic uint32_t inside; /* collectives that threads are in */
    _Atomic int64_t collectives;
    const char *_Atomic name; /* in the writer's memory: not for the reader */
    char what[PL_PLACE_WHAT_MAX];
    char hook[PL_PLACE_HOOKS][PL_PLACE_WHAT_MAX];
};

static struct page *page;

void pl_place_open(void)
{
    _cleanup_close_ int fd = page ? -EBADF : memfd_create(PL_PLACE_NAME, MFD_CLOEXEC);
    void *at;

    if (fd < 0 || ftruncate(fd, sizeof(*page)) < 0)
        return;
    at = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return;
    page = at;
    page->magic = MAGIC;
    PL_TAKE_FD(fd); /* stays open: the reader finds the page by it */
}

void pl_place_enter(const char *what)
{
    if (!page)
        return;
    /* Literals: the same pointer is the same text, and is not copied again. */
    if (atomic_exchange_explicit(&page->name, what, memory_order_relaxed) != what)
        snprintf(page->what, sizeof(page->what), "%s", what);
    atomic_fetch_add_explicit(&page->inside, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->collectives, 1, memory_order_relaxed);
}

void pl_place_leave(void)
{
    if (page)
        atomic_fetch_sub_explicit(&page->inside, 1, memory_order_relaxed);
}

void pl_place_hook(unsigned index, const char *name)
{
    size_t len = name ? strnlen(name, PL_PLACE_WHAT_MAX - 1) : 0;

    if (!page)
        return;
    if (len)
        memcpy(page->hook[index], name, len);
    page->hook[index][len] = '\0';
}

/* ---- reading ---- */

static int read_page(int dir_fd, const char *name, struct pl_place *ret)
{
    struct page p;
    _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || pread(fd, &p, sizeof(p), 0) != (ssize_t)sizeof(p) || p.magic != MAGIC)
        return -ENOENT;
    *ret = (struct pl_place){.collectives = p.collectives, .inside = p.inside > 0};
    memcpy(ret->what, p.what, sizeof(ret->what) - 1);
    for (size_t i = PL_PLACE_HOOKS; i-- > 0;)
        if (p.hook[i][0])
            memcpy(ret->hook, p.hook[i], sizeof(ret->hook) - 1);
    return 0;
}

int pl_place_read(pid_t pid, struct pl_place *ret)
{
    char path[64], target[PATH_MAX];
    const struct dirent *e;
    int r = -ENOENT;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    for (int n = 0; dir && r < 0 && n < FDS_MAX && (e = readdir(dir)); n++) {
        ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

        if (len <= 0)
            continue;
        target[len] = '\0';
        if (strncmp(target, "/memfd:" PL_PLACE_NAME, strlen("/memfd:" PL_PLACE_NAME)) == 0)
            r = read_page(dirfd(dir), e->d_name, ret);
    }
    if (dir)
        closedir(dir);
    return r;
}
