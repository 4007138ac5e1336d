/* Eight models at a time. A record's row becomes integers for every model (hessian.h), and products
 * of two entries are added to eight sums that are together in memory. */
#include "glm/hessians.h"
#include "core/tasks.h"
#include "core/variants.h"
#include "glm/hessian.h"
#include "glm/models_sparse.h"

enum { MODELS = 8 };

/* What is the same for all records of a task. */
typedef struct {
    const dpk_data *data;
    const dpk_loss *loss;
    double *w;     /* (d, 8) */
    double *value; /* (d, 8) the integers of a row */
    double *at;    /* (d,) as intptr_t: columns of a row */
    double bias[MODELS], clip[MODELS], scale[MODELS];
} pass;

/* From first model on; those that fill the eight are copies of it. */
static void load_models(const dpk_data *data, const dpk_models *models, const double *row_grid,
                        double weight, intptr_t j, intptr_t first, pass *of) {
    for (intptr_t i = 0; i < MODELS; i++) {
        const intptr_t from = first + i < models->count ? first + i : first;
        const double *const w = models->w + from * models->stride + j * models->w_stride;
        for (intptr_t k = 0; k < data->d; k++)
            of->w[k * MODELS + i] = w[k];
        of->bias[i] = data->intercept ? w[data->p] : 0.0;
        of->clip[i] = inner_bound(sqrt(models->clip[from]), row_grid[from], data->d);
        of->scale[i] = weight / row_grid[from];
    }
}

/* From products of n rows with the models to factors of the rows, (n, 8) each; as in hessian.c. */
static void find_factors_of(const pass *of, intptr_t n, const block *b, double *z, double *t) {
    double y[DPK_BLOCK * MODELS];
    find_margins(n, MODELS, b, of->bias, y, z);
    add_model_offsets(of->data, n, MODELS, b->row, z);
    evaluate(of->loss, n * MODELS, y, z, NULL, NULL, t);
    weigh_models(of->data, n, MODELS, b->row, t);
    for (intptr_t r = 0; r < n; r++)
        for (int i = 0; i < MODELS; i++) {
            t[r * MODELS + i] = dpk_hessian_factor(t[r * MODELS + i], b->ratio[r], b->norm[r],
                                                   of->clip[i], of->scale[i]);
        }
}

/* form: the kind of the rows but for ROW_SPARSE */
DPK_INLINE void add_records(int form, const pass *of, int64_t begin, int64_t end, double *acc) {
    const row_kind kind = form | ROW_SPARSE;
    const dpk_data copy = *of->data, *const data = &copy; /* see rows.h */
    const f8 magic_number = f8_set(magic(1.0)), minus = f8_set(-magic(1.0));
    intptr_t *const at = (intptr_t *)(void *)of->at;
    double z[DPK_BLOCK * MODELS], factor[DPK_BLOCK * MODELS];
    block b;
    for (int64_t first = begin; first < end; first += DPK_BLOCK) {
        const intptr_t n = rows_left(first, end, DPK_BLOCK);
        load_rows(kind, data, first, n, &b);
        for (intptr_t r = 0; r < n; r++) {
            const row x = row_at(kind, data, b.row[r]);
            sparse_dots(kind, data, &x, 1, of->w, MODELS, z + r * MODELS);
        }
        find_factors_of(of, n, &b, z, factor);
        for (intptr_t r = 0; r < n; r++) {
            const row x = row_at(kind, data, b.row[r]);
            const f8 s = f8_load(factor + r * MODELS);
            if (!(b.norm[r] <= DBL_MAX))
                continue;
            for (intptr_t t = 0; t < x.n + data->intercept; t++) {
                const f8 entry = f8_set(sparse_entry(kind, data, &x, t, at + t));
                const f8 v = f8_add(f8_fma(s, entry, magic_number), minus);
                double *const to = acc + at[t] * (at[t] + 1) / 2 * MODELS;
                f8_store(of->value + t * MODELS, v);
                for (intptr_t u = 0; u <= t; u++) {
                    double *const sum = to + at[u] * MODELS;
                    f8_store(sum, f8_fma(v, f8_load(of->value + u * MODELS), f8_load(sum)));
                }
            }
        }
    }
}

DEFINE_VARIANTS(4, add_records, (const pass *of, int64_t begin, int64_t end, double *acc), of,
                begin, end, acc)

/* Row k of the sums of silo j at model first + i: sums of its tasks, rounded to the grid. */
static void finish_row(const dpk_data *data, const dpk_models *models, double unit,
                       const dpk_sum *sum, intptr_t j, intptr_t model, intptr_t i, intptr_t k,
                       double *out) {
    const intptr_t d = data->d, stride = dpk_thread_stride(MODELS * dpk_hessians_size(d));
    const double *const grid = models->grid;
    const double step = grid ? grid[model * data->m + j] : unit;
    for (intptr_t l = 0; l <= k; l++) {
        const double *part = sum->partial + (dpk_hessians_size(k) + l) * MODELS + i;
        int64_t whole = 0;
        for (int64_t t = sum->first_task[j]; t < sum->first_task[j + 1]; t++)
            whole += (int64_t)part[t * stride];
        out[k * d + l] = out[l * d + k] = dpk_hessian_entry(whole, grid != NULL, unit, step);
    }
}

dpk_status dpk_glm_hessians(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                            const double *row_grid, const dpk_sum *sum, double *scratch,
                            double *out) {
    const intptr_t d = data->d, m = data->m;
    const intptr_t size = MODELS * dpk_hessians_size(d);
    for (intptr_t first = 0; first < models->count; first += MODELS) {
        const intptr_t count = models->count - first < MODELS ? models->count - first : MODELS;
        _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[m]; t++) {
            const task u = task_number(data, sum, t);
            double *const own = scratch +
                                thread_number() * dpk_thread_stride(dpk_hessians_scratch(d)),
                          *const acc = sum->partial + t * dpk_thread_stride(size);
            pass of = {.data = data,
                       .loss = loss,
                       .w = own,
                       .value = own + MODELS * d,
                       .at = own + 2 * MODELS * d};
            load_models(data, models, row_grid, dpk_row_weight(sum, u.j), u.j, first, &of);
            memset(acc, 0, (size_t)size * sizeof *acc);
            add_records_variants[kind_of(data) & ~ROW_SPARSE](&of, u.begin, u.end, acc);
        }
        _Pragma(PARALLEL) for (intptr_t t = 0; t < m * d; t++) for (intptr_t i = 0; i < count; i++)
            finish_row(data, models, row_grid[first + i] * row_grid[first + i], sum, t / d,
                       first + i, i, t % d, out + ((first + i) * m + t / d) * d * d);
    }
    return DPK_OK;
}
