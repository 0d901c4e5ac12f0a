/* SPDX-License-Identifier: MIT */
/* Memory that ranks of a node share: where it lies, that it has huge pages if the kernel can, and
 * that there is enough of it. */
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_shm_private.h"
#include "tests/engine/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define COLLAPSE 25 /* MADV_COLLAPSE of Linux 6.1 */
#define SLABS 3

static off_t most = INT64_MAX; /* bytes of a file */

/* In place of libc's: a file without its last pages is memory that ends, and SIGBUS beyond. */
int ftruncate(int fd, off_t bytes)
{
    return (int)syscall(SYS_ftruncate, fd, bytes < most ? bytes : most);
}

static const char *PL_PRINTF(1, 2) say(const char *fmt, ...)
{
    static char text[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return text;
}

/* KiB of huge pages in the mapping that begins there. */
static size_t huge_at(const void *address)
{
    char line[512], begin[32];
    FILE *f = fopen("/proc/self/smaps", "re");
    size_t kib = 0;
    bool here = false;

    snprintf(begin, sizeof(begin), "%lx-", (unsigned long)address);
    while (f && fgets(line, sizeof(line), f)) {
        if (strchr("0123456789abcdef", line[0]))
            here = strncmp(line, begin, strlen(begin)) == 0;
        if (here && sscanf(line, "ShmemPmdMapped: %zu", &kib) == 1)
            break;
    }
    if (f)
        fclose(f);
    return here ? kib : 0;
}

/* Reservations without access, as a slab needs one on its way to an aligned address. */
static int reservations(void)
{
    char line[512];
    FILE *f = fopen("/proc/self/maps", "re");
    int n = 0;

    while (f && fgets(line, sizeof(line), f))
        n += strstr(line, " ---p ") != NULL;
    if (f)
        fclose(f);
    return n;
}

/* This kernel joins small pages of shared memory to a huge one. */
static bool kernel_joins(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC);
    char *room = mmap(NULL, 2 * HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
    bool joins = false;

    if (fd >= 0 && ftruncate(fd, (off_t)HUGE_PAGE) == 0 && room != MAP_FAILED) {
        at = mmap(room + -(uintptr_t)room % HUGE_PAGE, HUGE_PAGE, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_FIXED, fd, 0);
        at[0] = 1;
        joins = madvise(at, HUGE_PAGE, COLLAPSE) == 0;
        at[1] = 1;
        joins = joins && huge_at(at) > 0;
    }
    if (room != MAP_FAILED)
        munmap(room, 2 * HUGE_PAGE);
    if (fd >= 0)
        close(fd);
    return joins;
}

static const char *slabs(struct pl_comm *comm, void *shared)
{
    const size_t n = (5 * HUGE_PAGE / 2 + 4096) / sizeof(float);
    size_t huge[2] = {0};
    struct pl_error err = {0};
    int before = reservations();

    for (int k = 0; k < SLABS; k++) {
        struct pl_shm *shm = (struct pl_shm *)comm;
        float *buf;

        if (pl_comm_alloc(comm, n * sizeof(float), (void **)&buf, &err) < 0)
            return say("%s", pl_error_text(&err));
        for (unsigned i = 0; i < comm->size; i++)
            if ((uintptr_t)shm->slabs[shm->n_slabs - 1].base[i] % HUGE_PAGE)
                return say("slab of rank %u does not begin with a huge page", i);
        for (size_t i = 0; i < n; i++) {
            if (buf[i] != 0)
                return say("[%zu] is %g at first", i, buf[i]);
            buf[i] = (float)(i % 1000 + comm->rank);
        }
        if (pl_comm_allreduce(comm, buf, n, PL_REAL_F32, 1, &err) < 0)
            return say("%s", pl_error_text(&err));
        for (size_t i = 0; i < n; i++)
            if (buf[i] != (float)(2 * (i % 1000) + 1))
                return say("[%zu] is %g", i, buf[i]);
        for (unsigned i = 0; i < comm->size; i++)
            huge[i] += huge_at(shm->slabs[shm->n_slabs - 1].base[i]);
    }
    if (reservations() != before)
        return say("%d reservations are left", reservations() - before);
    if ((huge[0] == 0 || huge[1] == 0) && kernel_joins())
        return say("huge pages: %zu KiB of rank 0, %zu KiB of rank 1", huge[0], huge[1]);
    return NULL;
}

static void test_large_slabs_have_huge_pages(void **state)
{
    if (!kernel_joins())
        print_message("skipped in part: this kernel makes no huge pages of shared memory\n");
    ranks_run(2, 0, slabs, NULL, 0);
}

struct scarce {
    size_t bytes, there;
    bool common; /* else each rank's own */
};

static const char *slabs_without_pages(struct pl_comm *comm, void *shared)
{
    const struct scarce *s = shared;
    struct pl_error err = {0};
    void *memory;
    char text[100];
    int r;

    most = (off_t)s->there;
    r = s->common ? pl_comm_alloc_common(comm, s->bytes, &memory, &err)
                  : pl_comm_alloc(comm, s->bytes, &memory, &err);
    snprintf(text, sizeof(text), "out of memory for %zu bytes that ranks", s->bytes);
    if (r >= 0 || !strstr(pl_error_text(&err), text))
        return say("%zu bytes, %d: %s", s->bytes, r, pl_error_text(&err));
    return NULL;
}

static void test_memory_without_pages_is_said(void **state)
{
    static const struct scarce cases[] = {
        {3 * HUGE_PAGE, 2 * HUGE_PAGE, false},
        {3 * HUGE_PAGE, 2 * HUGE_PAGE, true},
        {HUGE_PAGE / 2, HUGE_PAGE / 4, false},
        {HUGE_PAGE / 2, HUGE_PAGE / 4, true},
    };
    struct scarce *shared = ranks_shared(sizeof(*shared));

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        *shared = cases[i];
        ranks_run(2, 0, slabs_without_pages, shared, 0);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_slabs_have_huge_pages),
        cmocka_unit_test(test_memory_without_pages_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
