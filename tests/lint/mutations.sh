#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Each place that ./dev mutate breaks (dev.d/mutations.py) stands in its file, exactly once.
. "$(dirname "$0")/../lib/lint.bash"

found_lines '' < <(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=dev.d python3 - 2>&1 <<'PY' || true
from mutations import MUTATIONS

for m in MUTATIONS:
    try:
        with open(m["file"], encoding="utf-8") as f:
            n = f.read().count(m["text"])
    except FileNotFoundError:
        n = 0
    if n != 1:
        print(f"dev.d/mutations.py:1: {m['file']} has the text {n} times, not once: {m['text']}")
if len(MUTATIONS) < 30:
    print(f"dev.d/mutations.py:1: {len(MUTATIONS)} places only, not 30")
PY
)
lint_done
