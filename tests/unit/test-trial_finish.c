/* SPDX-License-Identifier: MIT */
/* The end of a trial in its job script: what becomes its result. */
#include "common/base/fs.h"
#include "runtime/node/net.h"
#include "runtime/plrun/trial.h"
#include "tests/unit/trial_run.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

static time_t clock_ahead_s; /* of the file system's clock */

/* In place of libc's, in this program. */
int clock_gettime(clockid_t id, struct timespec *ret)
{
    int r = (int)syscall(SYS_clock_gettime, id, ret);

    if (id == CLOCK_REALTIME)
        ret->tv_sec += clock_ahead_s;
    return r;
}

/* A command of Slurm's. */
static void fake(const char *name, const char *script)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", top, name);
    unlink(path);
    assert_int_equal(pl_file_append(path, script, strlen(script), 0755, NULL), 0);
}

static void test_finish_setup_failed(void **state)
{
    claim();
    finish_with(5, 5, "failed", "setup");
}

/* A hub that was killed has left the room for its result. */
static void test_finish_uses_the_room_of_a_killed_hub(void **state)
{
    char room[4096];

    memset(room, ' ', sizeof(room));
    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json.tmp"), room, sizeof(room), 0666, NULL), 0);
    finish_with(5, 5, "failed", "setup");
    assert_int_not_equal(access(in_run("trial-0000/result.json.tmp"), F_OK), 0);
}

static void test_finish_launch_failed(void **state)
{
    claim();
    setenv("PLUME_HUB", "n1:5", 1);
    finish_with(1, 1, "failed", "launch");
}

/* srun could not start the ranks, and ended with 0. */
static void test_finish_launch_given_up(void **state)
{
    claim();
    setenv("PLUME_HUB", "n1:5", 1);
    finish_with(0, 1, "failed", "launch");
}

/* Somebody has removed the attempt's folder, and with it the hub's log: srun's word counts. */
static void test_finish_folder_removed(void **state)
{
    claim();
    setenv("PLUME_HUB", "n1:5", 1);
    assert_int_equal(unlink(in_run("trial-0000/attempt-0/claim")), 0);
    assert_int_equal(rmdir(in_run("trial-0000/attempt-0")), 0);
    finish_with(0, 0, "done", NULL);
}

static void test_finish_terminated(void **state)
{
    claim();
    finish_with(143, 143, "cancelled", "cancelled");
}

/* A command of the set-up has that exit code, and the job script got no signal. */
static void test_finish_setup_exits_as_if_terminated(void **state)
{
    static const struct {
        const char *signal, *slurm, *state, *kind;
    } rows[] = {{"", "JobState=RUNNING", "failed", "setup"},
                {"TERM", "JobState=RUNNING", "cancelled", "cancelled"},
                {"", "JobState=COMPLETING", "cancelled", "cancelled"}};

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        _cleanup_free_ char *script = pl_strf("#!/bin/sh\necho %s\n", rows[i].slurm);

        claim();
        setenv("PLUME_SETUP_SIGNAL", rows[i].signal, 1);
        fake("scontrol", script);
        finish_with(143, 143, rows[i].state, rows[i].kind);
        assert_int_equal(unlink(in_run("trial-0000/result.json")), 0);
        assert_int_equal(unlink(in_run("trial-0000/attempt-0/claim")), 0);
        assert_int_equal(rmdir(in_run("trial-0000/attempt-0")), 0);
    }
    unsetenv("PLUME_SETUP_SIGNAL");
}

static void test_finish_asks_slurm(void **state)
{
    char path[128];

    claim();
    snprintf(path, sizeof(path), "%s/scontrol", top);
    assert_int_equal(pl_file_append(path, "#!/bin/sh\necho JobState=TIMEOUT\n", 32, 0755, NULL), 0);
    finish_with(143, 143, "timed-out", "timeout");
}

/* scancel as the step begins: srun is refused, and Slurm's signal to all processes of the job ends
 * the question about it. */
static void test_finish_asks_slurm_again(void **state)
{
    claim();
    setenv("PLUME_HUB", "n1:5", 1);
    fake("scontrol", "#!/bin/sh\n[ -e $0.asked ] || { : >$0.asked; kill -TERM $$; }\n"
                     "echo JobState=COMPLETING\n");
    finish_with(1, 1, "cancelled", "cancelled");
}

