"""The shuffle protocol message by message: every bit of every user is made, moved and counted."""

import numpy as np

from dpkern.reference.noise import release_key, stream_words

BINOMIAL, ROUNDING, SHUFFLE = 6, 8, 9


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


def messages(V, bound, g, b, key):
    """Bits (N, d, g + b) that the users send, the last axis in the order of their making."""
    t = encoded(V, bound, g)
    n, d = t.shape
    uniform = (stream_words(key, ROUNDING << 48, n * d) >> np.uint64(12)).reshape(n, d) * 2.0**-52
    rounded = np.floor(t) + (uniform < t - np.floor(t))
    bits = np.zeros((n, d, g + b), dtype=np.uint8)
    bits[:, :, :g] = np.arange(g) < rounded[:, :, None]
    for k in range(d):
        words = stream_words(key, BINOMIAL << 48 | k, -(-n * b // 64))
        coins = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        bits[:, k, g:] = coins[: n * b].reshape(n, b)
    return bits


def shuffled(bits, key):
    """(label, bit) of all messages in the order of a random permutation."""
    labels = np.broadcast_to(np.arange(bits.shape[1])[:, None], bits.shape).ravel()
    order = np.argsort(stream_words(key, SHUFFLE << 48, bits.size), kind="stable")
    return labels[order], bits.ravel()[order]


def counted(labels, bits, n, d, bound, g, b):
    ones = np.bincount(labels, weights=bits, minlength=d)
    return (bound / g) * (2.0 * ones - n * (g + b))


def shuffle_sum(V, *, bound, g, b, rng=None, n_threads=None):
    key = release_key(rng)
    bits = messages(V, bound, g, b, key)
    n, d = bits.shape[:2]
    return counted(*shuffled(bits, key), n, d, bound, g, b)
