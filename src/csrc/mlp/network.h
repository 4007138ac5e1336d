/* Forward and backward pass of a multilayer perceptron for a block of records, in doubles.
 *
 * A record's results depend on its own row and the weights only, to the last bit: products are
 * summed in a fixed order (product.h), and all else is done entry by entry or row by row. */
#pragma once

#include "mlp/mlp.h"
#include "models/evaluate.h"
#include "rows/effective.h"
#include "simd/product.h"
#include "simd/vmath.h"

/* Eight outputs of a layer: bias and panel of W^T, and for the backward pass their rows in the
 * panels of W. */
static void pack_weights(const dpk_layer *layer, intptr_t first, int backward, const double *params,
                         double *weights) {
    const intptr_t in = layer->in, width = dpk_padded(layer->out), left = layer->out - first;
    const intptr_t count = left < 8 ? left : 8;
    const double *const w = params + layer->params + first * (in + 1);
    double *const bias = weights + layer->bias, *const panel = bias + width + first * in;
    double *const plain = bias + width + in * width;
    for (intptr_t o = 0; o < 8; o++)
        bias[first + o] = o < count ? w[o * (in + 1) + in] : 0.0;
    for (intptr_t k = 0; k < in; k++)
        for (intptr_t o = 0; o < 8; o++)
            panel[8 * k + o] = o < count ? w[o * (in + 1) + k] : 0.0;
    for (intptr_t k = 0; backward && k < dpk_padded(in); k++)
        for (intptr_t o = 0; o < count; o++)
            plain[k / 8 * (8 * layer->out) + 8 * (first + o) + k % 8] =
                k < in ? w[o * (in + 1) + k] : 0.0;
}

/* The effective rows of n records, `ld` from one to the next. */
DPK_INLINE void load_scaled_rows(row_kind kind, const dpk_data *data, int64_t first, intptr_t n,
                                 double *to, intptr_t ld) {
    for (intptr_t i = 0; i < n; i++)
        load_row(kind, data, first + i, to + i * ld);
}
DEFINE_FOR_KINDS(static void load_block_rows, data, 8, load_scaled_rows,
                 (const dpk_data *data, int64_t first, intptr_t n, double *to, intptr_t ld), data,
                 first, n, to, ld)

static void activate(dpk_activation activation, intptr_t n, double *z) {
    if (activation == DPK_TANH)
        for (intptr_t i = 0; i < n; i++)
            z[i] = tanh_value(z[i]);
    else
        for (intptr_t i = 0; i < n; i++)
            z[i] = z[i] < 0.0 ? 0.0 : z[i]; /* keeps a NaN, whose record is then left out */
}

/* delta *= act'(z), computed from a = act(z). */
static void chain(dpk_activation activation, intptr_t n, const double *a, double *delta) {
    if (activation == DPK_TANH)
        for (intptr_t i = 0; i < n; i++)
            delta[i] *= 1.0 - a[i] * a[i];
    else
        for (intptr_t i = 0; i < n; i++)
            delta[i] = a[i] > 0.0 ? delta[i] : 0.0;
}

/* z (n, count) of row length ld: outputs, then derivatives of -log softmax(z)_y, classes y counted
 * from 0 (a label of -1 is class 0, too). e: (n, count) work space. */
static void softmax_deltas(intptr_t n, intptr_t count, const double *y, double *z, intptr_t ld,
                           double *e) {
    for (intptr_t i = 0; i < n; i++) {
        const double *const zi = z + i * ld;
        double largest = zi[0];
        for (intptr_t k = 1; k < count; k++)
            largest = zi[k] > largest ? zi[k] : largest;
        for (intptr_t k = 0; k < count; k++)
            e[i * count + k] = zi[k] - largest;
    }
    for (intptr_t i = 0; i < n * count; i++)
        e[i] = exp_negative(e[i]);
    for (intptr_t i = 0; i < n; i++) {
        const double class = y[i] > 0.0 ? y[i] : 0.0;
        double sum = 0.0;
        for (intptr_t k = 0; k < count; k++)
            sum += e[i * count + k];
        const double share = 1.0 / sum;
        for (intptr_t k = 0; k < count; k++)
            z[i * ld + k] = e[i * count + k] * share - ((double)k == class ? 1.0 : 0.0);
    }
}

/* The same for a margin loss of one output; e: (n,). */
static void margin_deltas(const dpk_loss *loss, intptr_t n, const double *y, double *z, intptr_t ld,
                          double *slope, double *e) {
    for (intptr_t i = 0; i < n; i++)
        e[i] = z[i * ld];
    evaluate(loss, n, y, e, NULL, slope, NULL);
    for (intptr_t i = 0; i < n; i++)
        z[i * ld] = slope[i];
}

/* Inputs and derivatives of all layers at one point. x: (BLOCK, row(in)) effective rows, zeros
 * beyond the n records up to a multiple of TILE_ROWS; y: (n,) labels; e: (2 n + n outputs,) work
 * space; layers: where their inputs and derivatives go. */
static void pass(const dpk_mlp *net, const double *weights, intptr_t n, const double *x,
                 const double *y, double *e, double *layers) {
    const dpk_layer *layer = net->layers, *const last = layer + net->depth - 1;
    const intptr_t rows = (n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    for (;; layer++) {
        const intptr_t ld = dpk_row_stride(layer->out);
        const double *const bias = weights + layer->bias;
        double *const z = layers + (layer == last ? layer->delta : layer[1].input);
        multiply(rows, layer->out, layer->in, layer == net->layers ? x : layers + layer->input,
                 dpk_row_stride(layer->in), bias + dpk_padded(layer->out), 8 * layer->in, bias, z,
                 ld);
        if (layer == last)
            break;
        activate(net->activation, rows * ld, z);
    }
    double *const z = layers + last->delta;
    if (net->loss)
        margin_deltas(net->loss, n, y, z, dpk_row_stride(last->out), e, e + n);
    else
        softmax_deltas(n, last->out, y, z, dpk_row_stride(last->out), e);
    for (; layer > net->layers; layer--) {
        const intptr_t out = dpk_row_stride(layer->out), in = dpk_row_stride(layer->in);
        const double *const w = weights + layer->bias + (1 + layer->in) * dpk_padded(layer->out);
        multiply(rows, layer->in, layer->out, layers + layer->delta, out, w, 8 * layer->out, NULL,
                 layers + layer[-1].delta, in);
        chain(net->activation, rows * in, layers + layer->input, layers + layer[-1].delta);
    }
}
