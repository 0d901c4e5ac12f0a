/* SPDX-License-Identifier: MIT */
/* In the place of a node daemon that could not start: tells the node's other ranks why, which would
 * wait for its socket otherwise. */
#ifndef PL_RUNTIME_PLRUN_REFUSER_H
#define PL_RUNTIME_PLRUN_REFUSER_H

/* Listens at path (a socket without a listener is replaced), and refuses n_ranks connections with
 * this text. Returns after them, or after some seconds; without a word if it cannot listen. */
void pl_refuser_run(const char *path, unsigned n_ranks, const char *text);

#endif
