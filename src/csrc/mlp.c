/* Sums of clipped gradients of multilayer perceptrons: factors of the blocks of some records, block
 * by block of records, then their products, strip by strip of columns.
 *
 * Both kinds of work run in parallel, and no thread needs sums of its own: an entry of the result
 * is one chain over all records in their order, so that even floating-point sums depend on nothing
 * else. */
#include "mlp.h"
#include "network.h"

dpk_mlp_gradient_fn DPK_FN(dpk_mlp_gradient);

/* A record that would be scaled by less is left out, like one whose norm overflows: so t and s / t,
 * whose norms lie between 2^-120 and 2^512, neither overflow nor vanish. */
#define SMALLEST_SCALE 0x1p-500

/* The two vectors of a rank-one block: the derivatives, and the inputs followed by `one`, which is
 * 1 or, for a difference of inputs, 0. */
typedef struct {
    const double *delta, *input;
    double one, left_norm, right_norm; /* upper bounds of their norms */
} pair;

/* v . v; v: (n,), followed by zeros up to a multiple of eight. */
static inline double square(intptr_t n, const double *v) {
    f8 a = f8_zero(), b = f8_zero();
    for (intptr_t k = 0; k < n; k += 16) {
        const f8 x = f8_load(v + k);
        a = f8_fma(x, x, a);
        if (k + 8 < n) {
            const f8 y = f8_load(v + k + 8);
            b = f8_fma(y, y, b);
        }
    }
    return f8_sum(f8_add(a, b));
}

/* One row of panels, `panel` apart: factor v, truncated where `whole`; v: (n,) and zeros. */
static inline void put_factor(intptr_t n, const double *v, double factor, int whole, double *to,
                              intptr_t panel) {
    const f8 f = f8_set(factor);
    for (intptr_t k = 0; k < n; k += 8, to += panel) {
        const f8 x = f8_mul(f, f8_load(v + k));
        f8_store(to, whole ? f8_trunc(x) : x);
    }
}

/* Where the factors of a block of records go, and how. */
typedef struct {
    double clip, weight; /* inner bound C', factor of the silo */
    double unit;         /* q or 0 */
    intptr_t room;       /* records that there is room for */
    double *factors;
} target;

/* Pair number `which` of layer l of record i; x, now, old: rows and layers of its block, old NULL
 * for a gradient. In a difference `now` holds delta - delta', `old` a - a'. */
static inline pair pair_of(const dpk_layer *layer, int first_layer, int which, intptr_t i,
                           const double *x, const double *now, const double *old) {
    const double *const delta = (which ? old : now) + layer->delta;
    const double *const input = first_layer ? x : (which ? old : now) + layer->input;
    return (pair){.delta = delta + i * dpk_mlp_row(layer->out),
                  .input = input + i * dpk_mlp_row(layer->in),
                  .one = which ? 0.0 : 1.0};
}

/* Factors of record i of a block, row `row` of what is held. norms: (depth, points, 2) work space.
 */
static void put_record(const dpk_mlp *net, intptr_t i, intptr_t row, const double *x,
                       const double *now, const double *old, const target *to, double *norms) {
    const int whole = to->unit != 0.0;
    double total = 0.0;
    for (intptr_t l = 0; l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        double length = 0.0;
        for (int which = 0; which < (l ? net->points : 1); which++) {
            const pair p = pair_of(layer, l == 0, which, i, x, now, old);
            double *const norm = norms + 2 * (l * net->points + which);
            norm[0] = norm_up(square(layer->out, p.delta), layer->out);
            norm[1] = norm_up(square(layer->in, p.input) + p.one, layer->in);
            length += norm[0] * norm[1];
        }
        total += length * length;
    }
    const double norm = sqrt(total);
    double s = norm <= to->clip ? 1.0 : factor_limit(to->clip, norm);
    s = (norm <= DBL_MAX ? s : 0.0) * to->weight;
    s = s >= SMALLEST_SCALE ? s : 0.0;
    for (intptr_t l = 0; l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        const intptr_t in = layer->in;
        const int count = l ? net->points : 1;
        const intptr_t panel = 8 * to->room * count;
        for (int which = 0; which < count; which++) {
            const pair p = pair_of(layer, l == 0, which, i, x, now, old);
            const double *const norm_of = norms + 2 * (l * net->points + which);
            double *const left = to->factors + layer->left * to->room + 8 * (row * count + which);
            double *const right = to->factors + layer->right * to->room + 8 * (row * count + which);
            double *const bias = right + in / 8 * panel;
            if (s == 0.0) { /* 0 times infinity would be NaN */
                for (intptr_t k = 0; k < layer->out; k += 8)
                    f8_store(left + k / 8 * panel, f8_zero());
                for (intptr_t k = 0; k <= in; k += 8)
                    f8_store(right + k / 8 * panel, f8_zero());
                continue;
            }
            const double t = whole ? sqrt(s) * sqrt(norm_of[0] / norm_of[1]) : 1.0;
            const double step = whole ? 1.0 / to->unit : 1.0; /* a power of two */
            const double one = t * step * p.one;
            put_factor(layer->out, p.delta, s / t * step, whole, left, panel);
            f8_store(bias, f8_zero()); /* where the inputs fill whole vectors, it begins another */
            put_factor(in, p.input, t * step, whole, right, panel);
            bias[in % 8] = whole ? (double)(int64_t)one : one;
        }
    }
}

