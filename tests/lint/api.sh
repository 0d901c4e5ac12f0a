#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# plume-module(7) has each function and hook of include/plume, with its signature, and no other.
. "$(dirname "$0")/../lib/lint.bash"

found_lines '' < <(python3 tests/lint/api.py)
lint_done
