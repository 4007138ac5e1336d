/* The kernels of one instruction set as a table. */
#include <stddef.h>
#include "core/dispatch.h"
#include "models/logistic_prox.h"
#include "models/loss.h"
#include "models/prox.h"
#include "models/smooth.h"
#include "simd/vmath.h"

extern const dpk_kernels DPK_FN(dpk_kernels);

/* Functions that only some losses have are set after the list. */
#define LOSS_NUMBER(loss) LOSS_##loss,
enum { DPK_LOSS_LIST(LOSS_NUMBER) N_LOSSES };
#define LOSS_ROW(loss)                                                                             \
    {.name = #loss, .block = loss##_block, .majorants = loss##_majorants, .slope = loss##_slope},
static const dpk_loss losses[N_LOSSES + 1] = {
    DPK_LOSS_LIST(LOSS_ROW)[LOSS_logistic].parts = logistic_parts,
    [LOSS_logistic].solver_step = logistic_step,
    [LOSS_squared].constant_curvature = 1,
};

#define PROX_ROW(prox) {#prox, prox##_block},
static const dpk_named_prox proxes[] = {DPK_PROX_LIST(PROX_ROW){NULL, NULL}};

#define SMOOTH_ROW(smooth) {#smooth, smooth##_factor},
static const dpk_named_smooth smooths[] = {DPK_SMOOTH_LIST(SMOOTH_ROW){NULL, NULL}};

#define VMATH_FUNCTION(function)                                                                   \
    static void function##_each(intptr_t n, const double *x, double *out) {                        \
        for (intptr_t i = 0; i < n; i++)                                                           \
            out[i] = function(x[i]);                                                               \
    }
DPK_VMATH_LIST(VMATH_FUNCTION)
#define VMATH_ROW(function) {#function, function##_each},
static const dpk_named_vmath vmath[] = {DPK_VMATH_LIST(VMATH_ROW){NULL, NULL}};

#define STRING_(s) #s
#define STRING(s) STRING_(s)
const dpk_kernels DPK_FN(dpk_kernels) = {
    .name = STRING(DPK_ISA),
    .losses = losses,
    .proxes = proxes,
    .smooths = smooths,
    .vmath = vmath,
#define KERNEL(file, name) .name = dpk_##name,
#define SHARED(file, name)
#include "kernels.def"
};
