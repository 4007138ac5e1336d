"""Sums of the shuffle protocol, whose messages are in `dpkern.privacy.mechanisms.shuffle_protocol`.

A coordinate's coins are tossed together as the compiled kernel does, 2^20, then 2^12 at a time, by
inversion in whole numbers, and the rest are bits of the stream.
"""

from functools import cache

import numpy as np

from dpkern.reference.clip import drop_in
from dpkern.reference.noise import EXTRA, chacha20_blocks, release_key, stream_words

BINOMIAL, ROUNDING = 6, 8


def encoded(V, bound, g):
    """t = (x + L) g / (2 L) of the clipped rows."""
    V = np.asarray(V, dtype=np.float64)
    d = V.shape[1]
    with np.errstate(all="ignore"):
        norms = np.sqrt((V * V).sum(axis=1) + d * 2.0**-240)
        factors = np.minimum(1.0, bound * (1.0 - (4 * d + 64) * 2.0**-52) / norms)
    factors[~np.isfinite(norms)] = 0.0
    V = np.where(factors[:, None] > 0.0, V, 0.0)
    return (factors[:, None] * V + bound) * (g / (2.0 * bound))


def rounded(V, bound, g, key):
    """R(t), shape (N, d)."""
    t = encoded(V, bound, g)
    uniform = (stream_words(key, ROUNDING << 48, t.size) >> np.uint64(12)).reshape(t.shape)
    return np.floor(t) + (uniform * 2.0**-52 < t - np.floor(t))


@cache
def tails(k):
    """floor(2^400 P(|X - mean| > y)) of Bin(2^k, 1/2) for y = 0, 1, .. until it is 0."""
    half, term = 1 << (k - 1), 1 << 700
    terms = []
    while term:
        terms.append(term if not terms else 2 * term)
        y = len(terms) - 1
        term = term * (half - y) // (half + y + 1)
    total, found = sum(terms), []
    left = total
    for term in terms:
        left -= term
        found.append((left << 400) // total)
        if not found[-1]:
            return found
    return found


def tossed_together(k, word, rest):
    """Ones less their mean: the first y with 1 - U > P(|X - mean| > y), and the word's sign."""
    U = (word >> 1) << 128 | rest
    beyond = ((1 << 191) - U) << 209
    low, high = -1, len(tails(k)) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tails(k)[middle] < beyond else (middle, high)
    return -high if word & 1 else high


def coins(key, k, m):
    """Bin(m, 1/2) from the words of coordinate k: single coins, then those of 2^20, of 2^12."""
    many, few, single = m >> 20, m % (1 << 20) >> 12, m % (1 << 12)
    words = stream_words(key, BINOMIAL << 48 | k, 64 + many + few)
    bits = np.unpackbits(words[:64].astype("<u8").view(np.uint8), bitorder="little")
    total = int(bits[:single].sum()) + (many << 19) + (few << 11)
    numbers = np.arange(64, 64 + many + few)
    blocks = chacha20_blocks(key, numbers, (BINOMIAL | EXTRA) << 48 | k)
    for i, word, block in zip(numbers, words[64:].tolist(), blocks.tolist(), strict=True):
        rest = block[1] << 96 | block[0] << 64 | block[3] << 32 | block[2]
        total += tossed_together(20 if i < 64 + many else 12, word, rest)
    return total


@drop_in
def shuffle_sum(V, *, bound, g, b, rng=None):
    key = release_key(rng)
    n, d = np.shape(V)
    ones = rounded(V, bound, g, key).sum(axis=0) + [coins(key, k, n * b) for k in range(d)]
    return (bound / g) * (2.0 * ones - n * (g + b))
