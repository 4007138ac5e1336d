/* Sums of clipped gradients with one more level: records, then persons, then silos.
 *
 * With t = sum_i rint(v_i / q) over a person's records, an integer vector that is exact in doubles,
 * the person adds t, or trunc(f t) with f = L / |t| where |t| is above L = C_p / q less the
 * roundings of gridsum.h. The computed norm of t loses at most d roundings of u, of which the root
 * halves the effect, the quotient and the product f t one each, and trunc makes no coordinate
 * longer: 1 - (d + 16) 2^-52 covers them, so that no person's vector is longer than C_p / q steps,
 * exactly, whatever the records are.
 *
 * Few persons need this. The sum of r records is within r C, and within the sum of their |s| |x|
 * plus r q sqrt(d): where one of the bounds is below C_p, which takes no pass over rows, the rows
 * go into the sum of the silo at once, as in sum_gradients.c. */
#include "glm/persons.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "core/variants.h"
#include "glm/sum_gradients.h"
#include "models/evaluate.h"
#include "rows/load.h"

/* A number t below 2^51, as the bits of t + SHIFT. */
#define SHIFT 0x1.8p52

enum { GROUP = 4 }; /* rows of a person that are added at once */

typedef struct {
    const dpk_data *data;
    const double *w;
    const dpk_loss *loss;
    const dpk_persons *persons;
    double M, clip, weight; /* as in sum_gradients.h */
    double slack;           /* q sqrt(d), the most by which rounding lengthens a record */
    double limit;           /* of a person's sum, in steps of the grid */
    double *own;            /* (padded d,) a person's sum: doubles, or of sparse rows, and zero
                             * between persons, integers */
    int64_t *entry, *at;    /* (d,) the entries of a sparse one and their columns */
} person_sums;

/* Rows and factors of the records first .. first + n. */
static void load_factors(const person_sums *of, int64_t first, intptr_t n, block *b) {
    dpk_load_block(of->data, of->w, first, n, (later_rows){0}, b);
    evaluate(of->loss, n, b->y, b->z, NULL, b->s, NULL);
    weigh_records(of->data, n, b->row, b->s);
    clamp_factors(of->clip, n, b->norm, b->ratio, b->s);
    for (intptr_t r = 0; r < n; r++)
        b->s[r] *= of->weight;
}

/* Whether the rows begin .. end of a block certainly have a sum within the clip of a person. */
static int certainly_within(const person_sums *of, const block *b, intptr_t begin, intptr_t end) {
    const dpk_persons *const persons = of->persons;
    const double d = (double)of->data->d;
    if (end - begin <= persons->few)
        return 1;
    double most = 0.0;
    for (intptr_t r = begin; r < end; r++)
        most += fabs(b->s[r]) * b->norm[r] + of->slack;
    return most * (1.0 + (d + 16.0) * 0x1p-50) <= of->weight * persons->clip;
}

/* The factor on a sum of this computed square: 1 exactly, or one that makes it short enough. */
static double person_factor(const person_sums *of, double square) {
    return square <= of->limit * of->limit ? 1.0 : of->limit / sqrt(square);
}

/* own = the steps of `count` rows, a constant, times s, or that much more unless they are the
 * first; squares: two chains of its squares. */
DPK_INLINE void add_group(row_kind kind, const dpk_data *data, int count, const double *s,
                          const int64_t *at, double M, int first, double *own, f8 squares[2]) {
    const uint64_t shift = (uint64_t)bits_of(SHIFT);
    const i8 to_double = i8_set(shift - (uint64_t)count * (uint64_t)bits_of(M));
    const f8 magic_number = f8_set(M), back = f8_set(-SHIFT);
    row x[GROUP];
    f8 factor[GROUP];
    for (int i = 0; i < count; i++) {
        x[i] = row_at(kind, data, at[i]);
        factor[i] = f8_set(s[i]);
    }
#define STEPS(k, chain, get_x)                                                                     \
    do {                                                                                           \
        i8 sum = to_double;                                                                        \
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) sum =                              \
            i8_add_bits(sum, f8_fma(factor[i], get_x, magic_number));                              \
        f8 t = f8_add(f8_of_bits(sum), back);                                                      \
        if (!first)                                                                                \
            t = f8_add(t, f8_load(own + (k)));                                                     \
        f8_store(own + (k), t);                                                                    \
        squares[chain] = f8_fma(t, t, squares[chain]);                                             \
    } while (0)
    squares[0] = squares[1] = f8_zero();
    intptr_t k = 0;
    for (; k + 16 <= data->p; k += 16) {
        STEPS(k, 0, entries(kind, data, x + i, k, 8));
        STEPS(k + 8, 1, entries(kind, data, x + i, k + 8, 8));
    }
    if (k + 8 <= data->p) {
        STEPS(k, 0, entries(kind, data, x + i, k, 8));
        k += 8;
    }
    if (k < data->d)
        STEPS(k, 1, last_entries(kind, data, x + i, k));
