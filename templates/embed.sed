# SPDX-License-Identifier: MIT
# Converts each line of a template to a C string literal.
s/[\\"]/\\&/g
s/.*/"&\\n"/
