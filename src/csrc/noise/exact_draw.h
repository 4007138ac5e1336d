/* The exact fallback for draws that floating point leaves undecided: |K| counts the boundaries b_j
 * = (j - 1/2) / ratio, j >= 1, with p < Q(b_j), p the smaller of U and 1 - U. */
#pragma once

#include "noise/gaussian.h"

/* No draw lies beyond this many standard deviations: Q(14) < 2^-146. */
#define DPK_PHI_LAST 14.0

/* Where the bits of U that follow a coordinate's word are. */
typedef struct {
    const uint32_t *key;
    uint64_t nonce;        /* that of the words */
    const uint64_t *given; /* (n, 2): instead of the stream, by coordinate; or NULL */
} dpk_tail_of_u;

typedef struct {
    const dpk_tail_of_u *tail;
    uint64_t coordinate, word;
    double ratio;
    dpk_path path;
} dpk_undecided;

/* K, with its sign. size: ratio |x| in doubles; near: whether |K| is sure to be size rounded down
 * or up, else size is a mere guess. */
double dpk_exact_draw(const dpk_undecided *draw, double size, int near, dpk_decided_by *decided_by);
