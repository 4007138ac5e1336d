/* The instructions of AVX-512 that simd/avx512.h names, in plain C: what is compiled for them can
 * be tested on a processor without them (CONTRIBUTING.md). It comes before every source file. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __AVX512F__ 1
#pragma GCC diagnostic ignored "-Wpsabi"
/* A register cannot be named that is not there: vf_keep does nothing. */
#define __asm__(...)

typedef double in_c_8d __attribute__((vector_size(64), aligned(8), may_alias));
typedef float in_c_16f __attribute__((vector_size(64)));
typedef float in_c_8f __attribute__((vector_size(32)));
typedef int64_t in_c_8i __attribute__((vector_size(64)));
typedef uint64_t in_c_8u __attribute__((vector_size(64)));
typedef int32_t in_c_16i __attribute__((vector_size(64)));
#define IN_C static inline __attribute__((always_inline, unused))
#define EACH_LANE(n) for (int l = 0; l < (n); l++)

IN_C __m512d in_c_fmadd_pd(__m512d a, __m512d b, __m512d c) {
    EACH_LANE(8) c[l] = __builtin_fma(a[l], b[l], c[l]);
    return c;
}
IN_C __m512 in_c_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    EACH_LANE(16) c[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return c;
}
IN_C __m512d in_c_min_pd(__m512d a, __m512d b) {
    EACH_LANE(8) a[l] = a[l] < b[l] ? a[l] : b[l];
    return a;
}
IN_C __m512d in_c_max_pd(__m512d a, __m512d b) {
    EACH_LANE(8) a[l] = a[l] > b[l] ? a[l] : b[l];
    return a;
}
/* As the processor rounds, and the most negative integer where none is near. */
IN_C __m512i in_c_cvtps_epi32(__m512 a) {
    in_c_16i n;
    EACH_LANE(16) n[l] = _mm_cvtss_si32(_mm_set_ss(a[l]));
    return (__m512i)n;
}
IN_C __m512i in_c_cvtepi32_epi64(__m256i a) {
    int32_t n[8];
    in_c_8i wide;
    memcpy(n, &a, sizeof n);
    EACH_LANE(8) wide[l] = n[l];
    return (__m512i)wide;
}
IN_C __m512 in_c_maskz_loadu_ps(unsigned mask, const float *p) {
    in_c_16f a;
    EACH_LANE(16) a[l] = mask >> l & 1 ? p[l] : 0.0F;
    return (__m512)a;
}
IN_C __m256 in_c_maskz_loadu_ps256(unsigned mask, const float *p) {
    in_c_8f a;
    EACH_LANE(8) a[l] = mask >> l & 1 ? p[l] : 0.0F;
    return (__m256)a;
}
IN_C __m256i in_c_maskz_loadu_epi32(unsigned mask, const int32_t *p) {
    int32_t n[8];
    __m256i a;
    EACH_LANE(8) n[l] = mask >> l & 1 ? p[l] : 0;
    memcpy(&a, n, sizeof n);
    return a;
}
IN_C __m512d in_c_maskz_loadu_pd(unsigned mask, const double *p) {
    __m512d a;
    EACH_LANE(8) a[l] = mask >> l & 1 ? p[l] : 0.0;
    return a;
}
IN_C __m256 in_c_half_ps(__m512 a, int half) {
    in_c_8f b;
    EACH_LANE(8) b[l] = a[8 * half + l];
    return (__m256)b;
}
IN_C __m256d in_c_half_pd(__m512d a, int half) {
    return (__m256d){a[4 * half], a[4 * half + 1], a[4 * half + 2], a[4 * half + 3]};
}
IN_C __m512d in_c_cvtps_pd(__m256 a) {
    __m512d b;
    EACH_LANE(8) b[l] = a[l];
    return b;
}
IN_C __m512d in_c_gather_pd(unsigned mask, __m256i at, const double *p) {
    int32_t n[8];
    __m512d a;
    memcpy(n, &at, sizeof n);
    EACH_LANE(8) a[l] = mask >> l & 1 ? p[n[l]] : 0.0;
    return a;
}
IN_C __m512d in_c_set1_pd(double a) { return (__m512d){a, a, a, a, a, a, a, a}; }
IN_C __m512d in_c_mask_mov_pd(__m512d a, unsigned mask, __m512d b) {
    EACH_LANE(8) a[l] = mask >> l & 1 ? b[l] : a[l];
    return a;
}
IN_C __m512d in_c_trunc_pd(__m512d a) {
    EACH_LANE(8) a[l] = __builtin_trunc(a[l]);
    return a;
}
IN_C __m512d in_c_add_pd(__m512d a, __m512d b) { return a + b; }
/* Quarters of two lanes: the first two of a and the last two of b, two bits of `which` for each. */
IN_C __m512d in_c_shuffle_f64x2(__m512d a, __m512d b, int which) {
    __m512d c;
    EACH_LANE(8) {
        const int from = 2 * (which >> (l / 2 * 2) & 3) + l % 2;
        c[l] = l < 4 ? a[from] : b[from];
    }
    return c;
}
IN_C __m512d in_c_unpack_pd(__m512d a, __m512d b, int high) {
    __m512d c;
    EACH_LANE(8) c[l] = l % 2 ? b[l - 1 + high] : a[l + high];
    return c;
}
IN_C unsigned in_c_less_pd(unsigned mask, __m512d a, __m512d b) {
    unsigned less = 0;
    EACH_LANE(8) less |= (unsigned)(a[l] < b[l]) << l;
    return less & mask;
}
IN_C __m512d in_c_cvtepi64_pd(__m512i n) {
    __m512d a;
    EACH_LANE(8) a[l] = (double)((in_c_8i)n)[l];
    return a;
}
IN_C __m512d in_c_cvtepu64_pd(__m512i n) {
    __m512d a;
    EACH_LANE(8) a[l] = (double)((in_c_8u)n)[l];
    return a;
}

