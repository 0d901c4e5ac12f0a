/* SPDX-License-Identifier: MIT */
/* Built without libyaml. */
#include "launcher/plsubmit/yaml_tree.h"

int pl_yaml_parse(
    const char *path, const char *text, size_t len, struct pl_yaml *ret, struct pl_error *err)
{
    return pl_error_set(err, -ENOTSUP,
                        "cannot read '%s': this plsubmit was built without libyaml; give the "
                        "options on the command line, or build Plume with -Dyaml=enabled",
                        path);
}
