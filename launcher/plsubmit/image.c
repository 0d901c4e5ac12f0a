/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/image.h"
#include "common/base/macros.h"

#include <string.h>

int pl_image_check(const char *value, struct pl_error *err)
{
    return value[0] == '-'
               ? pl_error_set(err, -EINVAL, "'%s' is not an image: its name begins with -", value)
               : 0;
}

/* Options that would take away what Plume gives a rank, or run no program. */
static const struct {
    const char *name, *why;
} refused[] = {
    {"pwd", "Plume sets --pwd itself: the folder is that of the job script, which --setup 'cd DIR' "
            "changes"},
    {"cwd", "Plume sets --cwd itself: the folder is that of the job script, which --setup 'cd DIR' "
            "changes"},
    {"env", "the variables of a container are those of --env: write --env NAME=VALUE"},
    {"env-file", "the variables of a container are those of --env-file: write --env-file FILE"},
    {"help", "--help runs no program"},
};

int pl_image_check_option(const char *value, struct pl_error *err)
{
    size_t len = strcspn(value, "=");

    if (len == 0 || value[0] == '-' ||
        strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return pl_error_set(err, -EINVAL,
                            "'%s' is not KEY or KEY=VALUE: KEY is the long name of an option of "
                            "apptainer exec without --",
                            value);
    for (size_t i = 0; i < PL_COUNT(refused); i++)
        if (len == strlen(refused[i].name) && memcmp(refused[i].name, value, len) == 0)
            return pl_error_set(err, -EINVAL, "%s", refused[i].why);
    return 0;
}
