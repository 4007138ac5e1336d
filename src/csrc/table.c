/* The kernels of one instruction set as a table. */
#include <stddef.h>
#include "dispatch.h"
#include "logistic_prox.h"
#include "loss.h"
#include "prox.h"
#include "smooth.h"
#include "vmath.h"

extern const dpk_kernels DPK_FN(dpk_kernels);
extern dpk_clip_and_sum_fn DPK_FN(dpk_clip_and_sum);
extern dpk_glm_norms_fn DPK_FN(dpk_glm_norms);
extern dpk_glm_margins_fn DPK_FN(dpk_glm_margins);
extern dpk_glm_losses_fn DPK_FN(dpk_glm_losses);
extern dpk_glm_gradient_fn DPK_FN(dpk_glm_gradient);
extern dpk_glm_difference_fn DPK_FN(dpk_glm_difference);
extern dpk_glm_hessian_fn DPK_FN(dpk_glm_hessian);
extern dpk_local_descent_fn DPK_FN(dpk_local_descent);
extern dpk_chacha20_block_fn DPK_FN(dpk_chacha20_block);
extern dpk_chacha20_chunks_fn DPK_FN(dpk_chacha20_chunks);
extern dpk_gaussian_fn DPK_FN(dpk_gaussian);
extern dpk_loss_prox_fn DPK_FN(dpk_loss_prox);
extern dpk_sweep_together_fn DPK_FN(dpk_sweep_together);
extern dpk_sweep_per_user_fn DPK_FN(dpk_sweep_per_user);
extern dpk_sweep_public_fn DPK_FN(dpk_sweep_public);
extern dpk_gaussian_words_fn DPK_FN(dpk_gaussian_words);
extern dpk_goe_fn DPK_FN(dpk_goe);
extern dpk_line_search_fn DPK_FN(dpk_line_search);
extern dpk_mlp_gradient_fn DPK_FN(dpk_mlp_gradient);
extern dpk_newton_direction_fn DPK_FN(dpk_newton_direction);
extern dpk_prox_rows_fn DPK_FN(dpk_prox_rows);
extern dpk_shuffle_sum_fn DPK_FN(dpk_shuffle_sum);

#define NAME_STRING(name) #name,
#define BLOCK_FUNCTION(name) name##_block,
#define SLOPE_FUNCTION(name) name##_slope,
static const char *const loss_names[] = {DPK_LOSS_LIST(NAME_STRING) NULL};
static const char *const prox_names[] = {DPK_PROX_LIST(NAME_STRING) NULL};
static dpk_loss_fn *const losses[] = {DPK_LOSS_LIST(BLOCK_FUNCTION)};
static dpk_slope_fn *const slopes[] = {DPK_LOSS_LIST(SLOPE_FUNCTION)};
#define LOSS_NUMBER(name) LOSS_##name,
enum { DPK_LOSS_LIST(LOSS_NUMBER) N_LOSSES };
static dpk_parts_fn *const parts[N_LOSSES] = {[LOSS_logistic] = logistic_parts};
static dpk_approach_fn *const approaches[N_LOSSES] = {[LOSS_logistic] = logistic_approach};
static const dpk_bend bends[N_LOSSES] = {[LOSS_squared] = DPK_BEND_NONE};
static dpk_prox_fn *const proxes[] = {DPK_PROX_LIST(BLOCK_FUNCTION)};
#define FACTOR_FUNCTION(name) name##_factor,
static const char *const smooth_names[] = {DPK_SMOOTH_LIST(NAME_STRING) NULL};
static dpk_smooth_fn *const smooths[] = {DPK_SMOOTH_LIST(FACTOR_FUNCTION)};
#define VMATH_FUNCTION(name)                                                                       \
    static void name##_each(intptr_t n, const double *x, double *out) {                            \
        for (intptr_t i = 0; i < n; i++)                                                           \
            out[i] = name(x[i]);                                                                   \
    }
DPK_VMATH_LIST(VMATH_FUNCTION)
#define EACH_FUNCTION(name) name##_each,
static const char *const vmath_names[] = {DPK_VMATH_LIST(NAME_STRING) NULL};
static dpk_vmath_fn *const vmath[] = {DPK_VMATH_LIST(EACH_FUNCTION)};

#define STRING_(s) #s
#define STRING(s) STRING_(s)
const dpk_kernels DPK_FN(dpk_kernels) = {
    .name = STRING(DPK_ISA),
    .loss_names = loss_names,
    .losses = losses,
    .slopes = slopes,
    .parts = parts,
    .approaches = approaches,
    .bends = bends,
    .prox_names = prox_names,
    .proxes = proxes,
    .smooth_names = smooth_names,
    .smooths = smooths,
    .vmath_names = vmath_names,
    .vmath = vmath,
    .clip_and_sum = DPK_FN(dpk_clip_and_sum),
    .glm_norms = DPK_FN(dpk_glm_norms),
    .glm_margins = DPK_FN(dpk_glm_margins),
    .glm_losses = DPK_FN(dpk_glm_losses),
    .glm_gradient = DPK_FN(dpk_glm_gradient),
    .glm_difference = DPK_FN(dpk_glm_difference),
    .glm_hessian = DPK_FN(dpk_glm_hessian),
    .loss_prox = DPK_FN(dpk_loss_prox),
    .sweep_together = DPK_FN(dpk_sweep_together),
    .sweep_per_user = DPK_FN(dpk_sweep_per_user),
    .sweep_public = DPK_FN(dpk_sweep_public),
    .local_descent = DPK_FN(dpk_local_descent),
    .chacha20_block = DPK_FN(dpk_chacha20_block),
    .chacha20_chunks = DPK_FN(dpk_chacha20_chunks),
    .gaussian = DPK_FN(dpk_gaussian),
    .gaussian_words = DPK_FN(dpk_gaussian_words),
    .goe = DPK_FN(dpk_goe),
    .line_search = DPK_FN(dpk_line_search),
    .mlp_gradient = DPK_FN(dpk_mlp_gradient),
    .newton_direction = DPK_FN(dpk_newton_direction),
    .prox_rows = DPK_FN(dpk_prox_rows),
    .shuffle_sum = DPK_FN(dpk_shuffle_sum),
};
