/* The Gaussian's upper tail Q(x) = 1 - Phi(x) in fixed point, compared with a stream's bits. */
#ifndef DPK_PHI_EXACT_H
#define DPK_PHI_EXACT_H

#include "core/dpk.h"

/* No draw lies beyond this many standard deviations: Q(14) < 2^-146. */
#define DPK_PHI_LAST 14.0

/* Whether the tail probability p = (n + f) 2^-64, 0 <= f < 1, is below Q(b) at the rounding
 * boundary b = (k - 1/2) / ratio: 1 yes, 0 no, -1 not decided by n. Error of Q at most 2^-100.
 * 1 <= k < 2^37; b <= 5; ratio <= 2^32. */
int dpk_phi_middle(int64_t k, double ratio, uint64_t n);

/* The same for p = (n 2^128 + f[0] 2^64 + f[1]) 2^-192: 1 yes, 0 no. Error of Q at most 2^-140.
 * f: (2,). Any b: Q counts as 0 beyond DPK_PHI_LAST. */
int dpk_phi_exact(int64_t k, double ratio, uint64_t n, const uint64_t *f);

#endif
