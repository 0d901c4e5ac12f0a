/* SPDX-License-Identifier: MIT */
/* Stacks to jump to and back from; for the emulator. Never freed: it keeps them for the next
 * launch. Not thread safe. */
#ifndef PL_TESTS_CUDA_FIBER_H
#define PL_TESTS_CUDA_FIBER_H

#include <stddef.h>

struct pl_fiber;

/* A fiber that runs body(itself), which never returns, from the first pl_fiber_enter() on. Ends the
 * program when there is no memory. */
struct pl_fiber *pl_fiber_create(void (*body)(struct pl_fiber *self));

/* Runs it until it leaves. Not from inside a fiber. */
void pl_fiber_enter(struct pl_fiber *fiber);

/* Switches back to the caller of pl_fiber_enter(); returns at the next one. From inside this fiber.
 */
void pl_fiber_leave(struct pl_fiber *self);

/* Switches to another fiber, which has left or passed before; returns at the next pl_fiber_enter()
 * of self, or pass to it. The one that leaves goes back to the last pl_fiber_enter(). From inside
 * self. */
void pl_fiber_pass(struct pl_fiber *self, struct pl_fiber *to);

/* Its stack, the lowest address, and the size. */
const void *pl_fiber_stack(const struct pl_fiber *fiber, size_t *ret_bytes);

#endif
