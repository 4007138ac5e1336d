/* Comparison of U's tail side p with Q at rounding boundaries (phi_exact.h): first 64 bits of p
 * against a shorter Q, then 192 bits against the full one. */
#include "noise/exact_draw.h"
#include <math.h>
#include <string.h>
#include "noise/chacha20.h"
#include "noise/phi_exact.h"

#define MIDDLE_LAST 5.0

static void read_tail(const dpk_tail_of_u *tail, uint64_t coordinate, uint64_t f[2]) {
    if (tail->given) {
        memcpy(f, tail->given + 2 * coordinate, 2 * sizeof *f);
        return;
    }
    uint32_t block[16];
    const uint64_t nonce = tail->nonce | (uint64_t)DPK_PURPOSE_EXTRA << 48;
    dpk_chacha20_block(tail->key, coordinate, nonce, block);
    memcpy(f, block, 2 * sizeof *f);
    dpk_wipe(block, sizeof block);
}

/* Whether |K| >= k. */
static int reaches(const dpk_undecided *draw, int64_t k, dpk_decided_by *decided_by) {
    /* Above U = 1/2, p = 1 - U: all bits turned. */
    const uint64_t turn = draw->word >> 63 ? UINT64_MAX : 0, n = draw->word ^ turn;
    if (draw->path != DPK_PATH_EXACT && ((double)k - 0.5) / draw->ratio <= MIDDLE_LAST) {
        const int decided = dpk_phi_middle(k, draw->ratio, n);
        if (decided >= 0)
            return decided;
    }
    uint64_t f[2];
    read_tail(draw->tail, draw->coordinate, f);
    f[0] ^= turn, f[1] ^= turn;
    *decided_by = DPK_BY_EXACT;
    const int decided = dpk_phi_exact(k, draw->ratio, n, f);
    dpk_wipe(f, sizeof f);
    return decided;
}

/* |K| from any guess: steps that double until it lies between low and high, then bisection. */
static int64_t search(const dpk_undecided *draw, int64_t guess, dpk_decided_by *decided_by) {
    int64_t low = guess, high, step = 1;
    if (low == 0 || reaches(draw, low, decided_by)) {
        while (high = low + step, reaches(draw, high, decided_by))
            low = high, step *= 2;
    } else {
        high = low;
        while (low = high > step ? high - step : 0, low > 0 && !reaches(draw, low, decided_by))
            high = low, step *= 2;
    }
    while (high - low > 1) { /* |K| >= low and |K| < high */
        const int64_t middle = low + (high - low) / 2;
        if (reaches(draw, middle, decided_by))
            low = middle;
        else
            high = middle;
    }
    return low;
}

double dpk_exact_draw(const dpk_undecided *draw, double size, int near,
                      dpk_decided_by *decided_by) {
    int64_t k = size > 0.0 ? (int64_t)size : 0;
    *decided_by = DPK_BY_MIDDLE;
    if (near && draw->path != DPK_PATH_EXACT)
        k += reaches(draw, k + 1, decided_by);
    else
        k = search(draw, k, decided_by);
    return (double)(draw->word >> 63 ? k : -k);
}
