/* SPDX-License-Identifier: MIT */
/* Preloaded into tests that ThreadSanitizer's lane leaves out: one that starts a thread ends here.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*start)(void *arg),
                                                          void *arg)
{
    fputs("a thread is started: this test belongs into `threaded` (tests/unit/meson.build)\n",
          stderr);
    abort();
}
