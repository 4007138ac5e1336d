/* Rounded vectors and coins, in tiles of the stream: count_k = sum_i R(t_ik) + Bin(n b, 1/2).
 * Everything that is added is an integer and no sum exceeds 2^52: doubles hold them exactly. */
#include "core/tasks.h"
#include "noise/shuffle.h"
#include "noise/chacha20.h"
#include "noise/gaussian.h"
#include "rows/dots.h"

/* Words of the stream that are processed at a time, which stay in the L1 cache, and as many
 * vectors at most. */
enum { TILE = 2048 };

/* L, and t = (x + L) scale. */
typedef struct {
    double bound, inner, scale;
} encoding;

/* 52 bits of a word, as a number in [0, 1). */
DPK_INLINE double uniform(uint64_t word) {
    return double_of((int64_t)(word >> 12 | 0x3ff0000000000000u)) - 1.0;
}

/* acc += R(t) for n coordinates of a vector; factor 0 stands for the vector 0, whatever v is. */
static void add_rounded(const encoding *e, intptr_t n, const double *restrict v, double factor,
                        const uint64_t *restrict words, double *restrict acc) {
    const double bound = e->bound, scale = e->scale;
    const int live = factor != 0.0;
    for (intptr_t k = 0; k < n; k++) {
        const double t = ((live ? factor * v[k] : 0.0) + bound) * scale;
        /* floor without an instruction for it: the nearest integer, less one where it is above. */
        const double near = (t + 0x1p52) - 0x1p52, whole = near - (near > t ? 1.0 : 0.0);
        acc[k] += whole + (uniform(words[k]) < t - whole ? 1.0 : 0.0);
    }
}

static double clip_factor(const encoding *e, const dpk_data *vectors, int64_t i) {
    const double norm = norm_up(square_of(0, vectors, i), vectors->p);
    return clamp_scalar(1.0, factor_limit(e->inner, norm));
}

/* The vectors begin .. end - 1, whose words begin with a chunk. */
static void add_vectors(const encoding *e, const uint32_t *key, uint64_t nonce,
                        const dpk_data *vectors, int64_t begin, int64_t end, uint64_t *words,
                        double *acc) {
    const int64_t d = vectors->p, stop = end * d;
    int64_t i = begin - 1;
    double factor = 0.0;
    for (int64_t first = begin * d; first < stop; first += TILE) {
        const int64_t last = stop - first < TILE ? stop : first + TILE;
        dpk_chacha20_chunks(key, nonce, (uint64_t)first / DPK_CHUNK_WORDS,
                            (size_t)((last - first + DPK_CHUNK_WORDS - 1) / DPK_CHUNK_WORDS),
                            words);
        for (int64_t at = first; at < last;) {
            if (at / d != i) {
                i = at / d;
                factor = clip_factor(e, vectors, i);
            }
            const int64_t k = at - i * d, left = d - k < last - at ? d - k : last - at;
            add_rounded(e, (intptr_t)left, (const double *)vectors->X + at, factor,
                        words + (at - first), acc + k);
            at += left;
        }
    }
}

/* Coins of a coordinate, and the words of the stream for them. */
typedef struct {
    const dpk_coin_law *many, *few;
    int64_t n_many, n_few, single, n_words;
} coins;

/* The first `bits` bits of a word, as many as it has. */
static int ones(uint64_t word, int64_t bits) {
    if (bits <= 0)
        return 0;
    return __builtin_popcountll(bits < 64 ? word << (64 - bits) : word);
}

/* Ones less their mean among coins drawn by their sum; `number` is that of the word. */
static int64_t toss_grouped(const uint32_t *key, uint64_t nonce, const dpk_coin_law *law,
                            int64_t number, uint64_t word) {
    const uint64_t prefix = word >> 1;
    int64_t y = law->guide[prefix >> 53];
    while (law->top[y] < prefix)
        y++;
    if (law->top[y] == prefix) { /* once in 2^50 words */
        uint32_t block[16];
        dpk_chacha20_block(key, (uint64_t)number, nonce | (uint64_t)DPK_PURPOSE_EXTRA << 48, block);
        const uint64_t high = block[0] | (uint64_t)block[1] << 32;
        const uint64_t low = block[2] | (uint64_t)block[3] << 32;
        while (law->top[y] == prefix && (law->rest[2 * y] < high ||
                                         (law->rest[2 * y] == high && law->rest[2 * y + 1] <= low)))
            y++;
        dpk_wipe(block, sizeof block);
    }
    return word & 1 ? -y : y;
}

