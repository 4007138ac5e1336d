/* Sums of clipped vectors, by the inner clip bound of gridsum.h.
 *
 * A vector is read twice, for its norm and for the sum. On a grid one loop adds the vectors whose
 * norms are known, which are still in cache, and squares the next ones: memory is read at an even
 * pace, and arithmetic hides behind it. Of wide vectors every thread takes some columns. */
#include "core/tasks.h"
#include "rows/clip.h"
#include "core/variants.h"
#include "rows/dots.h"
#include "rows/single.h"
#include "rows/sums.h"

/* Columns whose squares are summed by themselves; these sums are added in order. So the norm of a
 * vector does not depend on how its columns are shared, with fewer roundings than gridsum.h
 * counts: ceil(p / 16) + 7 are more than 256 + 7 and one for each further chunk. */
#define CHUNK 4096

/* Vectors longer than this are taken two by two: their part of the accumulator, which has been
 * evicted from the L1 cache since the last vector, is then read and written for two. */
#define LONG_VECTOR 3072

/* Prefetch distances into the L2 cache and the L1 cache, in the vectors that are squared, in
 * bytes, for one vector at a time and for two (512 to 16384 were tried). */
static const intptr_t second_cache[] = {0, 4096, 0}, first_cache[] = {0, 512, 2048};

/* The columns of vectors that a thread takes. */
typedef struct {
    intptr_t first, n, chunks; /* chunks of whole vectors */
    int shared;                /* others take other columns of the same vectors at the same time */
    double *square; /* (2, 2, chunks) squares of the chunks of known vectors and next ones */
} columns;

DPK_INLINE row columns_of(row_kind kind, const dpk_data *data, const columns *own, int64_t i) {
    row r = row_at(kind, data, i);
    r.x = element(kind, r.x, own->first);
    r.ahead += (uintptr_t)(own->first * entry_size(kind));
    return r;
}

/* square: (chunks of p,) sums of squares of x, with the bits that add_and_square gives. */
DPK_INLINE void square_chunks(row_kind kind, const dpk_data *data, const row *x, double *square) {
    dpk_data piece = *data;
    for (intptr_t k = 0; k < data->p; k += CHUNK, square++) {
        piece.X = element(kind, x->x, k);
        piece.p = data->p - k < CHUNK ? data->p - k : CHUNK;
        *square = square_of(kind, &piece, 0);
    }
}

/* acc += sum_i s[i] x[i], and square[i] = y[i] . y[i] with the bits that `dot` gives, i < count;
 * acc: (dpk_padded(p),) patterns on the grid of magic number M, to which each x adds the bits of M.
 */
DPK_INLINE void add_and_square_chunk(row_kind kind, const dpk_data *data, int count, intptr_t p,
                                     const double *s, const row *added, const row *squared,
                                     double M, double *acc, double *square) {
    const intptr_t size = entry_size(kind);
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
            const f8 a = entries(kind, data, x + i, k, 8), b = entries(kind, data, x + i, k + 8, 8);
            sum = i8_add_bits(sum, f8_fma(factor[i], a, magic_number));
            next_sum = i8_add_bits(next_sum, f8_fma(factor[i], b, magic_number));
        }
        i8_store(bits + k, sum);
        i8_store(bits + k + 8, next_sum);
        _Pragma("GCC unroll 2") for (int i = 0; i < count; i++) {
            const f8 a = entries(kind, data, y + i, k, 8), b = entries(kind, data, y + i, k + 8, 8);
            const uintptr_t at = (uintptr_t)y[i].x + (uintptr_t)(k * size);
            for (intptr_t line = 0; line < 16 * size; line += 64) {
                if (far)
                    __builtin_prefetch((const void *)(at + (uintptr_t)(far + line)), 0, 2);
                __builtin_prefetch((const void *)(at + (uintptr_t)(near + line)));
            }
            even[i] = f8_fma(a, a, even[i]);
            odd[i] = f8_fma(b, b, odd[i]);
        }
    }
    for (int last = 0; k < p; k += 8, last++) {
        i8 sum = i8_load(bits + k);
        for (int i = 0; i < count; i++) {
            const intptr_t left = p - k < 8 ? p - k : 8;
            const f8 a = entries(kind, data, x + i, k, left);
            const f8 b = entries(kind, data, y + i, k, left);
            sum = i8_add_bits(sum, f8_fma(factor[i], a, magic_number));
            f8 *const lanes = last ? odd + i : even + i;
            *lanes = f8_fma(b, b, *lanes);
        }
        i8_store(bits + k, sum);
    }
    for (int i = 0; i < count; i++)
        square[i] = f8_sum(f8_add(even[i], odd[i]));
}

