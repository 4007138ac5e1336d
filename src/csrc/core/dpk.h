/* Status codes, sizes and shared types of every kernel.
 *
 * Kernels never allocate, print or call Python. Scratch comes in, sized by the functions below,
 * and every kernel returns a dpk_status. */
#pragma once

#ifdef __CUDACC_RTC__ /* which has no headers of C (gpu/lanes.h) */
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t, intptr_t;
typedef unsigned long long uint64_t;
#define NULL 0
#else
#include <stdint.h>
#include <string.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DPK_INLINE static inline /* checks of inlined code take minutes to compile */
#else
#define DPK_INLINE static inline __attribute__((always_inline))
#endif

typedef enum {
    DPK_OK = 0,
    DPK_ERR_ROUNDING_MODE = 1,  /* the processor does not round to nearest */
    DPK_ERR_NO_CONVERGENCE = 2, /* LAPACK found no eigenvalues */
    DPK_ERR_NOT_FINITE = 3,     /* an input holds NaN or infinity */
} dpk_status;

/* Functions carry the instruction set they were compiled for as a suffix, dpk_glm_gradient_v3;
 * names.h, made by meson.build, gives it to every function of kernels.def. */
#define DPK_PASTE_(name, isa) name##_##isa
#define DPK_PASTE(name, isa) DPK_PASTE_(name, isa)
#define DPK_FN(name) DPK_PASTE(name, DPK_ISA)
#ifdef DPK_ISA
#include "names.h"
#endif

/* One rounding where the machine has a fused multiply-add; the baseline rounds twice. */
#if defined(DPK_GPU) /* there, and in its tests on a CPU, always one */
#define DPK_FMA(a, b, c) fma((a), (b), (c))
#elif defined(__FP_FAST_FMA)
#define DPK_FMA(a, b, c) __builtin_fma((a), (b), (c))
#else
#define DPK_FMA(a, b, c) ((a) * (b) + (c))
#endif

/* A double and its bit pattern. */
#ifdef __CUDACC_RTC__
#define bits_of(v) __double_as_longlong(v)
#define double_of(b) __longlong_as_double(b)
#else
static inline int64_t bits_of(double v) {
    int64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}
static inline double double_of(int64_t b) {
    double v;
    memcpy(&v, &b, sizeof v);
    return v;
}
#endif

/* A margin loss on a block: value, first and second derivative in the margin z.
 * y, z: (n,); value, d1, d2: (n,) or NULL when not wanted; params: the loss's parameters. */
typedef void dpk_loss_fn(intptr_t n, const double *y, const double *z, double *value, double *d1,
                         double *d2, void *params);

/* The first derivative of a margin loss at one record. */
typedef double dpk_slope_fn(double y, double z, const void *params);

/* The values of a margin loss as plain + log(1 + factor), 0 <= factor <= 1, so that a sum over many
 * records needs one logarithm, that of a product. y, z, plain, factor: (n,). */
typedef void dpk_parts_fn(intptr_t n, const double *y, const double *z, double *plain,
                          double *factor, const void *params);

/* One step of an iteration for all equations not yet solved (open), t = -gamma phi'(y, m + t A)
 * within [-lim, lim]; returns 0 when all are solved. It may start anywhere, but need not converge
 * from there. y, m, A, lim, t, open: (n,); open: 1 or 0. */
typedef int64_t dpk_solver_step_fn(intptr_t n, const double *y, const double *m, const double *A,
                                   const double *lim, double gamma, double *t, double *open);

/* A prox on coordinates first .. first + n - 1 of a row, or on a whole row, first = 0, where it
 * does not take them one by one: out = argmin_x gamma r(x) + |x - v|^2 / 2. v, out: (n,), may be
 * the same array; params: the regulariser's own numbers; scratch: (n,), used for whole rows only.
 */
typedef void dpk_prox_fn(intptr_t first, intptr_t n, const double *v, double gamma,
                         const double *params, double *scratch, double *out);

/* A smooth regulariser r(w) = f(|w|): f'(|w|) / |w| from |w|. */
typedef double dpk_smooth_fn(double norm);

