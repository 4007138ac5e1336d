/* One table of kernels per instruction set, chosen once by what the processor can do. */
#ifndef DPK_DISPATCH_H
#define DPK_DISPATCH_H

#include "admm.h"
#include "chacha20.h"
#include "clip.h"
#include "dpk.h"
#include "gaussian.h"
#include "glm.h"
#include "goe.h"
#include "hessian.h"
#include "line_search.h"
#include "local_descent.h"
#include "mlp.h"
#include "newton.h"
#include "prox_rows.h"
#include "shuffle.h"

/* For tests: out = f(x) for a function of vmath.h. x, out: (n,). */
typedef void dpk_vmath_fn(intptr_t n, const double *x, double *out);

typedef struct {
    const char *name;
    const char *const *loss_names;      /* ended by NULL */
    dpk_loss_fn *const *losses;         /* in the order of loss_names */
    dpk_slope_fn *const *slopes;        /* in the order of loss_names */
    dpk_parts_fn *const *parts;         /* in the order of loss_names; some are NULL */
    dpk_approach_fn *const *approaches; /* in the order of loss_names; some are NULL */
    const dpk_bend *bends;              /* in the order of loss_names */
    const char *const *prox_names;      /* ended by NULL */
    dpk_prox_fn *const *proxes;         /* in the order of prox_names */
    const char *const *smooth_names;    /* ended by NULL */
    dpk_smooth_fn *const *smooths;      /* in the order of smooth_names */
    const char *const *vmath_names;     /* ended by NULL */
    dpk_vmath_fn *const *vmath;         /* in the order of vmath_names */
    dpk_clip_and_sum_fn *clip_and_sum;
    dpk_glm_norms_fn *glm_norms;
    dpk_glm_margins_fn *glm_margins;
    dpk_glm_losses_fn *glm_losses;
    dpk_glm_gradient_fn *glm_gradient;
    dpk_glm_difference_fn *glm_difference;
    dpk_glm_hessian_fn *glm_hessian;
    dpk_loss_prox_fn *loss_prox;
    dpk_sweep_together_fn *sweep_together;
    dpk_sweep_per_user_fn *sweep_per_user;
    dpk_sweep_public_fn *sweep_public;
    dpk_local_descent_fn *local_descent;
    dpk_chacha20_block_fn *chacha20_block;
    dpk_chacha20_chunks_fn *chacha20_chunks;
    dpk_gaussian_fn *gaussian;
    dpk_gaussian_words_fn *gaussian_words;
    dpk_goe_fn *goe;
    dpk_line_search_fn *line_search;
    dpk_mlp_gradient_fn *mlp_gradient;
    dpk_newton_direction_fn *newton_direction;
    dpk_prox_rows_fn *prox_rows;
    dpk_shuffle_sum_fn *shuffle_sum;
} dpk_kernels;

/* Kernels for instruction set number i, best first; NULL past the end. */
const dpk_kernels *dpk_isa(int i);

/* Whether this processor runs instruction set number i. */
int dpk_isa_runs(int i);

/* Gives all threads of the caller's team of n_threads its floating-point environment; DPK_OK when
 * they round to nearest, which exact sums rely on. A thread would keep the environment that its
 * creator had, whoever created it and when. */
dpk_status dpk_check_rounding(int n_threads);

/* Whether the calling thread takes denormals for zeros, or returns zeros for them. Norms that were
 * computed in one mode do not bound the rows as the other mode sees them. */
int dpk_flushes_denormals(void);

#endif
