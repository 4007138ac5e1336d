/* Comparison of U's tail side p with the Gaussian's upper tail Q at rounding boundaries: first 64
 * bits of p against a shorter Q, then 192 bits against the full one.
 *
 * Q(x) = 1 - Phi(x) = 1/2 - sum_n (-1)^n t_n / (2n + 1),  t_0 = x / sqrt(2 pi),  t_n = t_(n-1) (x^2
 * / 2) / n, in fixed point of `frac` limbs after the point and `whole` before, every operation
 * rounded down.
 *
 * Error. Write e = 2^(-64 frac), z = x^2 / 2 and G_n = z^n / n!. The computed z is below the true
 * one by at most (x + 1.5) e, the computed t_0 by at most 16 e. A step adds at most
 * t_(n-1) (x + 1.5) e / n + 2 e and multiplies the old error by at most z / n, so t_n is low by at
 * most     G_(n-1) t_0 (x + 1.5) e + 16 e G_n + 2 e sum_(1 <= i <= n) G_n / G_i,
 * and G_n / G_i <= G_(n-i). Divided by 2n + 1 and summed over the N < 1000 terms this is at most
 * exp(z) e (1 + 16 + 2 sum_i 1 / (2i + 1)) <= 25 exp(z) e, for x <= 14; rounding the quotients by
 * 2n + 1 adds N e. The sum stops at a computed t_n = 0: n > z there, the terms left out alternate
 * and decrease, so they are within the error counted for that term.
 *     5 + 3 limbs, x <= 14: exp(98) < 2^142, error below 2^-172 (2^-140 is what is promised);
 *     2 + 1 limbs, x <= 5: exp(12.5) < 2^19, error below 2^-104 (2^-100).
 * The largest partial sum is below t_0 exp(z) <= 6 exp(98) < 2^145, resp. 2 exp(12.5) < 2^20. */
#include "noise/exact_draw.h"
#include <math.h>
#include "noise/chacha20.h"

typedef unsigned __int128 wide;
enum { EXACT_FRAC = 5, EXACT_WHOLE = 3, MIDDLE_FRAC = 2, MIDDLE_WHOLE = 1 }; /* limbs */
enum { MAX_LIMBS = EXACT_FRAC + EXACT_WHOLE };

/* 1 / sqrt(2 pi), lowest limb first. */
static const uint64_t INV_SQRT_2PI[EXACT_FRAC] = {
    0x9df8ac55447d3db7, 0xc0471b4802639d2e, 0xd3829f30512706d8,
    0x3f2cf1402eae38bf, 0x662114cf50d94234,
};

/* out = a b, numbers of n limbs, `frac` of them after the point. */
DPK_INLINE void multiply(int frac, int n, const uint64_t *a, const uint64_t *b, uint64_t *out) {
    uint64_t product[2 * MAX_LIMBS] = {0};
    for (int i = 0; i < n; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < n; j++) {
            const wide t = (wide)a[i] * b[j] + product[i + j] + carry;
            product[i + j] = (uint64_t)t;
            carry = (uint64_t)(t >> 64);
        }
        product[i + n] = carry;
    }
    for (int i = 0; i < n; i++)
        out[i] = product[frac + i];
}

/* out = a / divisor, n limbs; divisor below 2^32, so that the machine's 64-bit division serves. */
DPK_INLINE void divide(int n, const uint64_t *a, uint64_t divisor, uint64_t *out) {
    uint64_t remainder = 0;
    for (int i = n - 1; i >= 0; i--) {
        const uint64_t high = remainder << 32 | a[i] >> 32;
        const uint64_t low = (high % divisor) << 32 | (uint32_t)a[i];
        out[i] = (high / divisor) << 32 | low / divisor;
        remainder = low % divisor;
    }
}

/* a += b; returns the carry. */
DPK_INLINE void add(int n, uint64_t *a, const uint64_t *b) {
    uint64_t carry = 0;
    for (int i = 0; i < n; i++) {
        const wide t = (wide)a[i] + b[i] + carry;
        a[i] = (uint64_t)t;
        carry = (uint64_t)(t >> 64);
    }
}

/* a -= b; returns 1 when the true difference is negative. */
DPK_INLINE uint64_t subtract(int n, uint64_t *a, const uint64_t *b) {
    uint64_t borrow = 0;
    for (int i = 0; i < n; i++) {
        const wide t = (wide)a[i] - b[i] - borrow;
        a[i] = (uint64_t)t;
        borrow = (uint64_t)(t >> 64) & 1;
    }
    return borrow;
}

