/* round(r Phi^-1(U)), r = sigma / q: a rational fit in doubles where its error bound decides the
 * rounding, fixed point (phi_exact.h) where it does not.
 *
 * With p = min(U, 1 - U) = (n + f) 2^-64, u = U - 1/2 and v = 1/4 - u^2 = p (1 - p), the fits are
 *     central, p >= 2^-6:    x = u A(v) / B(v)      (positive coefficients: no cancellation)
 *     tail,    p >= 2^-50:  |x| = C(s) / D(s), s = -ln p - LOG_SHIFT
 * A draw is decided when r x, as computed, is further from k + 1/2 than its error.
 *
 * Central error, e = 2^-53, phi the density: U is read to 52 bits and centred, e / phi(x); v is low
 * or high by e / 4, times dx/dv at fixed u; Horner's roundings, a quotient and two products; the
 * fit. gaussian_table.py evaluates the sum, with product and sum rounded apart, so that it holds
 * with or without fused multiply-add.
 *
 * Tail error: n + 1/2 as a double, 2 e relative, and up to 1/2 from what was not read, move x by
 * dp / phi(x) <= dp / (p x): 0.25 / n per draw (x > 2.1), the rest below. With p = m 2^-a,
 * m in [sqrt(1/2), sqrt(2)), -ln p = a ln 2 - ln m and ln m = 2 atanh(t), t = (m - 1) / (m + 1),
 * |t| < 0.172: t has relative error 2 e, the series is cut at 0.2 e, ln m is within 2 e absolute;
 * a ln 2 within 1.5 e relative, two subtractions 1 e each: below (3.5 |ln p| + 4) e.
 *
 * Sign and magnitude are apart, so that the law is symmetric to the bit: |K| counts the boundaries
 * b_j = (j - 1/2) / r, j >= 1, with p < Q(b_j). */
#include "gaussian.h"
#include <math.h>
#include <string.h>
#include "chacha20.h"
#include "gaussian_table.h"
#include "phi_exact.h"
#include "settle.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern dpk_chacha20_chunks_fn DPK_FN(dpk_chacha20_chunks);
extern dpk_settle_fn DPK_FN(dpk_settle);
dpk_gaussian_fn DPK_FN(dpk_gaussian);
dpk_gaussian_range_fn DPK_FN(dpk_gaussian_range);
dpk_gaussian_words_fn DPK_FN(dpk_gaussian_words);

#if defined(__AVX512F__)
enum { LANES = 8 };
#elif defined(__AVX2__)
enum { LANES = 4 };
#else
enum { LANES = 2 };
#endif
typedef double vf __attribute__((vector_size(8 * LANES)));
typedef int64_t vi __attribute__((vector_size(8 * LANES)));
typedef uint64_t vu __attribute__((vector_size(8 * LANES)));
typedef vf loose_vf __attribute__((aligned(8), may_alias));
typedef vu loose_vu __attribute__((aligned(8), may_alias));

static inline vf splat(double a) { return (vf){0} + a; }
#define SIGN_BIT ((uint64_t)1 << 63)
static inline vf abs_v(vf a) { return (vf)((vu)a & ~SIGN_BIT); }
#if defined(__AVX512F__)
static inline vf fma_v(vf a, vf b, vf c) { return (vf)_mm512_fmadd_pd(a, b, c); }
#elif defined(__AVX2__)
static inline vf fma_v(vf a, vf b, vf c) { return (vf)_mm256_fmadd_pd(a, b, c); }
#else
static inline vf fma_v(vf a, vf b, vf c) { return a * b + c; }
#endif

/* Lanes where mask is not 0, as bits. */
static inline uint64_t bits_v(vi mask) {
#if defined(__AVX512F__)
    return _mm512_movepi64_mask((__m512i)mask);
#elif defined(__AVX2__)
    return (uint64_t)_mm256_movemask_pd((__m256d)mask);
#else
    return (mask[0] & 1) | (mask[1] & 2);
#endif
}

