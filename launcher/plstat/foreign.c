/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/foreign.h"
#include "common/base/macros.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A sanitizer maps terabytes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

void pl_foreign_limit(const char *folder)
{
    struct rlimit limit;
    struct stat st;

    if (SANITIZED || stat(folder, &st) < 0 || st.st_uid == geteuid() ||
        getrlimit(RLIMIT_AS, &limit) < 0)
        return;
    limit.rlim_cur = PL_MIN(limit.rlim_cur, (rlim_t)PL_FOREIGN_MEMORY_BYTES);
    setrlimit(RLIMIT_AS, &limit);
}
