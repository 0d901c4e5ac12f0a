# SPDX-License-Identifier: MIT
# Turns a template into lines of C string literals.
s/[\\"]/\\&/g
s/.*/"&\\n"/
