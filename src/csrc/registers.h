/* One register of doubles: what tiles of matrix products are made of. Addresses are multiples of
 * its size. */
#ifndef DPK_REGISTERS_H
#define DPK_REGISTERS_H

#include "simd.h"

#if defined(__AVX512F__)
typedef __m512d vec;
enum { WIDTH = 8 };
#define VEC_LOAD(p) _mm512_load_pd(p)
#define VEC_SET(a) _mm512_set1_pd(a)
#define VEC_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define VEC_STORE(p, a) _mm512_store_pd(p, a)
#define VEC_LOAD_ANY(p) _mm512_loadu_pd(p)
#define VEC_STORE_ANY(p, a) _mm512_storeu_pd(p, a)
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256d vec;
enum { WIDTH = 4 };
#define VEC_LOAD(p) _mm256_load_pd(p)
#define VEC_SET(a) _mm256_set1_pd(a)
#define VEC_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define VEC_STORE(p, a) _mm256_store_pd(p, a)
#define VEC_LOAD_ANY(p) _mm256_loadu_pd(p)
#define VEC_STORE_ANY(p, a) _mm256_storeu_pd(p, a)
#else
typedef double vec;
enum { WIDTH = 1 };
#define VEC_LOAD(p) (*(p))
#define VEC_SET(a) (a)
#define VEC_FMA(a, b, c) DPK_FMA(a, b, c)
#define VEC_STORE(p, a) (*(p) = (a))
#define VEC_LOAD_ANY(p) (*(p))
#define VEC_STORE_ANY(p, a) (*(p) = (a))
#endif

/* A loop with a constant count, unrolled so that arrays of registers stay registers. */
#define EACH(v, count) _Pragma("GCC unroll 8") for (int v = 0; v < count; v++)

#endif
