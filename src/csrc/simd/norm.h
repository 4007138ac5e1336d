/* Norms of vectors of any magnitude: squares of huge and of tiny numbers are scaled. */
#pragma once

#include <math.h>
#include "simd/simd.h"

/* |scale v|, in one fixed order of summation. */
static double scaled_norm(intptr_t n, const double *v, double scale) {
    f8 a = f8_zero(), b = f8_zero();
    const f8 s = f8_set(scale);
    intptr_t k = 0;
    for (; k + 16 <= n; k += 16) {
        const f8 x = f8_mul(s, f8_load(v + k)), y = f8_mul(s, f8_load(v + k + 8));
        a = f8_fma(x, x, a);
        b = f8_fma(y, y, b);
    }
    for (; k < n; k += 8) {
        const f8 x = f8_mul(s, f8_load_part(v + k, n - k));
        a = f8_fma(x, x, a);
    }
    return sqrt(f8_sum(f8_add(a, b)));
}

/* A norm whose squares neither overflow nor vanish: norm = |scale v|, scale a power of two, and 1
 * where 2^-450 < |v| < 2^500 or v = 0; above 1 for shorter v, below 1 for longer ones. */
typedef struct {
    double scale, norm;
} safe_norm;

static safe_norm find_safe_norm(intptr_t n, const double *v) {
    const double plain = scaled_norm(n, v, 1.0);
    if (plain > 0x1p-450 && plain < 0x1p500)
        return (safe_norm){1.0, plain};
    double largest = 0.0;
    for (intptr_t k = 0; k < n; k++)
        largest = fabs(v[k]) > largest ? fabs(v[k]) : largest;
    int e;
    frexp(largest, &e);
    const double scale = ldexp(1.0, e > 1000 ? -1000 : e < -1000 ? 1000 : -e);
    return (safe_norm){scale, scaled_norm(n, v, scale)};
}