DPK_INLINE int is_zero(int n, const uint64_t *a) {
    uint64_t any = 0;
    for (int i = 0; i < n; i++)
        any |= a[i];
    return any == 0;
}

/* x = (k - 1/2) / ratio <= 14, n limbs. */
DPK_INLINE void boundary(int frac, int n, int64_t k, double ratio, uint64_t *x) {
    int exponent;
    const uint64_t divisor = (uint64_t)ldexp(frexp(ratio, &exponent), 53);
    /* x = (2k - 1) 2^(52 - exponent) / divisor, the numerator below 14 * 2^53. */
    uint64_t remainder = (2 * (uint64_t)k - 1) << (52 - exponent);
    memset(x, 0, (size_t)n * sizeof *x);
    x[frac] = remainder / divisor;
    for (int i = frac - 1; i >= 0; i--) {
        const wide dividend = (wide)(remainder % divisor) << 64;
        x[i] = (uint64_t)(dividend / divisor);
        remainder = (uint64_t)(dividend % divisor);
    }
}

/* q = Q((k - 1/2) / ratio), (n,) limbs; 0 where rounding would make it negative. */
DPK_INLINE void upper_tail(int frac, int n, int64_t k, double ratio, uint64_t *q) {
    uint64_t z[MAX_LIMBS], t[MAX_LIMBS] = {0}, share[MAX_LIMBS], even[MAX_LIMBS] = {0};
    boundary(frac, n, k, ratio, z);
    memcpy(t, INV_SQRT_2PI + EXACT_FRAC - frac, (size_t)frac * sizeof *t);
    multiply(frac, n, z, t, t);
    multiply(frac, n, z, z, z);
    divide(n, z, 2, z);
    memset(q, 0, (size_t)n * sizeof *q);
    q[frac - 1] = (uint64_t)1 << 63;
    for (uint64_t i = 0; !is_zero(n, t); i++) {
        divide(n, t, 2 * i + 1, share);
        add(n, i % 2 ? q : even, share);
        multiply(frac, n, t, z, t);
        divide(n, t, i + 1, t);
    }
    if (subtract(n, q, even))
        memset(q, 0, (size_t)n * sizeof *q);
}

/* Whether the tail probability p = (n + f) 2^-64, 0 <= f < 1, is below Q(b) at the rounding
 * boundary b = (k - 1/2) / ratio: 1 yes, 0 no, -1 not decided by n. 1 <= k < 2^37; b <= 5; ratio <=
 * 2^32. */
static int below_middle(int64_t k, double ratio, uint64_t n) {
    uint64_t low[MIDDLE_FRAC + MIDDLE_WHOLE], high[MIDDLE_FRAC + MIDDLE_WHOLE];
    const uint64_t error[MIDDLE_FRAC + MIDDLE_WHOLE] = {(uint64_t)1 << 28, 0, 0};
    upper_tail(MIDDLE_FRAC, MIDDLE_FRAC + MIDDLE_WHOLE, k, ratio, low);
    memcpy(high, low, sizeof low);
    if (subtract(MIDDLE_FRAC + MIDDLE_WHOLE, low, error))
        return -1;
    add(MIDDLE_FRAC + MIDDLE_WHOLE, high, error);
    if (n < low[MIDDLE_FRAC - 1])
        return 1;
    return n > high[MIDDLE_FRAC - 1] ? 0 : -1;
}

/* The same for p = (n 2^128 + f[0] 2^64 + f[1]) 2^-192: 1 yes, 0 no. f: (2,). Any b: Q counts as 0
 * beyond DPK_PHI_LAST. */
static int below_exact(int64_t k, double ratio, uint64_t n, const uint64_t *f) {
    uint64_t q[EXACT_FRAC + EXACT_WHOLE];
    if (((double)k - 0.5) / ratio > DPK_PHI_LAST)
        return 0;
    upper_tail(EXACT_FRAC, EXACT_FRAC + EXACT_WHOLE, k, ratio, q);
    const uint64_t *const top = q + EXACT_FRAC - 3;
    if (n != top[2])
        return n < top[2];
    if (f[0] != top[1])
        return f[0] < top[1];
    return f[1] < top[0];
}

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
        const int decided = below_middle(k, draw->ratio, n);
        if (decided >= 0)
            return decided;
    }
    uint64_t f[2];
    read_tail(draw->tail, draw->coordinate, f);
    f[0] ^= turn, f[1] ^= turn;
    *decided_by = DPK_BY_EXACT;
    const int decided = below_exact(k, draw->ratio, n, f);
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