static void test_finish_good_without_step(void **state)
{
    claim();
    finish_with(0, 0, "done", NULL);
}

/* Waits, ten seconds at most, until our parent is asleep. */
static bool parent_sleeps(void)
{
    double limit = pl_wall_s() + 10;
    char path[64], state = '?';

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)getppid());
    while (state != 'S' && pl_wall_s() < limit) {
        FILE *f = fopen(path, "re");

        if (!f || fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            state = '?';
        if (f)
            fclose(f);
        sched_yield();
    }
    return state == 'S';
}

/* The hub could not write its result, and its words on the attempt's stderr decide. */
static void
finish_after(const char *words, int code, int want_code, const char *state, const char *kind)
{
    char path[128];
    int before = dup(STDERR_FILENO), fd;

    assert_true(before >= 0);
    snprintf(path, sizeof(path), "%s/stderr", top);
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    claim();
    begin_log("");
    assert_int_equal(pl_write_all(fd, words, strlen(words)), 0);
    finish_with(code, want_code, state, kind);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
    close(fd);
}

static void test_finish_hub_said_done(void **state)
{
    (void)state;
    finish_after("x\nplrund: this attempt is done\n", 0, 0, "done", NULL);
}

static void test_finish_hub_said_failed(void **state)
{
    (void)state;
    finish_after("plrund: this attempt is failed, by its cause 'exit': rank 3 on n7, exit code 9\n"
                 "plrund: last lines of the cause:\nplrund:   its reason\n",
                 9, 9, "failed", "exit");
}

/* The program stopped at a signal: srun has 0. */
static void test_finish_hub_said_cancelled(void **state)
{
    (void)state;
    finish_after("plrund: this attempt is cancelled, by its cause 'cancelled'\n", 0, 1, "cancelled",
                 "cancelled");
}

/* The same with PLUME_LOG_FORMAT=json. */
static void test_finish_hub_said_done_as_json(void **state)
{
    (void)state;
    finish_after("{\"time\":1.000000,\"program\":\"plrund\",\"level\":\"error\",\"subsys\":\"run\","
                 "\"pid\":7,\"text\":\"this attempt is done\"}\n",
                 0, 0, "done", NULL);
}

static void test_finish_hub_said_failed_as_json(void **state)
{
    (void)state;
    finish_after("{\"time\":1.000000,\"program\":\"plrund\",\"level\":\"error\",\"subsys\":\"run\","
                 "\"pid\":7,\"text\":\"this attempt is failed, by its cause 'exit': rank 3 on n7, "
                 "exit code 9\"}\n",
                 9, 9, "failed", "exit");
}

/* Such words of a program do not change what srun says. */
static void test_finish_said_against_the_code(void **state)
{
    (void)state;
    finish_after("plrund: this attempt is done\n", 9, 9, "node-failed", "node");
}

/* The run folder's file system did not answer, so the log is old; the hub, which has not written
 * its result, still listens. */
