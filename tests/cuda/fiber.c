/* SPDX-License-Identifier: MIT */
/* On x86-64 a switch is a few instructions; elsewhere swapcontext(3), which costs a system call. */
#include "tests/cuda/fiber.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES (256 * 1024)
#define GUARD_BYTES (64 * 1024)
/* Stacks that begin at different lines of a cache; else they push each other out of it. */
#define COLOURS 61
#define COLOUR_BYTES (17 * 64)

struct pl_fiber {
    void (*body)(struct pl_fiber *self);
    unsigned char *stack;
    size_t stack_bytes;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake; /* AddressSanitizer's */
};

/* Of pl_fiber_enter(), to which fibers leave. */
static struct {
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    const void *stack;
    size_t stack_bytes;
} caller;
static bool entered; /* by the last switch, not passed */

static void before_switch(void **fake, const void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#else
    (void)fake;
    (void)stack;
    (void)bytes;
#endif
}

static void after_switch(void *fake, const void **stack, size_t *bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake, stack, bytes);
#else
    (void)fake;
    (void)stack;
    (void)bytes;
#endif
}

/* In a fiber that runs again. */
static void arrive(void *fake)
{
    const void *stack = NULL;
    size_t bytes = 0;

    after_switch(fake, &stack, &bytes);
    if (!entered)
        return;
    caller.stack = stack;
    caller.stack_bytes = bytes;
}

static void begin(struct pl_fiber *f)
{
    arrive(NULL);
    f->body(f);
    abort();
}

#ifdef __x86_64__
/* Saves what a function must keep, and the stack pointer to *from; takes another's. */
void pl_fiber_switch(void **from, void *to);
void pl_fiber_first(void);
__asm__(".text\n"
        ".type pl_fiber_switch, @function\n"
        "pl_fiber_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\n"
        "mov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\n"
        "pop %rcx\n"
        "jmp *%rcx\n" /* a return would be predicted to go where the last call came from */
        ".type pl_fiber_first, @function\n"
        "pl_fiber_first:\n" /* begin(fiber), which stand in r13 and r12 */
        "mov %r12, %rdi\n"
        "call *%r13\n"
        "ud2\n");

static void prepare(struct pl_fiber *f)
{
    uintptr_t *top = (uintptr_t *)(void *)(f->stack + f->stack_bytes);

    *--top = 0; /* so that the stack is aligned when begin() is called */
    *--top = 0;
    *--top = (uintptr_t)pl_fiber_first;
    *--top = 0;                /* rbp */
    *--top = 0;                /* rbx */
    *--top = (uintptr_t)f;     /* r12 */
    *--top = (uintptr_t)begin; /* r13 */
    *--top = 0;
    *--top = 0;
    f->sp = top;
}

static void jump_in(struct pl_fiber *f)
{
    pl_fiber_switch(&caller.sp, f->sp);
}

static void jump_out(struct pl_fiber *f)
{
    pl_fiber_switch(&f->sp, caller.sp);
}

static void jump_over(struct pl_fiber *from, struct pl_fiber *to)
{
    pl_fiber_switch(&from->sp, to->sp);
}
#else
static void from_halves(unsigned high, unsigned low)
{
    begin((struct pl_fiber *)((uintptr_t)high << 16 << 16 | low));
}

static void prepare(struct pl_fiber *f)
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    makecontext(&f->context, (void (*)(void))from_halves, 2, (unsigned)((uintptr_t)f >> 16 >> 16),
                (unsigned)(uintptr_t)f);
}

static void jump_in(struct pl_fiber *f)
{
    swapcontext(&caller.context, &f->context);
}

static void jump_out(struct pl_fiber *f)
{
    swapcontext(&f->context, &caller.context);
}

static void jump_over(struct pl_fiber *from, struct pl_fiber *to)
{
    swapcontext(&from->context, &to->context);
}
#endif

struct pl_fiber *pl_fiber_create(void (*body)(struct pl_fiber *self))
{
    static unsigned made;
    struct pl_fiber *f = calloc(1, sizeof(*f));
    unsigned char *memory = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!f || memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) < 0) {
        perror("CUDA emulator");
        abort();
    }
    f->body = body;
    f->stack = memory + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES - (size_t)(made++ % COLOURS) * COLOUR_BYTES;
    prepare(f);
    return f;
}

void pl_fiber_enter(struct pl_fiber *f)
{
    void *fake = NULL;

    entered = true;
    before_switch(&fake, f->stack, f->stack_bytes);
    jump_in(f);
    after_switch(fake, NULL, NULL);
}

void pl_fiber_leave(struct pl_fiber *f)
{
    before_switch(&f->fake, caller.stack, caller.stack_bytes);
    jump_out(f);
    arrive(f->fake);
}

void pl_fiber_pass(struct pl_fiber *f, struct pl_fiber *to)
{
    entered = false;
    before_switch(&f->fake, to->stack, to->stack_bytes);
    jump_over(f, to);
    arrive(f->fake);
}

const void *pl_fiber_stack(const struct pl_fiber *f, size_t *ret_bytes)
{
    *ret_bytes = f->stack_bytes;
    return f->stack;
}
