/* SPDX-License-Identifier: MIT */
/* plstat doctor: what the answers of nodes show. */
#include "common/base/options.h"
#include "common/proto/json.h"
#include "launcher/plstat/doctor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BEFORE_S 100.0 /* this host's clock around the answers */
#define AFTER_S 110.0
#define GOOD(name) "{\"node\":\"" name "\",\"time\":105,\"token\":\"t\",\"slurm\":\"25.11\","

static struct pl_plstat ps;
static struct pl_doctor d;

static void begin(const char *nodes)
{
    json_error_t error;

    ps = (struct pl_plstat){0};
    d = (struct pl_doctor){.ps = &ps,
                           .checks = json_array(),
                           .of_nodes = json_object(),
                           .nodes = json_loads(nodes, 0, &error)};
    if (!d.nodes)
        fail_msg("%s: %s", nodes, error.text);
}

/* The findings are these lines, of which VERSION stands for Plume's. */
static void end(const char *want)
{
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};
    const json_t *check;
    bool wrong = false;
    size_t i;

    json_array_foreach (d.checks, i, check) {
        const char *verdict = pl_json_string(check, "verdict"), *text, *at;

        text = pl_json_string(check, "text");
        at = strstr(text, pl_version());
        wrong |= strcmp(verdict, "wrong") == 0;
        pl_buf_addf(&all, "%s: %.*s%s%s\n", verdict, at ? (int)(at - text) : (int)strlen(text),
                    text, at ? "VERSION" : "", at ? at + strlen(pl_version()) : "");
    }
    assert_string_equal(pl_buf_str(&all), want);
    assert_int_equal(ps.any_failure, wrong);
    assert_int_equal(d.r, 0);
    json_decref(d.checks);
    json_decref(d.of_nodes);
    json_decref(d.nodes);
}

static void looks(const char *nodes, const char *want)
{
    begin(nodes);
    pl_doctor_look_at_answers(&d, "t", BEFORE_S, AFTER_S);
    end(want);
}

static void test_answers_of_good_nodes(void **state)
{
    /* The fastest interface that both have: the first of two. */
    looks("[" GOOD("a") "\"driver\":\"570.1\",\"interfaces\":[{\"name\":\"eth0\",\"speed\":1000},"
                        "{\"name\":\"ib0\",\"speed\":200},{\"name\":\"ib1\",\"speed\":100000},"
                        "{\"name\":\"ib2\",\"speed\":100000}]}," GOOD(
                            "b") "\"driver\":\"570.1\",\"interfaces\":[{\"name\":\"ib2\",\"speed\":"
                                 "100000},"
                                 "{\"name\":\"ib1\",\"speed\":100000},{\"name\":\"ib0\",\"speed\":"
                                 "999999}]}]",
          "ok: looked at 2 nodes\nok: Slurm on the nodes: 25.11\nok: NVIDIA driver: 570.1\n"
          "ok: all nodes have interface ib1: NCCL_SOCKET_IFNAME=ib1 GLOO_SOCKET_IFNAME=ib1\n");
    looks("[" GOOD("a") "\"interfaces\":[]}]",
          "ok: looked at 1 node\nok: Slurm on the nodes: 25.11\n");
}

static void test_answers_that_differ(void **state)
{
    looks("[" GOOD("a") "\"driver\":\"570.1\",\"interfaces\":[{\"name\":\"eth0\"}]}," GOOD(
              "b") "\"driver\":\"570.1\",\"interfaces\":[{\"name\":\"eth1\"}]}," GOOD("c") "\"mpi\""
                                                                                           ":\"5."
                                                                                           "0\"}]",
          "ok: looked at 3 nodes\nok: Slurm on the nodes: 25.11\n"
          "wrong: NVIDIA driver differs: 570.1 on node a, none on node c\n"
          "wrong: MPI differs: none on node a, 5.0 on node c\n"
          "wrong: no network interface has the same name on all nodes: set NCCL_SOCKET_IFNAME by "
          "prefix, such as NCCL_SOCKET_IFNAME=ib,eth\n");
}

/* Nodes with the same finding share a line. */
static void test_answers_of_bad_nodes(void **state)
{
    looks("[{\"node\":\"a\",\"time\":97,\"token\":\"t\"},{\"node\":\"b\",\"time\":98.5},"
          "{\"node\":\"c\",\"time\":113,\"token\":\"of another run\"},"
          "{\"node\":\"d\",\"time\":111.5,\"token\":\"t\",\"version\":\"0.0.0\"}]",
          "wrong: on 2 nodes, such as a: the clock differs by 3 s from this host's\n"
          "wrong: on 2 nodes, such as b: the folder of runs is not there: choose one that all "
          "nodes share\n"
          "wrong: on node d: Plume is 0.0.0, on this host VERSION\nok: looked at 4 nodes\n"
          "wrong: no network interface has the same name on all nodes: set NCCL_SOCKET_IFNAME by "
          "prefix, such as NCCL_SOCKET_IFNAME=ib,eth\n");
    /* Nothing was written for them to read. */
    begin("[{\"node\":\"a\",\"time\":105}]");
    pl_doctor_look_at_answers(&d, NULL, BEFORE_S, AFTER_S);
    end("ok: looked at 1 node\n");
}

