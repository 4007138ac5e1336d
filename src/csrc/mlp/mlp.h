/* Gradients of multilayer perceptrons, clipped per record to one norm over all parameters and
 * summed per silo: sum_i s_i (delta_1 [a_0, 1]^T, ..., delta_L [a_(L-1), 1]^T), or of differences
 * of two such gradients, on integer-valued factors.
 *
 * z_l = W_l [a_(l-1), 1], a_l = act(z_l), a_0 the record's effective row, delta_l the loss's
 * derivative in z_l. A record's block delta a^T becomes q^2 k h^T with k = trunc((s / t) delta / q)
 * and h = trunc(t a / q), t = sqrt(s |delta| / |a|), s = min(1, C' / G) (a record with G above
 * 2^500 C' or not a number is left out), C' = C (1 - (width + 16) 2^-50), G^2 >= sum_l |delta_l|^2
 * |a_(l-1)|^2, width = the sum of all layers' sizes, the input's included.
 *
 * Why the blocks together have norm C at most, exactly. Truncation lengthens no vector, scaling by
 * 1 / q is exact, and t has cancelled: q^2 |k| |h| <= s |delta| |a| (1 + u)^3, whatever t is, the
 * three for the quotient s / t and the two products. So their norm over all layers is at most (C' /
 * G) (1 + u)^4 times the true G. A computed square of n terms loses at most n / 8 + 8 roundings
 * (twice as many without fused operations) and, by underflow, less than its 1 or n 2^-240 adds;
 * root, product, square, the sum over layers and the last root add L + 6. That makes width / 2 + 40
 * roundings of u = 2^-53 at most, and the factor covers 8 width + 128.
 *
 * Why sums are exact. Entries of q^-2 times a block are integers of at most |k| |h| <= C / q^2:
 * where n ceil(C / q^2) <= 2^52, so are all partial sums over n records, below 2^53.
 *
 * Differences. Both gradients are clipped first, to B' = B (1 - (width + 16) 2^-50) as in the sum
 * of gradients that the differences continue; delta and delta' include that factor. delta a^T -
 * delta' a'^T is the sum of two blocks, U = (delta - m delta') a^T and V = m delta' (a - a' / m)^T,
 * for any m > 0; m = sqrt(|delta| |a'| / (|delta'| |a|)) makes both as small as the difference also
 * where delta and a change by factors that cancel. Layer 0 has no V, and m = 1. With D_l^2 = |U|^2
 * + |V|^2 + 2 <U, V>, two scalar products, and T_l = |U| + |V|, D and T the norms over layers, s =
 * min(1, C' / max(D, T / 4)), C' = (C - q sqrt(8 C) R) (1 - (2 width + 80) 2^-50), R^4 = sum over l
 * > 0 of r_l^4, r_l = sqrt(out) + sqrt(in + 1). T / 4 > D only where delta and a both reverse their
 * direction.
 *
 * Why their norm is at most C. Truncation shortens U and V but may lengthen their sum, since parts
 * that cancel may be cut off. A factor of norm b, b^2 = s |delta| |a|, changes by less than q in
 * every entry, so a block is off by b q r_l, two of them by (b + b') q r_l <= q r_l sqrt(2 s T_l),
 * and all layers by at most q sqrt(2 s T) R (Cauchy-Schwarz), where s T <= 4 C: C' is smaller than
 * C by that. Rounding: D^2 is off by at most (3 width / 2 + 60) u of sum |U|^2 + |V|^2 <= T^2,
 * which is at most 16 max(D, T / 4)^2 thanks to the term T / 4. Half of it on the root, 6 u of |U|
 * + |V| in the factors and the rounding of C' itself make 13 width + 560, and the factor covers 15
 * width + 620. As s T <= 4 C, sums are exact where n ceil(4 C / q^2) <= 2^52. */
#pragma once

#include "core/dpk.h"

/* Records whose activations a thread computes at a time. */
enum { DPK_MLP_BLOCK = 64 };

typedef enum { DPK_RELU = 0, DPK_TANH = 1 } dpk_activation;

/* Offsets in doubles. */
typedef struct {
    intptr_t in, out;
    intptr_t params; /* W (out, in + 1), the bias last, in a model's parameters */
    intptr_t bias;   /* bias, W^T (in, out) and W (out, in) in panels (product.h) in its
                      * packed weights */
    intptr_t input;  /* inputs (BLOCK, row(in)) in the work space of a block; unused for layer 0 */
    intptr_t delta;  /* derivatives (BLOCK, row(out)) there */
    intptr_t left;   /* factors (capacity, out) in panels, per record of capacity */
    intptr_t right;  /* factors (capacity, in + 1), likewise */
} dpk_layer;

