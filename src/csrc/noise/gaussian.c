/* Draws in tiles: r Phi^-1(U), r = sigma / q, from two rational fits in doubles (gaussian_fit.h)
 * where their error bounds decide its rounding, from fixed point (exact_draw.h) where they do not.
 *
 * Every draw goes through the coarse fit, whose degree is low; the one in 64 that it leaves
 * undecided is collected for the fine fit. A draw is decided when r x, as computed, is further from
 * k + 1/2 than its error. Scaling by q, a power of two, is exact: sigma A / B is rounded to
 * multiples of q. The law is symmetric to the bit, whichever way decides. */
#include "noise/gaussian.h"
#include <math.h>
#include <string.h>
#include "noise/chacha20.h"
#include "noise/gaussian_fit.h"
#include "noise/exact_draw.h"

/* TILE draws are in flight at once: their words stay in the L1 cache, and the undecided ones
 * fill vectors. */
enum { TILE = 2048, TASK_TILES = 4, BLOCK = 64, STEP = 8, PER_STEP = STEP / LANES };

static inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

#define MAGIC 0x1.8p52

enum { N_A = sizeof COARSE_A / sizeof *COARSE_A };

/* Draws of one silo, or of several in one tile. */
typedef struct {
    dpk_tail_of_u tail;
    double ratio, grid;
    double A[N_A]; /* sigma A */
    dpk_path path;
    const int64_t *silo; /* of several silos with `each` draws: their numbers, else NULL */
    int each;
} draws;

/* Draws of a tile that the coarse fit leaves undecided, with padding for a few more. */
typedef struct {
    int n, written; /* now; most entries ever written */
    uint16_t index[TILE + 8];
    uint64_t word[TILE + 8];
} undecided_draws;

/* STEP draws in the pipeline of the coarse fit. */
typedef struct {
    vf u[PER_STEP], v[PER_STEP], numerator[PER_STEP], denominator[PER_STEP];
} coarse_step;
#define EACH_VECTOR for (int l = 0; l < PER_STEP; l++)

DPK_INLINE void read_words(const uint64_t *words, coarse_step *s) {
    EACH_VECTOR s->u[l] = centred(*(const loose_vu *)(words + l * LANES));
    EACH_VECTOR s->v[l] = fma_v(-s->u[l], s->u[l], splat(0.25));
}

DPK_INLINE void evaluate(const double *A, coarse_step *s) {
    EACH_VECTOR {
        s->numerator[l] = s->u[l] * polynomial(N_A, A, s->v[l]);
        s->denominator[l] = POLYNOMIAL(COARSE_B, s->v[l]);
    }
}

/* The quotient y of s is in its numerator; returns which draws are decided. */
DPK_INLINE uint8_t round_to_grid(const coarse_step *s, double magic, double limit, double *out) {
    uint64_t decided = 0;
    EACH_VECTOR {
        const vf y = s->numerator[l], k = (y + magic) - magic;
        *(loose_vf *)(out + l * LANES) = k;
        decided |= both_less(abs_v(y - k), splat(limit), splat(V_SPLIT), s->v[l]) << l * LANES;
    }
    return (uint8_t)decided;
}

/* out = q K where the coarse fit decides. words, out: (n,), n a multiple of BLOCK. */
static void draw_coarse(const draws *d, const uint64_t *words, int n, double *out,
                        undecided_draws *open) {
    uint8_t decided[TILE / STEP];
    const double magic = MAGIC * d->grid;
    const double limit =
        d->path == DPK_PATH_FAST ? (0.5 - (d->ratio * COARSE_ERROR + 0x1p-53)) * d->grid : -1.0;
    /* Three steps are in flight, so that no instruction waits long for the one before it: one is
     * being read, one evaluated, one divided and rounded. */
    double A[N_A];
    memcpy(A, d->A, sizeof A);
    coarse_step read, evaluated, divided;
    read_words(words, &evaluated);
    evaluate(A, &evaluated);
    read_words(words + STEP, &read);
    for (int i = 0; i < n; i += STEP) {
        divided = evaluated;
        EACH_VECTOR divided.numerator[l] /= divided.denominator[l];
        evaluated = read;
        evaluate(A, &evaluated);
        read_words(words + (i + 2 * STEP < n ? i + 2 * STEP : 0), &read);
        /* Prefetches where the next tile goes; past the end this does nothing. */
        __builtin_prefetch((const void *)((uintptr_t)(out + i) + TILE * sizeof *out), 1);
        decided[i / STEP] = round_to_grid(&divided, magic, limit, out + i);
    }
    int n_undecided = 0;
    for (int i = 0; i < n; i += BLOCK) {
        uint64_t bits;
        memcpy(&bits, decided + i / STEP, sizeof bits);
        bits = ~bits;
        const int end = n_undecided + __builtin_popcountll(bits);
        /* Four at a time, needed or not: one draw in 64 is undecided, and a branch on it could not
         * be predicted. */
        do {
            for (int l = 0; l < 4; l++) {
                const int at = i + __builtin_ctzll(bits | SIGN_BIT);
                open->index[n_undecided + l] = (uint16_t)at;
                open->word[n_undecided + l] = words[at];
                bits &= bits - 1;
            }
            n_undecided += 4;
        } while (n_undecided < end);
        n_undecided = end;
    }
    open->n = n_undecided;
    if (open->written < n_undecided + 8)
        open->written = n_undecided + 8;
    memset(open->word + n_undecided, 0, LANES * sizeof *open->word);
}

