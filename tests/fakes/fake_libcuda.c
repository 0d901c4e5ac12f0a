/* SPDX-License-Identifier: MIT */
/* A libcuda.so.1 without a driver, for cuDNN's runtime-compiled engines: it takes the code that
 * they have compiled. All other functions, which are in a generated file, refuse (error 34, as
 * those of the stub in CUDA's toolkit, which has their names). */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STUB_LIBRARY 34 /* CUDA_ERROR_STUB_LIBRARY */
#define EXPORT __attribute__((visibility("default")))

static int object; /* what all handles point to */

static int refuse(void)
{
    return STUB_LIBRARY;
}

/* Functions that fill their first argument with a handle. */
#define GIVES(name)                                                                                \
    EXPORT int name(void **ret);                                                                   \
    int name(void **ret)                                                                           \
    {                                                                                              \
        *ret = &object;                                                                            \
        return 0;                                                                                  \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuLibraryGetModule)
GIVES(cuKernelGetFunction)

#define ACCEPTS(name)                                                                              \
    EXPORT int name(void);                                                                         \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
ACCEPTS(cuLibraryUnload)
ACCEPTS(cuKernelSetAttribute)
ACCEPTS(cuFuncSetAttribute)

EXPORT int cuLibraryGetGlobal(uint64_t *ret, size_t *ret_bytes);
int cuLibraryGetGlobal(uint64_t *ret, size_t *ret_bytes)
{
    *ret = (uint64_t)(uintptr_t)&object;
    if (ret_bytes)
        *ret_bytes = sizeof(object);
    return 0;
}

EXPORT int cuKernelGetAttribute(int *ret);
int cuKernelGetAttribute(int *ret)
{
    *ret = 0;
    return 0;
}

EXPORT int cuFuncGetAttribute(int *ret);
int cuFuncGetAttribute(int *ret)
{
    *ret = 0;
    return 0;
}

EXPORT int cuGetErrorString(int error, const char **ret);
int cuGetErrorString(int error, const char **ret)
{
    *ret = "there is no driver";
    return 0;
}

EXPORT int cuGetErrorName(int error, const char **ret);
int cuGetErrorName(int error, const char **ret)
{
    *ret = "CUDA_ERROR_STUB_LIBRARY";
    return 0;
}

static int find(const char *name, void **ret)
{
    int (*none)(void) = refuse;

    *ret = dlsym(RTLD_DEFAULT, name);
    if (!*ret)
        memcpy(ret, &none, sizeof(*ret));
    return 0;
}

EXPORT int cuGetProcAddress(const char *name, void **ret);
int cuGetProcAddress(const char *name, void **ret)
{
    return find(name, ret);
}

EXPORT int cuGetProcAddress_v2(const char *name, void **ret);
int cuGetProcAddress_v2(const char *name, void **ret)
{
    return find(name, ret);
}
