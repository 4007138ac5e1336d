/* ChaCha20: ten double rounds of quarter rounds (a += b; d ^= a; d <<<= 16; ...) on sixteen words.
 * One block for keys and single addresses; sixteen blocks side by side for the stream. */
#include "noise/chacha20.h"
#include "simd/simd.h"

/* Blocks side by side: a vector holds the same state word of each. */
enum { BLOCKS = 2 * LANES };

/* "expand 32-byte k" */
static const uint32_t SIGMA[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

#define ROTATE(x, n) ((x) << (n) | (x) >> (32 - (n)))

#define ADD_XOR_ROTATE(a, b, d, rotate) (x[a] += x[b], x[d] ^= x[a], x[d] = rotate(x[d]))
#define ROTATE_12(x) ROTATE(x, 12)
#define ROTATE_7(x) ROTATE(x, 7)
#define QUARTER_ROUND(a, b, c, d, rotate_16, rotate_8)                                             \
    do {                                                                                           \
        ADD_XOR_ROTATE(a, b, d, rotate_16);                                                        \
        ADD_XOR_ROTATE(c, d, b, ROTATE_12);                                                        \
        ADD_XOR_ROTATE(a, b, d, rotate_8);                                                         \
        ADD_XOR_ROTATE(c, d, b, ROTATE_7);                                                         \
    } while (0)

#define COLUMNS_1_TO_3(r16, r8)                                                                    \
    do {                                                                                           \
        QUARTER_ROUND(1, 5, 9, 13, r16, r8);                                                       \
        QUARTER_ROUND(2, 6, 10, 14, r16, r8);                                                      \
        QUARTER_ROUND(3, 7, 11, 15, r16, r8);                                                      \
    } while (0)
#define DIAGONALS(r16, r8)                                                                         \
    do {                                                                                           \
        QUARTER_ROUND(0, 5, 10, 15, r16, r8);                                                      \
        QUARTER_ROUND(1, 6, 11, 12, r16, r8);                                                      \
        QUARTER_ROUND(2, 7, 8, 13, r16, r8);                                                       \
        QUARTER_ROUND(3, 4, 9, 14, r16, r8);                                                       \
    } while (0)
#define DOUBLE_ROUND(r16, r8)                                                                      \
    do {                                                                                           \
        QUARTER_ROUND(0, 4, 8, 12, r16, r8);                                                       \
        COLUMNS_1_TO_3(r16, r8);                                                                   \
        DIAGONALS(r16, r8);                                                                        \
    } while (0)

#define SCALAR_16(x) ROTATE(x, 16)
#define SCALAR_8(x) ROTATE(x, 8)

dpk_status dpk_chacha20_block(const uint32_t *key, uint64_t counter, uint64_t nonce,
                              uint32_t *out) {
    uint32_t x[16], start[16];
    for (int i = 0; i < 4; i++)
        start[i] = SIGMA[i];
    for (int i = 0; i < 8; i++)
        start[4 + i] = key[i];
    start[12] = (uint32_t)counter;
    start[13] = (uint32_t)(counter >> 32);
    start[14] = (uint32_t)nonce;
    start[15] = (uint32_t)(nonce >> 32);
    for (int i = 0; i < 16; i++)
        x[i] = start[i];
    for (int round = 0; round < 10; round++)
        DOUBLE_ROUND(SCALAR_16, SCALAR_8);
    for (int i = 0; i < 16; i++)
        out[i] = x[i] + start[i];
    dpk_wipe(x, sizeof x);
    dpk_wipe(start, sizeof start);
    return DPK_OK;
}

static inline vu32 splat_32(uint32_t value) { return (vu32){0} + value; }

dpk_status dpk_chacha20_chunks(const uint32_t *key, uint64_t nonce, uint64_t chunk, size_t n_chunks,
                               uint64_t *out) {
    vu32 x[16], start[16], begun[16], index;
    for (int l = 0; l < BLOCKS; l++)
        index[l] = (uint32_t)l;
    for (int i = 0; i < 4; i++)
        start[i] = splat_32(SIGMA[i]);
    for (int i = 0; i < 8; i++)
        start[4 + i] = splat_32(key[i]);
    start[14] = splat_32((uint32_t)nonce);
    start[15] = splat_32((uint32_t)(nonce >> 32));
    for (size_t c = 0; c < n_chunks; c++) {
        for (unsigned first = 0; first < 16; first += BLOCKS) {
            /* The low four bits of 16 (chunk + c) are free for the block: no carry. */
            const uint64_t counter = 16 * (chunk + c) + first;
            if (c + first == 0 || (uint32_t)counter == 0) {
                /* All columns but the counter's low word begin alike in every block. */
                start[13] = splat_32((uint32_t)(counter >> 32));
                for (int i = 0; i < 16; i++)
                    x[i] = start[i];
                COLUMNS_1_TO_3(rotate_16, rotate_8);
                for (int i = 0; i < 16; i++)
                    begun[i] = x[i];
            }
            start[12] = splat_32((uint32_t)counter) + index;
            for (int i = 0; i < 16; i++)
                x[i] = begun[i];
            x[12] = start[12];
            QUARTER_ROUND(0, 4, 8, 12, rotate_16, rotate_8);
            DIAGONALS(rotate_16, rotate_8);
            for (int round = 1; round < 10; round++)
                DOUBLE_ROUND(rotate_16, rotate_8);
            for (int i = 0; i < 16; i++)
                *(loose_vu32 *)(out + DPK_CHUNK_WORDS * c + 8 * i + first / 2) = x[i] + start[i];
        }
    }
    dpk_wipe(begun, sizeof begun);
    dpk_wipe(x, sizeof x);
    dpk_wipe(start, sizeof start);
    return DPK_OK;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "word order of a chunk");