static void test_finish_waits_for_a_hub_that_listens(void **state)
{
    static const char log[] = "{\"type\":\"attempt\",\"world_size\":1}\n";
    static const char done[] =
        "{\"schema\":\"" PL_RESULT_SCHEMA "\",\"trial\":0,\"state\":\"done\",\"attempt\":0,"
        "\"attempts\":1,\"job\":\"100\",\"exit_code\":0}\n";
    struct timespec old[] = {{.tv_sec = time(NULL) - 600}, {.tv_sec = time(NULL) - 600}};
    char path[256], hub_at[32];
    uint16_t port;
    pid_t hub;
    int status, fd;

    (void)state;
    claim();
    snprintf(path, sizeof(path), "%s", in_run("trial-0000/attempt-0/events.jsonl"));
    assert_int_equal(pl_file_append(path, log, strlen(log), 0666, NULL), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(pl_net_find_free(20000, 29999, &port, NULL), 0);
    assert_int_equal(pl_net_listen("127.0.0.1", port, &fd, NULL), 0);
    snprintf(hub_at, sizeof(hub_at), "127.0.0.1:%u", (unsigned)port);
    setenv("PLUME_HUB", hub_at, 1);
    hub = fork();
    if (hub == 0) {
        if (!parent_sleeps())
            _exit(2);
        _exit(pl_file_append(in_run("trial-0000/result.json"), done, strlen(done), 0666, NULL) < 0);
    }
    finish_with(0, 0, "done", NULL);
    close(fd);
    unsetenv("PLUME_HUB");
    assert_int_equal(waitpid(hub, &status, 0), hub);
    assert_int_equal(status, 0);
}

/* srun can end before the hub has written the result; its log is young then, by the clock of the
 * file system: this node's may be wrong. Nobody ends the step meanwhile. */
static void test_finish_waits_for_the_hub(void **state)
{
    static const char log[] =
        "{\"type\":\"attempt\",\"job\":\"7\",\"step\":\"0\",\"world_size\":1}\n";
    static const char done[] =
        "{\"schema\":\"" PL_RESULT_SCHEMA "\",\"trial\":0,\"state\":\"done\",\"attempt\":0,"
        "\"attempts\":1,\"job\":\"100\",\"exit_code\":0}\n";
    char path[256];
    pid_t hub;
    int status;

    claim();
    snprintf(path, sizeof(path), "%s", in_run("trial-0000/attempt-0/events.jsonl"));
    assert_int_equal(pl_file_append(path, log, strlen(log), 0666, NULL), 0);
    hub = fork();
    if (hub == 0) {
        /* pl_trial_finish() sleeps only where it waits for us */
        if (!parent_sleeps())
            _exit(2);
        _exit(pl_file_append(in_run("trial-0000/result.json"), done, strlen(done), 0666, NULL) < 0);
    }
    fake("scancel", "#!/bin/sh\n>\"${0%/*}/args\"\n");
    fake("scontrol", "#!/bin/sh\necho \"StepId=$4 State=RUNNING Tasks=2\"\n");
    clock_ahead_s = 3600;
    finish_with(137, 0, "done", NULL);
    clock_ahead_s = 0;
    snprintf(path, sizeof(path), "%s/args", top);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(waitpid(hub, &status, 0), hub);
    assert_int_equal(status, 0);
}

/* The hub began a log and never ended it: its node is gone, unless we run there. Success is not
 * claimed. */
static void test_finish_hub_vanished(void **state)
{
    claim();
    begin_log("");
    setenv("SLURMD_NODENAME", "n2", 1);
    finish_with(0, 1, "node-failed", "node");
}

static void test_finish_hub_killed(void **state)
{
    claim();
    begin_log("");
    setenv("SLURMD_NODENAME", "n1", 1);
    finish_with(143, 143, "failed", "runtime");
}

/* Nobody knows who sent a SIGKILL, unless Slurm says in the job's output that it ended the step. */
static void test_finish_all_killed(void **state)
{
    claim();
    begin_log("");
    finish_with(137, 137, "failed", "signal");
}

/* Both processes of srun were killed: Slurm lets the step run on. The hub sees some of its end. */
static void test_finish_srun_killed(void **state)
{
    static const char node[] =
        "{\"type\":\"cause\",\"cause\":{\"kind\":\"node\",\"node\":\"n2\"}}\n";
    _cleanup_free_ char *args = NULL;
    char path[128];
    size_t len;

    claim();
    begin_log(node);
    fake("scancel", "#!/bin/sh\necho \"$@\" >>\"${0%/*}/args\"\n");
    fake("scontrol", "#!/bin/sh\n[ $3 != step ] || echo \"StepId=$4 State=RUNNING Tasks=2\"\n");
    finish_with(1, 1, "node-failed", "node"); /* srun has ended by itself */
    assert_int_equal(unlink(in_run("trial-0000/result.json")), 0);
    finish_with(137, 137, "failed", "signal");
    assert_int_equal(unlink(in_run("trial-0000/result.json")), 0);
    fake("scontrol", "#!/bin/sh\n[ $3 != step ] || echo \"StepId=$4 State=COMPLETING Tasks=2\"\n");
    finish_with(137, 137, "node-failed", "node");
    /* A rank had failed before. */
    assert_int_equal(unlink(in_run("trial-0000/result.json")), 0);
    assert_int_equal(unlink(in_run("trial-0000/attempt-0/events.jsonl")), 0);
    begin_log("{\"type\":\"cause\",\"cause\":{\"kind\":\"exit\",\"exit\":3}}\n");
    fake("scontrol", "#!/bin/sh\n[ $3 != step ] || echo \"StepId=$4 State=RUNNING Tasks=2\"\n");
    finish_with(137, 137, "failed", "exit");
    snprintf(path, sizeof(path), "%s/args", top);
    assert_int_equal(pl_file_read(path, 4096, &args, &len, NULL), 0);
    assert_string_equal(args, "7.0\n7.0\n");
}

static void test_finish_cause_in_log(void **state)
{
    claim();
    begin_log("{\"type\":\"cause\",\"cause\":{\"kind\":\"oom\"}}\n");
    finish_with(137, 137, "failed", "oom");
}

/* The hub's result stands; its code is the script's. An earlier attempt's does not. */
static void test_finish_result_there(void **state)
{
    static const char theirs[] = "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"failed\","
                                 "\"attempt\":0,\"exit_code\":3,\"cause\":{\"kind\":\"exit\"}}\n";
    struct pl_error err = {0};
    json_t *o;
    int ret;

    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), theirs, strlen(theirs), 0666, NULL), 0);
    finish_with(0, 3, "failed", "exit");
    setenv("PLUME_ATTEMPT", "1", 1);
    assert_int_equal(pl_trial_finish(9, &ret, &err), 0);
    assert_int_equal(ret, 9);
    o = result();
    assert_int_equal(json_integer_value(json_object_get(o, "attempt")), 1);
    json_decref(o);
}

