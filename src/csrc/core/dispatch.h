/* One table of kernels per instruction set, chosen once by what the processor can do. */
#pragma once

#include "core/dpk.h"
#include "kernels.h"

typedef struct {
    const char *name;
    dpk_prox_fn *apply;
} dpk_named_prox;

typedef struct {
    const char *name;
    dpk_smooth_fn *factor;
} dpk_named_smooth;

/* For tests: out = f(x) for a function of simd/vmath.h. x, out: (n,). */
typedef struct {
    const char *name;
    void (*apply)(intptr_t n, const double *x, double *out);
} dpk_named_vmath;

/* Every list ends with an entry without a name. */
typedef struct {
    const char *name;
    const dpk_loss *losses;
    const dpk_named_prox *proxes;
    const dpk_named_smooth *smooths;
    const dpk_named_vmath *vmath;
#define KERNEL(file, name) __typeof__(dpk_##name) *name;
#define SHARED(file, name)
#include "kernels.def"
} dpk_kernels;

/* Kernels for instruction set number i of those that this processor runs, best first; NULL past the
 * end. */
const dpk_kernels *dpk_isa(int i);

/* Gives all threads of the caller's team of n_threads its floating-point environment; DPK_OK when
 * they round to nearest, which exact sums rely on. A thread would keep the environment that its
 * creator had, whoever created it and when. */
dpk_status dpk_check_rounding(int n_threads);

/* Whether the calling thread takes denormals for zeros, or returns zeros for them. Norms that were
 * computed in one mode do not bound the rows as the other mode sees them. */
int dpk_flushes_denormals(void);
