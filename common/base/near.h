/* SPDX-License-Identifier: MIT */
/* The known name that is most like a misspelt one, for "did you mean ...?". */
#ifndef PL_COMMON_BASE_NEAR_H
#define PL_COMMON_BASE_NEAR_H

/* Set `word` only; pl_near_offer() fills in the rest. */
struct pl_near {
    const char *word; /* the misspelt name, borrowed */
    const char *best; /* the name offered that is most alike, borrowed; NULL: none is alike */
    unsigned distance;
};

/* The number of insertions, deletions, substitutions and swaps of neighbours that lead from a to b.
 * Case does not count, and '-', '_' and '.' are equal. Names over 64 bytes are like no other:
 * UINT_MAX. */
unsigned pl_near_distance(const char *a, const char *b);

/* Offers a known name. At most a third of the word's letters may differ, and one of two letters.
 * The first of two names that are equally alike wins. */
void pl_near_offer(struct pl_near *near, const char *name);

#endif
