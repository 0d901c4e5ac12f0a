/* SPDX-License-Identifier: MIT */
/* Cleanup attributes and ownership transfer. Variables that carry a cleanup attribute are
 * initialised where they are declared and handed over with PL_TAKE() or PL_TAKE_FD(). */
#ifndef PL_COMMON_BASE_MACROS_H
#define PL_COMMON_BASE_MACROS_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PL_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define PL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define PL_MAX(a, b) ((a) > (b) ? (a) : (b))
#define PL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define PL_UNUSED __attribute__((unused))

/* Hands the pointer over and sets the variable to NULL. */
#define PL_TAKE(p)                                                                                 \
    ({                                                                                             \
        __auto_type pl_take_ = (p);                                                                \
        (p) = NULL;                                                                                \
        pl_take_;                                                                                  \
    })

/* Hands the descriptor over and sets the variable to -EBADF. */
#define PL_TAKE_FD(fd)                                                                             \
    ({                                                                                             \
        int pl_take_fd_ = (fd);                                                                    \
        (fd) = -EBADF;                                                                             \
        pl_take_fd_;                                                                               \
    })

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _cleanup_free_ _cleanup_(pl_freep)
#define _cleanup_close_ _cleanup_(pl_closep)
#define _cleanup_fclose_ _cleanup_(pl_fclosep)

/* Defines pl_x_destroyp() for _cleanup_() from pl_x_destroy(). */
#define PL_DEFINE_CLEANUP(type, func)                                                              \
    static inline void func##p(type *p)                                                            \
    {                                                                                              \
        if (*p)                                                                                    \
            func(*p);                                                                              \
    }

static inline void pl_freep(void *p)
{
    free(*(void **)p);
}

static inline void pl_closep(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;

        close(*fd);
        errno = saved;
    }
}

static inline void pl_fclosep(FILE **f)
{
    if (*f)
        fclose(*f);
}

#endif
