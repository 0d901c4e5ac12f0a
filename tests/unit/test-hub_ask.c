/* SPDX-License-Identifier: MIT */
/* The key of a run folder, and hubs that cannot be asked. */
#include "common/proto/hub_ask.h"
#include "tests/lib/tmpdir.h"
#include "tests/unit/session_pair.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cmocka.h>

static void test_key_load_places(void **state)
{
    char home[64], path[80];
    unsigned char a[PL_KEY_SIZE], b[PL_KEY_SIZE];
    struct pl_error err = {0};

    assert_int_equal(tmpdir_make(home, sizeof(home)), 0);
    setenv("PLUME_HOME", home, 1);
    unsetenv("PLUME_KEY_FILE");
    assert_int_equal(pl_key_load(NULL, a, &err), 0); /* made */
    assert_int_equal(pl_key_load(NULL, b, &err), 0);
    assert_memory_equal(a, b, PL_KEY_SIZE);
    assert_int_equal(pl_key_load(home, b, &err), 0); /* DIR/key */
    assert_memory_equal(a, b, PL_KEY_SIZE);
    assert_int_equal(pl_key_load("/nonexistent", b, &err), -ENOENT);
    snprintf(path, sizeof(path), "%s/key", home);
    setenv("PLUME_KEY_FILE", path, 1);
    assert_int_equal(pl_key_load("/nonexistent", b, &err), 0); /* comes first */
    chmod(path, 0644);
    assert_int_equal(pl_key_load(NULL, b, &err), -EPERM);
    assert_non_null(strstr(err.text, "PLUME_KEY_FILE"));
    unsetenv("PLUME_KEY_FILE");
    assert_int_equal(tmpdir_remove(home), 0);
}

static void test_hub_ask_unreachable(void **state)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    struct pl_error err = {0};
    json_t *answer = NULL;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    uint16_t port;

    a.ss_family = AF_INET;
    assert_int_equal(bind(fd, (struct sockaddr *)&a, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    port = (uint16_t)((unsigned char *)&a)[2] * 256 + ((unsigned char *)&a)[3];
    assert_int_equal(pl_hub_ask("127.0.0.1", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 2000, &answer, &err),
                     -ECONNREFUSED);
    assert_int_equal(listen(fd, 8), 0); /* connects, says nothing */
    assert_int_equal(pl_hub_ask("127.0.0.1", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 100, &answer, &err),
                     -ETIMEDOUT);
    assert_int_equal(pl_hub_ask("no-such-host.invalid", port, &id, secret, PL_MSG_ASK_SNAPSHOT,
                                PL_MSG_SNAPSHOT, 100, &answer, &err),
                     -EHOSTUNREACH);
    assert_null(answer);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_load_places),
        cmocka_unit_test(test_hub_ask_unreachable),
    };

    if (sodium_init() < 0)
        return 1;
    setenv("PLUME_ENCRYPT", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
