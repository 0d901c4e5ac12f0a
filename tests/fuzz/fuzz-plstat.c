/* SPDX-License-Identifier: MIT */
/* The contents of a run folder, through all of plstat: the first line of the input is result.json,
 * the second status.json, the rest events.jsonl. Whatever they say, the text fits the screen and
 * has nothing in it that a terminal obeys, and the JSON is JSON. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plstat/plstat.h"
#include "launcher/plstat/plstat_json.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/stat.h>

static char top[64], run[96];

static void put(const char *name, const void *data, size_t len)
{
    _cleanup_free_ char *path = pl_path_join(run, name);
    FILE *f = path ? fopen(path, "w") : NULL;

    FUZZ_CHECK(f);
    FUZZ_CHECK(fwrite(data, 1, len, f) == len);
    fclose(f);
}

static void puts_to(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void remove_all(void)
{
    static const char *const names[] = {
        "sweep.json",
        "trials.jsonl",
        "trial-0000/result.json",
        "trial-0000/status.json",
        "trial-0000/attempt-0/events.jsonl",
        "trial-0000/attempt-0",
        "trial-0000",
        "../home",
        "",
        "..",
    };

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        _cleanup_free_ char *path = pl_path_join(run, names[i]);

        if (path && remove(path) < 0)
            continue;
    }
    rmdir(run);
    rmdir(top);
}

static void make_run(void)
{
    char path[128];

    snprintf(top, sizeof(top), "/tmp/plume-fuzz-XXXXXX");
    FUZZ_CHECK(mkdtemp(top));
    snprintf(path, sizeof(path), "%s/home", top);
    FUZZ_CHECK(mkdir(path, 0700) == 0);
    setenv("PLUME_HOME", path, 1);
    snprintf(run, sizeof(run), "%s/run", top);
    snprintf(path, sizeof(path), "%s/trial-0000/attempt-0", run);
    FUZZ_CHECK(pl_mkdir_p(path, 0700, NULL) == 0);
    puts_to("sweep.json",
            "{\"schema\":\"plume-run/1\",\"sweep\":\"s-1\",\"name\":\"s\",\"created\":1,"
            "\"trials\":1,\"argv\":[\"x\"],\"axes\":[],\"metrics\":[],\"sbatch\":[],"
            "\"options\":{},\"submissions\":[{\"job\":\"7\",\"first\":0,\"count\":1}]}");
    puts_to("trials.jsonl", "{\"trial\":0,\"params\":{}}\n");
    atexit(remove_all);
}

/* status.json without a hub: the fuzzer is not to connect to anybody. */
static void put_status(const char *line, size_t len)
{
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    if (pl_json_parse(line, len, 1 << 16, &o, NULL) == 0) {
        json_object_del(o, "hub");
        FUZZ_CHECK(pl_json_dump_line(o, &text) == 0);
    }
    put("trial-0000/status.json", pl_buf_str(&text), text.len);
}

static void check_text(const char *text)
{
    while (*text) {
        char line[4096];
        size_t len = strcspn(text, "\n");

        for (size_t i = 0; i < len; i++)
            FUZZ_CHECK((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
        snprintf(line, sizeof(line), "%.*s", (int)len, text);
        FUZZ_CHECK(strncmp(line, "log: ", 5) == 0 || pl_term_width(line) <= 80);
        FUZZ_CHECK(text[len] == '\n');
        text += len + 1;
    }
}

static void report(int (*command)(struct pl_plstat *ps, struct pl_error *err), bool json)
{
    struct pl_plstat ps = {
        .json = json, .word = run, .columns = 80, .wrap = true, .slurm.never = true};
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    struct pl_error err = {0};

    if (command(&ps, &err) == 0 && json) {
        FUZZ_CHECK(pl_plstat_json_finish(&ps.doc, "x", &ps.notes) == 0);
        FUZZ_CHECK(pl_json_dump_line(ps.doc, &line) == 0);
    } else {
        check_text(pl_buf_str(&ps.text));
    }
    pl_plstat_reset(&ps);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = text + size, *second, *third;

    if (!*top)
        make_run();
    second = size ? memchr(text, '\n', size) : NULL;
    second = second ? second + 1 : end;
    third = second < end ? memchr(second, '\n', (size_t)(end - second)) : NULL;
    third = third ? third + 1 : end;
    put("trial-0000/result.json", text, (size_t)(second - text));
    put_status(second, (size_t)(third - second));
    put("trial-0000/attempt-0/events.jsonl", third, (size_t)(end - third));
    for (int json = 0; json < 2; json++) {
        report(pl_cmd_show, json);
        report(pl_cmd_why, json);
        report(pl_cmd_sweep, json);
    }
    return 0;
}
