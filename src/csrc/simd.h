/* Eight doubles in a fixed lane order: the same sums on every machine with a fused multiply-add.
 *
 * f8 holds doubles, i8 the bit patterns of grid sums. A sum over k uses sixteen lanes: lane l adds
 * the terms k = l (mod 16) in order of k; lanes are added as a fixed tree. */
#ifndef DPK_SIMD_H
#define DPK_SIMD_H

#include "dpk.h"

#define DPK_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)

#include <immintrin.h>
typedef __m512d f8;
typedef __m512i i8;
DPK_INLINE f8 f8_set(double a) { return _mm512_set1_pd(a); }
DPK_INLINE f8 f8_load(const double *p) { return _mm512_loadu_pd(p); }
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) {
    return _mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
}
DPK_INLINE f8 f8_load32(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) {
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)((1u << n) - 1), p));
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) {
    return _mm512_i32gather_pd(_mm256_loadu_si256((const __m256i *)(const void *)at), p, 8);
}
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    const __mmask8 first = (__mmask8)((1u << n) - 1);
    return _mm512_mask_i32gather_pd(_mm512_setzero_pd(), first, _mm256_maskz_loadu_epi32(first, at),
                                    p, 8);
}
DPK_INLINE void f8_store(double *p, f8 a) { _mm512_storeu_pd(p, a); }
/* Past the caches; p starts a cache line. Before others read it: stream_end(). */
DPK_INLINE void f8_stream(double *p, f8 a) { _mm512_stream_pd(p, a); }
DPK_INLINE void stream_end(void) { _mm_sfence(); }
/* a with entry l replaced. */
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    return _mm512_mask_mov_pd(a, (__mmask8)(1u << l), _mm512_set1_pd(value));
}
DPK_INLINE f8 f8_add(f8 a, f8 b) { return _mm512_add_pd(a, b); }
DPK_INLINE f8 f8_mul(f8 a, f8 b) { return _mm512_mul_pd(a, b); }
DPK_INLINE f8 f8_fma(f8 a, f8 b, f8 c) { return _mm512_fmadd_pd(a, b, c); }
/* Toward zero, as integers. */
DPK_INLINE f8 f8_trunc(f8 a) {
    return _mm512_roundscale_pd(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
DPK_INLINE i8 i8_load(const int64_t *p) { return _mm512_loadu_si512(p); }
DPK_INLINE void i8_store(int64_t *p, i8 a) { _mm512_storeu_si512(p, a); }
DPK_INLINE i8 i8_add_bits(i8 a, f8 v) { return _mm512_add_epi64(a, _mm512_castpd_si512(v)); }

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
typedef struct {
    __m256d lo, hi;
} f8;
typedef struct {
    __m256i lo, hi;
} i8;
typedef struct {
    __m256i lo, hi;
} mask8;
DPK_INLINE mask8 mask8_first(intptr_t n) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    return (mask8){_mm256_cmpgt_epi64(_mm256_set1_epi64x(n), lane),
                   _mm256_cmpgt_epi64(_mm256_set1_epi64x(n - 4), lane)};
}
DPK_INLINE __m256i mask8_first_32(intptr_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
DPK_INLINE f8 f8_set(double a) { return (f8){_mm256_set1_pd(a), _mm256_set1_pd(a)}; }
DPK_INLINE f8 f8_load(const double *p) { return (f8){_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4)}; }
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) {
    const mask8 m = mask8_first(n);
    return (f8){_mm256_maskload_pd(p, m.lo), _mm256_maskload_pd(p + 4, m.hi)};
}
DPK_INLINE f8 f8_load32(const float *p) {
    return (f8){_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))};
}
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) {
    const __m256 x = _mm256_maskload_ps(p, mask8_first_32(n));
    return (f8){_mm256_cvtps_pd(_mm256_castps256_ps128(x)),
                _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) {
    return (f8){
        _mm256_i32gather_pd(p, _mm_loadu_si128((const __m128i *)(const void *)at), 8),
        _mm256_i32gather_pd(p, _mm_loadu_si128((const __m128i *)(const void *)(at + 4)), 8)};
}
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    const mask8 m = mask8_first(n);
    const __m256i i = _mm256_maskload_epi32(at, mask8_first_32(n));
    const __m256d zero = _mm256_setzero_pd();
    return (f8){
        _mm256_mask_i32gather_pd(zero, p, _mm256_castsi256_si128(i), (__m256d)m.lo, 8),
        _mm256_mask_i32gather_pd(zero, p, _mm256_extracti128_si256(i, 1), (__m256d)m.hi, 8)};
}
DPK_INLINE void f8_store(double *p, f8 a) {
    _mm256_storeu_pd(p, a.lo);
    _mm256_storeu_pd(p + 4, a.hi);
}
DPK_INLINE void f8_stream(double *p, f8 a) {
    _mm256_stream_pd(p, a.lo);
    _mm256_stream_pd(p + 4, a.hi);
}
DPK_INLINE void stream_end(void) { _mm_sfence(); }
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    const __m256d v = _mm256_set1_pd(value);
    const __m256i lo = _mm256_cmpeq_epi64(_mm256_set1_epi64x(l), lane);
    const __m256i hi = _mm256_cmpeq_epi64(_mm256_set1_epi64x(l - 4), lane);
    return (f8){_mm256_blendv_pd(a.lo, v, (__m256d)lo), _mm256_blendv_pd(a.hi, v, (__m256d)hi)};
}
DPK_INLINE f8 f8_add(f8 a, f8 b) {
    return (f8){_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)};
}
DPK_INLINE f8 f8_mul(f8 a, f8 b) {
    return (f8){_mm256_mul_pd(a.lo, b.lo), _mm256_mul_pd(a.hi, b.hi)};
}
DPK_INLINE f8 f8_fma(f8 a, f8 b, f8 c) {
    return (f8){_mm256_fmadd_pd(a.lo, b.lo, c.lo), _mm256_fmadd_pd(a.hi, b.hi, c.hi)};
}
DPK_INLINE f8 f8_trunc(f8 a) {
    return (f8){_mm256_round_pd(a.lo, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC),
                _mm256_round_pd(a.hi, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)};
}
DPK_INLINE i8 i8_load(const int64_t *p) {
    return (i8){_mm256_loadu_si256((const __m256i *)(const void *)p),
                _mm256_loadu_si256((const __m256i *)(const void *)(p + 4))};
}
DPK_INLINE void i8_store(int64_t *p, i8 a) {
    _mm256_storeu_si256((__m256i *)(void *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 4), a.hi);
}
DPK_INLINE i8 i8_add_bits(i8 a, f8 v) {
    return (i8){_mm256_add_epi64(a.lo, _mm256_castpd_si256(v.lo)),
                _mm256_add_epi64(a.hi, _mm256_castpd_si256(v.hi))};
}

