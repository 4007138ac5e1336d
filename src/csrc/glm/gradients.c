/* Units of work at several models, in blocks of rows. */
#include "glm/gradients.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "core/variants.h"
#include "glm/models_dense.h"
#include "glm/models_sparse.h"

/* The models of silo j, and zeros where sums will be. */
static void load_models(const dpk_data *data, const dpk_models *models, intptr_t j,
                        const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide, width = own->width, p = data->p;
    for (intptr_t i = 0; i < wide; i++) {
        /* Those that fill a tile are copies of the first. */
        const intptr_t from = i < models->count ? i : 0;
        const double *const w = models->w + from * models->stride + j * models->w_stride;
        const double grid = models->grid[from * data->m + j];
        own->bias[i] = data->intercept ? w[p] : 0.0;
        own->M[i] = magic(grid);
        own->clip[i] = inner_bound(models->clip[from], grid, data->d);
        if (data->indptr)
            for (intptr_t k = 0; k < data->d; k++) {
                own->w[k * wide + i] = w[k];
                own->acc[k * wide + i] = 0.0;
                own->added[k] = 0;
            }
        else {
            memset(own->w + i * width, 0, (size_t)width * sizeof *own->w);
            memcpy(own->w + i * width, w, (size_t)p * sizeof *w);
            memset(own->acc + i * width, 0, (size_t)width * sizeof *own->acc);
        }
    }
}

DPK_INLINE void sum_rows(row_kind kind, const dpk_data *shared, const dpk_loss *loss, double weight,
                         int64_t begin, int64_t end, const dpk_gradients_memory *own) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    block b;
    for (int64_t i = begin; i < end; i += own->rows) {
        const intptr_t n = rows_left(i, end, own->rows);
        load_rows(kind, data, i, n, &b);
        if (kind & ROW_SPARSE)
            sparse_block(kind, data, loss, weight, n, &b, own);
        else {
            prefetch_plan next =
                plan_prefetch(data, i + n, rows_left(i + n, end, own->rows),
                              (n + TILE - 1) / TILE * ((own->count + TILE - 1) / TILE));
            dense_block(kind, data, loss, weight, n, &b, &next, own);
        }
    }
}

DEFINE_FOR_KINDS(static void sum_of_kind, data, 8, sum_rows,
                 (const dpk_data *data, const dpk_loss *loss, double weight, int64_t begin,
                  int64_t end, const dpk_gradients_memory *own),
                 data, loss, weight, begin, end, own)

/* The sums of model i, in steps of its grid, to `out`, (d,). */
static void store_sums(const dpk_data *data, const dpk_gradients_memory *own, intptr_t i,
                       int64_t records, int64_t *out) {
    if (data->indptr) {
        for (intptr_t k = 0; k < data->d; k++)
            out[k] = (int64_t)((uint64_t)bits_of(own->acc[k * own->wide + i]) -
                               (uint64_t)own->added[k] * (uint64_t)bits_of(own->M[i]));
        return;
    }
    memcpy(out, own->acc + i * own->width, (size_t)data->d * sizeof *out);
    remove_magic(data->d, records, own->M[i], out);
}

dpk_status dpk_glm_gradients(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                             const dpk_sum *sum, double *scratch, double *out) {
    const intptr_t d = data->d, stride = dpk_thread_stride(d), count = models->count;
    const intptr_t size = dpk_thread_stride(dpk_gradients_scratch(data, count));
    const int64_t n_tasks = sum->first_task[data->m];
    _Pragma(PARALLEL) for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        const dpk_gradients_memory own =
            dpk_gradients_divide(data, count, scratch + thread_number() * size);
        load_models(data, models, u.j, &own);
        sum_of_kind(data, loss, sum->silo_weight ? sum->silo_weight[u.j] : 1.0, u.begin, u.end,
                    &own);
        for (intptr_t i = 0; i < count; i++)
            store_sums(data, &own, i, u.end - u.begin,
                       (int64_t *)(void *)(sum->partial + (i * n_tasks + t) * stride));
    }
    for (intptr_t i = 0; i < count; i++) {
        dpk_sum one = *sum;
        one.grid = models->grid + i * data->m;
        one.partial += i * n_tasks * stride;
        sum_partials(&one, data->m, d, out + i * data->m * d);
    }
    return DPK_OK;
}