typedef struct {
    intptr_t depth;
    const dpk_layer *layers; /* (depth,) */
    dpk_activation activation;
    const dpk_loss *loss; /* of one output; NULL: softmax cross-entropy of all outputs */
    intptr_t n_params, n_weights, n_scratch, n_factors;
    intptr_t width;       /* sizes of all layers, the input's included */
    int points;           /* 1: gradients; 2: differences of gradients */
    double gradient_clip; /* B of differences, or infinity */
} dpk_mlp;

/* Fills `net` and its layers from sizes (depth + 1,). Layer 0 has one block a record also in a
 * difference, as its inputs are the same at both points. */
static inline void dpk_mlp_layout(const intptr_t *sizes, dpk_layer *layers, dpk_mlp *net) {
    net->n_params = net->n_weights = net->n_scratch = net->n_factors = 0;
    net->width = sizes[0];
    for (intptr_t l = 0; l < net->depth; l++) {
        const intptr_t in = sizes[l], out = sizes[l + 1], blocks = l > 0 ? net->points : 1;
        const intptr_t scratch = net->n_scratch, factors = net->n_factors;
        const intptr_t inputs = l > 0 ? DPK_MLP_BLOCK * dpk_row_stride(in) : 0;
        layers[l] = (dpk_layer){.in = in,
                                .out = out,
                                .params = net->n_params,
                                .bias = net->n_weights,
                                .input = scratch,
                                .delta = scratch + inputs,
                                .left = factors,
                                .right = factors + blocks * dpk_padded(out)};
        net->n_params += out * (in + 1);
        net->n_weights += (1 + in) * dpk_padded(out) + (l > 0 ? out * dpk_padded(in) : 0);
        net->n_scratch += inputs + DPK_MLP_BLOCK * dpk_row_stride(out);
        net->n_factors += blocks * (dpk_padded(out) + dpk_padded(in + 1));
        net->width += out;
    }
    net->layers = layers;
}

/* Doubles of a thread's work space: the rows and the layers at all points, outputs and labels,
 * norms of a record. */
static inline intptr_t dpk_mlp_scratch(const dpk_mlp *net) {
    const dpk_layer *const last = net->layers + net->depth - 1;
    return DPK_MLP_BLOCK * (dpk_row_stride(net->layers[0].in) + last->out + 2) +
           net->points * (net->n_scratch + 3 * dpk_padded(net->depth));
}

/* How many of `blocks` of records form a batch, all of whose factors, some MiB, are computed before
 * they are multiplied. */
static inline intptr_t dpk_mlp_batch(const dpk_mlp *net, int64_t blocks, int n_threads) {
    const intptr_t some = (1 << 19) / (DPK_MLP_BLOCK * net->n_factors);
    const intptr_t least = 2 * n_threads > 8 ? 2 * n_threads : 8;
    const intptr_t batch = some < least ? least : some;
    return batch < blocks ? batch : (intptr_t)blocks;
}

/* Capacity in records: one more than a batch has, so that panels do not map to a few sets of the
 * cache. */
static inline intptr_t dpk_mlp_capacity(intptr_t batch) { return batch * DPK_MLP_BLOCK + 1; }

/* params: (points, models, n_params), models 1 or m, the second point subtracted; unit: q, a power
 * of two, or 0 for floating-point sums; sum->clip: C, infinity without q; sum->grid: NULL or (m,)
 * powers of two >= q^2, to which the exact sums are rounded once; sum->task_rows: DPK_MLP_BLOCK;
 * sum->partial is not used. weights: (points, models, n_weights); scratch: (sum->n_threads,
 * dpk_thread_stride(dpk_mlp_scratch(net))), zeros; factors: (dpk_mlp_capacity(batch), n_factors),
 * batch = dpk_mlp_batch(net, tasks, sum->n_threads); all three start at a cache line. out: (m,
 * n_params). */
dpk_status dpk_mlp_gradient(const dpk_data *data, const dpk_mlp *net, const double *params,
                            intptr_t models, double unit, const dpk_sum *sum, double *weights,
                            double *scratch, double *factors, double *out);
