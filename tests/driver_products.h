/* Products of rows with a matrix. */
#pragma once

#include "driver_inputs.h"

/* Products with one column up to more than fill a tile. */
static int products(const dpk_kernels *kernels, const dpk_data *data, const int64_t *tasks) {
    static const intptr_t COUNTS[] = {1, 5, 9, 17, 33, 41};
    int bad = 0;
    for (int i = 0; i < 6; i++) {
        const intptr_t count = COUNTS[i];
        double *scratch = lines(dpk_products_scratch(data->d, count, 1)),
               *w = buffer((size_t)(data->d * count) * 8),
               *out = buffer((size_t)(data->offsets[M] * count) * 8);
        const dpk_sum sum = {0.0, NULL, WEIGHT, TASK_ROWS, tasks, NULL, 1};
        for (intptr_t k = 0; k < data->d * count; k++)
            w[k] = W[k % M];
        bad |= (int)kernels->glm_products(data, count, w, &sum, scratch, out);
        free(scratch), free(w), free(out);
    }
    return bad;
}