/* Ones of one coordinate in the chunks begin .. end - 1 of its words, those drawn by their sum less
 * their mean. */
static int64_t toss(const uint32_t *key, uint64_t nonce, const coins *of, int64_t begin,
                    int64_t end, uint64_t *words) {
    const int64_t step = TILE / DPK_CHUNK_WORDS;
    int64_t total = 0;
    for (int64_t c = begin; c < end; c += step) {
        const int64_t chunks = end - c < step ? end - c : step, first = c * DPK_CHUNK_WORDS;
        const int64_t all = first + chunks * DPK_CHUNK_WORDS;
        const int64_t stop = all < of->n_words ? all : of->n_words;
        dpk_chacha20_chunks(key, nonce, (uint64_t)c, (size_t)chunks, words);
        int64_t w = first;
        for (; w < stop && w < DPK_SINGLE_WORDS; w++)
            total += ones(words[w - first], of->single - 64 * w);
        for (; w < stop; w++)
            total +=
                toss_grouped(key, nonce, w < DPK_SINGLE_WORDS + of->n_many ? of->many : of->few, w,
                             words[w - first]);
    }
    return total;
}

static inline int64_t greatest_power_of_two_in(int64_t n) { return n & -n; }

dpk_status dpk_shuffle_sum(const uint32_t *key, uint32_t rounding, uint32_t noise, intptr_t n,
                           intptr_t d, const double *V, double bound, int64_t g, int64_t b,
                           const dpk_coin_law *many, const dpk_coin_law *few, int n_threads,
                           double *partial, int64_t *count) {
    const encoding e = {bound, bound * (1.0 - (double)(4 * d + 64) * 0x1p-52),
                        (double)g / (2.0 * bound)};
    const dpk_data vectors = {.m = 1, .p = d, .d = d, .X = V};
    /* As few vectors as fill whole chunks; of short ones so many that they fill a tile. */
    const int64_t odd = DPK_CHUNK_WORDS / greatest_power_of_two_in(d | DPK_CHUNK_WORDS);
    const int64_t tiles = TILE / (odd * d), unit = odd * (tiles > 1 ? tiles : 1);
    const int64_t units = (n + unit - 1) / unit;
    coins of = {
        .many = many,
        .few = few,
        .n_many = n * b >> DPK_MANY,
        .n_few = n * b % (1 << DPK_MANY) >> DPK_FEW,
        .single = n * b % (1 << DPK_FEW),
    };
    of.n_words = b ? DPK_SINGLE_WORDS + of.n_many + of.n_few : 0;
    const int64_t chunks = (of.n_words + DPK_CHUNK_WORDS - 1) / DPK_CHUNK_WORDS;
    const int64_t mean = (of.n_many << (DPK_MANY - 1)) + (of.n_few << (DPK_FEW - 1));
    const int parts = n_threads > 1 ? n_threads : 1;
    /* Integers add up to the same in any order, so parts may follow the number of threads. */
#pragma omp parallel for schedule(static) num_threads(parts) if (parts > 1)
    for (int part = 0; part < parts; part++) {
        _Alignas(64) uint64_t words[TILE];
        double *const acc = partial + part * dpk_thread_stride(d);
        memset(acc, 0, (size_t)d * sizeof *acc);
        const int64_t begin = units * part / parts * unit, end = units * (part + 1) / parts * unit;
        add_vectors(&e, key, (uint64_t)rounding << 48, &vectors, begin, end < n ? end : n, words,
                    acc);
        int64_t c = d * chunks / parts * part, stop = d * chunks / parts * (part + 1);
        if (part + 1 == parts)
            stop = d * chunks;
        while (c < stop) {
            const int64_t k = c / chunks, next = (k + 1) * chunks;
            const int64_t to = next < stop ? next : stop;
            acc[k] += (double)toss(key, (uint64_t)noise << 48 | (uint64_t)k, &of, c - k * chunks,
                                   to - k * chunks, words);
            c = to;
        }
        dpk_wipe(words, sizeof words);
    }
    for (intptr_t k = 0; k < d; k++) {
        double total = 0.0;
        for (int part = 0; part < parts; part++)
            total += partial[part * dpk_thread_stride(d) + k];
        count[k] = (int64_t)total + mean;
    }
    return DPK_OK;
}
