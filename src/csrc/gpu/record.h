/* A record on a GPU: its row, and what it adds to a sum, as rows/ and glm/ have it. */
#pragma once

#include "core/gridsum.h"
#include "gpu/lanes.h"
#include "models/loss.h"

/* A task: records begin .. end of silo j. */
typedef struct {
    int64_t j, begin, end;
} gpu_task;

/* The records, and what is done with them at MODELS models, as arguments of a kernel. */
#define GLM                                                                                        \
    const void *X, const double *y, const double *scale, const double *shift, const int64_t *rows, \
        int64_t p, int64_t intercept, double row_bound, const gpu_task *tasks, int64_t n_tasks,    \
        int64_t m, const double *w, int64_t stride, int64_t w_stride, const double *clip,          \
        const double *grid, const double *weight, const double *params,                            \
        const double *record_weight, const double *margin_offset

/* w: model i of silo j at w + i stride + j w_stride; clip: (MODELS,); grid: (MODELS, m) powers of
 * two; weight: (m,), or NULL: all 1; params: the loss's. */
typedef struct {
    dpk_data data;
    int64_t m, stride, w_stride;
    const double *w, *clip, *grid, *weight, *params;
    /* per stored row, or NULL, as in dpk_data; without WEIGHTED neither is read */
    const double *record_weight, *margin_offset;
} glm;

#define GLM_OF_ARGUMENTS                                                                           \
    const glm of = {rows_of(X, y, scale, shift, rows, p, intercept, row_bound),                    \
                    m,                                                                             \
                    stride,                                                                        \
                    w_stride,                                                                      \
                    w,                                                                             \
                    clip,                                                                          \
                    grid,                                                                          \
                    weight,                                                                        \
                    params,                                                                        \
                    record_weight,                                                                 \
                    margin_offset}

DPK_INLINE dpk_data rows_of(const void *X, const double *y, const double *scale,
                            const double *shift, const int64_t *rows, int64_t p, int64_t intercept,
                            double row_bound) {
    dpk_data data = {0};
    data.p = p;
    data.d = p + intercept;
    data.X = X;
    data.x_is_float32 = FLOAT32;
    data.y = y;
    data.rows = rows;
    data.scale = MAPPED ? scale : NULL;
    data.shift = MAPPED ? shift : NULL;
    data.row_bound = row_bound;
    data.intercept = (int)intercept;
    return data;
}

/* The stored row of record i. */
DPK_INLINE int64_t stored_row(const dpk_data *data, int64_t i) {
    return data->rows ? data->rows[i] : i;
}

/* Entry k of a stored row. */
DPK_INLINE double entry_of(const dpk_data *data, int64_t row, int64_t k) {
    const int64_t at = row * data->p + k;
    const double v =
        FLOAT32 ? (double)LOAD((const float *)data->X + at) : LOAD((const double *)data->X + at);
    return MAPPED ? DPK_FMA(data->scale[k], v, data->shift[k]) : v;
}

/* Entry k of [x, 1], from x. */
DPK_INLINE double with_one(const dpk_data *data, int64_t k, double x) {
    return k == data->p ? 1.0 : x;
}

/* What belongs to a stored row beside its entries. */
typedef struct {
    double y, weight, offset;
} label;

DPK_INLINE label label_of(const glm *of, int64_t row) {
    const label found = {of->data.y[row],
                         WEIGHTED && of->record_weight ? of->record_weight[row] : 1.0,
                         WEIGHTED && of->margin_offset ? of->margin_offset[row] : 0.0};
    return found;
}

/* The margin z of a record with its offset. */
DPK_INLINE double margin_of(const glm *of, const label *record, double z) {
    return WEIGHTED && of->margin_offset ? z + record->offset : z;
}

/* Value, or first derivative, of the loss at one record, times its weight. */
DPK_INLINE double loss_at(const glm *of, int derivative, const label *record, double z) {
    const double y = record->y;
    double value = 0.0, d1 = 0.0, d2 = 0.0;
#ifdef __CUDACC_RTC__
    POINT(y, z, of->params, &value, &d1, &d2);
#else
    int number = 0;
#define EVALUATE(name)                                                                             \
    if (number++ == launch.loss)                                                                   \
        name##_point(y, z, of->params, &value, &d1, &d2);
    DPK_LOSS_LIST(EVALUATE)
#undef EVALUATE
#endif
    value = derivative ? d1 : value;
    return WEIGHTED ? value * record->weight : value;
}

/* Upper bound of |[x, 1]| from x . x, in single precision where `single`. */
DPK_INLINE double row_norm(int single, const dpk_data *data, double square) {
    const double one = data->intercept ? 1.0 : 0.0;
    return single ? norm_up_single(data, square, one) : norm_up(square + one, data->d);
}

/* What the terms of a sum, of one model over the records of one silo, have in common. */
typedef struct {
    double M;     /* magic number of the grid */
    double steps; /* 1 / grid */
    double clip;  /* the inner clip bound */
    double bias, weight;
    int single; /* whether they are in single precision */
} terms;

DPK_INLINE terms terms_of(const glm *of, int64_t i, int64_t j) {
    const dpk_data *const data = &of->data;
    const double clip = of->clip[i], q = of->grid[i * of->m + j];
    const int single = single_rows(data, clip, q) > 0;
    const terms own = {magic(q),
                       1.0 / q,
                       single ? inner_bound_single(clip, q, data->d)
                              : inner_bound(clip, q, data->d),
                       data->intercept ? of->w[i * of->stride + j * of->w_stride + data->p] : 0.0,
                       of->weight ? of->weight[j] : 1.0,
                       single};
    return own;
}

/* What the row [x, 1] of a record is multiplied with, from its label and x . w. */
DPK_INLINE double factor_of(const glm *of, const terms *own, const label *record, double norm,
                            double product) {
    const double ratio = row_ratio(&of->data, norm);
    const double z = margin_of(of, record, ratio * (product + own->bias));
    const double s = ratio * loss_at(of, 1, record, z);
    return own->weight * clamp_scalar(s, factor_limit(own->clip, norm));
}

/* The steps that s x adds to a coordinate, and with them the bits of M in double precision. */
DPK_INLINE uint64_t steps_of(int single, const terms *own, double s, double x) {
    if (single)
        return (uint64_t)(int64_t)ROUND(single_factor(s, own->steps) * (float)x);
    return (uint64_t)bits_of(DPK_FMA(s, x, own->M));
}

/* The bits of M in the sum of `added` records. */
DPK_INLINE uint64_t excess_of(int single, const terms *own, int64_t added) {
    return single ? 0 : (uint64_t)added * (uint64_t)bits_of(own->M);
}
