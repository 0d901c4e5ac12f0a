/* SPDX-License-Identifier: MIT */
/* NCCL's functions that the engine calls. */
#include "runtime/engine/cuda/lazy/lazy.h"

#include <nccl.h>

#define TEXT(x) #x
#define NAME(major) "libnccl.so." TEXT(major)

static struct pl_lazy lib = {.name = "NCCL",
                             .file = NAME(NCCL_MAJOR),
                             .advice = "install it (pip install nvidia-nccl-cu13, or -cu12)",
                             .lock = PTHREAD_MUTEX_INITIALIZER};

int pl_lazy_nccl(struct pl_error *err)
{
    return pl_lazy_open(&lib, err);
}

#define CALL(function, ...) PL_LAZY_CALL(&lib, function, ncclSystemError, __VA_ARGS__)

ncclResult_t ncclGetVersion(int *version)
{
    CALL(ncclGetVersion, version);
}

const char *ncclGetErrorString(ncclResult_t result)
{
    PL_LAZY_CALL(&lib, ncclGetErrorString, "NCCL is not there", result);
}

const char *ncclGetLastError(ncclComm_t comm)
{
    PL_LAZY_CALL(&lib, ncclGetLastError, "", comm);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    CALL(ncclGetUniqueId, id);
}

ncclResult_t
ncclCommInitRankConfig(ncclComm_t *comm, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    CALL(ncclCommInitRankConfig, comm, size, id, rank, config);
}

ncclResult_t
ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config)
{
    CALL(ncclCommSplit, comm, color, key, made, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    CALL(ncclCommGetAsyncError, comm, error);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    CALL(ncclCommFinalize, comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    CALL(ncclCommDestroy, comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    CALL(ncclCommAbort, comm);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t size, void **handle)
{
    CALL(ncclCommRegister, comm, buffer, size, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    CALL(ncclCommDeregister, comm, handle);
}

ncclResult_t ncclMemAlloc(void **at, size_t size)
{
    CALL(ncclMemAlloc, at, size);
}

ncclResult_t ncclMemFree(void *at)
{
    CALL(ncclMemFree, at);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op,
                                      void *scalar,
                                      ncclDataType_t type,
                                      ncclScalarResidence_t residence,
                                      ncclComm_t comm)
{
    CALL(ncclRedOpCreatePreMulSum, op, scalar, type, residence, comm);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    CALL(ncclRedOpDestroy, op, comm);
}

ncclResult_t ncclGroupStart(void); /* the header's has no prototype */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    CALL(ncclGroupStart);
}

ncclResult_t ncclGroupEnd(void)
{
    CALL(ncclGroupEnd);
}

ncclResult_t ncclAllReduce(const void *from,
                           void *to,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream)
{
    CALL(ncclAllReduce, from, to, count, type, op, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from,
                           void *to,
                           size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream)
{
    CALL(ncclBroadcast, from, to, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *from,
                        void *to,
                        size_t count,
                        ncclDataType_t type,
                        ncclRedOp_t op,
                        int root,
                        ncclComm_t comm,
                        cudaStream_t stream)
{
    CALL(ncclReduce, from, to, count, type, op, root, comm, stream);
}
