/* Integer-valued factors of a record's gradient, or difference of gradients, from its activations
 * and derivatives (network.h): norms, scale, truncation. mlp.h has the formulas and the proof of
 * the clip bound. */
#pragma once

#include "core/gridsum.h"
#include "mlp/mlp.h"
#include "simd/simd.h"

/* A record that would be scaled by less is left out, like one whose norm overflows. Norms of
 * vectors lie between 2^-120 and 2^512, so t and s / t then neither overflow nor underflow. */
#define SMALLEST_SCALE 0x1p-500

/* The two vectors of a rank-one block: the derivatives, and the inputs followed by `one`, which is
 * 1 or, in a difference of inputs, the difference of their ones. */
typedef struct {
    const double *delta, *input;
    double one;
} pair;

/* v . w; both (n,), followed by zeros up to a multiple of eight. */
static inline double scalar_product(intptr_t n, const double *v, const double *w) {
    f8 a = f8_zero(), b = f8_zero();
    for (intptr_t k = 0; k < n; k += 16) {
        a = f8_fma(f8_load(v + k), f8_load(w + k), a);
        if (k + 8 < n)
            b = f8_fma(f8_load(v + k + 8), f8_load(w + k + 8), b);
    }
    return f8_sum(f8_add(a, b));
}

/* Upper bounds of |v| and |[v, one]|. */
static inline double bound_norm(intptr_t n, const double *v, double one) {
    return norm_up(scalar_product(n, v, v) + one * one, n);
}

/* s = min(1, clip / norm); 0 where the norm is too large or not a number. */
static inline double scale_of(double clip, double norm) {
    const double s = norm <= clip ? 1.0 : factor_limit(clip, norm);
    return norm <= DBL_MAX && s >= SMALLEST_SCALE ? s : 0.0;
}

/* One row of panels with stride `panel`: factor v, truncated where `whole`; v: (n,) followed by
 * zeros. */
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
    double clip, gradient_clip; /* inner bounds C' and B' */
    double weight;              /* factor of the silo */
    double unit;                /* q or 0 */
    intptr_t capacity;          /* rows of `factors` */
    double *factors;
} target;

/* Pair number `which` of a layer of record i; x, now, old: rows and layers of its block, old NULL
 * for a gradient. In a difference `now` holds delta - m delta', `old` m delta' and a - a' / m. */
static inline pair pair_of(const dpk_layer *layer, int first_layer, int which, intptr_t i,
                           const double *x, const double *now, const double *old, double one) {
    const double *const delta = (which ? old : now) + layer->delta;
    const double *const input = first_layer ? x : (which ? old : now) + layer->input;
    return (pair){.delta = delta + i * dpk_row_stride(layer->out),
                  .input = input + i * dpk_row_stride(layer->in),
                  .one = one};
}

/* The norm by which record i is clipped. parts: (depth, points, 3), for every pair its two norms,
 * which are written, and the last entry of its inputs, which is read. */
static double clipped_norm(const dpk_mlp *net, intptr_t i, const double *x, const double *now,
                           const double *old, double *parts) {
    double total = 0.0, exact = 0.0; /* T^2 and D^2 */
    for (intptr_t l = 0; l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        const int count = l ? net->points : 1;
        pair p[2];
        double product[2] = {0.0, 0.0}, cross = 0.0;
        for (int which = 0; which < count; which++) {
            double *const part = parts + 3 * (l * net->points + which);
            p[which] = pair_of(layer, l == 0, which, i, x, now, old, part[2]);
            part[0] = bound_norm(layer->out, p[which].delta, 0.0);
            part[1] = bound_norm(layer->in, p[which].input, p[which].one);
            product[which] = part[0] * part[1];
        }
        if (count > 1)
            cross = scalar_product(layer->out, p[0].delta, p[1].delta) *
                    (scalar_product(layer->in, p[0].input, p[1].input) + p[0].one * p[1].one);
        const double length = product[0] + product[1];
        total += length * length;
        exact += product[0] * product[0] + product[1] * product[1] + 2.0 * cross;
    }
    /* The scalar product alone may overflow, even to the wrong sign. */
    if (net->points == 1 || !(fabs(exact) <= DBL_MAX))
        return sqrt(total);
    return sqrt(exact > total / 16.0 ? exact : total / 16.0);
}