#else

#include <string.h>
typedef struct {
    double lane[8];
} f8;
typedef struct {
    uint64_t lane[8];
} i8;
#define DPK_EACH_LANE for (int l = 0; l < 8; l++)
#define DPK_FIRST_LANES for (intptr_t l = 0; l < n; l++)
DPK_INLINE f8 f8_set(double a) {
    f8 v;
    DPK_EACH_LANE v.lane[l] = a;
    return v;
}
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) {
    f8 a = {{0}};
    DPK_FIRST_LANES a.lane[l] = p[l];
    return a;
}
DPK_INLINE f8 f8_load(const double *p) { return f8_load_first(p, 8); }
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) {
    f8 a = {{0}};
    DPK_FIRST_LANES a.lane[l] = p[l];
    return a;
}
DPK_INLINE f8 f8_load32(const float *p) { return f8_load32_first(p, 8); }
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    f8 a = {{0}};
    DPK_FIRST_LANES a.lane[l] = p[at[l]];
    return a;
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) { return f8_gather_first(p, at, 8); }
DPK_INLINE void f8_store(double *p, f8 a) { DPK_EACH_LANE p[l] = a.lane[l]; }
DPK_INLINE void f8_stream(double *p, f8 a) { f8_store(p, a); }
DPK_INLINE void stream_end(void) {}
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    a.lane[l] = value;
    return a;
}
DPK_INLINE f8 f8_add(f8 a, f8 b) {
    DPK_EACH_LANE a.lane[l] += b.lane[l];
    return a;
}
DPK_INLINE f8 f8_mul(f8 a, f8 b) {
    DPK_EACH_LANE a.lane[l] *= b.lane[l];
    return a;
}
DPK_INLINE f8 f8_fma(f8 a, f8 b, f8 c) {
    DPK_EACH_LANE c.lane[l] = DPK_FMA(a.lane[l], b.lane[l], c.lane[l]);
    return c;
}
/* For |a| < 2^63. */
DPK_INLINE f8 f8_trunc(f8 a) {
    DPK_EACH_LANE a.lane[l] = (double)(int64_t)a.lane[l];
    return a;
}
DPK_INLINE i8 i8_load(const int64_t *p) {
    i8 a;
    DPK_EACH_LANE a.lane[l] = (uint64_t)p[l];
    return a;
}
DPK_INLINE void i8_store(int64_t *p, i8 a) { DPK_EACH_LANE p[l] = (int64_t)a.lane[l]; }
DPK_INLINE i8 i8_add_bits(i8 a, f8 v) {
    uint64_t bits[8];
    memcpy(bits, v.lane, sizeof bits);
    DPK_EACH_LANE a.lane[l] += bits[l];
    return a;
}

#endif

DPK_INLINE f8 f8_zero(void) { return f8_set(0.0); }

/* ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) */
DPK_INLINE double f8_sum(f8 a) {
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

/* out[r] = f8_sum(a[r]), r < 8, the same tree for all at once. */
DPK_INLINE void f8_sum_each(const f8 a[8], double *out) {
#if defined(__AVX512F__)
    f8 half[4], pair[2];
    /* Rows 0 2 4 6 and 1 3 5 7 side by side, so that the last step leaves them in order. */
    for (int r = 0; r < 2; r++)
        for (int odd = 0; odd < 2; odd++) {
            const f8 u = a[4 * r + odd], v = a[4 * r + 2 + odd];
            half[2 * odd + r] =
                _mm512_add_pd(_mm512_shuffle_f64x2(u, v, 0x44), _mm512_shuffle_f64x2(u, v, 0xee));
        }
    for (int odd = 0; odd < 2; odd++)
        pair[odd] = _mm512_add_pd(_mm512_shuffle_f64x2(half[2 * odd], half[2 * odd + 1], 0x88),
                                  _mm512_shuffle_f64x2(half[2 * odd], half[2 * odd + 1], 0xdd));
    _mm512_storeu_pd(out, _mm512_add_pd(_mm512_unpacklo_pd(pair[0], pair[1]),
                                        _mm512_unpackhi_pd(pair[0], pair[1])));
#else
    for (int r = 0; r < 8; r++)
        out[r] = f8_sum(a[r]);
#endif
}

#endif
