#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The compiler refuses a row of an option table without a target, or with a target of another type.
. "$(dirname "$0")/../lib/lint.bash"

# compiles ROW: 0 if the row is accepted, with the flags that matter of meson.build.
compiles() {
    gcc -fsyntax-only -xc -std=gnu11 -I. -Wextra -Wno-unused-parameter \
        -Werror=missing-field-initializers - 2>/dev/null <<EOF
#include "common/base/options.h"
struct ctx { bool flag; int number; double real; const char *text; };
const struct pl_option table[] = {$1, {0}};
EOF
}

grep -q -- "-Werror=missing-field-initializers" meson.build ||
    found "meson.build:1: -Werror=missing-field-initializers is missing"
compiles '{"x", 0, NULL, NULL, "help", PL_OPTION_TRUE(struct ctx, flag)}' ||
    found "common/base/options.h:1: a correct row does not compile"
for row in \
    '{"x", 0, NULL, NULL, "help"}' \
    '{"x", 0, NULL, NULL, "help", PL_OPTION_TRUE(struct ctx, number)}' \
    '{"x", 0, "N", NULL, "help", PL_OPTION_INT(struct ctx, real, 0, 1)}' \
    '{"x", 0, "N", NULL, "help", PL_OPTION_REAL(struct ctx, number, 0)}' \
    '{"x", 0, "N", NULL, "help", PL_OPTION_CHOICE(struct ctx, text, NULL)}' \
    '{"x", 0, "N", NULL, "help", PL_OPTION_STRING(struct ctx, flag)}'; do
    ! compiles "$row" || found "common/base/options.h:1: this row must not compile: $row"
done

# Words that are answered with what to write instead are no options.
own=$("$BUILD/plsubmit" --help | sed -n 's/^ *\(-., \)\?--\([a-z-]*\).*/\2/p')
while IFS=: read -r line name; do
    ! grep -qx -- "$name" <<<"$own" || found "launcher/plsubmit/foreign.c:$line: --$name is an option of plsubmit"
done < <(sed -n '/^static const char \*const sbatchs/,/^}/{=;p}' launcher/plsubmit/foreign.c |
    sed -n 'N;s/^\([0-9]*\)\n *"\([a-z-]*\)",$/\1:\2/p')
lint_done