/* Factors of the records begin .. end of one silo. weights: packed ones of the points, `apart` from
 * one point to the next; scratch: of this thread. */
static void put_block(const dpk_data *data, const dpk_mlp *net, const double *weights,
                      intptr_t apart, int64_t begin, int64_t end, intptr_t row, const target *to,
                      double *scratch) {
    const intptr_t n = (intptr_t)(end - begin), first = dpk_mlp_row(net->layers[0].in);
    double *const x = scratch, *const now = x + DPK_MLP_BLOCK * first;
    double *const old = net->points > 1 ? now + net->n_scratch : NULL;
    double *const y = now + net->points * net->n_scratch, *const e = y + DPK_MLP_BLOCK;
    double *const norms = e + DPK_MLP_BLOCK * (net->layers[net->depth - 1].out + 1);
    load_rows[kind_of(data)](data, begin, n, x, first);
    for (intptr_t i = n; i % TALL; i++)
        memset(x + i * first, 0, (size_t)dpk_padded(data->p) * sizeof(double));
    for (intptr_t i = 0; i < n; i++)
        y[i] = data->y[data->rows ? data->rows[begin + i] : begin + i];
    pass(net, weights, n, x, y, e, now);
    if (old) {
        pass(net, weights + apart, n, x, y, e, old);
        for (intptr_t l = 0; l < net->depth; l++) {
            const dpk_layer *const layer = net->layers + l;
            for (intptr_t k = 0; k < n * dpk_mlp_row(layer->out); k++)
                now[layer->delta + k] -= old[layer->delta + k];
            for (intptr_t k = 0; l > 0 && k < n * dpk_mlp_row(layer->in); k++)
                old[layer->input + k] = now[layer->input + k] - old[layer->input + k];
        }
    }
    for (intptr_t i = 0; i < n; i++)
        put_record(net, i, row + i, x, now, old, to, norms);
}

/* Strips of a layer's gradient: three registers of columns for the inputs and the bias. */
static inline intptr_t strips_of(const dpk_layer *layer) { return layer->in / (3 * WIDTH) + 1; }

/* Strip number `strip` of all layers' gradients: out += products of the rows begin .. end of the
 * factors. out: (n_params,). */
static void add_products(const dpk_mlp *net, intptr_t strip, intptr_t begin, intptr_t end,
                         const double *factors, intptr_t room, double *out) {
    const dpk_layer *layer = net->layers;
    for (; strip >= strips_of(layer); layer++)
        strip -= strips_of(layer);
    const intptr_t blocks = layer > net->layers ? net->points : 1, panel = 8 * room * blocks;
    const double *const from = factors + 8 * begin * blocks;
    add_strip(layer->out, layer->in + 1, (end - begin) * blocks, from + layer->left * room, panel,
              from + layer->right * room, panel, 3 * strip, out + layer->params);
}

dpk_status DPK_FN(dpk_mlp_gradient)(const dpk_data *data, const dpk_mlp *net, const double *params,
                                    intptr_t models, double unit, const dpk_sum *sum,
                                    double *weights, double *scratch, double *factors,
                                    double *out) {
    const int64_t blocks = sum->first_task[data->m];
    const intptr_t held = dpk_mlp_held(net, blocks, sum->n_threads), room = dpk_mlp_room(held);
    const double clip = sum->clip * (1.0 - (double)(net->width + 16) * 0x1p-50);
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
    for (int64_t first = 0; first < blocks; first += held) {
        const int64_t last = (blocks - first < held ? blocks : first + held) - 1;
        const task from = task_number(data, sum, first), upto = task_number(data, sum, last);
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
        for (int64_t t = first; t <= last; t++) {
            const task u = task_number(data, sum, t);
            const target to = {clip, sum->silo_weight ? sum->silo_weight[u.j] : 1.0, unit, room,
                               factors};
            put_block(data, net, weights + (models > 1 ? u.j : 0) * net->n_weights,
                      models * net->n_weights, u.begin, u.end,
                      (intptr_t)(t - first) * DPK_MLP_BLOCK, &to,
                      scratch + thread_number() * dpk_apart(dpk_mlp_scratch(net)));
        }
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
        for (intptr_t t = 0; t < (upto.j - from.j + 1) * strips; t++) {
            const intptr_t j = from.j + t / strips;
            /* Only a silo's last block is not full: its records are consecutive rows. */
            const int64_t start = j > from.j ? sum->first_task[j] : first;
            const int64_t begin = j > from.j ? data->offsets[j] : from.begin;
            const int64_t end = j < upto.j ? data->offsets[j + 1] : upto.end;
            const intptr_t row = (intptr_t)(start - first) * DPK_MLP_BLOCK;
            if (begin < end)
                add_products(net, t % strips, row, row + (intptr_t)(end - begin), factors, room,
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
