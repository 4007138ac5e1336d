/* The vectors of simd.h with AVX2 and FMA: two registers of four doubles. The comments are in
 * avx512.h. */
#pragma once

#include <immintrin.h>

#define LANES 4
#include "simd/lanes.h"
DPK_INLINE vf fma_v(vf a, vf b, vf c) { return (vf)_mm256_fmadd_pd(a, b, c); }
DPK_INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_pd(a, b); }
DPK_INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_pd(a, b); }
DPK_INLINE sf fma_s(sf a, sf b, sf c) { return (sf)_mm256_fmadd_ps(a, b, c); }
DPK_INLINE si rint_s(sf a) { return (si)_mm256_cvtps_epi32(a); }
DPK_INLINE vi widen(const int32_t *p) {
    return (vi)_mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)(const void *)p));
}

DPK_INLINE unsigned f8_differ(f8 a, f8 b) {
    const __m256d lo = _mm256_cmp_pd(a.part[0], b.part[0], _CMP_NEQ_UQ);
    const __m256d hi = _mm256_cmp_pd(a.part[1], b.part[1], _CMP_NEQ_UQ);
    return (unsigned)(_mm256_movemask_pd(lo) | _mm256_movemask_pd(hi) << 4);
}

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
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) {
    const mask8 m = mask8_first(n);
    return (f8){{_mm256_maskload_pd(p, m.lo), _mm256_maskload_pd(p + 4, m.hi)}};
}
DPK_INLINE f16 f16_load_first(const float *p, intptr_t n) {
    return (f16){{(sf)_mm256_maskload_ps(p, mask8_first_32(n)),
                  n > 8 ? (sf)_mm256_maskload_ps(p + 8, mask8_first_32(n - 8)) : (sf){0}}};
}
DPK_INLINE f8 f16_halves(f16 a) {
    const __m256 half = (__m256)(a.part[0] + a.part[1]);
    return (f8){{_mm256_cvtps_pd(_mm256_castps256_ps128(half)),
                 _mm256_cvtps_pd(_mm256_extractf128_ps(half, 1))}};
}
DPK_INLINE f8 f8_load32(const float *p) {
    return (f8){{_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4))}};
}
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) {
    const __m256 x = _mm256_maskload_ps(p, mask8_first_32(n));
    return (f8){
        {_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))}};
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) {
    return (f8){
        {_mm256_i32gather_pd(p, _mm_loadu_si128((const __m128i *)(const void *)at), 8),
         _mm256_i32gather_pd(p, _mm_loadu_si128((const __m128i *)(const void *)(at + 4)), 8)}};
}
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    const mask8 m = mask8_first(n);
    const __m256i i = _mm256_maskload_epi32(at, mask8_first_32(n));
    const __m256d zero = _mm256_setzero_pd();
    return (f8){
        {_mm256_mask_i32gather_pd(zero, p, _mm256_castsi256_si128(i), (__m256d)m.lo, 8),
         _mm256_mask_i32gather_pd(zero, p, _mm256_extracti128_si256(i, 1), (__m256d)m.hi, 8)}};
}
DPK_INLINE void f8_stream(double *p, f8 a) {
    _mm256_stream_pd(p, a.part[0]);
    _mm256_stream_pd(p + 4, a.part[1]);
}
DPK_INLINE void stream_end(void) { _mm_sfence(); }
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    const __m256d v = _mm256_set1_pd(value);
    const __m256i lo = _mm256_cmpeq_epi64(_mm256_set1_epi64x(l), lane);
    const __m256i hi = _mm256_cmpeq_epi64(_mm256_set1_epi64x(l - 4), lane);
    return (f8){
        {_mm256_blendv_pd(a.part[0], v, (__m256d)lo), _mm256_blendv_pd(a.part[1], v, (__m256d)hi)}};
}
DPK_INLINE f8 f8_trunc(f8 a) {
    return (f8){{_mm256_round_pd(a.part[0], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC),
                 _mm256_round_pd(a.part[1], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}};
}
DPK_INLINE double f8_sum(f8 a) {
    const __m256d half = a.part[0] + a.part[1];
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}
/* The sums of lanes l and l + 2 of a, then of b, where f8_sum adds them. */
DPK_INLINE __m256d add_halves(f8 a, f8 b) {
    const __m256d x = a.part[0] + a.part[1], y = b.part[0] + b.part[1];
    return _mm256_permute2f128_pd(x, y, 0x20) + _mm256_permute2f128_pd(x, y, 0x31);
}
DPK_INLINE void f8_sum_each(const f8 a[8], double *out) {
    EACH(r, 2) {
        const __m256d even = add_halves(a[4 * r], a[4 * r + 2]);
        const __m256d odd = add_halves(a[4 * r + 1], a[4 * r + 3]);
        _mm256_storeu_pd(out + 4 * r,
                         _mm256_unpacklo_pd(even, odd) + _mm256_unpackhi_pd(even, odd));
    }
}
DPK_INLINE uint64_t both_less(vf a, vf b, vf c, vf d) {
    return (uint64_t)_mm256_movemask_pd((__m256d)((a < b) & (c < d)));
}
/* Rotations by whole bytes as one shuffle: AVX2 has no rotation. */
typedef uint8_t vu8 __attribute__((vector_size(8 * LANES)));
#define FOUR(i, a, b, c, d) (i) + (a), (i) + (b), (i) + (c), (i) + (d)
#define BYTES(a, b, c, d)                                                                          \
    (vu8) {                                                                                        \
        FOUR(0, a, b, c, d), FOUR(4, a, b, c, d), FOUR(8, a, b, c, d), FOUR(12, a, b, c, d),       \
            FOUR(16, a, b, c, d), FOUR(20, a, b, c, d), FOUR(24, a, b, c, d), FOUR(28, a, b, c, d) \
    }
DPK_INLINE vu32 rotate_16(vu32 x) {
    return (vu32)_mm256_shuffle_epi8((__m256i)x, (__m256i)BYTES(2, 3, 0, 1));
}
DPK_INLINE vu32 rotate_8(vu32 x) {
    return (vu32)_mm256_shuffle_epi8((__m256i)x, (__m256i)BYTES(3, 0, 1, 2));
}
