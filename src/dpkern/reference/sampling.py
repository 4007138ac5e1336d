"""Samples of records from the key stream, in NumPy: subsets without replacement, Poisson samples.

They return the sample of one silo, as sorted numbers below n.
"""

import numpy as np

from dpkern.reference.noise import stream_words

SAMPLING = 4


def subset(key, silo, n, k):
    """Return k of the numbers below n, of which every set is equally likely."""
    if 2 * k > n:
        others = subset(key, silo, n, n - k) if k < n else ()
        return np.delete(np.arange(n), others)
    last, count = np.uint64((1 << 64) // n * n - 1), 2 * k + 64
    while True:
        words = stream_words(key, SAMPLING << 48 | silo, count)
        drawn = (words[words <= last] % np.uint64(n)).astype(np.int64)
        first = np.sort(np.unique(drawn, return_index=True)[1])[:k]
        if first.size == k:
            return np.sort(drawn[first])
        count *= 2


def poisson_sample(key, silo, n, last):
    """Return each of the numbers below n with probability (last + 1) / 2^64, or none for 0."""
    words = stream_words(key, SAMPLING << 48 | silo, n)
    return np.flatnonzero(words <= np.uint64(last)) if last else np.empty(0, dtype=np.int64)
