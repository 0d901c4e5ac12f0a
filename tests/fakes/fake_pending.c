/* SPDX-License-Identifier: MIT */
/* To preload: plrun, which asks for what is pending as it makes its rank, creates the file
 * FAKE_PENDING and waits until SIGHUP is. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_MS 60000

__attribute__((visibility("default"))) int sigpending(sigset_t *set)
{
    int (*real)(sigset_t *) = (int (*)(sigset_t *))dlsym(RTLD_NEXT, "sigpending");
    const char *flag = getenv("FAKE_PENDING");
    int r = real(set);

    if (flag && strcmp(program_invocation_short_name, "plrun") == 0) {
        close(open(flag, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        for (int ms = 0; ms < LIMIT_MS && r == 0 && sigismember(set, SIGHUP) != 1; ms++) {
            poll(NULL, 0, 1);
            r = real(set);
        }
    }
    return r;
}
