/* Vectors of every instruction set, one header each: a new instruction set is a header that defines
 * the same names and a branch here.
 *
 * f8 is eight doubles in a fixed lane order, i8 the bit patterns of grid sums: they give the same
 * sums on every machine with a fused multiply-add. A sum over k uses sixteen lanes: lane l adds the
 * terms k = l (mod 16) in order of k; lanes are added as a fixed tree. f16 is sixteen floats, i16
 * 32-bit integers; a sum of floats uses 32 lanes, of which pairs l and l + 16, then l and l + 8 are
 * added as floats, the eight sums as doubles. vec is one register, of WIDTH doubles, for tiles of
 * matrix products; vf and vu32 are registers too (lanes.h). */
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd/avx2.h"
#else
#include "simd/portable.h"
#endif

DPK_INLINE f8 f8_zero(void) { return f8_set(0.0); }

DPK_INLINE f16 f16_zero(void) { return f16_set(0.0F); }

/* Sixteen floats, or the first `left` < 16 and zeros. */
DPK_INLINE f16 f16_load_part(const float *p, intptr_t left) {
    return left < 16 ? f16_load_first(p, left) : f16_load(p);
}

/* out[r] = f8_sum(a[r]), r < 8. */
#if WIDTH < 4
DPK_INLINE void f8_sum_each(const f8 a[8], double *out) { EACH(r, 8) out[r] = f8_sum(a[r]); }
#endif

/* Eight doubles, or the first `left` < 8 and zeros. */
DPK_INLINE f8 f8_load_part(const double *p, intptr_t left) {
    return left < 8 ? f8_load_first(p, left) : f8_load(p);
}
DPK_INLINE f8 f8_gather_part(const double *p, const int32_t *at, intptr_t left) {
    return left < 8 ? f8_gather_first(p, at, left) : f8_gather(p, at);
}

/* As clamp_scalar (gridsum.h), without a branch: a branch would be mispredicted for every other
 * record that is clipped, and the loads under way would have to start again. */
DPK_INLINE double clamp_without_branch(double s, double lim) {
#if defined(__SSE2__)
    const __m128d upper = _mm_set_sd(lim), lower = _mm_set_sd(-lim);
    const __m128d v = _mm_max_sd(lower, _mm_min_sd(upper, _mm_set_sd(s)));
    return _mm_cvtsd_f64(_mm_and_pd(v, _mm_cmpord_sd(v, v)));
#else
    s = s > lim ? lim : s;
    s = s < -lim ? -lim : s;
    return s == s ? s : 0.0;
#endif
}
