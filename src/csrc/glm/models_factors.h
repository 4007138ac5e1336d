/* Factors of a block of rows at several models, from the rows' products with them. */
#pragma once

#include "core/gridsum.h"
#include "glm/gradients.h"
#include "models/evaluate.h"
#include "rows/load.h"

/* Rows that share a vector: four models are half of one. */
DPK_INLINE intptr_t rows_of_vector(intptr_t wide) { return wide == 4 ? 2 : 1; }

/* The numbers of row r, and of the next one where two share a vector, beside their models. */
DPK_INLINE f8 of_rows(const double *of, intptr_t r, intptr_t wide) {
    return wide == 4 ? f8_halves(of[r], of[r + 1]) : f8_set(of[r]);
}

/* From products of n rows with the models to margins z, and the labels y of each: (n, wide), n a
 * multiple of rows_of_vector. bias: (dpk_padded(wide),). */
DPK_INLINE void find_margins(intptr_t n, intptr_t wide, const block *b, const double *bias,
                             double *y, double *z) {
    for (intptr_t r = 0; r < n; r += rows_of_vector(wide))
        for (intptr_t i = 0; i < wide; i += 8) {
            double *const at = z + r * wide + i;
            const f8 product = f8_add(f8_load(at), f8_load(bias + i));
            f8_store(at, f8_mul(of_rows(b->ratio, r, wide), product));
            f8_store(y + r * wide + i, of_rows(b->y, r, wide));
        }
}

/* The same of n rows at `wide` models each: margins z with their offsets, and s with weights. */
static inline void add_model_offsets(const dpk_data *data, intptr_t n, intptr_t wide,
                                     const int64_t *row, double *z) {
    for (intptr_t r = 0; data->margin_offset && r < n; r++)
        for (intptr_t i = 0; i < wide; i++)
            z[r * wide + i] += data->margin_offset[row[r]];
}

static inline void weigh_models(const dpk_data *data, intptr_t n, intptr_t wide, const int64_t *row,
                                double *s) {
    for (intptr_t r = 0; data->record_weight && r < n; r++)
        for (intptr_t i = 0; i < wide; i++)
            s[r * wide + i] *= data->record_weight[row[r]];
}

/* Sizes of numbers whose products, quotients and remainders are normal numbers. */
static inline int is_ordinary(double a) { return a > 0x1p-400 && a < 0x1p400; }

/* a / b, correctly rounded, from 1 / b rounded to nearest (Markstein 1990; Brisebarre, Muller,
 * Raina 2004): a times it is near the quotient, and the remainder corrects it. An error of one unit
 * in the last place would be within the slack of inner_bound. A division of vectors takes as long
 * as all else that is done with its result. */
DPK_INLINE f8 quotient(f8 a, f8 minus_b, f8 inverse) {
    const f8 nearly = f8_mul(a, inverse);
    return f8_fma(f8_fma(minus_b, nearly, a), inverse, nearly);
}

/* From products with the models in own->z to factors in own->s. */
static inline void find_model_factors(const dpk_data *data, const dpk_loss *loss, double weight,
                                      intptr_t n, block *b, const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide, rows = n + n % rows_of_vector(wide);
    double minus[DPK_BLOCK], inverse[DPK_BLOCK];
    int ordinary = FUSED && own->ordinary;
    for (intptr_t r = 0; r < n; r++) /* their limit is 0 */
        if (!(b->norm[r] <= DBL_MAX))
            b->norm[r] = HUGE_VAL;
    if (rows > n) /* half of a vector without a record */
        b->y[n] = b->ratio[n] = b->norm[n] = 1.0;
    for (intptr_t r = 0; r < rows; r++) {
        ordinary &= is_ordinary(b->norm[r]);
        minus[r] = -b->norm[r];
        inverse[r] = 1.0 / b->norm[r];
    }
    find_margins(rows, wide, b, own->bias, own->y, own->z);
    add_model_offsets(data, n, wide, b->row, own->z);
    evaluate(loss, rows * wide, own->y, own->z, NULL, own->s, NULL);
    weigh_models(data, n, wide, b->row, own->s);
    for (intptr_t r = 0; r < rows; r += rows_of_vector(wide))
        for (intptr_t i = 0; i < wide; i += 8) {
            /* As factor_limit (gridsum.h), of finite bounds. */
            const f8 clip = f8_load(own->clip + i);
            const f8 lim = ordinary
                               ? quotient(clip, of_rows(minus, r, wide), of_rows(inverse, r, wide))
                               : f8_div(clip, of_rows(b->norm, r, wide));
            double *const s = own->s + r * wide + i;
            const f8 slope = f8_mul(of_rows(b->ratio, r, wide), f8_load(s));
            f8_store(s, f8_mul(f8_set(weight), f8_clamp(slope, lim)));
        }
}

/* Whether n records may be chained (gridsum.h): each factor has one of the digits that it must
 * have. Added to digits that are all 1, any but 0 carry. */
static inline int have_digits(intptr_t n, const dpk_gradients_memory *own) {
    const uint64_t digits = own->digits;
    const intptr_t gaps = own->wide - own->count, lines = gaps ? n : 1;
    const intptr_t length = gaps ? own->count : n * own->wide;
    const i8 some = i8_set(digits);
    i8 all = i8_set(~(uint64_t)0);
    uint64_t single = ~(uint64_t)0;
    for (intptr_t r = 0; r < lines; r++) {
        const double *const s = own->s + r * own->wide;
        intptr_t i = 0;
        for (; i + 8 <= length; i += 8)
            all = i8_and(all, i8_add(i8_and(i8_bits(f8_load(s + i)), some), some));
        for (; i < length; i++)
            single &= ((uint64_t)bits_of(s[i]) & digits) + digits;
    }
    return (i8_in_all(all) & single & (digits + 1)) != 0;
}
