/* SPDX-License-Identifier: MIT */
#include "common/run/run_stopped.h"
#include "common/proto/json.h"
#include "common/run/run_local.h"
#include "common/run/run_state.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    int number;
    const char *name, *text;
} signals[] = {
    {SIGUSR1, "USR1", "the program stopped at SIGUSR1"},
    {SIGUSR2, "USR2", "the program stopped at SIGUSR2"},
    {SIGTERM, "TERM", "the program stopped at SIGTERM"},
};

static const char *text_of(int number)
{
    size_t i = 0;

    while (i + 1 < PL_COUNT(signals) && signals[i].number != number)
        i++;
    return signals[i].text;
}

int pl_run_stop_signal(const char *name, size_t len)
{
    size_t skip = len > 3 && strncasecmp(name, "SIG", 3) == 0 ? 3 : 0;
    char number[16];

    for (size_t i = 0; i < PL_COUNT(signals); i++) {
        snprintf(number, sizeof(number), "%d", signals[i].number);
        if ((strlen(signals[i].name) == len - skip &&
             strncasecmp(signals[i].name, name + skip, len - skip) == 0) ||
            (strlen(number) == len && memcmp(number, name, len) == 0))
            return signals[i].number;
    }
    return 0;
}

/* The signal at which the program says that it has stopped before its work was done; 0 = none. */
static int said(const struct pl_run *run, const json_t *result)
{
    const char *name = pl_json_string(result, "stopped");

    if (!name || pl_run_is_local(run) || json_is_true(json_object_get(result, "finished")))
        return 0;
    return pl_run_stop_signal(name, strlen(name));
}

/* True if pl_run_set_stopped() has made this cause, without Slurm's word. */
static bool is_inferred(const json_t *cause, int number)
{
    const char *text = pl_json_string(cause, "text");
    const char *confidence = pl_json_string(cause, "confidence");

    return text && confidence && strcmp(text, text_of(number)) == 0 &&
           strcmp(confidence, pl_confidence_name(PL_CONFIDENCE_INFERRED)) == 0;
}

int pl_run_stopped_at(const struct pl_run *run, const json_t *result, enum pl_trial_state state)
{
    static const int obeyed[] = {0, 128 + SIGINT, 128 + SIGUSR1, 128 + SIGUSR2}; /* exit codes */
    const json_t *cause = json_object_get(result, "cause");
    int64_t code = state == PL_TRIAL_DONE ? 0 : -1;
    int number = said(run, result);

    if (number && is_inferred(cause, number))
        return number;
    /* The hub also sends SIGTERM, after a failure of another rank. */
    if (number == SIGTERM && state != PL_TRIAL_DONE)
        return 0;
    if (state == PL_TRIAL_FAILED && pl_cause_parse(pl_json_string(cause, "kind")) == PL_CAUSE_EXIT)
        pl_json_int(cause, "exit", &code);
    for (size_t i = 0; i < PL_COUNT(obeyed); i++)
        if (code == obeyed[i])
            return number;
    return 0;
}

bool pl_run_stopped_at_term(const struct pl_run *run, const json_t *result)
{
    const json_t *cause = json_object_get(result, "cause");
    const char *confidence = pl_json_string(cause, "confidence");
    int64_t code;

    return said(run, result) == SIGTERM &&
           pl_cause_parse(pl_json_string(cause, "kind")) == PL_CAUSE_CANCELLED && confidence &&
           strcmp(confidence, pl_confidence_name(PL_CONFIDENCE_ASKED)) != 0 &&
           pl_json_int(result, "exit_code", &code) == 0 &&
           (code == 128 + SIGINT || code == 128 + SIGTERM);
}

int pl_run_set_stopped(json_t *result,
                       int number,
                       enum pl_cause_kind kind,
                       enum pl_confidence confidence,
                       enum pl_trial_state *ret_state)
{
    json_t *cause = json_pack("{s:s, s:s}", "kind", pl_cause_name(kind), "text", text_of(number));
    int64_t code;

    pl_run_state_set_confidence(cause, confidence);
    if (!cause || json_object_set_new(result, "cause", cause) < 0)
        return -ENOMEM;
    json_object_del(result, "others");
    if (pl_json_int(result, "exit_code", &code) < 0 || code == 0)
        json_object_set_new(result, "exit_code", json_integer(128 + number));
    *ret_state = pl_cause_state(kind);
    return 0;
}
