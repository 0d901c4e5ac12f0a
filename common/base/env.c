/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/near.h"
#include "common/base/parse.h"

#include <string.h>

enum { /* short forms for the table */
       PLSUBMIT = PL_ENV_USER_PLSUBMIT,
       PLSTAT = PL_ENV_USER_PLSTAT,
       PLRUN = PL_ENV_USER_PLRUN,
       PLRUND = PL_ENV_USER_PLRUND,
       PLTRAIN = PL_ENV_USER_PLTRAIN,
       PLUGIN = PL_ENV_USER_PLUGIN,
       RANK = PL_ENV_USER_RANK,
       DEVELOPER = PL_ENV_USER_DEVELOPER,
};

#define SECONDS_MAX 86400 /* a day */

static const struct pl_env_var table[] = {[PL_ENV_NONE] = {0},
#define ROW(name_, type_, fallback_, users_, help_)                                                \
    [PL_ENV_##name_] = {#name_, PL_ENV_TYPE_##type_, fallback_, users_, help_},
                                          PL_ENV_TABLE(ROW)
#undef ROW
};

/* A trial's parameters, and what the tests set. */
static const char *const known_prefixes[] = {
    "PLUME_PARAM_", "PLUME_TEST", "PLUME_EMULATED_", "PLUME_FAKE", "PLUME_BENCH_",
#ifdef PL_FAULT_POINTS
    "PLUME_FAIL",
#endif
};

const struct pl_env_var *pl_env_var(enum pl_env_id id)
{
    return id > PL_ENV_NONE && id < PL_ENV_COUNT ? &table[id] : NULL;
}

const char *pl_env(enum pl_env_id id)
{
    return id > PL_ENV_NONE && id < PL_ENV_COUNT ? secure_getenv(table[id].name) : NULL;
}

const char *pl_env_named(const char *name)
{
    return secure_getenv(name);
}

const char *pl_env_text(enum pl_env_id id)
{
    const char *value = pl_env(id);

    return value && *value ? value : NULL;
}

int pl_env_set(enum pl_env_id id, const char *value)
{
    return setenv(table[id].name, value, 1) < 0 ? -errno : 0;
}

static bool read_seconds(const char *value, double *ret)
{
    return pl_parse_double(value, ret, NULL) == 0 && *ret >= 0 && *ret <= SECONDS_MAX;
}

unsigned pl_env_ms(enum pl_env_id id)
{
    const char *value = pl_env(id);
    double seconds;

    if (!value || !read_seconds(value, &seconds))
        seconds = table[id].fallback ? strtod(table[id].fallback, NULL) : 0;
    return (unsigned)(seconds * 1000);
}

/* ---- unknown names ---- */

static bool is_known(const char *name)
{
    for (size_t i = 0; i < PL_COUNT(known_prefixes); i++)
        if (strncmp(name, known_prefixes[i], strlen(known_prefixes[i])) == 0)
            return true;
    for (size_t i = PL_ENV_NONE + 1; i < PL_ENV_COUNT; i++)
        if (strcmp(name, table[i].name) == 0)
            return true;
    return false;
}

static const char *nearest(const char *name)
{
    static const char prefix[] = "PLUME_";
    struct pl_near near = {.word = name + strlen(prefix)};

    for (size_t i = PL_ENV_NONE + 1; i < PL_ENV_COUNT; i++)
        if (strncmp(table[i].name, prefix, strlen(prefix)) == 0 && !(table[i].users & DEVELOPER))
            pl_near_offer(&near, table[i].name + strlen(prefix));
    return near.best ? near.best - strlen(prefix) : NULL;
}

bool pl_env_next_unknown(char *const **entry,
                         char *ret_name,
                         size_t name_size,
                         const char **ret_near)
{
    while (**entry) {
        const char *text = *(*entry)++;
        size_t len = strcspn(text, "=");

        if (strncmp(text, "PLUME_", 6) != 0 || len >= name_size)
            continue;
        memcpy(ret_name, text, len);
        ret_name[len] = '\0';
        if (is_known(ret_name))
            continue;
        *ret_near = nearest(ret_name);
        return true;
    }
    return false;
}

void pl_env_explain_unknown(const char *name, const char *near, char *ret, size_t size)
{
    snprintf(ret, size, "unknown environment variable '%s'%s%s%s", name,
             near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
}

bool pl_env_next_no_seconds(enum pl_env_id *id, char *ret, size_t size)
{
    while (++*id < PL_ENV_COUNT) {
        const char *value = table[*id].type == PL_ENV_TYPE_SECONDS ? pl_env_text(*id) : NULL;
        double seconds;

        if (!value || read_seconds(value, &seconds))
            continue;
        snprintf(ret, size, "%s is '%.64s', not a number of seconds from 0 to %d: %s is used",
                 table[*id].name, value, SECONDS_MAX,
                 table[*id].fallback ? table[*id].fallback : "0");
        return true;
    }
    return false;
}
