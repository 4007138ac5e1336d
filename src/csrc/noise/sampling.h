/* Samples of the numbers of every silo, from words of the stream of the silo's own.
 *
 * A subset without replacement is the first k distinct remainders w mod n of the words w, those
 * above the last multiple of n rejected, so that every set of k of n numbers is equally likely;
 * where 2 k > n, its complement is drawn so. A Poisson sample has every number independently. */
#pragma once

#include "core/dpk.h"

/* A bitmap of the n numbers is larger than a hash table of the drawn ones beyond this n / k. */
enum { DPK_SPARSE_SUBSET = 320 };

static inline int dpk_subset_is_sparse(int64_t n, int64_t k) { return n / DPK_SPARSE_SUBSET > k; }

/* Low bits of a number that its slot in the hash table does not depend on: there are 2 k to 4 k
 * slots. */
static inline int dpk_subset_shift(int64_t n, int64_t k) {
    return 63 - __builtin_clzll((uint64_t)(n / (2 * k)));
}

/* Words of work space for k >= 1 of n numbers, at most 5 k + 5. Entries of the last slots may be up
 * to k beyond them. */
static inline int64_t dpk_subset_words(int64_t n, int64_t k) {
    if (dpk_subset_is_sparse(n, k))
        return ((n - 1) >> dpk_subset_shift(n, k)) + 1 + k;
    return (n + 63) / 64;
}

/* key: (8,) the release's subkey; silo j has the words of the nonce purpose << 48 | j;
 * offsets: (m + 1,) silo j's numbers are offsets[j] .. offsets[j + 1] - 1, of which counts[j] are
 * drawn, at most all of them; counts: (m,); work: the most dpk_subset_words of a silo with
 * counts[j] >= 1; out: the numbers of one silo after the other, each silo's increasing. */
dpk_status dpk_subsets(const uint32_t *key, uint32_t purpose, intptr_t m, const int64_t *offsets,
                       const int64_t *counts, uint64_t *work, int64_t *out);

/* As above; number i of silo j is in the sample if word i of the silo is at most last[j], which has
 * probability (last[j] + 1) / 2^64; last[j] = 0: none is. last: (m,); out: room for all numbers;
 * bounds: (m + 1,) silo j's sample is out[bounds[j]] .. out[bounds[j + 1] - 1]. */
dpk_status dpk_poisson_samples(const uint32_t *key, uint32_t purpose, intptr_t m,
                               const int64_t *offsets, const uint64_t *last, int64_t *out,
                               int64_t *bounds);
