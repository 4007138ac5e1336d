/* The vectors of simd.h in plain C: four registers of two doubles. The comments are in avx512.h. */
#pragma once

#define LANES 2
#include "simd/lanes.h"
DPK_INLINE vf fma_v(vf a, vf b, vf c) {
#ifdef __FP_FAST_FMA
    return (vf){DPK_FMA(a[0], b[0], c[0]), DPK_FMA(a[1], b[1], c[1])};
#else
    return a * b + c;
#endif
}
DPK_INLINE vf smaller(vf a, vf b) { return select_v(a < b, a, b); }
DPK_INLINE vf larger(vf a, vf b) { return select_v(a > b, a, b); }
DPK_INLINE sf fma_s(sf a, sf b, sf c) {
#ifdef __FP_FAST_FMAF
    for (int l = 0; l < 4; l++)
        c[l] = __builtin_fmaf(a[l], b[l], c[l]);
    return c;
#else
    return a * b + c;
#endif
}
DPK_INLINE si rint_s(sf a) {
#ifdef __SSE2__
    return (si)_mm_cvtps_epi32(a);
#else
    si n;
    for (int l = 0; l < 4; l++)
        n[l] = (int32_t)__builtin_rintf(a[l]);
    return n;
#endif
}
DPK_INLINE vi widen(const int32_t *p) { return (vi){p[0], p[1]}; }
#define DPK_FIRST_LANES(value)                                                                     \
    double lane[8] = {0};                                                                          \
    for (intptr_t l = 0; l < n; l++)                                                               \
        lane[l] = value;                                                                           \
    return f8_load(lane)
DPK_INLINE f8 f8_load_first(const double *p, intptr_t n) { DPK_FIRST_LANES(p[l]); }
DPK_INLINE f8 f8_load32_first(const float *p, intptr_t n) { DPK_FIRST_LANES(p[l]); }
DPK_INLINE f8 f8_load32(const float *p) { return f8_load32_first(p, 8); }
DPK_INLINE f16 f16_load_first(const float *p, intptr_t n) {
    float lane[16] = {0};
    for (intptr_t l = 0; l < n; l++)
        lane[l] = p[l];
    return f16_load(lane);
}
DPK_INLINE f8 f16_halves(f16 a) {
    const sf low = a.part[0] + a.part[2], high = a.part[1] + a.part[3];
    return (f8){{{low[0], low[1]}, {low[2], low[3]}, {high[0], high[1]}, {high[2], high[3]}}};
}
DPK_INLINE f8 f8_gather_first(const double *p, const int32_t *at, intptr_t n) {
    DPK_FIRST_LANES(p[at[l]]);
}
DPK_INLINE f8 f8_gather(const double *p, const int32_t *at) { return f8_gather_first(p, at, 8); }
DPK_INLINE void f8_stream(double *p, f8 a) { f8_store(p, a); }
DPK_INLINE void stream_end(void) {}
DPK_INLINE f8 f8_with(f8 a, intptr_t l, double value) {
    a.part[l / 2][l % 2] = value;
    return a;
}
DPK_INLINE unsigned f8_differ(f8 a, f8 b) {
    unsigned lanes = 0;
    for (int l = 0; l < 8; l++)
        lanes |= (unsigned)(a.part[l / 2][l % 2] != b.part[l / 2][l % 2]) << l;
    return lanes;
}
/* For |a| < 2^63. */
DPK_INLINE f8 f8_trunc(f8 a) {
    EACH_PART a.part[r] = (vf){(double)(int64_t)a.part[r][0], (double)(int64_t)a.part[r][1]};
    return a;
}
DPK_INLINE double f8_sum(f8 a) {
    const vf pair = (a.part[0] + a.part[2]) + (a.part[1] + a.part[3]);
    return pair[0] + pair[1];
}
DPK_INLINE uint64_t both_less(vf a, vf b, vf c, vf d) {
    const vi both = (a < b) & (c < d);
    return (both[0] & 1) | (both[1] & 2);
}
