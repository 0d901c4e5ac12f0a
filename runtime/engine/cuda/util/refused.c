/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/util/refused.h"
#include "common/base/log.h"
#include "common/base/macros.h"
#include "runtime/engine/cuda/util/plan_cache.h"

#include <string.h>

void pl_cuda_refused(const char *library, const char *what, const char *why, const char *way)
{
    if (way)
        pl_log_info("cuda", "%s does not do this %s: %s: %s", library, way, what, why);
    else
        pl_log_warn("cuda", "%s does not do this, our own kernels do: %s: %s", library, what, why);
}

void pl_cuda_fell_back(const char *library, const char *what, const char *why)
{
    pl_log_warn("cuda", "%s does this by one of its fallbacks, which may be slow: %s: %s", library,
                what, why);
}

void pl_cuda_refused_once(struct pl_cuda_said *said,
                          const char *library,
                          const char *what,
                          const char *why,
                          const char *way)
{
    uint64_t hash = pl_plan_hash(what, strlen(what)) ^ pl_plan_hash(why, strlen(why));

    for (size_t i = 0; i < said->n; i++)
        if (said->hash[i] == hash)
            return;
    if (said->n == PL_COUNT(said->hash))
        return;
    said->hash[said->n++] = hash;
    pl_cuda_refused(library, what, why, way);
}

const char *pl_cuda_real_name(enum pl_real real)
{
    static const char *const names[] = {[PL_REAL_F32] = "f32",
                                        [PL_REAL_F64] = "f64",
                                        [PL_REAL_BF16] = "bf16",
                                        [PL_REAL_F16] = "f16"};

    return names[real];
}
