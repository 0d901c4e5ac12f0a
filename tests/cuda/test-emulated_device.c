/* SPDX-License-Identifier: MIT */
/* The emulated GPU of device.c ends a process for each mistake of the engine's host code: each is
 * made once, in a process of its own. */
#include "runtime/engine/device/gpu.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT 64

static struct pl_device *gpu[2];
static float *on[2];

static void scale(void *x)
{
    gpu[0]
        ->ops->kernels(gpu[0], PL_REAL_F32)
        ->affine(&(struct pl_affine_args){.n = COUNT, .scale = 2, .x = x, .y = x});
}

static void nothing_wrong(void)
{
    float back[COUNT];

    pl_device_enter(gpu[0]);
    scale(on[0]);
    pl_device_download(gpu[0], back, on[0], sizeof(back), NULL);
    for (int i = 0; i < 2; i++) {
        pl_device_free(gpu[i], on[i]);
        gpu[i]->ops->close(gpu[i]);
    }
}

static void kernel_gets_the_hosts_memory(void)
{
    float *host = calloc(COUNT, sizeof(float));

    pl_device_enter(gpu[0]);
    scale(host);
}

static void kernel_gets_another_gpus_memory(void)
{
    pl_device_enter(gpu[0]);
    scale(on[1]);
}

static void kernel_of_no_device(void)
{
    pl_device_enter(gpu[1]);
    pl_device_free(gpu[1], on[1]);
    gpu[1]->ops->close(gpu[1]);
    scale(on[0]);
}

static void host_follows_a_pointer(void)
{
    on[0][0] = 1;
}

static void host_reads_what_was_freed(void)
{
    pl_device_free(gpu[0], on[0]);
    on[0][0] += 1;
}

static void copy_is_too_long(void)
{
    float back[COUNT + 1];

    pl_device_download(gpu[0], back, on[0], sizeof(back), NULL);
}

static void freed_twice(void)
{
    pl_device_free(gpu[0], on[0]);
    pl_device_free(gpu[0], on[0]);
}

static void closed_with_memory(void)
{
    gpu[0]->ops->close(gpu[0]);
}

static void peeked_without_a_peek(void)
{
    float value;

    gpu[0]->ops->peeked(gpu[0], &value, sizeof(value), NULL);
}

/* Runs a case on two GPUs in a process of its own; returns its status and what it wrote. */
static int run(void (*what)(void), char *said, size_t size)
{
    int status = 0, to[2];
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe(to), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct pl_error err = {0};

        dup2(to[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's */
        if (pl_gpu_open_all(NULL, 2, NULL, gpu, &err) < 0)
            _exit(9);
        for (int i = 0; i < 2; i++)
            if (pl_device_alloc_zero(gpu[i], COUNT * sizeof(float), "a test", (void **)&on[i],
                                     &err) < 0)
                _exit(9);
        what();
        _exit(0);
    }
    close(to[1]);
    n = read(to[0], said, size - 1);
    assert_true(n >= 0);
    said[n] = '\0';
    close(to[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void test_the_emulated_gpu_ends_what_is_wrong(void **state)
{
    static const struct {
        const char *name;
        void (*what)(void);
        int signal;
        const char *says;
    } cases[] = {
        {"nothing wrong", nothing_wrong, 0, ""},
        {"the host's memory", kernel_gets_the_hosts_memory, SIGABRT,
         "a kernel is given an address that is not of its device"},
        {"another GPU's memory", kernel_gets_another_gpus_memory, SIGABRT,
         "a kernel is given an address that is not of its device"},
        {"no device", kernel_of_no_device, SIGABRT,
         "a kernel is called before any device is entered"},
        {"a pointer on the host", host_follows_a_pointer, SIGSEGV, ""},
        {"freed memory", host_reads_what_was_freed, SIGSEGV, ""},
        {"a long copy", copy_is_too_long, SIGABRT, "a copy beyond the device's arrays"},
        {"freed twice", freed_twice, SIGABRT, "freed, but not allocated"},
        {"closed", closed_with_memory, SIGABRT, "closed before an array is freed"},
        {"peeked", peeked_without_a_peek, SIGABRT, "the end of a peek that was not begun"},
    };
    char said[512];

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        int status = run(cases[i].what, said, sizeof(said));

        if ((WIFSIGNALED(status) ? WTERMSIG(status) : 0) != cases[i].signal ||
            (!cases[i].signal && WEXITSTATUS(status) != 0) || !strstr(said, cases[i].says))
            fail_msg("%s: status %#x, '%s'", cases[i].name, (unsigned)status, said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_emulated_gpu_ends_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
