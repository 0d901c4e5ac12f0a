/* SPDX-License-Identifier: MIT */
/* The site's file: who may have written it, what is in it, and what it sets. */
#include "common/base/fs.h"
#include "common/base/site.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char folder[64], path[96];

static int load(const char *text, struct pl_error *err)
{
    *err = (struct pl_error){0};
    assert_int_equal(pl_file_write_atomic(path, text, strlen(text), 0644, NULL), 0);
    return pl_site_load_from(path, geteuid(), err);
}

static void test_load_wins_over_the_environment(void **state)
{
    struct pl_error err;

    setenv("PLUME_HUB_BIND", "0.0.0.0", 1);
    setenv("PLUME_ENCRYPT", "off", 1);
    setenv("PLUME_KILL_GRACE", "7", 1);
    assert_int_equal(load("# the site's\n\n  hub_bind = ib0\nhub_ports=21000-21999 \t\r\n"
                          "encrypt =require\nmaster_ports = 22000\nengine_ports = 23000-23100\n"
                          "confine = require\nfolder_mask = 027\nnccl_ras = off",
                          &err),
                     0);
    assert_string_equal(getenv("PLUME_HUB_BIND"), "ib0");
    assert_string_equal(getenv("PLUME_HUB_PORTS"), "21000-21999");
    assert_string_equal(getenv("PLUME_ENCRYPT"), "require");
    assert_string_equal(getenv("PLUME_MASTER_PORT_RANGE"), "22000");
    assert_string_equal(getenv("PLUME_TCP_PORTS"), "23000-23100");
    assert_string_equal(getenv("PLUME_CONFINE"), "require");
    assert_string_equal(getenv("PLUME_KILL_GRACE"), "7");
    assert_int_equal(pl_site_folder_mask(), 027);
    assert_true(pl_site_nccl_ras_off());
}

static void test_load_absent(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_site_load_from("/nonexistent/plume.conf", 0, &err), 0);
    assert_int_equal(load("", &err), 0);
}

static void test_load_bad_lines(void **state)
{
    static const char *const lines[][2] = {
        {"hub_bind", "'hub_bind' is not of the form KEY = VALUE"},
        {"hub_bind =", "'hub_bind' has no value"},
        {"= x", "unknown key ''"},
        {"hub_bind = a b", "has blanks in it"},
        {"Hub_bind = a", "unknown key 'Hub_bind': see plume.conf(5)"},
        {"hub_ports = 0", "hub_ports = 0"},
        {"hub_ports = 9-8", "hub_ports = 9-8"},
        {"encrypt = yes", "encrypt = yes: use auto, off or require"},
        {"confine = ", "'confine' has no value"},
        {"folder_mask = 8", "use a number as for umask(1)"},
        {"folder_mask = 0000077", "use a number as for umask(1)"},
        {"folder_mask = 700", "takes bits from the owner"},
        {"nccl_ras = no", "nccl_ras = no: use auto or off"},
        {"encrypt = auto\nencrypt = off", "'encrypt' occurs twice"},
    };
    struct pl_error err;

    for (size_t i = 0; i < PL_COUNT(lines); i++) {
        _cleanup_free_ char *text = pl_strf("# first\n%s\n", lines[i][0]);
        const char *number = strchr(lines[i][0], '\n') ? ", line 3: " : ", line 2: ";

        if (load(text, &err) >= 0 || !strstr(err.text, lines[i][1]) || !strstr(err.text, number) ||
            !strstr(err.text, path))
            fail_msg("'%s': %s", lines[i][0], err.text);
    }
}

static void test_load_of_others(void **state)
{
    _cleanup_free_ char *link_path = pl_strf("%s/link", folder);
    struct pl_error err = {0};

    assert_int_equal(load("encrypt = off\n", &err), 0);
    setenv("PLUME_ENCRYPT", "require", 1);
    assert_int_equal(chmod(path, 0664), 0);
    assert_int_equal(pl_site_load_from(path, geteuid(), &err), -EPERM);
    assert_non_null(strstr(err.text, "mode 0664: it must be root's"));
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(pl_site_load_from(link_path, geteuid(), &err), -ELOOP);
    assert_int_equal(pl_site_load_from(folder, geteuid(), &err), -EINVAL);
    if (geteuid() == 0)
        assert_int_equal(chown(path, 65534, 65534), 0);
    assert_int_equal(pl_site_load_from(path, 0, &err), -EPERM);
    assert_string_equal(getenv("PLUME_ENCRYPT"), "require");
    if (geteuid() == 0)
        assert_int_equal(chown(path, 0, 0), 0);
}

/* A user who may write to the folder may replace the file. */
static void test_load_open_folder(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(load("encrypt = off\n", &err), 0);
    assert_int_equal(chmod(folder, 0770), 0);
    assert_int_equal(pl_site_load_from(path, geteuid(), &err), -EPERM);
    assert_non_null(strstr(err.text, "mode 0770"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(pl_site_load_from(path, geteuid(), &err), -EPERM);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(pl_site_load_from(path, geteuid(), &err), 0);
}

static void test_load_huge(void **state)
{
    _cleanup_free_ char *text = calloc(1, 70001);
    struct pl_error err = {0};

    assert_non_null(text);
    memset(text, '#', 70000);
    assert_int_equal(load(text, &err), -EINVAL);
    assert_non_null(strstr(err.text, "at most 64 KiB"));
    assert_int_equal(pl_file_write_atomic(path, "encrypt = off\0x", 15, 0644, NULL), 0);
    assert_int_equal(pl_site_load_from(path, geteuid(), &err), -EINVAL);
    assert_non_null(strstr(err.text, "NUL"));
}

static int make_folder(void **state)
{
    int r = tmpdir_make(folder, sizeof(folder));

    snprintf(path, sizeof(path), "%s/plume.conf", folder);
    return r;
}

static int remove_folder(void **state)
{
    return tmpdir_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_wins_over_the_environment),
        cmocka_unit_test(test_load_absent),
        cmocka_unit_test(test_load_bad_lines),
        cmocka_unit_test(test_load_of_others),
        cmocka_unit_test(test_load_open_folder),
        cmocka_unit_test(test_load_huge),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
