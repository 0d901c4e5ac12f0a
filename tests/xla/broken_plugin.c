/* SPDX-License-Identifier: MIT */
/* A plugin of PJRT that fails where $BROKEN says, before any device is there. */
#include <pjrt_c_api.h>
#include <stdlib.h>
#include <string.h>

struct PJRT_Error {
    const char *text;
};

static PJRT_Api api;
static PJRT_Error error;

static int is(const char *what)
{
    const char *broken = getenv("BROKEN");

    return broken && strcmp(broken, what) == 0;
}

static void message(PJRT_Error_Message_Args *args)
{
    args->message = args->error->text;
    args->message_size = strlen(args->error->text);
}

static void destroy(PJRT_Error_Destroy_Args *args)
{
    (void)args;
}

static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args)
{
    (void)args;
    error.text = "FAILED_PRECONDITION: the driver is too old.\n";
    return is("start") ? &error : NULL;
}

static PJRT_Error *create(PJRT_Client_Create_Args *args)
{
    (void)args;
    error.text = "UNAVAILABLE: the device is in use by process 1.";
    return &error;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void);

const PJRT_Api *GetPjrtApi(void)
{
    api.struct_size = is("short") ? 64 : PJRT_Api_STRUCT_SIZE;
    api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
    api.pjrt_api_version.major_version = is("major") ? PJRT_API_MAJOR + 1 : PJRT_API_MAJOR;
    api.pjrt_api_version.minor_version = is("minor") ? 3 : PJRT_API_MINOR + 5;
    api.PJRT_Error_Message = message;
    api.PJRT_Error_Destroy = destroy;
    api.PJRT_Plugin_Initialize = initialize;
    api.PJRT_Client_Create = create;
    return is("nothing") ? NULL : &api;
}