/* The same chunk by chunk: square[i * chunks + c] of chunk c. */
DPK_INLINE void add_and_square(row_kind kind, const dpk_data *data, int count, const double *s,
                               const row *added, const row *squared, double M, double *acc,
                               intptr_t chunks, double *square) {
    for (intptr_t k = 0; k < data->p; k += CHUNK, square++) {
        const intptr_t p = data->p - k < CHUNK ? data->p - k : CHUNK;
        double each[2];
        row x[2], y[2];
        for (int i = 0; i < count; i++) {
            x[i].x = element(kind, added[i].x, k);
            y[i].x = element(kind, squared[i].x, k);
        }
        add_and_square_chunk(kind, data, count, p, s, x, y, M, acc + k, each);
        for (int i = 0; i < count; i++)
            square[i * chunks] = each[i];
    }
}

/* Vectors in a group, whose squares are known before they are added. */
enum { GROUP = 32 };

/* Some columns of the records begin .. end on the grid of magic number M, `count` at a time and
 * `group`, a multiple of it, between two barriers. */
DPK_INLINE void clip_on_grid(row_kind kind, const dpk_data *data, columns own, int count, int group,
                             double M, double clip, int64_t begin, int64_t end, double *acc) {
    dpk_data part = *data; /* a local copy: its fields need not be reloaded after every store */
    part.p = part.d = own.n;
    double *now = own.square, *then = now + group * own.chunks, s[GROUP];
    row known[GROUP], next[GROUP];
    acc += own.first;
    int64_t *const bits = (int64_t *)(void *)acc;
    int64_t left_out = 0;
    /* Every record will add the bits of M: subtracted here, they need no pass over acc later. */
    for (intptr_t k = 0; k < dpk_padded(own.n); k++)
        bits[k] = (int64_t)((uint64_t)(begin - end) * (uint64_t)bits_of(M));
    for (int i = 0; i < group && begin + i < end; i++) {
        next[i] = columns_of(kind, data, &own, begin + i);
        square_chunks(kind, &part, next + i, now + i * own.chunks + own.first / CHUNK);
    }
    for (int64_t first = begin; first < end; first += group) {
        int kept = 0, coming = 0, i = 0;
        if (own.shared) {
#pragma omp barrier
        }
        for (int r = 0; r < group && first + r < end; r++) {
            double square = 0.0;
            for (intptr_t c = 0; c < own.chunks; c++)
                square += now[r * own.chunks + c];
            s[kept] = clamp_scalar(1.0, factor_limit(clip, norm_up(square, data->p)));
            known[kept] = next[r];
            left_out += s[kept] == 0.0;
            kept += s[kept] != 0.0;
        }
        for (; coming < group && first + group + coming < end; coming++)
            next[coming] = columns_of(kind, data, &own, first + group + coming);
        double *const to = then + own.first / CHUNK;
        for (; i + count <= kept && i + count <= coming; i += count)
            add_and_square(kind, &part, count, s + i, known + i, next + i, M, acc, own.chunks,
                           to + i * own.chunks);
        for (int r = i; r < kept; r++)
            add_dense(kind, &part, 1, s + r, known + r, NULL, M, acc);
        for (int r = i; r < coming; r++)
            square_chunks(kind, &part, next + r, to + r * own.chunks);
        double *const read = now;
        now = then, then = read;
    }
    if (left_out > 0)
        remove_magic(own.n, -left_out, M, bits);
}

/* The same in floating point, where nothing is clipped. */
DPK_INLINE void sum_in_floats(row_kind kind, const dpk_data *shared, int64_t begin, int64_t end,
                              double *acc) {
    const dpk_data own = *shared, *const data = &own;
    const double one = 1.0;
    memset(acc, 0, (size_t)dpk_padded(data->p) * sizeof(double));
    for (int64_t i = begin; i < end; i++) {
        const row g = row_at(kind, data, i);
        add_dense(kind, data, 1, &one, &g, NULL, 0.0, acc);
    }
}

DPK_INLINE void clip_task(row_kind kind, const dpk_data *data, double M, double clip, int64_t begin,
                          int64_t end, double *acc) {
    const intptr_t p = data->p;
    double square[4 * (DPK_WIDE / CHUNK)];
    const columns all = {0, p, (p + CHUNK - 1) / CHUNK, 0, square};
    if (M == 0.0)
        sum_in_floats(kind, data, begin, end, acc);
    else if (p <= LONG_VECTOR)
        clip_on_grid(kind, data, all, 1, 1, M, clip, begin, end, acc);
    else
        clip_on_grid(kind, data, all, 2, 2, M, clip, begin, end, acc);
}

