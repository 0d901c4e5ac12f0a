/* SPDX-License-Identifier: MIT */
/* Files of --env-file: each variable that is taken has a name that a shell may assign to. */
#include "common/base/env_file.h"
#include "common/base/strv.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_(pl_strv_freep) char **list = NULL;
    struct pl_error err = {0};

    if (pl_env_file_parse((const char *)data, size, "f", &list, &err) < 0)
        return 0;
    for (char **entry = list; *entry; entry++) {
        size_t len = strcspn(*entry, "=");

        FUZZ_CHECK((*entry)[len] == '=' && !strchr(*entry, '\n'));
        FUZZ_CHECK(pl_env_name_check(*entry, len, NULL) == 0);
    }
    return 0;
}
