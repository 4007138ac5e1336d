/* GCC vectors of one register, LANES doubles or twice as many 32-bit words, for arithmetic on many
 * independent numbers, where the order of sums plays no part. The header of the instruction set
 * defines LANES. */
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

#endif