/* Factors of record i of a block, row `row` of the batch. parts: as of clipped_norm. */
static void put_record(const dpk_mlp *net, intptr_t i, intptr_t row, const double *x,
                       const double *now, const double *old, const target *to, double *parts) {
    const int whole = to->unit != 0.0;
    double s = scale_of(to->clip, clipped_norm(net, i, x, now, old, parts)) * to->weight;
    s = s >= SMALLEST_SCALE ? s : 0.0;
    for (intptr_t l = 0; l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        const intptr_t in = layer->in;
        const int count = l ? net->points : 1;
        const intptr_t panel = 8 * to->capacity * count;
        for (int which = 0; which < count; which++) {
            const double *const part = parts + 3 * (l * net->points + which);
            const pair p = pair_of(layer, l == 0, which, i, x, now, old, part[2]);
            double *const left =
                to->factors + layer->left * to->capacity + 8 * (row * count + which);
            double *const right =
                to->factors + layer->right * to->capacity + 8 * (row * count + which);
            double *const bias = right + in / 8 * panel;
            if (s == 0.0) { /* 0 times infinity would be NaN */
                for (intptr_t k = 0; k < layer->out; k += 8)
                    f8_store(left + k / 8 * panel, f8_zero());
                for (intptr_t k = 0; k <= in; k += 8)
                    f8_store(right + k / 8 * panel, f8_zero());
                continue;
            }
            const double t = whole ? sqrt(s) * sqrt(part[0] / part[1]) : 1.0;
            const double step = whole ? 1.0 / to->unit : 1.0; /* a power of two */
            const double one = t * step * p.one;
            put_factor(layer->out, p.delta, s / t * step, whole, left, panel);
            f8_store(bias, f8_zero()); /* where `in` is a multiple of 8 it is a vector of its own */
            put_factor(in, p.input, t * step, whole, right, panel);
            bias[in % 8] = whole ? (double)(int64_t)one : one;
        }
    }
}

/* Clips the gradient of record i at one point to B' by a factor on its derivatives, and returns
 * whether the record counts at this point. part: of the first layer's pair of this point; the norms
 * of every layer's pair are written. */
static int clip_gradient(const dpk_mlp *net, intptr_t i, const double *x, double bound,
                         double *layers, double *part) {
    double total = 0.0;
    for (intptr_t l = 0; l < net->depth; l++) {
        const pair p = pair_of(net->layers + l, l == 0, 0, i, x, layers, NULL, 1.0);
        double *const norm = part + 3 * l * net->points;
        norm[0] = bound_norm(net->layers[l].out, p.delta, 0.0);
        norm[1] = bound_norm(net->layers[l].in, p.input, p.one);
        total += norm[0] * norm[1] * (norm[0] * norm[1]);
    }
    const double s = scale_of(bound, sqrt(total));
    for (intptr_t l = 0; s != 1.0 && l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        double *const delta = layers + layer->delta + i * dpk_row_stride(layer->out);
        part[3 * l * net->points] *= s;
        for (intptr_t k = 0; k < dpk_padded(layer->out); k++)
            delta[k] = s > 0.0 ? s * delta[k] : 0.0;
    }
    return s > 0.0;
}

/* Limit of m and 1 / m: beyond it the difference is one of the two gradients up to rounding. */
#define LARGEST_RATIO 0x1p32

/* Record i: the two pairs of a difference of clipped gradients, in place. Where the record counts
 * at one point only, the inputs are those of that point. parts: as of clipped_norm, last entries of
 * inputs written. */
static void subtract(const dpk_mlp *net, intptr_t i, const double *x, double bound, double *now,
                     double *old, double *parts) {
    const int new_counts = clip_gradient(net, i, x, bound, now, parts);
    const int old_counts = clip_gradient(net, i, x, bound, old, parts + 3);
    for (intptr_t l = 0; l < net->depth; l++) {
        const dpk_layer *const layer = net->layers + l;
        double *const part = parts + 6 * l;
        double m = 1.0;
        if (l > 0 && new_counts && old_counts) {
            m = sqrt(part[0] / part[3]) * sqrt(part[4] / part[1]);
            m = m < LARGEST_RATIO ? m : LARGEST_RATIO;
            m = m > 1.0 / LARGEST_RATIO ? m : 1.0 / LARGEST_RATIO;
        }
        const double inverse = 1.0 / m;
        double *const delta = now + layer->delta + i * dpk_row_stride(layer->out);
        double *const delta_old = old + layer->delta + i * dpk_row_stride(layer->out);
        for (intptr_t k = 0; k < dpk_padded(layer->out); k++) {
            delta_old[k] *= m;
            delta[k] -= delta_old[k];
        }
        double *const a = now + layer->input + i * dpk_row_stride(layer->in);
        double *const step = old + layer->input + i * dpk_row_stride(layer->in);
        for (intptr_t k = 0; l > 0 && k < dpk_padded(layer->in); k++) {
            const double from = old_counts ? step[k] : new_counts ? a[k] : 0.0;
            a[k] = new_counts ? a[k] : from;
            step[k] = a[k] - inverse * from;
        }
        part[2] = 1.0;
        part[5] = 1.0 - inverse;
    }
}