/* A loss as kernels call it. `checked`: it is a user's function, whose derivatives may be anything
 * and count as 0 where they are not finite (models/evaluate.h). */
typedef struct {
    const char *name;
    dpk_loss_fn *block;
    dpk_loss_fn *majorants;          /* d2 is the curvature of a majorant (models/loss.h) */
    dpk_slope_fn *slope;             /* or NULL: a block of one is evaluated */
    dpk_parts_fn *parts;             /* or NULL: the loss has no such form */
    dpk_solver_step_fn *solver_step; /* or NULL: its prox starts with Newton's method */
    int constant_curvature; /* phi'' is constant: a Newton step from 0 is the exact solution */
    int checked;
    void *params;
} dpk_loss;

/* Records of all silos. A record's effective row is r [scale x + shift, 1], with the last entry
 * only under `intercept` and r = min(1, row_bound / |[scale x + shift, 1]|). */
typedef struct {
    intptr_t m;             /* silos */
    intptr_t p;             /* stored features */
    intptr_t d;             /* model size: p + intercept */
    const void *X;          /* stored rows of length p; of sparse data the values of the entries */
    int x_is_float32;       /* element type of X: float or double */
    const void *indptr;     /* (stored rows + 1,) row i has the entries indptr[i] .. indptr[i + 1],
                             * or NULL: X is dense */
    int indptr_is_int32;    /* its element type: int32_t or int64_t */
    const int32_t *indices; /* column of every entry, increasing within a row */
    const double *y;        /* one label per stored row */
    const double *norm;     /* upper bound of |[scale x + shift, 1]| per stored row, or NULL */
    const int64_t *rows;    /* stored row of every record, or NULL for record i = row i */
    const int64_t *offsets; /* (m + 1,) silo j holds the records offsets[j] .. offsets[j + 1] */
    const double *scale;    /* (p,) or NULL */
    const double *shift;    /* (p,) given with scale where X is dense, else NULL */
    double row_bound;       /* infinity when rows are not bounded */
    int intercept;
    const double *record_weight; /* in [0, 1], of the loss, per stored row, or NULL: all 1 */
    const double *margin_offset; /* added to the margin, per stored row, or NULL: all 0 */
} dpk_data;

/* Doubles that a vector of d takes up as an accumulator: whole vectors of eight are added to it. */
static inline intptr_t dpk_padded(intptr_t d) { return (d + 7) / 8 * 8; }

/* Row length of n columns: whole cache lines, an odd number of them, so that the lines of a column
 * do not map to a few sets of the cache. */
static inline intptr_t dpk_row_stride(intptr_t n) { return dpk_padded(n) | 8; }

/* Stride from one thread's accumulator of n doubles to the next one's. The padding of 512 bytes
 * keeps hardware prefetchers of one core from fetching lines that another core is writing. */
static inline intptr_t dpk_thread_stride(intptr_t n) { return dpk_padded(n) + 64; }

/* The point whose gradients are subtracted, for differences. Margins are those of effective rows,
 * one per stored row. */
typedef struct {
    double clip;       /* l2 bound of each of the two gradients; infinity: none */
    double curvature;  /* at most so much times the difference of its margins, and of its sign, is
                        * a record's difference of derivatives; infinity: anything */
    const double *w;   /* of silo j at w + j * w_stride, (d,) each; read only without z */
    intptr_t w_stride; /* or 0: one for all */
    const double *z;   /* margins there, or NULL: computed */
    double *z_new; /* where those at the later point go, or NULL; may be z; data->rows is NULL */
} dpk_earlier;

/* How per-record vectors are clipped and summed. */
typedef struct {
    double clip;               /* l2 bound of one record's vector; infinity: none */
    const double *grid;        /* (m,) a power of two per silo, or NULL: floating-point sums */
    const double *silo_weight; /* (m,) factors in [0, 1] before rounding, or NULL: all 1 */
    intptr_t task_rows;        /* records of one unit of parallel work: it fixes the order of
                                * floating-point sums, so no number of threads enters it */
    const int64_t *first_task; /* (m + 1,) number of silo j's first task */
    double *partial;           /* (first_task[m], dpk_thread_stride(d)) work space */
    int n_threads;
} dpk_sum;