#define _mm512_fmadd_pd(a, b, c) in_c_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c))
#define _mm512_fmadd_ps(a, b, c) in_c_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c))
#define _mm512_min_pd(a, b) in_c_min_pd((__m512d)(a), (__m512d)(b))
#define _mm512_max_pd(a, b) in_c_max_pd((__m512d)(a), (__m512d)(b))
#define _mm512_cvtps_epi32(a) in_c_cvtps_epi32((__m512)(a))
#define _mm512_cvtepi32_epi64 in_c_cvtepi32_epi64
#define _mm512_maskz_loadu_ps in_c_maskz_loadu_ps
#define _mm256_maskz_loadu_ps in_c_maskz_loadu_ps256
#define _mm256_maskz_loadu_epi32 in_c_maskz_loadu_epi32
#define _mm512_maskz_loadu_pd in_c_maskz_loadu_pd
#define _mm512_castps512_ps256(a) in_c_half_ps((__m512)(a), 0)
#define _mm512_extractf32x8_ps(a, half) in_c_half_ps((__m512)(a), half)
#define _mm512_castpd512_pd256(a) in_c_half_pd((__m512d)(a), 0)
#define _mm512_extractf64x4_pd(a, half) in_c_half_pd((__m512d)(a), half)
#define _mm512_cvtps_pd in_c_cvtps_pd
#define _mm512_i32gather_pd(at, p, scale) in_c_gather_pd(0xff, at, p)
#define _mm512_mask_i32gather_pd(none, mask, at, p, scale) in_c_gather_pd(mask, at, p)
#define _mm512_setzero_pd() in_c_set1_pd(0.0)
#define _mm512_set1_pd in_c_set1_pd
#define _mm512_stream_pd(p, a) (*(in_c_8d *)(p) = (in_c_8d)(a))
#define _mm512_storeu_pd(p, a) (*(in_c_8d *)(p) = (in_c_8d)(a))
#define _mm512_mask_mov_pd(a, mask, b) in_c_mask_mov_pd((__m512d)(a), mask, (__m512d)(b))
#define _mm512_roundscale_pd(a, how) in_c_trunc_pd((__m512d)(a))
#define _mm512_add_pd in_c_add_pd
#define _mm512_shuffle_f64x2(a, b, which) in_c_shuffle_f64x2((__m512d)(a), (__m512d)(b), which)
#define _mm512_unpacklo_pd(a, b) in_c_unpack_pd((__m512d)(a), (__m512d)(b), 0)
#define _mm512_unpackhi_pd(a, b) in_c_unpack_pd((__m512d)(a), (__m512d)(b), 1)
#define _mm512_cmp_pd_mask(a, b, how) in_c_less_pd(0xff, (__m512d)(a), (__m512d)(b))
#define _mm512_mask_cmp_pd_mask(mask, a, b, how) in_c_less_pd(mask, (__m512d)(a), (__m512d)(b))
#define _mm512_cvtepi64_pd in_c_cvtepi64_pd
#define _mm512_cvtepu64_pd in_c_cvtepu64_pd
