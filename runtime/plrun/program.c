/* SPDX-License-Identifier: MIT */
#include "runtime/plrun/program.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/program.h"
#include "common/base/strv.h"
#include "runtime/plrun/container.h"
#include "runtime/plrun/saver.h"

#include <string.h>

#define WHY_BYTES 512

/* True if a folder of PATH has a file of this name. */
static bool is_in_path(const char *name)
{
    const char *path = pl_env(PL_ENV_PATH);

    for (const char *p = path ? path : ""; *p; p += strcspn(p, ":"), p += *p == ':') {
        int len = (int)strcspn(p, ":");
        _cleanup_free_ char *file = pl_strf("%.*s/%s", len ? len : 1, len ? p : ".", name);

        if (file && access(file, F_OK) == 0)
            return true;
    }
    return false;
}

/* torchrun takes each of its options from a variable, unless its command line has it. */
static void set_torchrun(void)
{
    static const struct {
        const char *name;
        enum pl_env_id from;
    } of_torchrun[] = {
        {"PET_NNODES", PL_ENV_WORLD_SIZE},
        {"PET_NODE_RANK", PL_ENV_RANK},
        {"PET_MASTER_ADDR", PL_ENV_MASTER_ADDR},
        {"PET_MASTER_PORT", PL_ENV_MASTER_PORT},
    };
    const char *launch = pl_env(PL_ENV_PLUME_LAUNCH);

    if (!launch || strcmp(launch, "torchrun") != 0)
        return;
    for (size_t i = 0; i < PL_COUNT(of_torchrun); i++)
        if (pl_env(of_torchrun[i].from))
            setenv(of_torchrun[i].name, pl_env(of_torchrun[i].from), 1);
    unsetenv("PLUME_LAUNCH"); /* a step of the program's own has other ranks */
}

static int exec_program(char *const *argv)
{
    _cleanup_(pl_strv_freep) char **words = NULL;
    struct pl_error err = {0};
    char why[WHY_BYTES];
    int error;

    if (pl_container_is_set()) {
        if (pl_container_words(argv, &words, &err) < 0) {
            dprintf(2, "plrun: %s\n", pl_error_text(&err));
            return err.code == -ENOENT ? 127 : 126;
        }
        argv = words;
    }
    execvp(argv[0], argv);
    error = errno;
    /* execvp(3) reports EACCES if it may not search one of the folders and finds nothing. */
    if (error == EACCES && !strchr(argv[0], '/') && !is_in_path(argv[0]))
        error = ENOENT;
    pl_program_why(argv[0], error, why, sizeof(why));
    dprintf(2, "plrun: cannot run '%s': %s\n", argv[0], why);
    return error == ENOENT ? 127 : 126;
}

int pl_program_exec(char *const *argv)
{
    const char *text = pl_env_text(PL_ENV_PLUME_SAVE_COMMAND);
    _cleanup_free_ char *command = text ? strdup(text) : NULL;

    set_torchrun();
    if (!text)
        return exec_program(argv);
    if (!command) {
        dprintf(2, "plrun: out of memory\n");
        return 126;
    }
    return pl_saver_run(command, argv, exec_program);
}