static void check_confidence(const char *want)
{
    json_t *o = result();

    assert_string_equal(pl_json_string(json_object_get(o, "cause"), "confidence"), want);
    json_decref(o);
}

/* The end of a program that has left at a signal, where Slurm has this record of the job. */
static void
stopped_with(const char *keys, const char *record, int code, const char *state, const char *kind)
{
    char path[128], text[512];
    int len;

    remove_run(NULL);
    make_run(NULL);
    claim();
    snprintf(path, sizeof(path), "%s/scontrol", top);
    len = snprintf(text, sizeof(text), "#!/bin/sh\n%s\n", record);
    assert_int_equal(pl_file_append(path, text, (size_t)len, 0755, NULL), 0);
    len = snprintf(text, sizeof(text),
                   "{\"schema\":\"plume-result/1\",\"trial\":0,\"attempt\":0,%s}\n", keys);
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), text, (size_t)len, 0666, NULL), 0);
    finish_with(0, code, state, kind);
}

/* The hub's keys of a program that has said that it stops at SIGTERM, with this exit code. */
#define TERM_CAUSE(code, confidence)                                                               \
    "\"state\":\"cancelled\",\"exit_code\":" code ",\"stopped\":\"TERM\","                         \
    "\"cause\":{\"kind\":\"cancelled\",\"confidence\":\"" confidence "\"}"

