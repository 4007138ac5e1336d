/* Registers of LANES doubles, or twice as many 32-bit words, as GCC vectors, and what is written
 * alike for every instruction set. Its header defines LANES, fma_v, and what it does better than
 * plain C. */
#pragma once

#include "core/dpk.h"

typedef double vf __attribute__((vector_size(8 * LANES)));
typedef int64_t vi __attribute__((vector_size(8 * LANES)));
typedef uint64_t vu __attribute__((vector_size(8 * LANES)));
typedef uint32_t vu32 __attribute__((vector_size(8 * LANES)));
typedef float sf __attribute__((vector_size(8 * LANES)));
typedef int32_t si __attribute__((vector_size(8 * LANES)));
typedef vf any_vf __attribute__((may_alias));
typedef sf loose_sf __attribute__((aligned(4), may_alias));
typedef si loose_si __attribute__((aligned(4), may_alias));
typedef vf loose_vf __attribute__((aligned(8), may_alias));
typedef vi loose_vi __attribute__((aligned(8), may_alias));
typedef vu loose_vu __attribute__((aligned(8), may_alias));
typedef vu32 loose_vu32 __attribute__((aligned(8), may_alias));

/* a b + c; fused where the machine does so, except where the order of sums plays no part. */
#define FUSED (LANES > 2)
DPK_INLINE vf fma_v(vf a, vf b, vf c);
DPK_INLINE sf fma_s(sf a, sf b, sf c);

/* a < b ? a : b, and a > b ? a : b: b where one of them is NaN. */
DPK_INLINE vf smaller(vf a, vf b);
DPK_INLINE vf larger(vf a, vf b);

/* The nearest integers, ties to even, of numbers within 32 bits. */
DPK_INLINE si rint_s(sf a);

/* (LANES,) integers as those of 64 bits. */
DPK_INLINE vi widen(const int32_t *p);

/* a - 0 is a, whatever its sign: no instruction, unlike 0 + a. */
DPK_INLINE vf splat(double a) { return a - (vf){0}; }
#define SIGN_BIT ((uint64_t)1 << 63)
DPK_INLINE vf abs_v(vf a) { return (vf)((vu)a & ~SIGN_BIT); }

/* a where the condition is true, and b elsewhere. */
DPK_INLINE vf select_v(vi condition, vf a, vf b) {
    return (vf)((condition & (vi)a) | (~condition & (vi)b));
}

#if LANES < 8
/* n + 1/2, n < 2^63: its halves as the low bits of 2^84 and 2^52. */
DPK_INLINE vf middle_of(vi n) {
    const vf high = (vf)((vu)n >> 32 | 0x4530000000000000) - 0x1.00000001p84;
    return high + (vf)(((vu)n & 0xffffffff) | 0x4330000000000000) + 0.5;
}
/* w 2^-64 - 1/2 within 2^-52: w read to 51 bits, the next one set, the middle of what it may be. */
DPK_INLINE vf centred(vu w) { return (vf)(w >> 12 | 0x3ff0000000000001) - 1.5; }
#endif

#if LANES != 4
DPK_INLINE vu32 rotate_16(vu32 x) { return x << 16 | x >> 16; }
DPK_INLINE vu32 rotate_8(vu32 x) { return x << 8 | x >> 24; }
#endif

/* One register of which tiles of matrix products are made; VEC_LOAD and VEC_STORE take addresses
 * that are multiples of its size. */
typedef vf vec;
#define WIDTH LANES
#define VEC_SET(a) splat(a)
#define VEC_FMA(a, b, c) fma_v(a, b, c)
#define VEC_LOAD(p) ((vec) * (const any_vf *)(p))
#define VEC_STORE(p, a) (*(any_vf *)(p) = (a))
#define VEC_LOAD_ANY(p) ((vec) * (const loose_vf *)(p))
#define VEC_STORE_ANY(p, a) (*(loose_vf *)(p) = (a))

/* A loop with a constant count, unrolled so that arrays of registers stay registers. */
#define EACH(v, count) _Pragma("GCC unroll 16") for (int v = 0; v < count; v++)
#define EACH_PART EACH(r, 8 / LANES)

/* The eight doubles, and the bit patterns, of simd.h. */
typedef struct {
    vf part[8 / LANES];
} f8;
typedef struct {
    vu part[8 / LANES];
} i8;

DPK_INLINE f8 f8_set(double a) {
    f8 v;
    EACH_PART v.part[r] = splat(a);
    return v;
}
#if LANES < 8
/* Lanes 0 to 3 and 4 to 7. */
DPK_INLINE f8 f8_halves(double low, double high) {
    f8 v;
    EACH_PART v.part[r] = splat(r * LANES < 4 ? low : high);
    return v;
}
#endif
DPK_INLINE f8 f8_load(const double *p) {
    f8 v;
    EACH_PART v.part[r] = *(const loose_vf *)(p + r * LANES);
    return v;
}
DPK_INLINE void f8_store(double *p, f8 a) { EACH_PART *(loose_vf *)(p + r * LANES) = a.part[r]; }
/* In its register: the compiler would load what has several uses again for each of them. Not in the
 * baseline, whose registers are too few for most of these uses. */
