/* ChaCha20: ten double rounds of quarter rounds (a += b; d ^= a; d <<<= 16; ...) on sixteen words.
 * A chunk's sixteen blocks are side by side. */
#include "noise/chacha20.h"
#include "simd/simd.h"

/* Blocks side by side: a vector holds the same state word of each. */
enum { BLOCKS = 2 * LANES };

/* "expand 32-byte k" */
static const uint32_t SIGMA[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

DPK_INLINE void quarter_round(vu32 *a, vu32 *b, vu32 *c, vu32 *d) {
    *a += *b;
    *d = rotate_16(*d ^ *a);
    *c += *d;
    *b ^= *c;
    *b = *b << 12 | *b >> 20;
    *a += *b;
    *d = rotate_8(*d ^ *a);
    *c += *d;
    *b ^= *c;
    *b = *b << 7 | *b >> 25;
}

DPK_INLINE void column(vu32 x[16], int i) {
    quarter_round(x + i, x + 4 + i, x + 8 + i, x + 12 + i);
}

DPK_INLINE void diagonals(vu32 x[16]) {
    EACH(i, 4)
    quarter_round(x + i, x + 4 + (i + 1) % 4, x + 8 + (i + 2) % 4, x + 12 + (i + 3) % 4);
}

static inline vu32 splat_32(uint32_t value) { return (vu32){0} + value; }

dpk_status dpk_chacha20_chunks(const uint32_t *key, uint64_t nonce, uint64_t chunk, size_t n_chunks,
                               uint64_t *out) {
    struct {
        vu32 x[16], start[16], begun[16];
    } secret;
    vu32 *const x = secret.x, *const start = secret.start, *const begun = secret.begun, index;
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
                EACH(i, 3) column(x, 1 + i);
                for (int i = 0; i < 16; i++)
                    begun[i] = x[i];
            }
            start[12] = splat_32((uint32_t)counter) + index;
            for (int i = 0; i < 16; i++)
                x[i] = begun[i];
            x[12] = start[12];
            column(x, 0);
            diagonals(x);
            for (int round = 1; round < 10; round++) {
                EACH(i, 4) column(x, i);
                diagonals(x);
            }
            for (int i = 0; i < 16; i++)
                *(loose_vu32 *)(out + DPK_CHUNK_WORDS * c + 8 * i + first / 2) = x[i] + start[i];
        }
    }
    dpk_wipe(&secret, sizeof secret);
    return DPK_OK;
}

dpk_status dpk_chacha20_block(const uint32_t *key, uint64_t counter, uint64_t nonce,
                              uint32_t *out) {
    uint64_t chunk[DPK_CHUNK_WORDS];
    dpk_chacha20_chunks(key, nonce, counter / 16, 1, chunk);
    for (int i = 0; i < 16; i++)
        out[i] = (uint32_t)(chunk[8 * i + counter % 16 / 2] >> 32 * (counter % 2));
    dpk_wipe(chunk, sizeof chunk);
    return DPK_OK;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "word order of a chunk");
