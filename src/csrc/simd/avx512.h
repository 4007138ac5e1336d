/* The vectors of simd.h with AVX-512: one register of eight doubles. */
#pragma once

#include <immintrin.h>

#define LANES 8
#include "simd/lanes.h"
DPK_INLINE vf fma_v(vf a, vf b, vf c) { return (vf)_mm512_fmadd_pd(a, b, c); }
DPK_INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_pd(a, b); }
DPK_INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_pd(a, b); }
DPK_INLINE sf fma_s(sf a, sf b, sf c) { return (sf)_mm512_fmadd_ps(a, b, c); }
DPK_INLINE si rint_s(sf a) { return (si)_mm512_cvtps_epi32(a); }
DPK_INLINE vi widen(const int32_t *p) {
    return (vi)_mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
DPK_INLINE f16 f16_load_first(const float *p, intptr_t n) {
    return (f16){{_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p)}};
}
/* The sums of lanes l and l + 8, as doubles. */
DPK_INLINE f8 f16_halves(f16 a) {
    const __m512 v = a.part[0];
    return (f8){
        {_mm512_cvtps_pd(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)))}};
}
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) {
    return (f8){{_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p)}};
}
DPK_INLINE f8 f8_load32(const float *p) { return (f8){{_mm512_cvtps_pd(_mm256_loadu_ps(p))}}; }
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) {
    return (f8){{_mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)((1u << n) - 1), p))}};
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) {
    return (f8){{_mm512_i32gather_pd(_mm256_loadu_si256((const __m256i *)(const void *)at), p, 8)}};
}
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    const __mmask8 first = (__mmask8)((1u << n) - 1);
    return (f8){{_mm512_mask_i32gather_pd(_mm512_setzero_pd(), first,
                                          _mm256_maskz_loadu_epi32(first, at), p, 8)}};
}
/* Past the caches; p starts a cache line. Before others read it: stream_end(). */
DPK_INLINE void f8_stream(double *p, f8 a) { _mm512_stream_pd(p, a.part[0]); }
DPK_INLINE void stream_end(void) { _mm_sfence(); }
/* a with entry l replaced. */
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    return (f8){{_mm512_mask_mov_pd(a.part[0], (__mmask8)(1u << l), _mm512_set1_pd(value))}};
}
/* Lanes 0 to 3 and 4 to 7. */
DPK_INLINE f8 f8_halves(double low, double high) {
    return (f8){{_mm512_mask_mov_pd(_mm512_set1_pd(low), 0xf0, _mm512_set1_pd(high))}};
}
/* The lanes in which they differ. */
DPK_INLINE unsigned f8_differ(f8 a, f8 b) {
    return _mm512_cmp_pd_mask(a.part[0], b.part[0], _CMP_NEQ_UQ);
}
/* Toward zero, as integers. */
DPK_INLINE f8 f8_trunc(f8 a) {
    return (f8){{_mm512_roundscale_pd(a.part[0], _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}};
}
/* ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) */
DPK_INLINE double f8_sum(f8 a) {
    const __m256d half =
        _mm256_add_pd(_mm512_castpd512_pd256(a.part[0]), _mm512_extractf64x4_pd(a.part[0], 1));
    const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}
/* out[r] = f8_sum(a[r]), r < 8, the same tree for all at once. */
DPK_INLINE void f8_sum_each(const f8 a[8], double *out) {
    __m512d half[4], pair[2];
    /* Rows 0 2 4 6 and 1 3 5 7 side by side, so that the last step leaves them in order. */
    for (int r = 0; r < 2; r++)
        for (int odd = 0; odd < 2; odd++) {
            const __m512d u = a[4 * r + odd].part[0], v = a[4 * r + 2 + odd].part[0];
            half[2 * odd + r] =
                _mm512_add_pd(_mm512_shuffle_f64x2(u, v, 0x44), _mm512_shuffle_f64x2(u, v, 0xee));
        }
    for (int odd = 0; odd < 2; odd++)
        pair[odd] = _mm512_add_pd(_mm512_shuffle_f64x2(half[2 * odd], half[2 * odd + 1], 0x88),
                                  _mm512_shuffle_f64x2(half[2 * odd], half[2 * odd + 1], 0xdd));
    _mm512_storeu_pd(out, _mm512_add_pd(_mm512_unpacklo_pd(pair[0], pair[1]),
                                        _mm512_unpackhi_pd(pair[0], pair[1])));
}
/* Lanes where a < b and c < d, as bits. */
DPK_INLINE uint64_t both_less(vf a, vf b, vf c, vf d) {
    const __mmask8 first = _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_LT_OQ);
    return _mm512_mask_cmp_pd_mask(first, (__m512d)c, (__m512d)d, _CMP_LT_OQ);
}
/* n + 1/2, n < 2^63. */
DPK_INLINE vf middle_of(vi n) { return (vf)_mm512_cvtepi64_pd((__m512i)n) + 0.5; }
/* w 2^-64 - 1/2 within 2^-52. */
DPK_INLINE vf centred(vu w) {
    return fma_v((vf)_mm512_cvtepu64_pd((__m512i)w), splat(0x1p-64), splat(-0.5));
}
