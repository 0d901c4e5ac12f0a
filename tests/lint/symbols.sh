#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# No circles between files or folders of the product, and no global name with two homes (symbols.py).
. "$(dirname "$0")/../lib/lint.bash"

found_lines '' < <(python3 tests/lint/symbols.py . "$BUILD" 2>&1 || true)
lint_done