/* A run that saves and leaves at SIGUSR1 is not done: Slurm sends it before the time limit. */
static void test_finish_stopped(void **state)
{
    static const char good[] = "\"state\":\"done\",\"exit_code\":0,\"stopped\":\"USR1\"";
    static const char pltrain[] = "\"state\":\"failed\",\"exit_code\":130,\"stopped\":\"USR1\","
                                  "\"cause\":{\"kind\":\"exit\",\"exit\":130,\"rank\":1}";
    static const char first[] = "\"state\":\"cancelled\",\"exit_code\":138,\"stopped\":\"USR1\","
                                "\"cause\":{\"kind\":\"cancelled\",\"confidence\":\"inferred\","
                                "\"text\":\"the program stopped at SIGUSR1\"}"; /* the hub's */
    static const char term[] = "\"state\":\"done\",\"exit_code\":0,\"stopped\":\"TERM\"";
    static const char first_term[] = "\"state\":\"cancelled\",\"exit_code\":143,"
                                     "\"stopped\":\"TERM\",\"cause\":{\"kind\":\"cancelled\","
                                     "\"confidence\":\"inferred\","
                                     "\"text\":\"the program stopped at SIGTERM\"}";
    static const char near[] = "echo JobState=RUNNING RunTime=01:58:00 TimeLimit=02:00:00";
    static const char completing[] = "echo JobState=COMPLETING RunTime=01:58:00 TimeLimit=02:00:00";

    signal_option = "USR1@60";
    stopped_with(good, near, 138, "timed-out", "timeout");
    stopped_with(pltrain, near, 130, "timed-out", "timeout");
    stopped_with(good, "echo JobState=RUNNING RunTime=1-00:00:00 TimeLimit=1-00:02:31", 138,
                 "cancelled", "cancelled");
    stopped_with(good, "echo JobState=RUNNING RunTime=00:00:05 TimeLimit=UNLIMITED", 138,
                 "cancelled", "cancelled");
    stopped_with(good,
                 "echo JobState=RUNNING PreemptTime=2026-11-26T09:00:00 RunTime=00:00:05 "
                 "TimeLimit=02:00:00",
                 138, "preempted", "preempted");
    check_confidence("asked");
    stopped_with(good, "exit 1", 138, "timed-out", "timeout"); /* Slurm does not answer */
    signal_option = "1@60";                                    /* SIGHUP */
    stopped_with(good, near, 138, "cancelled", "cancelled");
    signal_option = "R:USR1"; /* 60 s */
    stopped_with(good, near, 138, "timed-out", "timeout");
    stopped_with(first, near, 138, "timed-out", "timeout");
    stopped_with(first, "exit 1", 138, "timed-out", "timeout");
    signal_option = NULL;
    stopped_with(first, near, 138, "cancelled", "cancelled");
    stopped_with(good, near, 138, "cancelled", "cancelled");
    stopped_with(good, "exit 1", 138, "cancelled", "cancelled");
    /* SIGTERM, of --signal or of somebody: the job runs on, and the hub has no cause. */
    signal_option = "TERM@60";
    stopped_with(term, near, 143, "timed-out", "timeout");
    stopped_with(first_term, near, 143, "timed-out", "timeout");
    signal_option = NULL;
    stopped_with(term, near, 143, "cancelled", "cancelled");
    signal_option = "USR1@3600"; /* not the signal that Slurm sends for it */
    stopped_with(term, near, 143, "cancelled", "cancelled");
    signal_option = "TERM@60";
    stopped_with(good, near, 138, "cancelled", "cancelled");
    /* Slurm ends the job, as after scancel, which sends SIGTERM as well. */
    stopped_with(term, completing, 143, "cancelled", "cancelled");
    check_confidence("inferred");
    stopped_with(term, "exit 1", 143, "cancelled", "cancelled");
    signal_option = "USR1@60";
    stopped_with(good, completing, 138, "cancelled", "cancelled");
    /* The hub has sent it, after the failure of another rank. */
    stopped_with("\"state\":\"failed\",\"exit_code\":130,\"stopped\":\"TERM\","
                 "\"cause\":{\"kind\":\"exit\",\"exit\":130,\"rank\":1}",
                 near, 130, "failed", "exit");
    /* The run reported that it is complete; it failed by itself; the hub knows the cause. */
    signal_option = "USR1@60";
    stopped_with("\"state\":\"done\",\"stopped\":\"USR1\",\"finished\":true", near, 0, "done",
                 NULL);
    stopped_with("\"state\":\"failed\",\"exit_code\":1,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"exit\",\"exit\":1}",
                 near, 1, "failed", "exit");
    stopped_with("\"state\":\"failed\",\"exit_code\":139,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"signal\",\"signal\":11}",
                 near, 139, "failed", "signal");
    stopped_with("\"state\":\"preempted\",\"exit_code\":143,\"stopped\":\"USR1\","
                 "\"cause\":{\"kind\":\"preempted\"}",
                 near, 143, "preempted", "preempted");
    stopped_with("\"state\":\"done\",\"exit_code\":0", near, 0, "done", NULL);
    is_local = true; /* no Slurm sends it */
    stopped_with(good, near, 0, "done", NULL);
    is_local = false;
    signal_option = NULL;
}

