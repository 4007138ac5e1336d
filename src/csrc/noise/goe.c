/* Symmetric matrices: H[i, i] = diagonal[i], H[i, k] = H[k, i] = above[i d - i (i + 1) / 2 + k - i
 * - 1] for i < k, in square tiles that keep the mirrored writes in L1. */
#include "noise/goe.h"

enum { SIDE = 32 };

dpk_status dpk_goe(intptr_t m, intptr_t d, const double *diagonal, const double *above,
                   int n_threads, double *out) {
    const intptr_t strips = (d + SIDE - 1) / SIDE;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)
    for (intptr_t t = 0; t < m * strips; t++) {
        const intptr_t j = t / strips, first = t % strips * SIDE;
        const intptr_t last = first + SIDE < d ? first + SIDE : d;
        const double *const upper = above + j * (d * (d - 1) / 2);
        double *const H = out + j * d * d;
        for (intptr_t tile = first; tile < d; tile += SIDE) {
            const intptr_t end = tile + SIDE < d ? tile + SIDE : d;
            for (intptr_t i = first; i < last; i++) {
                const intptr_t row = i * d - i * (i + 1) / 2 - i - 1;
                for (intptr_t k = tile > i ? tile : i + 1; k < end; k++)
                    H[i * d + k] = H[k * d + i] = upper[row + k];
            }
        }
        for (intptr_t i = first; i < last; i++)
            H[i * d + i] = diagonal[j * d + i];
    }
    return DPK_OK;
}
