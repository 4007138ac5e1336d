/* Sampling of records. The numbers of a subset are bits of a bitmap, or, of far more numbers,
 * entries of a hash table whose hash keeps their order: reading either out sorts them. */
#include "noise/sampling.h"
#include "noise/chacha20.h"

/* Chunks of the stream at a time. */
enum { CHUNKS = 8 };

static const uint64_t EMPTY = UINT64_MAX;

__extension__ typedef unsigned __int128 wide;

/* Whether v was not there yet. */
DPK_INLINE int mark(uint64_t *bitmap, uint64_t v) {
    const uint64_t bit = (uint64_t)1 << v % 64, before = bitmap[v / 64];
    bitmap[v / 64] = before | bit;
    return !(before & bit);
}

/* As `mark`. Entries increase with their position; all from an entry's slot to the entry itself are
 * taken. */
static int insert(uint64_t *table, int shift, uint64_t v) {
    uint64_t *at = table + (v >> shift);
    while (*at < v)
        at++;
    if (*at == v)
        return 0;
    while (v != EMPTY) {
        const uint64_t next = *at;
        *at++ = v;
        v = next;
    }
    return 1;
}

/* About the words that have the first `left` <= n / 2 numbers of n: n log(n / (n - left)). What few
 * they leave take more words each, and another turn. */
static double words_for(double left, double n) {
    return left * (6.0 * n - left) / (6.0 * n - 4.0 * left);
}

/* Adds `left` new numbers below n to the bitmap, shift < 0, or table. */
static void draw(const uint32_t *key, uint64_t nonce, uint64_t n, int64_t left, int shift,
                 uint64_t *set) {
    const uint64_t last = UINT64_MAX - (0 - n) % n, inverse = UINT64_MAX / n;
    uint64_t words[CHUNKS * DPK_CHUNK_WORDS];
    size_t most = 0;
    for (uint64_t chunk = 0; left > 0;) {
        const double enough = words_for((double)left, (double)n) / DPK_CHUNK_WORDS + 1.0;
        const size_t chunks = enough < CHUNKS ? (size_t)enough : CHUNKS;
        most = chunks > most ? chunks : most;
        dpk_chacha20_chunks(key, nonce, chunk, chunks, words);
        for (size_t i = 0; i < chunks * DPK_CHUNK_WORDS && left > 0; i++) {
            if (words[i] > last)
                continue;
            /* The quotient by the inverse is at most one too small. */
            uint64_t v = words[i] - (uint64_t)((wide)words[i] * inverse >> 64) * n;
            v -= v >= n ? n : 0;
            left -= shift < 0 ? mark(set, v) : insert(set, shift, v);
        }
        chunk += chunks;
    }
    dpk_wipe(words, most * DPK_CHUNK_WORDS * sizeof *words);
}

/* begin + the numbers below n whose bit is not that of `flip`. */
static int64_t *read_bitmap(const uint64_t *bitmap, int64_t n, uint64_t flip, int64_t begin,
                            int64_t *out) {
    for (int64_t i = 0; i < n; i += 64) {
        uint64_t bits = bitmap[i / 64] ^ flip;
        if (n - i < 64)
            bits &= ((uint64_t)1 << (n - i)) - 1;
        for (; bits; bits &= bits - 1)
            *out++ = begin + i + __builtin_ctzll(bits);
    }
    return out;
}

dpk_status dpk_subsets(const uint32_t *key, uint32_t purpose, intptr_t m, const int64_t *offsets,
                       const int64_t *counts, uint64_t *work, int64_t *out) {
    for (intptr_t j = 0; j < m; j++) {
        const int64_t begin = offsets[j], n = offsets[j + 1] - begin, k = counts[j];
        const uint64_t nonce = (uint64_t)purpose << 48 | (uint64_t)j;
        if (k == 0)
            continue;
        const int64_t size = dpk_subset_words(n, k);
        if (dpk_subset_is_sparse(n, k)) {
            for (int64_t i = 0; i < size; i++)
                work[i] = EMPTY;
            draw(key, nonce, (uint64_t)n, k, dpk_subset_shift(n, k), work);
            for (int64_t i = 0; i < size; i++)
                if (work[i] != EMPTY)
                    *out++ = begin + (int64_t)work[i];
        } else {
            const int complement = k > n - k;
            memset(work, 0, (size_t)size * sizeof *work);
            draw(key, nonce, (uint64_t)n, complement ? n - k : k, -1, work);
            out = read_bitmap(work, n, complement ? UINT64_MAX : 0, begin, out);
        }
    }
    return DPK_OK;
}

dpk_status dpk_poisson_samples(const uint32_t *key, uint32_t purpose, intptr_t m,
                               const int64_t *offsets, const uint64_t *last, int64_t *out,
                               int64_t *bounds) {
    uint64_t words[CHUNKS * DPK_CHUNK_WORDS];
    int64_t found = 0;
    bounds[0] = 0;
    for (intptr_t j = 0; j < m; j++) {
        const int64_t end = last[j] ? offsets[j + 1] : offsets[j];
        const uint64_t nonce = (uint64_t)purpose << 48 | (uint64_t)j;
        uint64_t chunk = 0;
        for (int64_t i = offsets[j]; i < end;) {
            const int64_t left = end - i, room = CHUNKS * DPK_CHUNK_WORDS;
            const int64_t some = left < room ? left : room;
            const size_t chunks = (size_t)(some + DPK_CHUNK_WORDS - 1) / DPK_CHUNK_WORDS;
            dpk_chacha20_chunks(key, nonce, chunk, chunks, words);
            /* Every number is written, and overwritten by the next one if it is not sampled. */
            for (int64_t r = 0; r < some; r++) {
                out[found] = i + r;
                found += words[r] <= last[j];
            }
            chunk += chunks, i += some;
        }
        bounds[j + 1] = found;
    }
    dpk_wipe(words, sizeof words);
    return DPK_OK;
}
