"""Random subsets of the numbers below n, exactly uniform."""

import numpy as np
from numpy.typing import NDArray

from dpkern.stream import Purpose, ReleaseKey

IntArray = NDArray[np.int64]


def random_subset(key: ReleaseKey, index: int, n: int, k: int) -> IntArray:
    """Return k of the numbers below n, 1 <= k <= n, sorted, every such set equally likely.

    Each index of a subset has its own words of the release's key.
    """
    if 2 * k > n:  # draws the complement, which is smaller
        others = random_subset(key, index, n, n - k) if k < n else ()
        return np.delete(np.arange(n, dtype=np.int64), others)
    words = 2 * k + 64
    while True:
        drawn = _uniform_below(key.words(Purpose.SAMPLING, words, index), n)
        first = np.sort(np.unique(drawn, return_index=True)[1])[:k]
        if first.size == k:
            return np.sort(drawn[first])
        words *= 2


def _uniform_below(words: NDArray[np.uint64], n: int) -> IntArray:
    """Return exactly uniform numbers below n, by rejection of words above a multiple of n."""
    last = np.uint64((1 << 64) // n * n - 1)
    return (words[words <= last] % np.uint64(n)).astype(np.int64)
