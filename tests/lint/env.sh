#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The table of environment variables (common/base/env_table.h) agrees with sources and man pages.
. "$(dirname "$0")/../lib/lint.bash"

table=$(
    gcc -xc -std=gnu11 -I. -E -P - <<'EOF' | grep '^ROW'
#include <stddef.h>
#include "common/base/env_table.h"
#define X(name, type, fallback, users, help) ROW name users
#define ROWS(x) PL_ENV_TABLE(x)
ROWS(X)
EOF
)
[[ -n $table ]] || found 'common/base/env_table.h:1: cannot read the table'
found_lines '' < <(lint_files '*.c' '*.h' 'templates/*.in' | python3 tests/lint/env.py "$table")
lint_done