/* TILE draws are in flight at once: their words stay in L1, and their tails fill vectors. */
enum { TILE = DPK_GAUSSIAN_TILE, TASK_TILES = 8 };
#define MAGIC 0x1.8p52
/* Below it u A(v) / B(v) does not hold. */
#define V_SPLIT (0x1p-6 - 0x1p-12)
/* Of n: from here on the central v is certainly above V_SPLIT, 52 bits and rounding included. */
#define N_SPLIT (0x1p58 + 0x1p13)
/* Of n: below, what was not read of U matters too much. */
#define N_FAR 0x1p14

static const double ATANH[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,
                               1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                               1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0, 1.0 / 23.0};

/* c[0] + c[1] x + ... + c[11] x^11, as a tree: its latency, not its length, is what costs. */
static inline vf polynomial(const double c[12], vf x) {
    const vf x2 = x * x, x4 = x2 * x2;
#define PAIR(i) fma_v(splat(c[i + 1]), x, splat(c[i]))
    const vf low = fma_v(PAIR(2), x2, PAIR(0));
    const vf middle = fma_v(PAIR(6), x2, PAIR(4));
    const vf high = fma_v(PAIR(10), x2, PAIR(8));
#undef PAIR
    return fma_v(fma_v(high, x4, middle), x4, low);
}

/* r |x| in the tail from n + 1/2. */
static inline vf tail(vf n, double ratio) {
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000;
    const vu shifted = (vu)n + (one - sqrt_half);
    const vf m = (vf)((shifted & 0x000fffffffffffff) + sqrt_half);
    /* The exponent field as a double: the low bits of 2^52 + field. */
    const vf field = (vf)(shifted >> 52 | 0x4330000000000000) - 0x1p52;
    const vf t = (m - 1.0) / (m + 1.0);
    const vf log_m = (t + t) * polynomial(ATANH, t * t);
    const vf s = ((64.0 + 1023.0 - field) * 0x1.62e42fefa39efp-1 - log_m) - LOG_SHIFT;
    return polynomial(TAIL_C, s) * ratio / polynomial(TAIL_D, s);
}

/* out = q K for the words of up to TILE draws, a multiple of 64 of them; of these the first n are
 * wanted. first: coordinate of the first draw; words, out: (TILE,); decided_by: (n,) or NULL, comes
 * filled with DPK_BY_CENTRAL. */
static void draw_tile(const uint64_t *words, const dpk_rest_of_u *rest, uint64_t first, int n,
                      double ratio, double grid, dpk_path path, double *out, uint8_t *decided_by) {
    uint16_t open[TILE + LANES];
    int n_open = 0;
    const double limit = path == DPK_PATH_FAST ? 0.5 - (ratio * CENTRAL_ERROR + 0x1p-53) : -1.0;
    for (int block = 0; block < n; block += 64) {
        uint64_t open_bits = 0;
        for (int l = 0; l < 64; l += LANES) {
            const vu w = *(const loose_vu *)(words + block + l);
            const vf u = (vf)(w >> 12 | 0x3ff0000000000000) - 1.5 + 0x1p-53;
            const vf v = fma_v(-u, u, splat(0.25));
            const vf y = u * ratio * polynomial(CENTRAL_A, v) / polynomial(CENTRAL_B, v);
            const vf k = (y + MAGIC) - MAGIC;
            /* What stays open leaves r x in its place. */
            const vi decided = (abs_v(y - k) < limit) & (v >= V_SPLIT);
            *(loose_vf *)(out + block + l) =
                (vf)(((vu)(k * grid) & (vu)decided) | ((vu)y & ~(vu)decided));
            open_bits |= bits_v(~decided) << l;
        }
        for (; open_bits; open_bits &= open_bits - 1)
            open[n_open++] = (uint16_t)(block + __builtin_ctzll(open_bits));
    }
    for (int j = 0; j < n_open; j += LANES) {
        const int count = n_open - j < LANES ? n_open - j : LANES;
        vi w = {0};
        for (int l = 0; l < count; l++)
            w[l] = (int64_t)words[open[j + l]];
        const vf p = __builtin_convertvector(w ^ w >> 63, vf) + 0.5;
        const vf y = tail(p, ratio), k = (y + MAGIC) - MAGIC;
        const vf slack = ratio * (TAIL_ERROR + 0.25 / p) + 0x1p-53;
        const vi decided = (abs_v(y - k) < 0.5 - slack) & (p < N_SPLIT) & (p > N_FAR);
        const uint64_t settled = path == DPK_PATH_FAST ? bits_v(decided) : 0;
        /* Minus below U = 1/2; adding 0 makes 0 of -0. */
        const vf z = (vf)((vu)(k * grid) | (~(vu)w & SIGN_BIT)) + 0.0;
        for (int l = 0; l < count && open[j + l] < n; l++) {
            const int i = open[j + l];
            dpk_decided_by by = DPK_BY_TAIL;
            if (settled >> l & 1) {
                out[i] = z[l];
            } else {
                const dpk_open_draw draw = {rest, first + (uint64_t)i, words[i], ratio, path};
                const int in_tail = p[l] < N_SPLIT;
                const int near = !in_tail || (p[l] > N_FAR && slack[l] < 0.5);
                out[i] = DPK_FN(dpk_settle)(&draw, in_tail ? y[l] : fabs(out[i]), near, &by) * grid;
            }
            if (decided_by)
                decided_by[i] = (uint8_t)by;
        }
    }
}

