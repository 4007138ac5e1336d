/* Rows that come after those at work, and their lines in the order in which they are fetched
 * (prefetch.h). */
#pragma once

#include "core/dpk.h"

/* Distance, in bytes, of the rows that blocks have fetched, half of them beside the products and
 * half beside the sums (8 to 48 KiB were tried). */
#define BLOCK_DISTANCE 16384

/* Rows that are fetched beside the work on others, half as many: neighbours from `first` on, or, of
 * a minibatch, those with these numbers; none where `first` is NULL. */
typedef struct {
    const char *first;
    const int64_t *sampled;
    intptr_t length; /* bytes of a row */
} later_rows;

DPK_INLINE const char *later_row(const later_rows *later, intptr_t i) {
    return later->first + (later->sampled ? later->sampled[i] : i) * later->length;
}

/* Where the lines of two or four of them are, of which one each is fetched at every step through
 * rows: those of neighbours in the order of memory, those of sampled rows side by side. */
typedef struct {
    const char *next[4];
    intptr_t stride;
} later_lines;

DPK_INLINE later_lines lines_of(const later_rows *later, intptr_t i, int count) {
    later_lines lines = {{NULL}, later->sampled ? 1 : count};
    for (int j = 0; later->first && j < count; j++)
        lines.next[j] = later->sampled ? later_row(later, i + j) : later_row(later, i) + 64 * j;
    return lines;
}
