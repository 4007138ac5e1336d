/* Units of work at several models, in blocks of rows. */
#include "glm/gradients.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "core/variants.h"
#include "glm/models_dense.h"
#include "glm/models_single.h"
#include "glm/models_sparse.h"

static intptr_t wide_of(const dpk_data *data, intptr_t count) {
    return !data->indptr && count <= 4 ? 4 : dpk_padded(count);
}

/* The models of silo j whose sums are in single precision, or the others, for one pass. */
static void choose_models(const dpk_data *data, const dpk_models *models, intptr_t j, int single,
                          dpk_gradients_memory *own) {
    own->count = 0;
    own->single = single ? own->most : 0;
    for (intptr_t i = 0; i < models->count; i++) {
        const intptr_t rows = single_rows(data, models->clip[i], models->grid[i * data->m + j]);
        if (single && rows > 0 && rows < own->single)
            own->single = rows;
        if (single == (rows > 0))
            own->which[own->count++] = i;
    }
    own->wide = wide_of(data, own->count);
}

/* The digits that factors must have where all these models' sums may be chained. */
static uint64_t digits_of_factors(const dpk_data *data, const dpk_models *models, intptr_t j,
                                  const dpk_gradients_memory *own) {
    int64_t rows = (int64_t)1 << 51;
    for (intptr_t i = 0; i < own->count; i++) {
        const intptr_t at = own->which[i];
        const int64_t most = chained_rows(models->clip[at], models->grid[at * data->m + j]);
        rows = most < rows ? most : rows;
    }
    return FUSED && !own->single && rows >= own->rows ? chain_digits(rows) : 0;
}

/* Number i of these models for silo j; those that fill a tile are copies of the first. */
static const double *model_at(const dpk_models *models, intptr_t j, const dpk_gradients_memory *own,
                              intptr_t i) {
    return models->w + own->which[i < own->count ? i : 0] * models->stride + j * models->w_stride;
}

static void load_constants(const dpk_data *data, const dpk_models *models, intptr_t j,
                           dpk_gradients_memory *own) {
    const intptr_t wide = own->wide;
    own->digits = digits_of_factors(data, models, j, own);
    for (intptr_t i = 0; i < dpk_padded(wide); i++) { /* four models fill a vector twice */
        const int is_model = i % wide < own->count;
        const intptr_t from = own->which[is_model ? i % wide : 0];
        const double grid = models->grid[from * data->m + j], clip = models->clip[from];
        own->bias[i] =
            data->intercept && is_model ? model_at(models, j, own, i % wide)[data->p] : 0.0;
        own->M[i] = own->single ? 1.0 / grid : magic(grid);
        own->clip[i] = own->single ? inner_bound_single(clip, grid, data->d)
                                   : inner_bound(clip, grid, data->d);
        own->ordinary = (i == 0 || own->ordinary) && is_ordinary(own->clip[i]);
    }
}

/* The numbers of these models, and zeros where sums will be. */
static void load_dense(const dpk_data *data, const dpk_models *models, intptr_t j,
                       const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide, width = own->width, p = data->p;
    /* What no tile computes stays 0: what was in memory might be denormal numbers, which are slow.
     */
    memset(own->z, 0, (size_t)(own->most * wide) * sizeof *own->z);
    memset(own->w, 0, (size_t)(wide * width) * sizeof *own->w);
    memset(own->acc, 0, (size_t)(wide * width) * sizeof *own->acc);
    for (intptr_t i = 0; i < wide; i++) {
        const double *const w = model_at(models, j, own, i);
        float *const single = (float *)(void *)own->w + i * single_width(data->d);
        for (intptr_t k = 0; k < p && own->single; k++)
            single[k] = (float)w[k];
        if (!own->single)
            memcpy(own->w + i * width, w, (size_t)p * sizeof *w);
    }
}

/* The same with all models' numbers of a column together. */
static void load_sparse(const dpk_data *data, const dpk_models *models, intptr_t j,
                        const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide;
    memset(own->acc, 0, (size_t)(data->d * wide) * sizeof *own->acc);
    for (intptr_t i = 0; i < wide; i++) {
        const double *const w = model_at(models, j, own, i);
        for (intptr_t k = 0; k < data->d; k++)
            own->w[k * wide + i] = w[k];
    }
}