/* The others' q K. first: coordinate of the first draw; decided_by: (n,) or NULL. */
static void draw_fine(const draws *d, const undecided_draws *open, uint64_t first, int n,
                      double *out, uint8_t *decided_by) {
    for (int j = 0; j < open->n; j += LANES) {
        const uint16_t *const index = open->index + j;
        const int count = open->n - j < LANES ? open->n - j : LANES;
        const vi w = (vi) * (const loose_vu *)(open->word + j);
        const vf p = middle_of(w ^ w >> 63);
        const vf y = fine(p, d->ratio), k = (y + MAGIC) - MAGIC;
        const vf slack = d->ratio * (FINE_ERROR + 0.63 / p) + y * FINE_ERROR_PER_X + 0x1p-53;
        const uint64_t closed = both_less(abs_v(y - k), 0.5 - slack, splat(N_FAR), p);
        const uint64_t decided = d->path == DPK_PATH_FAST ? closed : 0;
        /* Minus below U = 1/2; adding 0 makes 0 of -0. */
        const vf z = (vf)((vu)(k * d->grid) | (~(vu)w & SIGN_BIT)) + 0.0;
        for (int l = 0; l < count; l++)
            out[index[l]] = z[l];
        if (decided_by)
            for (int l = 0; l < count && index[l] < n; l++)
                decided_by[index[l]] = DPK_BY_FINE;
        uint64_t undecided = ~decided & (((uint64_t)1 << count) - 1);
        for (; undecided; undecided &= undecided - 1) {
            const int l = __builtin_ctzll(undecided), i = index[l];
            if (i >= n)
                break;
            dpk_tail_of_u tail = d->tail;
            uint64_t coordinate = first + (uint64_t)i;
            if (d->silo) {
                tail.nonce |= (uint64_t)d->silo[i / d->each];
                coordinate = (uint64_t)(i % d->each);
            }
            const dpk_undecided draw = {&tail, coordinate, (uint64_t)w[l], d->ratio, d->path};
            dpk_decided_by by;
            const int near = p[l] > N_FAR && slack[l] < 0.5;
            out[i] = dpk_exact_draw(&draw, y[l], near, &by) * d->grid;
            if (decided_by)
                decided_by[i] = (uint8_t)by;
        }
    }
}

/* out = q K for the words of up to TILE draws, a multiple of BLOCK of them; of these the first n
 * are wanted. first: coordinate of the first draw; words, out: (TILE,); decided_by: (n,) or NULL,
 * comes filled with DPK_BY_COARSE. */
static void draw_tile(const draws *d, const uint64_t *words, uint64_t first, int n, double *out,
                      uint8_t *decided_by, undecided_draws *open) {
    draw_coarse(d, words, (int)round_up((size_t)n, BLOCK), out, open);
    draw_fine(d, open, first, n, out, decided_by);
}

static draws draws_of(const uint32_t *key, uint64_t nonce, const uint64_t *extra, double ratio,
                      double grid, dpk_path path) {
    draws d = {{key, nonce, extra}, ratio, grid, {0}, path, NULL, 0};
    for (int i = 0; i < N_A; i++)
        d.A[i] = COARSE_A[i] * (ratio * grid);
    return d;
}

void dpk_gaussian_range(const uint32_t *key, uint64_t nonce, int64_t begin, int64_t end,
                        double sigma, double grid, dpk_path path, double *out) {
    const double ratio = sigma / grid;
    _Alignas(64) uint64_t words[TILE];
    _Alignas(64) double part[TILE];
    undecided_draws open;
    open.written = 0;
    /* No draw reaches the first boundary; also keeps the ratio away from denormals. */
    if (DPK_PHI_LAST * ratio < 0.5) {
        memset(out, 0, (size_t)(end - begin) * sizeof *out);
        return;
    }
    const draws d = draws_of(key, nonce, NULL, ratio, grid, path);
    for (int64_t i = begin; i < end; i += TILE) {
        const int n = end - i < TILE ? (int)(end - i) : TILE;
        double *const to = n == TILE ? out + (i - begin) : part;
        dpk_chacha20_chunks(key, nonce, (uint64_t)i / DPK_CHUNK_WORDS,
                            round_up((size_t)n, DPK_CHUNK_WORDS) / DPK_CHUNK_WORDS, words);
        draw_tile(&d, words, (uint64_t)i, n, to, NULL, &open);
        if (n < TILE)
            memcpy(out + (i - begin), part, (size_t)n * sizeof *out);
    }
    /* Only what was written: wiping the whole buffers would take a fifth of the time of a short
     * call. */
    const size_t n_words = end - begin < TILE ? (size_t)(end - begin) : TILE;
    dpk_wipe(words, round_up(n_words, DPK_CHUNK_WORDS) * sizeof *words);
    dpk_wipe(part, round_up((size_t)(end - begin) % TILE, BLOCK) * sizeof *part);
    dpk_wipe(open.index, (size_t)open.written * sizeof *open.index);
    dpk_wipe(open.word, (size_t)open.written * sizeof *open.word);
}

