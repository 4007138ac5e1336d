/* ChaCha20 block function (RFC 8439 section 2.3; original layout: 64-bit counter, 64-bit nonce).
 *
 * A chunk is the blocks with counters 16 c .. 16 c + 15, as 128 words of 64 bits in the order that
 * sixteen blocks side by side have in memory: word j takes state word j / 8, low half of block
 * 2 (j mod 8), high half of block 2 (j mod 8) + 1. Every instruction set gives this order. */
#pragma once

#include <stddef.h>
#include "core/dpk.h"

#define DPK_CHUNK_WORDS 128

/* One block. key: (8,); out: (16,) state words. */
dpk_status dpk_chacha20_block(const uint32_t *key, uint64_t counter, uint64_t nonce, uint32_t *out);

/* Chunks number chunk .. chunk + n_chunks - 1 of a key and nonce. key: (8,);
 * out: (128 n_chunks,). */
dpk_status dpk_chacha20_chunks(const uint32_t *key, uint64_t nonce, uint64_t chunk, size_t n_chunks,
                               uint64_t *out);

/* Overwrites memory in a way that the compiler cannot drop. */
static inline void dpk_wipe(void *memory, size_t size) {
    __builtin_memset(memory, 0, size);
    __asm__ volatile("" : : "r"(memory) : "memory");
}
