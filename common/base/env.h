/* SPDX-License-Identifier: MIT */
/* Environment variables by the table of env_table.h: nothing else in Plume calls getenv(). */
#ifndef PL_COMMON_BASE_ENV_H
#define PL_COMMON_BASE_ENV_H

#include "common/base/env_table.h"
#include "common/base/error.h"

#include <stdbool.h>

enum pl_env_id {
    PL_ENV_NONE,
#define PL_ENV_ID_(name, type, fallback, users, help) PL_ENV_##name,
    PL_ENV_TABLE(PL_ENV_ID_)
#undef PL_ENV_ID_
        PL_ENV_COUNT,
};

enum pl_env_type {
    PL_ENV_TYPE_TEXT,
    PL_ENV_TYPE_PATH,
    PL_ENV_TYPE_LIST,
    PL_ENV_TYPE_NUMBER,
    PL_ENV_TYPE_SECONDS,
    PL_ENV_TYPE_SIZE,
    PL_ENV_TYPE_FLAG,
};

enum pl_env_user {
    PL_ENV_USER_PLSUBMIT = 1 << 0,
    PL_ENV_USER_PLSTAT = 1 << 1,
    PL_ENV_USER_PLRUN = 1 << 2,
    PL_ENV_USER_PLRUND = 1 << 3,
    PL_ENV_USER_PLTRAIN = 1 << 4,
    PL_ENV_USER_PLUGIN = 1 << 5,
    PL_ENV_USER_RANK = 1 << 6,      /* set for the ranks */
    PL_ENV_USER_DEVELOPER = 1 << 7, /* in no man page */
};

struct pl_env_var {
    const char *name;
    enum pl_env_type type;
    const char *fallback; /* the default; NULL = none */
    unsigned users;       /* enum pl_env_user */
    const char *help;
};

/* The row of a variable; NULL for PL_ENV_NONE. */
const struct pl_env_var *pl_env_var(enum pl_env_id id);

/* The value of a variable that the user, not Plume, names; NULL: not set. Borrowed. */
const char *pl_env_named(const char *name);

/* The value as secure_getenv(3) returns it; NULL if the variable is not set, and for PL_ENV_NONE.
 */
const char *pl_env(enum pl_env_id id);

/* As pl_env(), but NULL if the value is empty, too. */
const char *pl_env_text(enum pl_env_id id);

/* Sets the variable. 0 or -ENOMEM. */
int pl_env_set(enum pl_env_id id, const char *value);

/* A variable of type SECONDS, in milliseconds: up to a day, fractions allowed. The table's default
 * if the variable is not set or is not such a number. */
unsigned pl_env_ms(enum pl_env_id id);

/* Finds the next name that begins with PLUME_ and is not in the table, from *entry on in an
 * environment such as environ, and moves *entry after it. PLUME_PARAM_* and the tests' own prefixes
 * are known. *ret_near is the known name that is most alike; NULL = none is alike.
 * Returns false at the end. */
bool pl_env_next_unknown(char *const **entry,
                         char *ret_name,
                         size_t name_size,
                         const char **ret_near);

/* One line about such a name: "unknown environment variable 'X': did you mean Y?". */
void pl_env_explain_unknown(const char *name, const char *near, char *ret, size_t size);

/* Finds the next variable after *id (PL_ENV_NONE at first) of type SECONDS whose value is no such
 * number, so that pl_env_ms() takes the default, and makes one line about it. Returns false at the
 * end. */
bool pl_env_next_no_seconds(enum pl_env_id *id, char *ret, size_t size);

#endif
