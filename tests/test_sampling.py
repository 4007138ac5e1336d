"""The compiled draws of samples are those of the NumPy reference, number for number."""

import itertools

import numpy as np
import pytest
import scipy.stats
from cases import for_each

from dpkern import NoiseStream, _core
from dpkern.reference import sampling

RNG = np.random.default_rng(0)
MOST = (1 << 64) - 1


def joined(samples, offsets):
    bounds = np.cumsum([0, *map(len, samples)])
    numbers = [s + begin for s, begin in zip(samples, offsets.tolist(), strict=False)]
    return np.concatenate(numbers), bounds


def assert_subsets(sizes, counts, seed=0):
    offsets = np.cumsum([7, *sizes])  # the first silo need not begin at 0
    with NoiseStream(seed).release() as key:
        drawn, bounds = key.subsets(offsets, np.array(counts))
        expected = [
            sampling.subset(key.key, j, *sizes_of)
            for j, sizes_of in enumerate(zip(sizes, counts, strict=True))
        ]
    numbers, ends = joined(expected, offsets)
    assert drawn.dtype == bounds.dtype == np.int64
    np.testing.assert_array_equal(drawn, numbers)
    np.testing.assert_array_equal(bounds, ends)


def test_every_small_subset_is_that_of_the_reference(isa):
    for n in range(1, 20):
        assert_subsets([n] * (n + 1), range(n + 1), seed=n)


def test_subsets_of_one_size_are_those_of_the_reference(isa):
    for n in (1, 2, 63, 64, 65, 127, 128, 1238, 2000, 30_000):
        counts = {0, 1, 2, n // 400, n // 320, n // 3, n // 2, n // 2 + 1, n - 1, n}
        counts = sorted(k for k in counts if 0 <= k <= n)
        assert_subsets([n] * len(counts), counts)


# Around 2^31 and 2^32, powers of two, and sizes of which 2^64 is far from a multiple.
LARGE = [10**9, (1 << 31) - 1, 1 << 31, (1 << 31) + 11, (1 << 32) + 1, 1 << 40, 3 << 61]


def test_few_of_many_numbers_are_those_of_the_reference(isa):
    for n, k in itertools.product(LARGE, (1, 2, 10, 500, 5000)):
        assert_subsets([n], [k], seed=k)


def test_crowded_hash_tables_are_those_of_the_reference(isa):
    """The last sizes of bitmaps and the first of hash tables, where some numbers recur."""
    for k in (1, 3, 50, 2000, 5000):
        least = 320 * (k + 1)
        for n in (least - 320, least - 1, least, least + 1, least + k):
            assert_subsets([n, n], [k, k], seed=n)


def test_words_above_the_last_multiple_are_rejected():
    """A third of the words, n = 3 2^61 + 2, is above the last multiple."""
    n, k, key = (3 << 61) + 2, 200, bytes(range(32))
    drawn, _ = _core.subsets(key, sampling.SAMPLING, np.array([0, n]), np.array([k]))
    words = sampling.stream_words(key, sampling.SAMPLING << 48, 2 * k).tolist()
    kept = [w % n for w in words if w < 2 * n]
    assert len(kept) < 1.8 * k
    assert drawn.tolist() == sorted(kept[:k])


def test_sparse_subsets_are_equally_likely():
    """Two of 700 numbers, by the parts of the range that they are in."""
    counts = np.zeros(10)
    pairs = {p: i for i, p in enumerate(itertools.combinations_with_replacement(range(4), 2))}
    with NoiseStream(5).release() as key:
        offsets = np.arange(4001) * 700
        drawn, _ = key.subsets(offsets, np.full(4000, 2))
    for a, b in (drawn.reshape(4000, 2) % 700 // 175).tolist():
        counts[pairs[a, b]] += 1
    same, differ = 175 * 174 / 2, 175 * 175
    law = np.array([same if a == b else differ for a, b in pairs]) / (700 * 699 / 2)
    assert scipy.stats.chisquare(counts, 4000 * law).pvalue > 1e-4


@for_each("counts", [[3, 11], [-1, 4]])
def test_counts_beyond_the_numbers_are_refused(counts):
    with (
        NoiseStream(0).release() as key,
        pytest.raises(ValueError, match="counts must be at least 0"),
    ):
        key.subsets(np.array([0, 5, 15]), np.array(counts))


def test_poisson_samples_are_those_of_the_reference(isa):
    all_sizes = (1,), (127, 128, 129), (1024, 0, 1025), (5000, 3)
    for sizes, rate in itertools.product(all_sizes, (1, MOST // 7, MOST // 2, MOST)):
        offsets = np.cumsum([3, *sizes])
        last = np.full(len(sizes), rate, dtype=np.uint64)
        last[1::2] = 0
        with NoiseStream(1).release() as key:
            drawn, bounds = key.poisson_samples(offsets, last)
            expected = [
                sampling.poisson_sample(key.key, j, n, own)
                for j, (n, own) in enumerate(zip(sizes, last.tolist(), strict=True))
            ]
        numbers, ends = joined(expected, offsets)
        assert drawn.dtype == np.int64
        np.testing.assert_array_equal(drawn, numbers)
        np.testing.assert_array_equal(bounds, ends)


def test_the_largest_word_that_is_sampled_is_last():
    key, n = bytes(range(32)), 300
    words = sampling.stream_words(key, sampling.SAMPLING << 48, n)
    for i in range(0, n, 29):
        for last, inside in ((words[i], True), (words[i] - np.uint64(1), False)):
            drawn, _ = _core.poisson_samples(
                key, sampling.SAMPLING, np.array([0, n]), np.array([last])
            )
            assert (i in drawn) == inside
