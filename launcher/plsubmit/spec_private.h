/* SPDX-License-Identifier: MIT */
/* Shared by the files spec_*.c. */
#ifndef PL_LAUNCHER_PLSUBMIT_SPEC_PRIVATE_H
#define PL_LAUNCHER_PLSUBMIT_SPEC_PRIVATE_H

#include "launcher/plsubmit/spec.h"

/* Sets a value; text NULL removes it. -ENOMEM. */
int pl_spec_put(struct pl_spec *spec,
                enum pl_spec_key key,
                const char *text,
                enum pl_origin origin);

/* Sets sbatch's option KEY=VALUE as plsubmit's own option of that name does. Returns 1; 0 if
 * plsubmit has no such option or the value is empty; -ENOMEM. The form of the value is not checked:
 * sbatch may know more of them. */
int pl_spec_put_sbatch(struct pl_spec *spec, const char *text);

/* Sets options that the command line does not set from sbatch's SBATCH_* in env and from PLUME_RUNS
 * (runs; may be NULL), and notes the other variables for --show-config. -ENOMEM; -EINVAL: two set
 * the memory, which sbatch refuses. */
int pl_spec_read_env(struct pl_spec *spec,
                     const char *runs,
                     char *const *env,
                     struct pl_error *err);

/* The kinds of options. */
enum pl_spec_form {
    PL_SPEC_FORM_VALUE,  /* one value; target.key is its key */
    PL_SPEC_FORM_REMOVE, /* --no-KEY; target.key is the key */
    PL_SPEC_FORM_LIST,   /* target.key is the list */
    PL_SPEC_FORM_GRID,
    PL_SPEC_FORM_FLAG,         /* a bool at target.at */
    PL_SPEC_FORM_COMMAND_LINE, /* only the command line has it */
};

enum pl_spec_form pl_spec_option_form(const struct pl_option *o);

/* The origin of a list's item. */
enum pl_origin pl_spec_item_origin(const struct pl_spec *spec, enum pl_spec_list list, size_t item);

/* True if the value of `by` replaces `text`, a value of `key` from a lower source, as --mem does
 * with
 * --mem-per-cpu. */
bool pl_spec_excludes(const struct pl_spec *spec,
                      enum pl_spec_key by,
                      enum pl_spec_key key,
                      const char *text);

/* Notes a value of a file that a higher source replaces, for --show-config. -ENOMEM. */
int pl_spec_note_file(struct pl_spec *spec,
                      enum pl_origin origin,
                      const char *name,
                      const char *value);

/* True if the list has the name of an option. */
bool pl_spec_names(char *const *list, const char *name);

/* --on-hang requeue. */
bool pl_spec_requeues_hangs(const struct pl_spec *spec);

/* The option of a key, for its name. */
const struct pl_option *pl_spec_option(enum pl_spec_key key);
const char *pl_spec_list_name(enum pl_spec_list list);

#endif
