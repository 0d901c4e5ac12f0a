/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/image.h"
#include "common/base/macros.h"

#include <string.h>

int pl_image_check(const char *value, struct pl_error *err)
{
    return value[0] == '-'
               ? pl_error_set(err, -EINVAL, "'%s' is no image: its name begins with -", value)
               : 0;
}

int pl_image_check_option(const char *value, struct pl_error *err)
{
    static const char *const owned[] = {"pwd", "cwd", "help"};
    size_t len = strcspn(value, "=");

    if (len == 0 || value[0] == '-' ||
        strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return pl_error_set(err, -EINVAL,
                            "'%s' is not KEY or KEY=VALUE: KEY is the long name of an option of "
                            "apptainer exec without --",
                            value);
    for (size_t i = 0; i < PL_COUNT(owned); i++)
        if (len == strlen(owned[i]) && memcmp(owned[i], value, len) == 0)
            return pl_error_set(err, -EINVAL,
                                "Plume sets --%s itself: the folder is that of the job script, "
                                "which --setup 'cd DIR' changes",
                                i < 2 ? owned[i] : "pwd");
    return 0;
}
