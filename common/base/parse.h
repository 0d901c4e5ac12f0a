/* SPDX-License-Identifier: MIT */
/* Strict parsing of text that people and Slurm write. Nothing is skipped: leading or trailing
 * blanks, signs where none belong and rests are errors. All return 0, -EINVAL (not of the form) or
 * -ERANGE (outside the limits); the text of err names the value and what is allowed. */
#ifndef PL_COMMON_BASE_PARSE_H
#define PL_COMMON_BASE_PARSE_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Decimal integer in [min, max], with an optional leading '-'. -EINVAL (no number), -ERANGE; *ret
 * is then unchanged. */
int pl_parse_int(const char *s, int64_t min, int64_t max, int64_t *ret, struct pl_error *err);

/* Decimal floating point number in the C locale's form, finite. */
int pl_parse_double(const char *s, double *ret, struct pl_error *err);

/* Slurm's time forms (sbatch(1)): M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; UNLIMITED and INFINITE give
 * UINT64_MAX. Unit of *ret_s: seconds. */
int pl_parse_slurm_time(const char *s, uint64_t *ret_s, struct pl_error *err);

/* A size with an optional unit K, M, G, T (powers of 1024), as for sbatch --mem: a plain number is
 * in mebibytes. Unit of *ret_bytes: bytes. */
int pl_parse_mem(const char *s, uint64_t *ret_bytes, struct pl_error *err);

/* A port N or a range LO-HI within 1..65535, LO <= HI. */
int pl_parse_port_range(const char *s, uint16_t *ret_lo, uint16_t *ret_hi, struct pl_error *err);

/* A level of NCCL_DEBUG, in any case: VERSION, WARN, INFO, ABORT or TRACE. *ret is a constant in
 * NCCL's spelling. */
int pl_parse_nccl_level(const char *s, const char **ret, struct pl_error *err);

/* SLURM_TASKS_PER_NODE's form "8(x3),4": tasks of the node with this index. */
int pl_parse_tasks_per_node(const char *s, unsigned node, unsigned *ret, struct pl_error *err);

/* The value of KEY= in scontrol's one-line form, up to the next blank; caller frees. NULL. */
char *pl_parse_scontrol_field(const char *output, const char *key);

/* The same of the first job of `scontrol -o show job`, for JobState= and what is between it and
 * Partition=: before and after, the user's own texts (JobName=, Comment=, ...) may look like
 * fields. NULL if one of them looks like JobState=, too. */
char *pl_parse_scontrol_job(const char *output, const char *key);

/* True for [A-Za-z_][A-Za-z0-9_.-]*, the names of axes and metrics. */
bool pl_name_valid(const char *s, size_t len);

#endif
