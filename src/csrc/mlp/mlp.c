/* Sums of clipped gradients of multilayer perceptrons: factors of the blocks of some records, block
 * by block of records, then their products, strip by strip of columns.
 *
 * Both kinds of work run in parallel, and no thread needs sums of its own: every entry of the
 * result is summed over all records in their order, so that even floating-point sums do not depend
 * on the threads. */
#include "core/tasks.h"
#include "mlp/mlp.h"
#include "mlp/factors.h"
#include "mlp/network.h"

/* Factors of the records begin .. end of one silo. weights: packed ones of the points, `stride`
 * from one point to the next; scratch: of this thread. */
static void put_block(const dpk_data *data, const dpk_mlp *net, const double *weights,
                      intptr_t stride, int64_t begin, int64_t end, intptr_t row, const target *to,
                      double *scratch) {
    const intptr_t n = (intptr_t)(end - begin), first = dpk_row_stride(net->layers[0].in);
    double *const x = scratch, *const now = x + DPK_MLP_BLOCK * first;
    double *const old = net->points > 1 ? now + net->n_scratch : NULL;
    double *const y = now + net->points * net->n_scratch, *const e = y + DPK_MLP_BLOCK;
    double *const parts = e + DPK_MLP_BLOCK * (net->layers[net->depth - 1].out + 1);
    load_block_rows(data, begin, n, x, first);
    for (intptr_t i = n; i % TILE_ROWS; i++)
        memset(x + i * first, 0, (size_t)dpk_padded(data->p) * sizeof(double));
    for (intptr_t i = 0; i < n; i++)
        y[i] = data->y[data->rows ? data->rows[begin + i] : begin + i];
    pass(net, weights, n, x, y, e, now);
    if (old)
        pass(net, weights + stride, n, x, y, e, old);
    for (intptr_t l = 0; l < net->depth; l++)
        parts[3 * l * net->points + 2] = 1.0;
    for (intptr_t i = 0; i < n; i++) {
        if (old)
            subtract(net, i, x, to->gradient_clip, now, old, parts);
        put_record(net, i, row + i, x, now, old, to, parts);
    }
}

/* Strips of a layer's gradient, each three registers of the columns (inputs, then bias) wide. */
static inline intptr_t strips_of(const dpk_layer *layer) { return layer->in / (3 * WIDTH) + 1; }

/* Strip number `strip` of all layers' gradients: out += products of the rows begin .. end of the
 * factors. out: (n_params,). */
static void add_products(const dpk_mlp *net, intptr_t strip, intptr_t begin, intptr_t end,
                         const double *factors, intptr_t capacity, double *out) {
    const dpk_layer *layer = net->layers;
    for (; strip >= strips_of(layer); layer++)
        strip -= strips_of(layer);
    const intptr_t blocks = layer > net->layers ? net->points : 1, panel = 8 * capacity * blocks;
    const double *const from = factors + 8 * begin * blocks;
    add_strip(layer->out, layer->in + 1, (end - begin) * blocks, from + layer->left * capacity,
              panel, from + layer->right * capacity, panel, 3 * strip, out + layer->params);
}

/* Inner bound C'. */
static double bound_of(const dpk_mlp *net, double clip, double unit) {
    if (net->points == 1)
        return clip * (1.0 - (double)(net->width + 16) * 0x1p-50);
    double fourth = 0.0; /* R^4 */
    for (const dpk_layer *layer = net->layers + 1; layer < net->layers + net->depth; layer++) {
        const double r = sqrt((double)layer->out) + sqrt((double)(layer->in + 1));
        fourth += r * r * r * r;
    }
    const double slack = unit != 0.0 ? unit * sqrt(8.0 * clip) * sqrt(sqrt(fourth)) : 0.0;
    return (clip - slack) * (1.0 - (double)(2 * net->width + 80) * 0x1p-50);
}

dpk_status dpk_mlp_gradient(const dpk_data *data, const dpk_mlp *net, const double *params,
                            intptr_t models, double unit, const dpk_sum *sum, double *weights,
                            double *scratch, double *factors, double *out) {
    const int64_t blocks = sum->first_task[data->m];
    const intptr_t batch = dpk_mlp_batch(net, blocks, sum->n_threads),
                   capacity = dpk_mlp_capacity(batch);
    const double clip = bound_of(net, sum->clip, unit);
    const double gradient_clip = net->gradient_clip * (1.0 - (double)(net->width + 16) * 0x1p-50);
    intptr_t strips = 0, eights = 0;
    for (intptr_t l = 0; l < net->depth; l++) {
        strips += strips_of(net->layers + l);
        eights += dpk_padded(net->layers[l].out) / 8;
    }
#pragma omp parallel for schedule(dynamic, 4) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (intptr_t t = 0; t < net->points * models * eights; t++) {
        const intptr_t model = t / eights;
        const dpk_layer *layer = net->layers;
        intptr_t eight = t % eights;
        for (; eight >= dpk_padded(layer->out) / 8; layer++)
            eight -= dpk_padded(layer->out) / 8;
        pack_weights(layer, 8 * eight, layer > net->layers, params + model * net->n_params,
                     weights + model * net->n_weights);
    }
    memset(out, 0, (size_t)(data->m * net->n_params) * sizeof(double));
    for (int64_t first = 0; first < blocks; first += batch) {
        const int64_t last = (blocks - first < batch ? blocks : first + batch) - 1;
        const task from = task_number(data, sum, first), upto = task_number(data, sum, last);
        _Pragma(PARALLEL) for (int64_t t = first; t <= last; t++) {
            const task u = task_number(data, sum, t);
            const target to = {clip, gradient_clip, sum->silo_weight ? sum->silo_weight[u.j] : 1.0,
                               unit, capacity,      factors};
            put_block(data, net, weights + (models > 1 ? u.j : 0) * net->n_weights,
                      models * net->n_weights, u.begin, u.end,
                      (intptr_t)(t - first) * DPK_MLP_BLOCK, &to,
                      scratch + thread_number() * dpk_thread_stride(dpk_mlp_scratch(net)));
        }
        _Pragma(PARALLEL) for (intptr_t t = 0; t < (upto.j - from.j + 1) * strips; t++) {
            const intptr_t j = from.j + t / strips;
            /* Only the last block of a silo may be partial, so that its records are consecutive
             * rows. */
            const int64_t start = j > from.j ? sum->first_task[j] : first;
            const int64_t begin = j > from.j ? data->offsets[j] : from.begin;
            const int64_t end = j < upto.j ? data->offsets[j + 1] : upto.end;
            const intptr_t row = (intptr_t)(start - first) * DPK_MLP_BLOCK;
            if (begin < end)
                add_products(net, t % strips, row, row + (intptr_t)(end - begin), factors, capacity,
                             out + j * net->n_params);
        }
    }
    if (unit != 0.0) {
#pragma omp parallel for schedule(static) num_threads(sum->n_threads) if (sum->n_threads > 1)
        for (intptr_t k = 0; k < data->m * net->n_params; k++) {
            const double step = sum->grid ? sum->grid[k / net->n_params] : unit * unit;
            out[k] = rint(out[k] * (unit * unit / step)) * step;
        }
    }
    return DPK_OK;
}
