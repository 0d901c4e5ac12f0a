/* SPDX-License-Identifier: MIT */
/* The part of yaml_tree.h that needs no libyaml. */
#include "launcher/plsubmit/yaml_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void pl_yaml_finish(struct pl_yaml *node)
{
    for (size_t i = 0; i < node->n_items; i++)
        pl_yaml_finish(&node->items[i]);
    free(node->items);
    free(node->text);
    free(node->key);
    *node = (struct pl_yaml){0};
}

int pl_yaml_error(
    const char *path, struct pl_yaml_place place, struct pl_error *err, const char *fmt, ...)
{
    char text[PL_ERROR_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return pl_error_set(err, -EINVAL, "%.300s:%u:%u: %s", path, place.line, place.column, text);
}