DPK_INLINE void sum_models(row_kind kind, const dpk_data *shared, const dpk_loss *loss,
                           double weight, int64_t begin, int64_t end,
                           const dpk_gradients_memory *own) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    for (int64_t i = begin; i < end; i += own->rows) {
        const intptr_t n = rows_left(i, end, own->rows);
        if (kind & ROW_SPARSE) {
            block b;
            load_rows(kind, data, i, n, &b);
            sparse_block(kind, data, loss, weight, n, &b, own);
        } else {
            prefetch_plan next = plan_prefetch(data, i + n, rows_left(i + n, end, own->rows),
                                               prefetched_shares(data, n, own));
            dense_block(kind, data, loss, weight, i, n, &next, own);
        }
    }
}

DEFINE_FOR_KINDS(static void sum_of_kind, data, 8, sum_models,
                 (const dpk_data *data, const dpk_loss *loss, double weight, int64_t begin,
                  int64_t end, const dpk_gradients_memory *own),
                 data, loss, weight, begin, end, own)

static void sum_models_single(const dpk_data *data, const dpk_loss *loss, double weight,
                              int64_t begin, int64_t end, const dpk_gradients_memory *own) {
    block b;
    for (int64_t i = begin; i < end; i += own->single) {
        const intptr_t n = rows_left(i, end, own->single);
        prefetch_plan next =
            plan_prefetch(data, i + n, rows_left(i + n, end, own->single),
                          (n + TILE - 1) / TILE * ((own->count + TILE - 1) / TILE));
        single_load(data, NULL, 0.0, NULL, i, n, &b);
        single_block_of_models(data, loss, weight, n, &b, &next, own);
    }
}

/* The sums of a pass over `records` rows, in steps of the grids; those of model i to
 * out + which[i] * stride, (d,). */
static void store_sums(const dpk_data *data, const dpk_gradients_memory *own, int64_t records,
                       intptr_t stride, int64_t *out) {
    const int64_t *const acc = (const int64_t *)(const void *)own->acc;
    for (intptr_t i = 0; i < own->count; i++) {
        int64_t *const to = out + own->which[i] * stride;
        if (data->indptr) {
            for (intptr_t k = 0; k < data->d; k++)
                to[k] = acc[k * own->wide + i];
            continue;
        }
        memcpy(to, acc + i * own->width, (size_t)data->d * sizeof *to);
        if (!own->single)
            remove_magic(data->d, records, own->M[i], to);
    }
}

static void gradients_task(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                           const dpk_sum *sum, double *scratch, int64_t t) {
    const intptr_t stride = dpk_thread_stride(data->d), count = models->count;
    const intptr_t size = dpk_thread_stride(dpk_gradients_scratch(data, count));
    const task u = task_number(data, sum, t);
    const double weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
    dpk_gradients_memory own = dpk_gradients_divide(data, count, scratch + thread_number() * size);
    for (int single = 0; single < 2; single++) {
        choose_models(data, models, u.j, single, &own);
        if (own.count == 0)
            continue;
        load_constants(data, models, u.j, &own);
        if (data->indptr)
            load_sparse(data, models, u.j, &own);
        else
            load_dense(data, models, u.j, &own);
        if (single)
            sum_models_single(data, loss, weight, u.begin, u.end, &own);
        else
            sum_of_kind(data, loss, weight, u.begin, u.end, &own);
        store_sums(data, &own, u.end - u.begin, sum->first_task[data->m] * stride,
                   (int64_t *)(void *)(sum->partial + t * stride));
    }
}

dpk_status dpk_glm_gradients(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                             const dpk_sum *sum, double *scratch, double *out) {
    const intptr_t d = data->d, stride = dpk_thread_stride(d);
    const int64_t n_tasks = sum->first_task[data->m];
    EACH_TASK(n_tasks, gradients_task(data, models, loss, sum, scratch, t));
    for (intptr_t i = 0; i < models->count; i++) {
        dpk_sum one = *sum;
        one.grid = models->grid + i * data->m;
        one.partial += i * n_tasks * stride;
        sum_partials(&one, data->m, d, out + i * data->m * d);
    }
    return DPK_OK;
}
