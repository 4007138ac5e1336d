/* Sum per silo of clipped vectors: sum_i min(1, C' / norm_up(g_i)) g_i, C' the clip bound less the
 * room that rounding to the grid takes (gridsum.h).
 *
 * A vector is read twice, for its norm and for the sum. On a grid one loop adds the vectors whose
 * norms are known, which are still in cache, and squares the next ones: memory is read at an even
 * pace, and arithmetic hides behind it. */
#include "clip.h"
#include "rows.h"

dpk_clip_and_sum_fn DPK_FN(dpk_clip_and_sum);

/* Vectors longer than this are taken two by two: their part of the accumulator, which has left the
 * first cache since the last vector, is then read and written for two. */
#define DPK_LONG 3072

/* How far ahead in the vectors that are squared the second cache and the first are asked to be, in
 * bytes, for one vector at a time and for two (512 to 16384 were tried). */
static const intptr_t second_cache[] = {0, 4096, 0}, first_cache[] = {0, 512, 2048};

/* acc += sum_i s[i] x[i], and square[i] = y[i] . y[i] with the bits that `dot` gives, i < count;
 * acc: (dpk_padded(p),) patterns on the grid of magic number M, with one M in for each x. */
DPK_INLINE void add_and_square(row_kind kind, const dpk_data *data, int count, const double *s,
                               const row *added, const row *squared, double M, double *acc,
                               double *square) {
    const intptr_t p = data->p, size = kind & ROW_FLOAT32 ? 4 : 8;
    const intptr_t far = second_cache[count], near = first_cache[count];
    const f8 magic_number = f8_set(M);
    int64_t *const bits = (int64_t *)(void *)acc;
    f8 factor[2], even[2], odd[2];
    row x[2], y[2];
    for (int i = 0; i < count; i++) {
        factor[i] = f8_set(s[i]), even[i] = odd[i] = f8_zero();
        x[i] = added[i], y[i] = squared[i];
    }
    intptr_t k = 0;
    for (; k + 16 <= p; k += 16) {
        i8 sum = i8_load(bits + k), next_sum = i8_load(bits + k + 8);
        _Pragma("GCC unroll 2") for (int i = 0; i < count; i++) {
            const f8 a = entries(kind, data, x + i, k), b = entries(kind, data, x + i, k + 8);
            sum = i8_add_bits(sum, f8_fma(factor[i], a, magic_number));
            next_sum = i8_add_bits(next_sum, f8_fma(factor[i], b, magic_number));
        }
        _Pragma("GCC unroll 2") for (int i = 0; i < count; i++) {
            const f8 a = entries(kind, data, y + i, k), b = entries(kind, data, y + i, k + 8);
            const uintptr_t at = (uintptr_t)y[i].x + (uintptr_t)(k * size);
            for (intptr_t line = 0; line < 16 * size; line += 64) {
                if (far)
                    __builtin_prefetch((const void *)(at + (uintptr_t)(far + line)), 0, 2);
                __builtin_prefetch((const void *)(at + (uintptr_t)(near + line)));
            }
            even[i] = f8_fma(a, a, even[i]);
            odd[i] = f8_fma(b, b, odd[i]);
        }
        i8_store(bits + k, sum);
        i8_store(bits + k + 8, next_sum);
    }
    for (int last = 0; k < p; k += 8, last++) {
        i8 sum = i8_load(bits + k);
        for (int i = 0; i < count; i++) {
            const intptr_t left = p - k < 8 ? p - k : 8;
            const f8 a = last_entries(kind, data, x + i, k, left);
            const f8 b = last_entries(kind, data, y + i, k, left);
            sum = i8_add_bits(sum, f8_fma(factor[i], a, magic_number));
            f8 *const lanes = last ? odd + i : even + i;
            *lanes = f8_fma(b, b, *lanes);
        }
        i8_store(bits + k, sum);
    }
    for (int i = 0; i < count; i++)
        square[i] = f8_sum(f8_add(even[i], odd[i]));
}

/* Records begin .. end, `count` at a time, on the grid of magic number M. */
DPK_INLINE void clip_on_grid(row_kind kind, const dpk_data *shared, int count, double M,
                             double clip, int64_t begin, int64_t end, double *acc) {
    const dpk_data own = *shared, *const data = &own; /* nobody else's: not read again and again */
    const intptr_t p = data->p;
    double square[2], s[2];
    row known[2], next[2];
    int64_t *const bits = (int64_t *)(void *)acc;
    int64_t left_out = 0;
    /* Every record brings an M, taken out beforehand: a pass over acc less. */
    for (intptr_t k = 0; k < dpk_padded(p); k++)
        bits[k] = (int64_t)((uint64_t)(begin - end) * (uint64_t)bits_of(M));
    for (int i = 0; i < count && begin + i < end; i++)
        square[i] = square_of(kind, data, begin + i);
    for (int64_t first = begin; first < end; first += count) {
        int kept = 0;
        for (int i = 0; i < count && first + i < end; i++) {
            s[kept] = clamp_scalar(1.0, factor_limit(clip, norm_up(square[i], p)));
            known[kept] = row_at(kind, data, first + i);
            left_out += s[kept] == 0.0;
            kept += s[kept] != 0.0;
        }
        if (kept == count && first + 2 * count <= end) {
            for (int i = 0; i < count; i++)
                next[i] = row_at(kind, data, first + count + i);
            add_and_square(kind, data, count, s, known, next, M, acc, square);
        } else {
            for (int i = 0; i < kept; i++)
                add_dense(kind, data, 1, s + i, known + i, M, acc);
            for (int i = 0; i < count && first + count + i < end; i++)
                square[i] = square_of(kind, data, first + count + i);
        }
    }
    if (left_out > 0)
        remove_magic(p, -left_out, M, bits);
}

/* The same in floating point, where nothing is clipped. */
DPK_INLINE void sum_in_floats(row_kind kind, const dpk_data *shared, int64_t begin, int64_t end,
                              double *acc) {
    const dpk_data own = *shared, *const data = &own;
    const double one = 1.0;
    memset(acc, 0, (size_t)dpk_padded(data->p) * sizeof(double));
    for (int64_t i = begin; i < end; i++) {
        const row g = row_at(kind, data, i);
        add_dense(kind, data, 1, &one, &g, 0.0, acc);
    }
}

DPK_INLINE void clip_task(row_kind kind, const dpk_data *data, double M, double clip, int64_t begin,
                          int64_t end, double *acc) {
    if (M == 0.0)
        sum_in_floats(kind, data, begin, end, acc);
    else if (data->p <= DPK_LONG)
        clip_on_grid(kind, data, 1, M, clip, begin, end, acc);
    else
        clip_on_grid(kind, data, 2, M, clip, begin, end, acc);
}

dpk_status DPK_FN(dpk_clip_and_sum)(const dpk_data *data, const dpk_sum *sum, double *out) {
    const intptr_t d = data->p;
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0, clip = inner_clip(sum, u.j, d);
        double *const acc = sum->partial + t * dpk_apart(d);
        if (data->x_is_float32)
            clip_task(ROW_FLOAT32, data, M, clip, u.begin, u.end, acc);
        else
            clip_task(0, data, M, clip, u.begin, u.end, acc);
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
