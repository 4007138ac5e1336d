/* What the analyser of the shuffle protocol counts: count_k = sum_i R(t_ik) + Bin(n b, 1/2), the
 * vectors x_i clipped to |x| <= L, t = (x + L) g / (2 L) in [0, g], R(t) = floor(t) or one more.
 *
 * Sensitivity. Vectors have norm L (1 - (4 d + 64) 2^-52) at most before the roundings of clip.c
 * (d + 16 of 2^-52 cover them), and t, with its three roundings, is within 3.01 u g of
 * (x + L) g / (2 L), u = 2^-53. So 0 <= t <= g, and |t - t'| <= g (1 - (3 d + 48) 2^-52) +
 * 3.01 g sqrt(d) 2^-52 <= g for the doubles t of any two vectors. R(t) = floor(t) + [U < t -
 * floor(t)] with the same U is within 1 of moving as t does, so |R(t) - R(t')| < g + sqrt(d), each
 * coordinate by at most g, for every U. */
#ifndef DPK_SHUFFLE_H
#define DPK_SHUFFLE_H

#include "dpk.h"

/* key: (8,) the release's subkey; V: (n, d), n, d >= 1; bound = L, 2^-100 (beside which the least
 * norm_up, 2^-120, is short) .. 2^400; g >= 1; b >= 0; n (g + b) <= 2^52. The word of the stream
 * for coordinate k of vector i is number i d + k of the nonce rounding << 48; the coins of
 * coordinate k are the first n b bits of noise << 48 | k. partial: (n_threads, dpk_apart(d)) work
 * space; count: (d,). */
typedef dpk_status dpk_shuffle_sum_fn(const uint32_t *key, uint32_t rounding, uint32_t noise,
                                      intptr_t n, intptr_t d, const double *V, double bound,
                                      int64_t g, int64_t b, int n_threads, double *partial,
                                      int64_t *count);

#endif
