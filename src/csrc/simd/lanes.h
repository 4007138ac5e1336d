/* GCC vectors of one register, LANES doubles or twice as many 32-bit words, for arithmetic on many
 * independent numbers, where the order of sums plays no part. The header of the instruction set
 * defines LANES, and what it does better than plain C. */
#ifndef DPK_LANES_H
#define DPK_LANES_H

#include "core/dpk.h"

typedef double vf __attribute__((vector_size(8 * LANES)));
typedef int64_t vi __attribute__((vector_size(8 * LANES)));
typedef uint64_t vu __attribute__((vector_size(8 * LANES)));
typedef uint32_t vu32 __attribute__((vector_size(8 * LANES)));
typedef vf loose_vf __attribute__((aligned(8), may_alias));
typedef vu loose_vu __attribute__((aligned(8), may_alias));
typedef vu32 loose_vu32 __attribute__((aligned(8), may_alias));

/* a - 0 is a, whatever its sign: no instruction, unlike 0 + a. */
DPK_INLINE vf splat(double a) { return a - (vf){0}; }
#define SIGN_BIT ((uint64_t)1 << 63)
DPK_INLINE vf abs_v(vf a) { return (vf)((vu)a & ~SIGN_BIT); }

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

#if LANES > 2
/* One register of doubles, of which tiles of matrix products are made; VEC_LOAD and VEC_STORE take
 * addresses that are multiples of its size. */
typedef vf vec;
typedef vf any_vf __attribute__((may_alias));
#define WIDTH LANES
#define VEC_SET(a) splat(a)
#define VEC_FMA(a, b, c) fma_v(a, b, c)
#define VEC_LOAD(p) ((vec) * (const any_vf *)(p))
#define VEC_STORE(p, a) (*(any_vf *)(p) = (a))
#define VEC_LOAD_ANY(p) ((vec) * (const loose_vf *)(p))
#define VEC_STORE_ANY(p, a) (*(loose_vf *)(p) = (a))
#endif

#endif
