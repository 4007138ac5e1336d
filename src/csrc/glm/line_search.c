/* Margins of a block of records at w and along p, then for every candidate one evaluation of the
 * loss on numbers that are in the L1 cache. The rows of the next block are prefetched. */
#include "core/tasks.h"
#include "rows/block.h"
#include "core/gridsum.h"
#include "models/evaluate.h"
#include "glm/line_search.h"
#include "simd/simd.h"
#include "simd/vmath.h"

/* Records of a block, and of a strip of it, between which the next rows are prefetched
 * (prefetch.h). */
enum { LINE = 128, STRIP = 32 };

DPK_INLINE void margins_at(double a, intptr_t n, const double *z, const double *dz, double *at) {
    for (intptr_t i = 0; i < n; i++)
        at[i] = DPK_FMA(-a, dz[i], z[i]);
}

/* Padding: zeros after the last of n numbers, up to a whole vector. */
DPK_INLINE void fill_up(intptr_t n, double *value) {
    for (intptr_t i = n; i % 8; i++)
        value[i] = 0.0;
}

/* Sums of losses in eight lanes, record i of a block in lane i mod 8.
 *
 * For a loss in parts q accumulates the product of all 1 + factor of a lane, minus 1, as q + factor
 * (1 + q). All terms are positive, so its relative error is at most 2 u for each of the LINE / 8
 * factors, and that of its logarithm no larger; q < 2^(LINE / 8). */
static void add_losses(const dpk_data *data, const dpk_loss *loss, const dpk_search *search,
                       intptr_t n, const double *y, const double *z, const double *dz,
                       const int64_t *row, prefetch_plan *rows, double *acc) {
    const int in_parts = loss->parts && !data->record_weight;
    const f8 one = f8_set(1.0);
    double at[STRIP], value[STRIP], factor[STRIP], lane[8];
    for (intptr_t c = 0; c < search->count; c++) {
        f8 total = f8_zero(), q = f8_zero();
        for (intptr_t i = 0; i < n; i += STRIP) {
            const intptr_t some = n - i < STRIP ? n - i : STRIP;
            prefetch_share(rows);
            margins_at(search->step[c], some, z + i, dz + i, at);
            if (in_parts)
                loss->parts(some, y + i, at, value, factor, loss->params);
            else {
                evaluate(loss, some, y + i, at, value, NULL, NULL);
                weigh_records(data, some, row + i, value);
            }
            fill_up(some, value);
            for (intptr_t k = 0; k < some; k += 8)
                total = f8_add(total, f8_load(value + k));
            if (in_parts) {
                fill_up(some, factor);
                for (intptr_t k = 0; k < some; k += 8)
                    q = f8_fma(f8_load(factor + k), f8_add(q, one), q);
            }
        }
        acc[c] += f8_sum(total);
        if (in_parts) {
            f8_store(lane, q);
            for (int l = 0; l < 8; l++)
                lane[l] = log1p_product(lane[l]);
            acc[c] += f8_sum(f8_load(lane));
        }
    }
}

/* Sums of decreases phi(z) - phi(z - a dz), weighted, clamped and rounded, as integer multiples of
 * the grid.
 *
 * |rounded decrease| <= bound, exactly: the clamp is at B = floor(bound / q) q, a multiple of the
 * grid q with B <= bound. (bound / q is exact, q being a power of two with 2^5 q <= bound <= 2^51
 * q; and B has at most as many bits as a double.) Rounding to multiples of q is monotone and leaves
 * B and -B unchanged, so that values between them stay between them. v + M with M = 1.5 2^52 q is
 * that rounding for |v| <= 2^51 q, and its bit pattern is that of M plus the integer v / q
 * (gridsum.h). A NaN (infinity minus infinity) becomes 0, infinities B or -B: whatever the record
 * is, its integer is within floor(bound / q). */
static void add_decreases(const dpk_data *data, const dpk_loss *loss, const dpk_search *search,
                          intptr_t n, const double *y, const double *z, const double *dz,
                          const int64_t *row, prefetch_plan *rows, int64_t *acc) {
    double at[STRIP], here[LINE], value[STRIP];
    evaluate(loss, n, y, z, here, NULL, NULL);
    for (intptr_t c = 0; c < search->count; c++) {
        const double q = search->grid[c], M = magic(q), B = floor(search->bound[c] / q) * q;
        uint64_t total = 0;
        for (intptr_t i = 0; i < n; i += STRIP) {
            const intptr_t some = n - i < STRIP ? n - i : STRIP;
            prefetch_share(rows);
            margins_at(search->step[c], some, z + i, dz + i, at);
            evaluate(loss, some, y + i, at, value, NULL, NULL);
            for (intptr_t k = 0; k < some; k++)
                value[k] = here[i + k] - value[k];
            weigh_records(data, some, row + i, value);
            for (intptr_t k = 0; k < some; k++)
                total += (uint64_t)bits_of(clamp_scalar(value[k], B) + M);
        }
        acc[c] += (int64_t)(total - (uint64_t)n * (uint64_t)bits_of(M));
    }
}

static void search_task(const dpk_data *data, const double *w, intptr_t w_stride,
                        const double *direction, intptr_t direction_stride, const dpk_loss *loss,
                        const dpk_search *search, const dpk_sum *sum, int64_t t) {
    const intptr_t count = search->count;
    const task u = task_number(data, sum, t);
    double *const acc = sum->partial + t * dpk_thread_stride(count);
    double y[LINE], z[LINE], dz[LINE];
    int64_t row[LINE];
    dpk_search own = *search; /* of silo j */
    if (own.bound)
        own.bound += u.j * count, own.grid += u.j * count;
    memset(acc, 0, (size_t)count * sizeof(double)); /* also the integer 0 */
    for (int64_t i = u.begin; i < u.end; i += LINE) {
        const intptr_t n = rows_left(i, u.end, LINE);
        const intptr_t left = rows_left(i + n, u.end, LINE);
        prefetch_plan rows = plan_prefetch(data, i + n, left, count * ((n + STRIP - 1) / STRIP));
        dpk_load_line(data, w + u.j * w_stride, direction + u.j * direction_stride, i, n, &rows, y,
                      z, dz, row);
        if (own.bound)
            add_decreases(data, loss, &own, n, y, z, dz, row, &rows, (int64_t *)(void *)acc);
        else
            add_losses(data, loss, search, n, y, z, dz, row, &rows, acc);
    }
}

dpk_status dpk_line_search(const dpk_data *data, const double *w, intptr_t w_stride,
                           const double *direction, intptr_t direction_stride, const dpk_loss *loss,
                           const dpk_search *search, const dpk_sum *sum, double *out) {
    const intptr_t m = data->m, count = search->count, width = dpk_thread_stride(count);
    EACH_TASK(sum->first_task[m],
              search_task(data, w, w_stride, direction, direction_stride, loss, search, sum, t));
    if (!search->bound) {
        sum_partials(sum, m, count, out);
        return DPK_OK;
    }
    for (intptr_t j = 0; j < m; j++)
        for (intptr_t c = 0; c < count; c++) {
            int64_t steps = 0;
            for (int64_t t = sum->first_task[j]; t < sum->first_task[j + 1]; t++)
                steps += ((const int64_t *)(const void *)sum->partial)[t * width + c];
            out[j * count + c] = (double)steps * search->grid[j * count + c];
        }
    return DPK_OK;
}
