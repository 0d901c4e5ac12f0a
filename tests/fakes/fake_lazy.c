/* SPDX-License-Identifier: MIT */
/* A library for test-cuda_lazy.c; it is copied to where it is to be found. */
int fake_lazy_number(void);

__attribute__((visibility("default"))) int fake_lazy_number(void)
{
    return 7;
}
