/* Gaussian draws rounded exactly to a grid: Z = q round(sigma / q Phi^-1(U)).
 *
 * U is a uniform real; its first 64 bits are the coordinate's word of the stream (chacha20.h), the
 * next 128 have their own address. A result never depends on threads, chunks or instruction set. */
#pragma once

#include <stddef.h>
#include "core/dpk.h"

/* The nonce is purpose (16 bits) | silo (48 bits); this bit of the purpose marks the blocks that
 * continue a coordinate's U, block number = coordinate. */
#define DPK_PURPOSE_EXTRA 0x8000u

#define DPK_RATIO_MAX 0x1p32

/* How a draw is decided. Tests force the slower ones; the results are the same. */
typedef enum {
    DPK_PATH_FAST = 0,      /* floating point where its error bound decides */
    DPK_PATH_AMBIGUOUS = 1, /* floating point leaves two neighbours, fixed point chooses */
    DPK_PATH_EXACT = 2,     /* fixed point finds the draw */
} dpk_path;

/* Which step decided a draw. */
typedef enum {
    DPK_BY_COARSE = 0,
    DPK_BY_FINE = 1,
    DPK_BY_MIDDLE = 2,
    DPK_BY_EXACT = 3,
} dpk_decided_by;

/* Draws of m silos, each from coordinate 0 of its own nonce. key: (8,) the release's subkey;
 * sigma, grid: (m,), sigma >= 0 finite, grid a power of two in 2^-400 .. 2^400,
 * sigma / grid <= DPK_RATIO_MAX; out: (m, n). */
dpk_status dpk_gaussian(const uint32_t *key, uint32_t purpose, intptr_t m, intptr_t n,
                        const double *sigma, const double *grid, dpk_path path, int n_threads,
                        double *out);

/* The draws begin .. end - 1 of one silo, begin a multiple of DPK_CHUNK_WORDS, by the calling
 * thread alone. sigma, grid: as above; out: (end - begin,). */
void dpk_gaussian_range(const uint32_t *key, uint64_t nonce, int64_t begin, int64_t end,
                        double sigma, double grid, dpk_path path, double *out);

/* The draws 0 .. n - 1 of each of `count` silos, by the calling thread alone. silo: (count,); out:
 * (count, n). */
void dpk_gaussian_silos(const uint32_t *key, uint32_t purpose, const int64_t *silo, intptr_t count,
                        intptr_t n, double sigma, double grid, dpk_path path, double *out);

/* For tests: round(ratio Phi^-1(U)) where the first 64 bits of U are given, words: (n,), and the
 * rest too, extra: (n, 2), or, where extra is NULL, read as for coordinate i under key and nonce,
 * or as for coordinate i % each of silo[i / each] where silo is not NULL. out: (n,); decided_by:
 * (n,) a dpk_decided_by each. With silo, n is at most a tile. */
dpk_status dpk_gaussian_words(const uint32_t *key, uint64_t nonce, const int64_t *silo, int each,
                              const uint64_t *words, const uint64_t *extra, intptr_t n,
                              double ratio, dpk_path path, double *out, uint8_t *decided_by);