/* Silos with few draws share a tile. */
void dpk_gaussian_silos(const uint32_t *key, uint32_t purpose, const int64_t *silo, intptr_t count,
                        intptr_t n, double sigma, double grid, dpk_path path, double *out) {
    const uint64_t nonce = (uint64_t)purpose << 48;
    const double ratio = sigma / grid;
    if (n > TILE || DPK_PHI_LAST * ratio < 0.5) {
        for (intptr_t i = 0; i < count; i++)
            dpk_gaussian_range(key, nonce | (uint64_t)silo[i], 0, n, sigma, grid, path,
                               out + i * n);
        return;
    }
    /* A silo's last chunk goes beyond its draws, where those of the next one then come. */
    _Alignas(64) uint64_t words[TILE + DPK_CHUNK_WORDS];
    _Alignas(64) double part[TILE];
    undecided_draws open;
    open.written = 0;
    draws d = draws_of(key, nonce, NULL, ratio, grid, path);
    d.each = (int)n;
    const intptr_t per_tile = TILE / n;
    const size_t chunks = round_up((size_t)n, DPK_CHUNK_WORDS) / DPK_CHUNK_WORDS;
    for (intptr_t i = 0; i < count; i += per_tile) {
        const intptr_t some = count - i < per_tile ? count - i : per_tile;
        const int size = (int)(some * n);
        double *const to = size % BLOCK == 0 ? out + i * n : part;
        d.silo = silo + i;
        for (intptr_t l = 0; l < some; l++)
            dpk_chacha20_chunks(key, nonce | (uint64_t)silo[i + l], 0, chunks, words + l * n);
        draw_tile(&d, words, 0, size, to, NULL, &open);
        if (to == part)
            memcpy(out + i * n, part, (size_t)size * sizeof *out);
    }
    dpk_wipe(words, sizeof words);
    dpk_wipe(part, sizeof part);
    dpk_wipe(open.index, (size_t)open.written * sizeof *open.index);
    dpk_wipe(open.word, (size_t)open.written * sizeof *open.word);
}

/* Task t of a call: some tiles of one silo. */
static void draw_task(const uint32_t *key, uint32_t purpose, intptr_t n, const double *sigma,
                      const double *grid, dpk_path path, int64_t t, double *out) {
    const int64_t step = (int64_t)TILE * TASK_TILES, tasks = (n + step - 1) / step;
    const int64_t j = t / tasks, begin = t % tasks * step;
    const int64_t end = begin + step < n ? begin + step : n;
    dpk_gaussian_range(key, (uint64_t)purpose << 48 | (uint64_t)j, begin, end, sigma[j], grid[j],
                       path, out + j * n + begin);
}

dpk_status dpk_gaussian(const uint32_t *key, uint32_t purpose, intptr_t m, intptr_t n,
                        const double *sigma, const double *grid, dpk_path path, int n_threads,
                        double *out) {
    const int64_t step = (int64_t)TILE * TASK_TILES, tasks = m * ((n + step - 1) / step);
    /* A team of one costs half a microsecond, and one of more some for a single task. */
    if (n_threads <= 1 || tasks <= 1) {
        for (int64_t t = 0; t < tasks; t++)
            draw_task(key, purpose, n, sigma, grid, path, t, out);
        return DPK_OK;
    }
#pragma omp parallel for schedule(dynamic) num_threads(n_threads)
    for (int64_t t = 0; t < tasks; t++)
        draw_task(key, purpose, n, sigma, grid, path, t, out);
    return DPK_OK;
}

dpk_status dpk_gaussian_words(const uint32_t *key, uint64_t nonce, const int64_t *silo, int each,
                              const uint64_t *words, const uint64_t *extra, intptr_t n,
                              double ratio, dpk_path path, double *out, uint8_t *decided_by) {
    _Alignas(64) uint64_t tile[TILE] = {0};
    _Alignas(64) double part[TILE];
    undecided_draws open;
    open.written = 0;
    draws d = draws_of(key, nonce, extra, ratio, 1.0, path);
    d.silo = silo;
    d.each = each;
    memset(decided_by, DPK_BY_COARSE, (size_t)n);
    for (intptr_t i = 0; i < n; i += TILE) {
        const int count = n - i < TILE ? (int)(n - i) : TILE;
        memcpy(tile, words + i, (size_t)count * sizeof *tile);
        draw_tile(&d, tile, (uint64_t)i, count, part, decided_by + i, &open);
        memcpy(out + i, part, (size_t)count * sizeof *out);
    }
    return DPK_OK;
}
