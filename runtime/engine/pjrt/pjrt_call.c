/* SPDX-License-Identifier: MIT */
#include "runtime/engine/pjrt/pjrt_private.h"

int pl_pjrt_fail(const PJRT_Api *api, PJRT_Error *error, const char *what, struct pl_error *err)
{
    PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                       .error = error};
    PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE,
                                       .error = error};
    size_t len;

    if (!error)
        return 0;
    api->PJRT_Error_Message(&message);
    len = message.message_size;
    while (len && (message.message[len - 1] == '\n' || message.message[len - 1] == '.'))
        len--;
    pl_error_set(err, -EIO, "the XLA device: %s: %.*s", what, (int)PL_MIN(len, (size_t)600),
                 message.message);
    api->PJRT_Error_Destroy(&destroy);
    return -EIO;
}

int pl_pjrt_await(const PJRT_Api *api, PJRT_Event *event, const char *what, struct pl_error *err)
{
    PJRT_Event_Await_Args wait = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = event};
    PJRT_Event_Destroy_Args destroy = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE,
                                       .event = event};
    int r;

    if (!event)
        return 0;
    r = pl_pjrt_fail(api, api->PJRT_Event_Await(&wait), what, err);
    api->PJRT_Event_Destroy(&destroy);
    return r;
}