static void test_names_of_nodes(void **state)
{
    looks("[" GOOD("a") "\"names\":[{\"name\":\"a\",\"address\":\"10.0.0.1\",\"back\":\"a\"},"
                        "{\"name\":\"b\"},{\"name\":\"c\",\"address\":\"10.0.0.3\"},"
                        "{\"name\":\"e\"}]}]",
          "wrong: on node a: 2 of 4 nodes' names have no address, such as b: Plume uses Slurm's "
          "addresses, programs that look names up fail\n"
          "wrong: on node a: the addresses of 1 of 4 nodes lead to no name, such as that of c: "
          "some programs wait for one\n"
          "ok: looked at 1 node\nok: Slurm on the nodes: 25.11\n");
}

static void test_munge_of_nodes(void **state)
{
    static const struct {
        const char *release;
        bool old;
    } cases[] = {{"0.4.18", true}, {"0.5.17", true}, {"0.5.18", false},
                 {"0.6.0", false}, {"1.0.1", false}, {"0.5.9", true}};

    for (size_t i = 0; i < PL_COUNT(cases); i++)
        for (int used = 0; used < 2; used++) {
            char nodes[256], want[512] = "ok: looked at 1 node\nok: Slurm on the nodes: 25.11\n";
            size_t n = strlen(want);

            snprintf(nodes, sizeof(nodes), "[" GOOD("a") "\"munge\":\"munge-%s (2026-01-01)\"}]",
                     cases[i].release);
            if (used)
                n += (size_t)snprintf(want + n, sizeof(want) - n,
                                      "ok: munge: munge-%s (2026-01-01)\n", cases[i].release);
            if (used && cases[i].old)
                snprintf(want + n, sizeof(want) - n,
                         "check: munge %s on node a: releases before 0.5.18 give local users the "
                         "key of all credentials (CVE-2026-25506), unless the distribution has "
                         "mended its package\n",
                         cases[i].release);
            begin(nodes);
            d.munge = used;
            pl_doctor_look_at_answers(&d, "t", BEFORE_S, AFTER_S);
            end(want);
        }
}

/* The plugin, and a /tmp that jobs have of their own. */
static void test_plugin_of_nodes(void **state)
{
    static const char hidden[] = "wrong: on node b tasks of srun --plume do not see the socket of "
                                 "plrund%s: set runtime_dir or mount_namespace, see "
                                 "spank_plume(8); plsubmit and srun plrun work\n";
    static const char unknown[] = "check: jobs have a /tmp of their own (namespace/linux): the "
                                  "plugin needs runtime_dir or mount_namespace, see "
                                  "spank_plume(8)\n";
    static const struct {
        const char *nodes, *namespace, *want;
        bool plugin;
    } cases[] = {
        {"[]", "", "", true},
        {"[]", "namespace/linux", unknown, true},
        {"[]", "namespace/linux", "", false},
        {"[{\"node\":\"a\"},{\"node\":\"b\"}]", "namespace/linux", unknown, true},
        {"[{\"node\":\"a\",\"socket\":true},{\"node\":\"b\"}]", "namespace/linux",
         "ok: jobs have a /tmp of their own (namespace/linux), and tasks see the socket of "
         "plrund\n",
         true},
        {"[{\"node\":\"a\",\"socket\":true}]", "", "", true},
        {"[{\"node\":\"a\",\"socket\":true},{\"node\":\"b\",\"socket\":false}]", "namespace/linux",
         hidden, true},
        {"[{\"node\":\"b\",\"socket\":false},{\"node\":\"c\",\"socket\":false}]", "", hidden, true},
        {"[{\"node\":\"b\",\"socket\":false}]", "", "", false},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        char want[400] = "";

        begin(cases[i].nodes);
        d.plugin_here = cases[i].plugin;
        snprintf(d.namespace, sizeof(d.namespace), "%s", cases[i].namespace);
        pl_doctor_check_socket(&d);
        if (cases[i].want == hidden)
            snprintf(want, sizeof(want), hidden,
                     *d.namespace ? ", as jobs have a /tmp of their own (namespace/linux)" : "");
        end(cases[i].want == hidden ? want : cases[i].want);
    }
    for (int here = 0; here < 2; here++) {
        begin("[" GOOD("a") "\"plugin\":true}," GOOD("b") "\"interfaces\":[]}]");
        d.plugin_here = here;
        pl_doctor_look_at_answers(&d, "t", BEFORE_S, AFTER_S);
        assert_int_equal(ps.any_failure, true); /* of interfaces */
        assert_int_equal(json_array_size(d.checks), here ? 4 : 3);
        if (here)
            assert_string_equal(pl_json_string(json_array_get(d.checks, 0), "text"),
                                "on node b: srun does not load the plugin: see plugstack.conf "
                                "there");
        json_decref(d.checks);
        json_decref(d.of_nodes);
        json_decref(d.nodes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_of_good_nodes), cmocka_unit_test(test_answers_that_differ),
        cmocka_unit_test(test_answers_of_bad_nodes),  cmocka_unit_test(test_names_of_nodes),
        cmocka_unit_test(test_munge_of_nodes),        cmocka_unit_test(test_plugin_of_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