/* The same of a program that exits with 130 or 143 at SIGTERM, which the hub calls cancelled. */
static void test_finish_stopped_at_term(void **state)
{
    static const char near[] = "echo JobState=RUNNING RunTime=01:58:00 TimeLimit=02:00:00";
    static const char far[] = "echo JobState=RUNNING RunTime=00:58:00 TimeLimit=02:00:00";
    static const char completing[] = "echo JobState=COMPLETING RunTime=01:58:00 TimeLimit=02:00:00";
    static const struct {
        const char *option, *keys, *record;
        int code;
        const char *state, *kind;
    } cases[] = {
        {"TERM@60", TERM_CAUSE("143", "seen"), near, 143, "timed-out", "timeout"},
        {"R:SIGTERM@60", TERM_CAUSE("130", "inferred"), near, 130, "timed-out", "timeout"},
        {"15@60", TERM_CAUSE("143", "seen"), near, 143, "timed-out", "timeout"},
        {"TERM@60", TERM_CAUSE("143", "seen"),
         "echo JobState=RUNNING PreemptTime=2026-11-26T09:00:00 RunTime=00:00:05 "
         "TimeLimit=02:00:00",
         143, "preempted", "preempted"},
        /* Somebody has sent it, or cancelled the job. */
        {"TERM@60", TERM_CAUSE("143", "seen"), far, 143, "cancelled", "cancelled"},
        {"TERM@60", TERM_CAUSE("143", "inferred"), completing, 143, "cancelled", "cancelled"},
        {"TERM@60", TERM_CAUSE("143", "asked"), near, 143, "cancelled", "cancelled"},
        {"TERM@60", TERM_CAUSE("143", "seen"), "exit 1", 143, "cancelled", "cancelled"},
        {"USR1@3600", TERM_CAUSE("143", "seen"), near, 143, "cancelled", "cancelled"},
        {NULL, TERM_CAUSE("143", "seen"), near, 143, "cancelled", "cancelled"},
        /* It did not save and leave, or does not say so. */
        {"TERM@60", TERM_CAUSE("1", "inferred"), near, 1, "cancelled", "cancelled"},
        {"TERM@60",
         "\"state\":\"cancelled\",\"exit_code\":143,"
         "\"cause\":{\"kind\":\"cancelled\",\"confidence\":\"seen\"}",
         near, 143, "cancelled", "cancelled"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        signal_option = cases[i].option;
        stopped_with(cases[i].keys, cases[i].record, cases[i].code, cases[i].state, cases[i].kind);
        if (strstr(cases[i].keys, "seen") && strcmp(cases[i].kind, "cancelled") == 0)
            check_confidence("seen"); /* the hub's cause stays */
    }
    signal_option = NULL;
}

/* Of the disk that has no room for the change, which a limit of files' sizes stands for. */
static void test_finish_stopped_on_a_full_disk(void **state)
{
    static const char first[] =
        "{\"schema\":\"plume-result/1\",\"trial\":0,\"attempt\":0,\"state\":\"cancelled\","
        "\"exit_code\":138,\"stopped\":\"USR1\",\"cause\":{\"kind\":\"cancelled\",\"text\":"
        "\"the program stopped at SIGUSR1\",\"confidence\":\"inferred\",\"inferred\":true}}\n";
    int before = dup(STDERR_FILENO), said[2];
    struct rlimit size, none;
    char text[512];
    ssize_t n;

    signal_option = "USR1@60";
    remove_run(NULL);
    make_run(NULL);
    claim();
    assert_int_equal(
        pl_file_append(in_run("trial-0000/result.json"), first, strlen(first), 0666, NULL), 0);
    assert_true(before >= 0 && pipe2(said, O_CLOEXEC) == 0 && dup2(said[1], STDERR_FILENO) >= 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &size), 0);
    none = (struct rlimit){0, size.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    finish_with(0, 138, "cancelled", "cancelled"); /* not done, as the hub has written it */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &size), 0);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(said[1]);
    n = read(said[0], text, sizeof(text) - 1);
    text[PL_MAX(n, (ssize_t)0)] = '\0';
    if (!strstr(text, "the trial is timed-out, but its result could not be changed: "))
        fail_msg("%s", text);
    close(said[0]);
    close(before);
    signal_option = NULL;
}

static void submit(const char *job, unsigned retry)
{
    struct pl_run *run;

    assert_int_equal(pl_run_open_own(dir, &run, NULL), 0);
    if (retry) {
        assert_int_equal(pl_run_plan_add(run, 0, 1, "0"), 0);
        assert_int_equal(pl_run_plan_write(run, NULL), 0);
        assert_int_equal(pl_run_plan_done(run, job, NULL), 0);
    } else {
        assert_int_equal(pl_run_add_submission(run, job, 0, 2, NULL), 0);
    }
    pl_run_close(run);
}

/* The failure that is one too many stops what was submitted with it. A retry is there by then if
 * the user was faster than the job script. */