#undef STEPS
}

/* The same of n rows; square: that of the norm of own. */
DPK_INLINE void add_steps(row_kind kind, const dpk_data *shared, intptr_t n, const double *s,
                          const int64_t *at, double M, int first, double *own, double *square) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    f8 squares[2] = {f8_zero(), f8_zero()};
    for (; n >= GROUP; n -= GROUP, s += GROUP, at += GROUP, first = 0)
        add_group(kind, data, GROUP, s, at, M, first, own, squares);
    if (n == 3)
        add_group(kind, data, 3, s, at, M, first, own, squares);
    else if (n == 2)
        add_group(kind, data, 2, s, at, M, first, own, squares);
    else if (n == 1)
        add_group(kind, data, 1, s, at, M, first, own, squares);
    else if (first)
        add_group(kind, data, 0, s, at, M, first, own, squares);
    *square = f8_sum(f8_add(squares[0], squares[1]));
}

DEFINE_FOR_KINDS(static void add_person_steps, data, 4, add_steps,
                 (const dpk_data *data, intptr_t n, const double *s, const int64_t *at, double M,
                  int first, double *own, double *square),
                 data, n, s, at, M, first, own, square)

/* acc += the person's sum of this square, clipped. */
static void add_dense_person(const person_sums *of, double square, int64_t *acc) {
    const intptr_t d = of->data->d;
    const double f = person_factor(of, square), *const own = of->own;
    const i8 from_double = i8_set(0 - (uint64_t)bits_of(SHIFT));
    const f8 factor = f8_set(f), shifted = f8_set(SHIFT);
    for (intptr_t k = 0; k < d; k += 8) {
        const f8 u = f8_trunc(f8_mul(factor, f8_load(own + k)));
        const i8 steps = i8_add_bits(from_double, f8_add(u, shifted));
        i8_store(acc + k, i8_add(i8_load(acc + k), steps));
    }
}

/* own += the steps of the rows at[i] times s[i], i < n. */
static void add_sparse_steps(const person_sums *of, intptr_t n, const double *s,
                             const int64_t *at) {
    const dpk_data own = *of->data;
    const int kind = kind_of(of->data);
    for (intptr_t i = 0; i < n; i++)
        add_sparse(kind, &own, s[i], at[i], of->M, of->own);
}

/* Clips and adds a sum of sparse rows, in the columns that occur in the records first .. end. */
static void add_sparse_person(const person_sums *of, int64_t first, int64_t end, int64_t *acc) {
    const dpk_data *const data = of->data;
    int64_t *const own = (int64_t *)(void *)of->own;
    intptr_t n = 0;
    for (int64_t i = first; i < end; i++) {
        const row r = row_at(ROW_SPARSE, data, i);
        for (intptr_t t = 0; t < r.n + data->intercept; t++) {
            const intptr_t k = t < r.n ? r.at[t] : data->p;
            if (own[k] != 0) { /* a column counts once */
                of->entry[n] = own[k];
                of->at[n++] = k;
                own[k] = 0;
            }
        }
    }
    double square = 0.0;
    for (intptr_t t = 0; t < n; t++)
        square = DPK_FMA((double)of->entry[t], (double)of->entry[t], square);
    const double f = person_factor(of, square);
    for (intptr_t t = 0; t < n; t++)
        acc[of->at[t]] += (int64_t)(f * (double)of->entry[t]);
}

/* Adds the rows begin .. end of a block, which change places, to the person's sum, but those with s
 * = 0; first: its first ones. square: that of a dense sum, which no rows leave as it is. */
static void add_to_person(const person_sums *of, block *b, intptr_t begin, intptr_t end, int first,
                          double *square) {
    double *const s = b->s + begin;
    int64_t *const at = b->row + begin;
    intptr_t count = 0;
    for (intptr_t i = 0; i < end - begin; i++) {
        s[count] = s[i];
        at[count] = at[i];
        count += s[i] != 0.0;
    }
    if (of->data->indptr)
        add_sparse_steps(of, count, s, at);
    else if (count > 0 || first)
        add_person_steps(of->data, count, s, at, of->M, first, of->own, square);
}

