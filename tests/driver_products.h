/* Products of rows with several models. */
#pragma once

#include "driver_inputs.h"

/* Products with models of all silos or of each, up to more than are taken together. */
static int products(const dpk_kernels *kernels, const dpk_data *data, const int64_t *tasks) {
    static const intptr_t COUNTS[] = {1, 5, 9, 17, 33, 41};
    int bad = 0;
    for (int i = 0; i < 6; i++) {
        const intptr_t count = COUNTS[i];
        double *scratch = lines(dpk_gradients_scratch(data, count)),
               *out = buffer((size_t)(data->offsets[M] * count) * 8);
        const dpk_sum sum = {0.0, NULL, WEIGHT, TASK_ROWS, tasks, NULL, 1};
        const dpk_models models = {count, W,   count > 2 ? 1 : data->d, count > 2 ? 0 : 1,
                                   NULL,  NULL};
        bad |= (int)kernels->glm_products(data, &models, &sum, scratch, out);
        free(scratch), free(out);
    }
    return bad;
}
