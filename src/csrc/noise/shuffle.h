/* What the analyser of the shuffle protocol counts: count_k = sum_i R(t_ik) + Bin(n b, 1/2), the
 * vectors x_i clipped to |x| <= L, t = (x + L) g / (2 L) in [0, g], R(t) = floor(t) or one more.
 *
 * Sensitivity. Vectors have norm L (1 - (4 d + 64) 2^-52) at most before the roundings of clip.c
 * (d + 16 of 2^-52 cover them), and t, with its three roundings, is within 3.01 u g of
 * (x + L) g / (2 L), u = 2^-53. So 0 <= t <= g, and |t - t'| <= g (1 - (3 d + 48) 2^-52) +
 * 3.01 g sqrt(d) 2^-52 <= g for the doubles t of any two vectors. R(t) = floor(t) + [U < t -
 * floor(t)] with the same U is within 1 of moving as t does, so |R(t) - R(t')| < g + sqrt(d), each
 * coordinate by at most g, for every U. */
#pragma once

#include "core/dpk.h"

/* Coins of a coordinate that are drawn in one go, by their sum: n b = many 2^20 + few 2^12 +
 * single. */
enum { DPK_FEW = 12, DPK_MANY = 20, DPK_SINGLE_WORDS = (1 << DPK_FEW) / 64, DPK_GUIDES = 1024 };

/* How far Bin(2^DPK_FEW, 1/2) or Bin(2^DPK_MANY, 1/2) is from its mean, by inversion: y is the
 * first number with U < T(y), T(y) = 2^191 P(|X - mean| <= y) rounded down, U of 191 bits. Below
 * 2^14 numbers count, of all others the last stands: 2^-176 of the law, in total variation. */
typedef struct {
    const uint64_t *top;  /* T(y) >> 128; the last is 2^63, which no U reaches */
    const uint64_t *rest; /* two words for every y: the bits 127 .. 64 and 63 .. 0 of T(y) */
    const int64_t *guide; /* (DPK_GUIDES,) the first y with top[y] >= i 2^53 */
} dpk_coin_law;

/* key: (8,) the release's subkey; V: (n, d), n, d >= 1; bound = L, 2^-100 (beside which the least
 * norm_up, 2^-120, is short) .. 2^400; g >= 1; b >= 0; n (g + b) <= 2^52. The word of the stream
 * for coordinate k of vector i is number i d + k of the nonce rounding << 48. Coordinate k's coins
 * are the words of noise << 48 | k: single ones the first bits of the first DPK_SINGLE_WORDS, then
 * a word for each of `many` and each of `few`, its lowest bit the sign and the others the first of
 * U; where these are those of a T(y), the other 128 are in the block of the word's number of
 * (noise | 0x8000) << 48 | k. many, few: read where there are so many coins. partial: (n_threads,
 * dpk_thread_stride(d)) work space; count: (d,). */
dpk_status dpk_shuffle_sum(const uint32_t *key, uint32_t rounding, uint32_t noise, intptr_t n,
                           intptr_t d, const double *V, double bound, int64_t g, int64_t b,
                           const dpk_coin_law *many, const dpk_coin_law *few, int n_threads,
                           double *partial, int64_t *count);
