/* The vectors of simd.h in plain C. The comments are in avx512.h. */
#ifndef DPK_PORTABLE_H
#define DPK_PORTABLE_H

#include <string.h>
#include "core/dpk.h"

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
DPK_INLINE double f8_sum(f8 a) {
    const double *t = a.lane;
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}
DPK_INLINE void f8_store_registers(double *to, intptr_t stride, f8 v) {
    DPK_EACH_LANE to[l * stride] = v.lane[l];
}

typedef double vec;
#define WIDTH 1
#define VEC_LOAD(p) (*(p))
#define VEC_SET(a) (a)
#define VEC_FMA(a, b, c) DPK_FMA(a, b, c)
#define VEC_STORE(p, a) (*(p) = (a))
#define VEC_LOAD_ANY(p) (*(p))
#define VEC_STORE_ANY(p, a) (*(p) = (a))

#define LANES 2
#include "simd/lanes.h"
DPK_INLINE vf fma_v(vf a, vf b, vf c) { return a * b + c; }
DPK_INLINE uint64_t both_less(vf a, vf b, vf c, vf d) {
    const vi both = (a < b) & (c < d);
    return (both[0] & 1) | (both[1] & 2);
}

#endif