DPK_INLINE vf vf_keep(vf a) {
#if LANES > 2
    __asm__("" : "+v"(a));
#endif
    return a;
}
DPK_INLINE f8 f8_keep(f8 a) {
    EACH_PART a.part[r] = vf_keep(a.part[r]);
    return a;
}
/* As registers, `stride` doubles from one to the next, aligned. */
DPK_INLINE void f8_store_registers(double *to, intptr_t stride, f8 a) {
    EACH_PART *(any_vf *)(to + r * stride) = a.part[r];
}
DPK_INLINE f8 f8_add(f8 a, f8 b) {
    EACH_PART a.part[r] += b.part[r];
    return a;
}
DPK_INLINE f8 f8_mul(f8 a, f8 b) {
    EACH_PART a.part[r] *= b.part[r];
    return a;
}
DPK_INLINE f8 f8_div(f8 a, f8 b) {
    EACH_PART a.part[r] /= b.part[r];
    return a;
}
/* As clamp_scalar (gridsum.h). */
DPK_INLINE f8 f8_clamp(f8 s, f8 lim) {
    EACH_PART {
        const vf v = larger(-lim.part[r], smaller(lim.part[r], s.part[r]));
        s.part[r] = select_v(v == v, v, (vf){0});
    }
    return s;
}
DPK_INLINE f8 f8_fma(f8 a, f8 b, f8 c) {
    EACH_PART c.part[r] = fma_v(a.part[r], b.part[r], c.part[r]);
    return c;
}
DPK_INLINE i8 i8_load(const int64_t *p) {
    i8 a;
    EACH_PART a.part[r] = *(const loose_vu *)(p + r * LANES);
    return a;
}
DPK_INLINE void i8_store(int64_t *p, i8 a) { EACH_PART *(loose_vu *)(p + r * LANES) = a.part[r]; }
DPK_INLINE i8 i8_add_bits(i8 a, f8 v) {
    EACH_PART a.part[r] += (vu)v.part[r];
    return a;
}

DPK_INLINE i8 i8_set(uint64_t a) {
    i8 v;
    EACH_PART v.part[r] = a + (vu){0};
    return v;
}
DPK_INLINE i8 i8_add(i8 a, i8 b) {
    EACH_PART a.part[r] += b.part[r];
    return a;
}
DPK_INLINE i8 i8_subtract(i8 a, i8 b) {
    EACH_PART a.part[r] -= b.part[r];
    return a;
}
DPK_INLINE i8 i8_bits(f8 a) {
    i8 v;
    EACH_PART v.part[r] = (vu)a.part[r];
    return v;
}
/* The doubles that have these bits. */
DPK_INLINE f8 f8_of_bits(i8 a) {
    f8 v;
    EACH_PART v.part[r] = (vf)a.part[r];
    return v;
}

DPK_INLINE i8 i8_and(i8 a, i8 b) {
    EACH_PART a.part[r] &= b.part[r];
    return a;
}
/* The bits of both. */
DPK_INLINE f8 f8_or(f8 a, f8 b) {
    EACH_PART a.part[r] = (vf)((vu)a.part[r] | (vu)b.part[r]);
    return a;
}
/* Bits that all eight have. */
DPK_INLINE uint64_t i8_in_all(i8 a) {
    uint64_t all = ~(uint64_t)0;
    EACH_PART for (int l = 0; l < LANES; l++) all &= a.part[r][l];
    return all;
}

/* The sixteen floats, and integers, of simd.h. */
typedef struct {
    sf part[8 / LANES];
} f16;
typedef struct {
    si part[8 / LANES];
} i16;

DPK_INLINE f16 f16_set(float a) {
    f16 v;
    EACH_PART v.part[r] = a - (sf){0};
    return v;
}
DPK_INLINE i16 i16_zero(void) {
    i16 v;
    EACH_PART v.part[r] = (si){0};
    return v;
}
DPK_INLINE f16 f16_load(const float *p) {
    f16 v;
    EACH_PART v.part[r] = *(const loose_sf *)(p + 2 * r * LANES);
    return v;
}
/* As f8_keep. */
DPK_INLINE f16 f16_keep(f16 a) {
#if LANES > 2
    EACH_PART __asm__("" : "+v"(a.part[r]));
#endif
    return a;
}
DPK_INLINE void f16_store(float *p, f16 a) {
    EACH_PART *(loose_sf *)(p + 2 * r * LANES) = a.part[r];
}
DPK_INLINE f16 f16_add(f16 a, f16 b) {
    EACH_PART a.part[r] += b.part[r];
    return a;
}
DPK_INLINE f16 f16_fma(f16 a, f16 b, f16 c) {
    EACH_PART c.part[r] = fma_s(a.part[r], b.part[r], c.part[r]);
    return c;
}
/* sum + the integers nearest to a b, the product rounded first. */
DPK_INLINE i16 i16_add_product(i16 sum, f16 a, f16 b) {
    EACH_PART sum.part[r] += rint_s(a.part[r] * b.part[r]);
    return sum;
}
/* to[l] += a[l], l < n. */
DPK_INLINE void i16_add_to(int64_t *to, i16 a, intptr_t n) {
    int32_t lane[16];
    EACH_PART *(loose_si *)(lane + 2 * r * LANES) = a.part[r];
    if (n == 16)
        for (int l = 0; l < 16; l += LANES)
            *(loose_vi *)(to + l) += widen(lane + l);
    else
        for (intptr_t l = 0; l < n; l++)
            to[l] += lane[l];
}
