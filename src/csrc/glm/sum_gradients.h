/* Sums of clipped gradients, or of clipped differences of them, over consecutive records. */
#ifndef DPK_SUM_GRADIENTS_H
#define DPK_SUM_GRADIENTS_H

#include "core/dpk.h"

/* acc = sum over the records begin .. end, weight times the clipped gradient at w, rounded; as
 * steps of the grid in integers where M, its magic number, is not 0. earlier: NULL, or a point
 * whose gradient, both clipped to earlier->clip first, is subtracted; then the difference is
 * clipped. clip: the inner clip bound; streamed: the rows are not in this core's cache (the same
 * bits, another order of loads); acc: (dpk_padded(d),), of which the first d matter. */
void dpk_sum_gradients(const dpk_data *data, const double *w, const dpk_loss *loss,
                       const dpk_earlier *earlier, double M, double clip, double weight,
                       int64_t begin, int64_t end, int streamed, double *acc);

#endif
