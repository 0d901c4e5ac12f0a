/* SPDX-License-Identifier: MIT */
/* Addresses and ports in text: PLUME_HUB, ranges, PLUME_HUB_BIND. What is accepted says the same
 * when it is written again. */
#include "common/base/parse.h"
#include "runtime/node/net.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_string(data, size), host[256], again[256], line[300];
    uint16_t low, high, port, port_again;
    struct pl_error err = {0};

    if (pl_net_split(text, host, sizeof(host), &port) == 0) {
        FUZZ_CHECK(host[0] && port > 0);
        snprintf(line, sizeof(line), strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
        FUZZ_CHECK(pl_net_split(line, again, sizeof(again), &port_again) == 0);
        FUZZ_CHECK(strcmp(host, again) == 0 && port == port_again);
    }
    if (pl_parse_port_range(text, &low, &high, &err) == 0)
        FUZZ_CHECK(low > 0 && low <= high);
    else
        FUZZ_CHECK(err.text[0]);
    err = (struct pl_error){0};
    setenv("PLUME_HUB_BIND", text, 1);
    if (pl_hub_bind_address(host, sizeof(host), &err) < 0)
        FUZZ_CHECK(err.text[0]);
    free(text);
    return 0;
}