static void test_finish_cancels_no_retry(void **state)
{
    static const char fake[] = "#!/bin/sh\necho \"$@\" >\"${0%/*}/args\"\n";
    _cleanup_free_ char *args = NULL;
    char path[128];
    size_t len;

    remove_run(NULL);
    max_fail_option = "0";
    make_run(NULL);
    max_fail_option = NULL;
    snprintf(path, sizeof(path), "%s/scancel", top);
    assert_int_equal(pl_file_append(path, fake, strlen(fake), 0755, NULL), 0);
    claim();
    submit("100", 0);
    submit("200", 1);
    finish_with(3, 3, "failed", "setup");
    snprintf(path, sizeof(path), "%s/args", top);
    assert_int_equal(pl_file_read(path, 4096, &args, &len, NULL), 0);
    assert_string_equal(args, "--state=PENDING 100\n");
}

/* After Slurm has refused it the result is changed again: SIGTERM must not end that. */
static void test_finish_requeue_refused(void **state)
{
    static const char fake[] = "#!/bin/sh\necho Requested operation not supported >&2\nexit 1\n";
    struct sigaction action;
    char path[128];
    json_t *o;

    remove_run(NULL);
    requeue_option = "error";
    make_run(NULL);
    requeue_option = NULL;
    snprintf(path, sizeof(path), "%s/scontrol", top);
    assert_int_equal(pl_file_append(path, fake, strlen(fake), 0755, NULL), 0);
    claim();
    signal(SIGTERM, SIG_IGN); /* as plrun --finish does */
    finish_with(3, 3, "failed", "setup");
    assert_int_equal(sigaction(SIGTERM, NULL, &action), 0);
    signal(SIGTERM, SIG_DFL);
    o = result();
    assert_non_null(json_object_get(o, "not_requeued"));
    json_decref(o);
    assert_ptr_equal(action.sa_handler, SIG_IGN);
}

/* Slurm ends the job as it takes the request, and with it this process and scontrol. */
static void test_finish_requeue_ends_the_job(void **state)
{
    pid_t pid;
    int status;
    json_t *o;

    remove_run(NULL);
    requeue_option = "error";
    make_run(NULL);
    requeue_option = NULL;
    fake("scontrol", "#!/bin/sh\n[ $1 != requeue ] || kill -TERM $PPID $$\n");
    claim();
    pid = fork();
    if (pid == 0) {
        setenv("PLUME_ATTEMPT", "0", 1);
        signal(SIGTERM, SIG_IGN); /* as plrun --finish does */
        _exit(pl_trial_finish(3, &status, NULL) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    o = result();
    assert_true(json_is_true(json_object_get(o, "requeued")));
    assert_null(json_object_get(o, "not_requeued"));
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_RUN(test_finish_setup_failed),
        IN_RUN(test_finish_uses_the_room_of_a_killed_hub),
        IN_RUN(test_finish_launch_given_up),
        IN_RUN(test_finish_launch_failed),
        IN_RUN(test_finish_terminated),
        IN_RUN(test_finish_setup_exits_as_if_terminated),
        IN_RUN(test_finish_asks_slurm),
        IN_RUN(test_finish_asks_slurm_again),
        IN_RUN(test_finish_good_without_step),
        IN_RUN(test_finish_waits_for_the_hub),
        IN_RUN(test_finish_hub_vanished),
        IN_RUN(test_finish_hub_killed),
        IN_RUN(test_finish_all_killed),
        IN_RUN(test_finish_srun_killed),
        IN_RUN(test_finish_cause_in_log),
        IN_RUN(test_finish_result_there),
        IN_RUN(test_finish_stopped),
        IN_RUN(test_finish_stopped_at_term),
        IN_RUN(test_finish_stopped_on_a_full_disk),
        IN_RUN(test_finish_folder_removed),
        IN_RUN(test_finish_waits_for_a_hub_that_listens),
        IN_RUN(test_finish_hub_said_done),
        IN_RUN(test_finish_hub_said_failed),
        IN_RUN(test_finish_hub_said_done_as_json),
        IN_RUN(test_finish_hub_said_failed_as_json),
        IN_RUN(test_finish_hub_said_cancelled),
        IN_RUN(test_finish_said_against_the_code),
        IN_RUN(test_finish_cancels_no_retry),
        IN_RUN(test_finish_requeue_refused),
        IN_RUN(test_finish_requeue_ends_the_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
