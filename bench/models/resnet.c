/* SPDX-License-Identifier: MIT */
/* The bundled example, ResNet-18. */
#define TIMED_INPUT PLUME_F32
#include "bench/models/timed.h"

const struct plume_module *example_entry(void);
#define plume_module_entry example_entry
#include "examples/resnet/resnet.c"
#undef plume_module_entry

const struct plume_module *plume_module_entry(void)
{
    return timed_entry(example_entry());
}
