/* SPDX-License-Identifier: MIT */
/* A YAML 1.1 document as a tree with the line and column of each node. Texts stay as they are
 * written: 1e-3, 007 and yes are words. Anchors, aliases, tags and a second document are errors,
 * as is a key that occurs twice. libyaml is used here only. */
#ifndef PL_LAUNCHER_PLSUBMIT_YAML_TREE_H
#define PL_LAUNCHER_PLSUBMIT_YAML_TREE_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define PL_YAML_DEPTH_MAX 8
#define PL_YAML_KEYS_MAX 1024 /* of one mapping */
#define PL_YAML_BYTES_MAX (4u << 20)

enum pl_yaml_kind { PL_YAML_SCALAR, PL_YAML_LIST, PL_YAML_MAP };

/* Both count from 1; a column is a character. */
struct pl_yaml_place {
    unsigned line, column;
};

struct pl_yaml {
    enum pl_yaml_kind kind;
    struct pl_yaml_place place;
    char *text; /* of a scalar; never NULL then, and without NUL inside */
    bool plain; /* of a scalar: not quoted, so that an empty text means that there is none */
    char *key;  /* of a node in a mapping */
    struct pl_yaml_place key_place;
    struct pl_yaml *items; /* of a list or mapping, in the order of the file */
    size_t n_items;
};

void pl_yaml_finish(struct pl_yaml *node);

/* Parses a text. A text without content is an empty mapping. Finish *ret if this succeeds.
 * path  for messages, which begin with "PATH:LINE:COLUMN: "
 * -EINVAL (not YAML, or one of the things above), -ENOMEM; -ENOTSUP: built without libyaml. */
int pl_yaml_parse(
    const char *path, const char *text, size_t len, struct pl_yaml *ret, struct pl_error *err);

/* Sets err to "PATH:LINE:COLUMN: ...". Returns -EINVAL. */
int pl_yaml_error(const char *path,
                  struct pl_yaml_place place,
                  struct pl_error *err,
                  const char *fmt,
                  ...) PL_PRINTF(4, 5);

#endif
