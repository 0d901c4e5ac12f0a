/* SPDX-License-Identifier: MIT */
/* Stub; see README.md. */
#ifndef STUB_SLURM_VERSION_H
#define STUB_SLURM_VERSION_H

#ifndef STUB_RELEASE
#define STUB_RELEASE 0x1a0500
#endif
#define SLURM_VERSION_NUMBER STUB_RELEASE
#if STUB_RELEASE < 0x150800 && !defined(STUB_SLURM_H)
#error "this release has no slurm_version.h"
#endif
#define SLURM_VERSION_NUM(a, b, c) (((a) << 16) + ((b) << 8) + (c))

#endif