/* Clips the person's sum, of the records first .. end, and adds it. */
static void add_person(const person_sums *of, int64_t first, int64_t end, double square,
                       double *acc) {
    int64_t *const steps = (int64_t *)(void *)acc;
    if (of->data->indptr)
        add_sparse_person(of, first, end, steps);
    else
        add_dense_person(of, square, steps);
}

/* A person with more records than a block holds. */
static void add_long_person(const person_sums *of, int64_t first, int64_t end, intptr_t rows,
                            double *acc, int64_t *added) {
    const int direct = end - first <= of->persons->few;
    double square = 0.0;
    block b;
    for (int64_t i = first; i < end; i += rows) {
        const intptr_t n = rows_left(i, end, rows);
        load_factors(of, i, n, &b);
        if (direct)
            dpk_add_rows(of->data, of->M, 0, (later_rows){0}, n, &b, acc, added);
        else
            add_to_person(of, &b, 0, n, i == first, &square);
    }
    if (!direct)
        add_person(of, first, end, square, acc);
}

/* The persons begin .. end, all of whose records fit in a block. */
static void add_persons(const person_sums *of, int64_t begin, int64_t end, double *acc,
                        int64_t *added) {
    const int64_t *const offsets = of->persons->offsets, first = offsets[begin];
    const intptr_t n = (intptr_t)(offsets[end] - first);
    block b;
    load_factors(of, first, n, &b);
    for (int64_t i = begin; i < end; i++) {
        const intptr_t from = (intptr_t)(offsets[i] - first),
                       to = (intptr_t)(offsets[i + 1] - first);
        if (certainly_within(of, &b, from, to))
            continue;
        double square = 0.0;
        add_to_person(of, &b, from, to, 1, &square);
        for (intptr_t r = from; r < to; r++)
            b.s[r] = 0.0; /* left out below */
        add_person(of, offsets[i], offsets[i + 1], square, acc);
    }
    dpk_add_rows(of->data, of->M, 0, (later_rows){0}, n, &b, acc, added);
}

/* Records of a block: some more than in sum_gradients.c, so that whole persons fill it. */
static intptr_t person_rows(const dpk_data *data) {
    const intptr_t rows = 4 * block_rows(data, 0);
    return rows < 8 ? 8 : rows > DPK_BLOCK ? DPK_BLOCK : rows;
}

static void sum_persons(const person_sums *of, int64_t begin, int64_t end, double *acc) {
    const dpk_data *const data = of->data;
    const int64_t *const offsets = of->persons->offsets;
    const intptr_t rows = person_rows(data);
    int64_t added = 0, i = begin;
    memset(of->own, 0, (size_t)dpk_padded(data->d) * sizeof *of->own);
    /* Persons with few records, who come first in a SiloData, need no block of whole persons. */
    while (i < end && offsets[i + 1] - offsets[i] <= of->persons->few)
        i++;
    dpk_gradients short_ones = {.data = data, .w = of->w, .loss = of->loss};
    short_ones.M = of->M, short_ones.clip = of->clip, short_ones.weight = of->weight;
    dpk_sum_gradients(&short_ones, offsets[begin], offsets[i], acc);
    while (i < end) {
        int64_t last = i + 1;
        while (last < end && offsets[last + 1] - offsets[i] <= rows)
            last++;
        if (offsets[last] - offsets[i] > rows)
            add_long_person(of, offsets[i], offsets[last], rows, acc, &added);
        else
            add_persons(of, i, last, acc, &added);
        i = last;
    }
    remove_magic(data->d, added, of->M, (int64_t *)(void *)acc);
}

dpk_status dpk_glm_person_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_loss *loss, const dpk_persons *persons,
                                   const dpk_sum *sum, double *scratch, double *out) {
    const intptr_t d = data->d, wide = dpk_padded(d);
    dpk_data people = *data; /* tasks are of persons */
    people.offsets = persons->silos;
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(&people, sum, t);
        const double grid = sum->grid[u.j], weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
        double *const own =
            scratch + thread_number() * dpk_thread_stride(dpk_persons_scratch(data));
        int64_t *const lists = (int64_t *)(void *)(own + wide);
        person_sums of = {.data = data, .loss = loss, .persons = persons, .weight = weight};
        of.w = w + u.j * w_stride, of.M = magic(grid);
        of.clip = inner_bound(sum->clip, grid, d), of.slack = grid * sqrt((double)d);
        of.limit = weight * persons->clip / grid * (1.0 - (double)(d + 16) * 0x1p-52);
        of.own = own, of.entry = lists, of.at = lists + wide;
        sum_persons(&of, u.begin, u.end, sum->partial + t * dpk_thread_stride(d));
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