void DPK_FN(dpk_gaussian_range)(const uint32_t *key, uint64_t nonce, int64_t begin, int64_t end,
                                double sigma, double grid, dpk_path path, double *out) {
    const double ratio = sigma / grid;
    _Alignas(64) uint64_t words[TILE];
    _Alignas(64) double part[TILE];
    const dpk_rest_of_u rest = {key, nonce, NULL};
    /* No draw reaches the first boundary; also keeps the ratio away from denormals. */
    if (DPK_PHI_LAST * ratio < 0.5) {
        memset(out, 0, (size_t)(end - begin) * sizeof *out);
        return;
    }
    for (int64_t i = begin; i < end; i += TILE) {
        const int n = end - i < TILE ? (int)(end - i) : TILE;
        double *const to = n == TILE ? out + (i - begin) : part;
        DPK_FN(dpk_chacha20_chunks)(key, nonce, (uint64_t)i / DPK_CHUNK_WORDS,
                                    (size_t)(n + DPK_CHUNK_WORDS - 1) / DPK_CHUNK_WORDS, words);
        draw_tile(words, &rest, (uint64_t)i, n, ratio, grid, path, to, NULL);
        if (n < TILE)
            memcpy(out + (i - begin), part, (size_t)n * sizeof *out);
    }
    dpk_wipe(words, sizeof words);
    dpk_wipe(part, sizeof part);
}

dpk_status DPK_FN(dpk_gaussian)(const uint32_t *key, uint32_t purpose, intptr_t m, intptr_t n,
                                const double *sigma, const double *grid, dpk_path path,
                                int n_threads, double *out) {
    const int64_t step = (int64_t)TILE * TASK_TILES, tasks = (n + step - 1) / step;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)
    for (int64_t t = 0; t < m * tasks; t++) {
        const int64_t j = t / tasks, begin = t % tasks * step;
        const int64_t end = begin + step < n ? begin + step : n;
        DPK_FN(dpk_gaussian_range)(key, (uint64_t)purpose << 48 | (uint64_t)j, begin, end, sigma[j],
                                   grid[j], path, out + j * n + begin);
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_gaussian_words)(const uint32_t *key, uint64_t nonce, const uint64_t *words,
                                      const uint64_t *extra, intptr_t n, double ratio,
                                      dpk_path path, double *out, uint8_t *decided_by) {
    _Alignas(64) uint64_t tile[TILE] = {0};
    _Alignas(64) double part[TILE];
    memset(decided_by, DPK_BY_CENTRAL, (size_t)n);
    for (intptr_t i = 0; i < n; i += TILE) {
        const int count = n - i < TILE ? (int)(n - i) : TILE;
        const dpk_rest_of_u rest = {key, nonce, extra};
        memcpy(tile, words + i, (size_t)count * sizeof *tile);
        draw_tile(tile, &rest, (uint64_t)i, count, ratio, 1.0, path, part, decided_by + i);
        memcpy(out + i, part, (size_t)count * sizeof *out);
    }
    return DPK_OK;
}
