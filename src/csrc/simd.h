/* Eight doubles in a fixed lane order: the same sums on every machine with a fused multiply-add.
 *
 * Lane l adds the terms k = l (mod 8) in order of k; the lanes are added as a fixed tree. */
#ifndef DPK_SIMD_H
#define DPK_SIMD_H

#include "dpk.h"

#if defined(__AVX512F__)

#include <immintrin.h>
typedef __m512d f8;
static inline f8 f8_zero(void) { return _mm512_setzero_pd(); }
static inline f8 f8_load(const double *p) { return _mm512_loadu_pd(p); }
static inline f8 f8_load_first(const double *p, intptr_t n) {
    return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
static inline f8 f8_load32(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
static inline f8 f8_load32_first(const float *p, intptr_t n) {
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)((1u << n) - 1), p));
}
static inline f8 f8_fma(f8 a, f8 b, f8 c) { return _mm512_fmadd_pd(a, b, c); }

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
typedef struct {
    __m256d lo, hi;
} f8;
static inline f8 f8_zero(void) { return (f8){_mm256_setzero_pd(), _mm256_setzero_pd()}; }
static inline f8 f8_load(const double *p) {
    return (f8){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)};
}
static inline f8 f8_load_first(const double *p, intptr_t n) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    const __m256i lo = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane);
    const __m256i hi = _mm256_cmpgt_epi64(_mm256_set1_epi64x(n - 4), lane);
    return (f8){_mm256_maskload_pd(p, lo), _mm256_maskload_pd(p + 4, hi)};
}
static inline f8 f8_load32(const float *p) {
    return (f8){_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
}
static inline f8 f8_load32_first(const float *p, intptr_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 x = _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
    return (f8){_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
static inline f8 f8_fma(f8 a, f8 b, f8 c) {
    return (f8){_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
}

#else

typedef struct {
    double lane[8];
} f8;
static inline f8 f8_zero(void) { return (f8){{0}}; }
static inline f8 f8_load_first(const double *p, intptr_t n) {
    f8 a = {{0}};
    for (intptr_t l = 0; l < n; l++)
        a.lane[l] = p[l];
    return a;
}
static inline f8 f8_load(const double *p) { return f8_load_first(p, 8); }
static inline f8 f8_load32_first(const float *p, intptr_t n) {
    f8 a = {{0}};
    for (intptr_t l = 0; l < n; l++)
        a.lane[l] = p[l];
    return a;
}
static inline f8 f8_load32(const float *p) { return f8_load32_first(p, 8); }
static inline f8 f8_fma(f8 a, f8 b, f8 c) {
    for (int l = 0; l < 8; l++)
        c.lane[l] = DPK_FMA(a.lane[l], b.lane[l], c.lane[l]);
    return c;
}

#endif

/* ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) */
static inline double f8_sum(f8 a) {
#if defined(__AVX2__) && defined(__FMA__)
#if defined(__AVX512F__)
    const __m256d half = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
#else
    const __m256d half = _mm256_add_pd(a.lo, a.hi);
#endif
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
#else
    const double *t = a.lane;
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
#endif
}

/* Rows of doubles and of floats; the arithmetic is in double either way.
 * f8_dot_and_square: x . w and x . x in one pass over x; x, w: (n,). f8_square: x . x. */
#define DPK_DEFINE_DOT(suffix, type, load, load_first)                                             \
    static inline double f8_dot_and_square##suffix(intptr_t n, const type *x, const double *w,     \
                                                   double *square) {                               \
        f8 dot = f8_zero(), sq = f8_zero();                                                        \
        intptr_t k = 0;                                                                            \
        for (; k + 8 <= n; k += 8) {                                                               \
            const f8 xk = load(x + k);                                                             \
            dot = f8_fma(xk, f8_load(w + k), dot);                                                 \
            sq = f8_fma(xk, xk, sq);                                                               \
        }                                                                                          \
        if (k < n) {                                                                               \
            const f8 xk = load_first(x + k, n - k);                                                \
            dot = f8_fma(xk, f8_load_first(w + k, n - k), dot);                                    \
            sq = f8_fma(xk, xk, sq);                                                               \
        }                                                                                          \
        *square = f8_sum(sq);                                                                      \
        return f8_sum(dot);                                                                        \
    }                                                                                              \
    static inline double f8_square##suffix(intptr_t n, const type *x) {                            \
        f8 sq = f8_zero();                                                                         \
        intptr_t k = 0;                                                                            \
        for (; k + 8 <= n; k += 8) {                                                               \
            const f8 xk = load(x + k);                                                             \
            sq = f8_fma(xk, xk, sq);                                                               \
        }                                                                                          \
        if (k < n) {                                                                               \
            const f8 xk = load_first(x + k, n - k);                                                \
            sq = f8_fma(xk, xk, sq);                                                               \
        }                                                                                          \
        return f8_sum(sq);                                                                         \
    }

DPK_DEFINE_DOT(_f64, double, f8_load, f8_load_first)
DPK_DEFINE_DOT(_f32, float, f8_load32, f8_load32_first)

#endif