/* The same in single precision, in blocks of at most `rows` records. */
static void clip_single(const dpk_data *data, double clip, double grid, intptr_t rows,
                        int64_t begin, int64_t end, int64_t *acc) {
    const double inner = inner_bound_single(clip, grid, data->p);
    const intptr_t most = single_block(data, rows);
    block b;
    memset(acc, 0, (size_t)data->p * sizeof *acc);
    for (int64_t i = begin; i < end; i += most) {
        const intptr_t n = rows_left(i, end, most);
        const float *const far = single_far(data, i);
        single_products(data, NULL, far, i, n, &b);
        for (intptr_t r = 0; r < n; r++)
            b.s[r] = clamp_scalar(1.0, factor_limit(inner, b.norm[r]));
        single_add(data, 1.0 / grid, NULL, far ? far + n * data->p / 2 : NULL, left_in(0, n, &b),
                   &b, acc);
    }
}

/* Bytes that stay in an L2 cache of 2 MiB. */
enum { CACHE_BYTES = 7 << 18 };

/* All silos, in some columns. Two vectors at a time and the next two, if these and the sum stay in
 * the L2 cache, or if nothing does; one otherwise. The more threads, the more vectors between
 * two barriers: together some 2^16 numbers of each thread. */
DPK_INLINE void clip_columns(row_kind kind, const dpk_data *data, const dpk_sum *sum, columns own,
                             intptr_t threads, double *out) {
    const intptr_t width = data->p / threads + 1, size = entry_size(kind);
    const int one = width * (4 * size + 8) > CACHE_BYTES && width * (2 * size + 8) <= CACHE_BYTES;
    const intptr_t twos = (1 << 15) / width + 1;
    const int group = twos < GROUP / 2 ? 2 * (int)twos : GROUP;
    for (intptr_t j = 0; j < data->m; j++) {
        const int64_t begin = data->offsets[j], end = data->offsets[j + 1];
        const double M = magic(sum->grid[j]), clip = inner_clip(sum, j, data->p);
        double *const acc = sum->partial + sum->first_task[j] * dpk_thread_stride(data->p);
        own.square = out + j * data->p;
        if (begin < end && one)
            clip_on_grid(kind, data, own, 1, 1, M, clip, begin, end, acc);
        else if (begin < end)
            clip_on_grid(kind, data, own, 2, group, M, clip, begin, end, acc);
    }
}

DEFINE_VARIANTS(2, clip_task,
                (const dpk_data *data, double M, double clip, int64_t begin, int64_t end,
                 double *acc),
                data, M, clip, begin, end, acc)
DEFINE_VARIANTS(2, clip_columns,
                (const dpk_data *data, const dpk_sum *sum, columns own, intptr_t threads,
                 double *out),
                data, sum, own, threads, out)

/* Wide vectors: a silo is one task, and all threads work at the same vectors, so that their columns
 * of these and of the sum stay in the L2 cache. out: (m, p), also used as work space. */
static void clip_wide(const dpk_data *data, const dpk_sum *sum, double *out) {
    const intptr_t chunks = (data->p + CHUNK - 1) / CHUNK;
#pragma omp parallel num_threads(sum->n_threads) if (sum -> n_threads > 1)
    {
        const intptr_t threads = thread_count(), t = thread_number();
        const intptr_t first = chunks * t / threads * CHUNK;
        const intptr_t end = chunks * (t + 1) / threads * CHUNK;
        const intptr_t n = (end < data->p ? end : data->p) - first;
        const columns own = {first, n, chunks, threads > 1, NULL};
        clip_columns_variants[kind_of(data)](data, sum, own, threads, out);
    }
}

static void clip_one_task(const dpk_data *data, const dpk_sum *sum, int64_t t) {
    const task u = task_number(data, sum, t);
    const double grid = sum->grid ? sum->grid[u.j] : 0.0;
    const intptr_t rows = single_rows(data, sum->clip, grid);
    double *const acc = sum->partial + t * dpk_thread_stride(data->p);
    if (rows)
        clip_single(data, sum->clip, grid, rows, u.begin, u.end, (int64_t *)(void *)acc);
    else
        clip_task_variants[kind_of(data)](data, magic(grid), inner_clip(sum, u.j, data->p), u.begin,
                                          u.end, acc);
}

dpk_status dpk_clip_and_sum(const dpk_data *data, const dpk_sum *sum, double *out) {
    if (sum->grid && data->p > DPK_WIDE)
        clip_wide(data, sum, out);
    else
        EACH_TASK(sum->first_task[data->m], clip_one_task(data, sum, t));
    sum_partials(sum, data->m, data->p, out);
    return DPK_OK;
}
